"""MRD401 misplaced-compute: a function ran elsewhere than on the default device, and nobody asked for it."""

from __future__ import annotations

from collections.abc import Iterator

from moored.model.events import Execution
from moored.model.finding import Finding, Severity
from moored.model.module import Sources
from moored.model.recording import Recording
from moored.rules.base import Docs, Observed, Rule, observe
from moored.rules.thresholds import Thresholds
from moored.rules.wording import (
    action,
    at_line,
    code,
    device_code,
    is_lookup,
    put_once,
    subject,
)
from moored.units import format_bytes, format_count

__all__ = ["MisplacedCompute", "misplaced_calls"]


class MisplacedCompute(Rule):
    """A committed argument, however small, took the whole computation off the default device."""

    code = "MRD401"
    name = "misplaced-compute"
    kind = "misplaced-compute"
    docs = Docs(
        what=(
            "Finds functions that ran on the CPU (or another device) while the default device stood idle, "
            "because one of their arguments is committed there, and others were pulled after it; or "
            "although a device is named inside the function, which JAX ignores."
        ),
        why=(
            "The results are right and nothing is printed: only the speed is that of the other device. "
            "Results are committed there too, so that every later step follows."
        ),
        example="""\
import jax
import jax.numpy as jnp
import numpy as np

weights = jnp.ones((1000, 1000))
step = jax.jit(lambda w, x: w - 0.1 * x)

for i in range(3):
    batch = jnp.from_dlpack(np.ones((1000, 1000), np.float32))
    weights = step(weights, batch)
""",
        instead="""\
import jax
import jax.numpy as jnp
import numpy as np

weights = jnp.ones((1000, 1000))
step = jax.jit(lambda w, x: w - 0.1 * x)

for i in range(3):
    batch = jax.device_put(np.ones((1000, 1000), np.float32))
    weights = step(weights, batch)
""",
        silent=(
            "For work inside a default_device block, for operations on arrays that were committed on "
            "purpose and pulled nothing along (a note, where they are large), and for single operations "
            "outside of jit, such as slices of a dataset that is committed to the host."
        ),
        companions=("MRD103", "MRD402"),
    )

    def explain(self, recording: Recording, sources: Sources, limits: Thresholds) -> Iterator[Finding]:
        """One finding for each line and place where it ran."""
        imported = {a.site for a in recording.arrivals if a.reason == "dlpack-host"}
        dragged = _dragged(recording, limits)
        rows = [e for e in recording.executions if e.api == "jit" or _key(e) in dragged]
        rows = [e for e in rows if e.api == "jit" or not is_lookup(e.function)]
        for evidence in observe(recording, sources, limits, rows, lambda e: (e.reason, e.ran_on, e.wanted)):
            bad = any(e.reason == "named-inside" or e.origin in imported for e in evidence.rows)
            bad = bad or any(_key(e) in dragged for e in evidence.rows)
            severity = _severity(evidence, bad)
            if severity is not None:
                row = _telling(evidence)
                evidence.words = evidence.words_for(row.argument)
                yield self.finding(
                    evidence,
                    severity,
                    _cause(evidence, bad),
                    _fix(evidence, bad),
                    array=row.array,
                    route=(row.wanted or row.default_device, row.ran_on),
                )


def _telling(evidence: Observed[Execution]) -> Execution:
    """The row whose committed leaf began it: later calls also get what earlier ones returned."""
    return next((row for row in evidence.rows if row.origin is not None), evidence.first)


def _key(row: Execution) -> tuple[object, ...]:
    """What is dragged once has dragged the function: later calls find everything over there already."""
    return (row.function, row.ran_on) if row.api == "jit" else (row.function, row.ran_on, row.site)


def _dragged(recording: Recording, limits: Thresholds) -> set[tuple[object, ...]]:
    """Functions that pulled more than scalars after their committed argument."""
    found = set()
    for row in recording.executions:
        if row.dragged:
            pulled = [
                t.nbytes > limits.noise * t.count
                for t in recording.transfers
                if t.reason == "follows-committed" and (t.site, t.function) == (row.site, row.function)
            ]
            if any(pulled) or not pulled:
                found.add(_key(row))
    return found


def misplaced_calls(recording: Recording, limits: Thresholds) -> set[tuple[int, str]]:
    """(site, function) of all calls that this rule finds misplaced because something was pulled."""
    dragged = _dragged(recording, limits)
    return {
        (e.site, e.function)
        for e in recording.executions
        if _key(e) in dragged and (e.api == "jit" or not is_lookup(e.function))
    }


def _severity(evidence: Observed[Execution], bad: bool) -> Severity | None:
    limits, each = evidence.limits, evidence.each
    if not bad:
        return "note" if each >= limits.notable_copy else None
    if each < limits.small_repeat:
        return "note"
    is_costly = each >= limits.notable_copy or evidence.nbytes >= limits.large_total
    return "error" if evidence.count > 1 and is_costly else "warning"


def _cause(evidence: Observed[Execution], bad: bool) -> str:
    row, act = _telling(evidence), action(evidence)
    ran = f"{act} ran on {row.ran_on}, {format_count(evidence.count, 'time')}"
    if evidence.count == 1:
        ran = f"{act} ran on {row.ran_on}"
    if row.reason == "named-inside":
        named = evidence.named(row.named_at)
        where = f" at {at_line(named, evidence.site)}" if named is not None else ""
        return (
            f"{ran}, although {row.wanted} is named inside {code(row.function)}{where}: a device that is "
            "named inside a jitted function does not place its computation, its arguments do."
        )
    origin = evidence.named(row.origin)
    since = f" since {at_line(origin, evidence.site)}" if origin is not None else ""
    size = format_bytes(evidence.each)
    said = f"{ran}, not on the default device {row.default_device}, because {subject(evidence, row=row)}"
    said += f" is committed to {row.ran_on}{since}"
    if not bad:
        return f"{said}; nothing was pulled along."
    if _has_drags(evidence):
        return f"{said}. What the call pulls there is told by MRD103 on this line."
    return f"{said}. It works on {size} of arrays each time."


def _has_drags(evidence: Observed[Execution]) -> bool:
    """Whether MRD103 has a finding on this line."""
    return any(
        t.reason == "follows-committed"
        and t.direction == "d2d"
        and not t.explicit
        and t.nbytes > evidence.limits.noise * t.count
        and evidence.recording.site_of(t) == evidence.site
        for t in evidence.recording.transfers
    )


def _fix(evidence: Observed[Execution], bad: bool) -> str:
    row, header, module = _telling(evidence), evidence.recording.header, evidence.module
    if row.reason == "named-inside":
        device = device_code(row.wanted, header, module)
        line = code(put_once(evidence.words, device or "device", module), 100)
        return (
            f"Put the arguments on {row.wanted} before the call, {line}, and drop the device inside "
            f"{code(row.function)}; or drop it if {row.ran_on} is right."
        )
    if not bad:
        return f"Nothing if this is meant to run on {row.ran_on}."
    device = device_code(row.default_device, header, module)
    names = [evidence.words, *(evidence.words_for(other) for other in row.also)]
    known = [name for name in names if name]
    if not known or len(known) < len(names):
        name = (
            "each committed argument" if row.also else code(known[0]) if known else "the committed argument"
        )
    else:
        name = " and ".join(code(each) for each in known)
    lines = "; ".join(code(put_once(name, device, module), 100) for name in known or [""])
    together = " (all of them: JAX refuses arguments that are committed apart)" if row.also else ""
    if _is_imported(evidence):
        return f"Put {name} on {row.default_device} before the call{together}: {lines}."
    return f"Put {name} on {row.default_device}, or leave it uncommitted{together}: {lines}."


def _is_imported(evidence: Observed[Execution]) -> bool:
    origins = {a.site for a in evidence.recording.arrivals if a.reason == "dlpack-host"}
    return any(row.origin in origins for row in evidence.rows)
