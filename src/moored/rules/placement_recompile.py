"""MRD501 placement-recompile: a second executable, only because of where the arguments are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from moored.model.events import Compile
from moored.model.finding import Finding, Severity
from moored.model.module import Sources
from moored.model.recording import Recording
from moored.rules.base import Docs, Observed, Rule, observe
from moored.rules.thresholds import Thresholds
from moored.rules.wording import action, at_line, code, put_once, subject
from moored.units import format_count, format_seconds

__all__ = ["PlacementRecompile"]


class PlacementRecompile(Rule):
    """The same function for the same shapes is compiled again because an argument's placement differs."""

    code = "MRD501"
    name = "placement-recompile"
    kind = "placement-recompile"
    docs = Docs(
        what=(
            "Finds compilations of a function that was compiled before for the same shapes: only the "
            "commitment, the sharding or the device of an argument, or the default device in force, is "
            "another."
        ),
        why=(
            "JAX keeps one executable for each placement of the arguments. A training step of a large model "
            "compiles for minutes, and compiles again at its second step where the first one returned its "
            "state committed."
        ),
        example="""\
import jax
import jax.numpy as jnp

gpu = jax.devices()[0]

@jax.jit
def step(w):
    return jnp.tanh(w) @ w

w = jnp.ones((50, 50))
step(w)
step(jax.device_put(w, gpu))
with jax.default_device(jax.devices("cpu")[-1]):
    step(jax.device_put(w, gpu))
""",
        instead="""\
import jax
import jax.numpy as jnp

gpu = jax.devices()[0]

@jax.jit
def step(w):
    return jnp.tanh(w) @ w

w = jax.device_put(jnp.ones((50, 50)), gpu)
step(w)
step(jax.device_put(w, gpu))
step(jax.device_put(w, gpu))
""",
        silent=(
            "For first compilations, and for those that new shapes or static values need. A single one that "
            "took less than a second is a note."
        ),
    )

    def explain(self, recording: Recording, sources: Sources, limits: Thresholds) -> Iterator[Finding]:
        """One finding for each line, function and reason."""
        of_function = Counter[tuple[str, object]]()
        for row in recording.compiles:
            of_function[_name(row)] += row.count
        rows = recording.compiles
        for evidence in observe(recording, sources, limits, rows, lambda c: (c.function, c.reason)):
            row = max(evidence.rows, key=lambda c: c.compile_ns)
            seconds = sum(c.compile_ns for c in evidence.rows) / 1e9
            yield self.finding(
                evidence,
                _severity(limits, of_function[_name(row)], seconds),
                _cause(evidence, row, seconds),
                _fix(evidence, row),
                seconds=seconds or None,
                seconds_is="measured",
                route=(row.before, row.after),
            )


def _name(row: Compile) -> tuple[str, object]:
    """What tells functions apart: the name, and for those that have none the line that called it."""
    return row.function, row.site if not row.function.isidentifier() else None


def _severity(limits: Thresholds, of_function: int, seconds: float) -> Severity:
    is_costly = seconds >= limits.compile_seconds or of_function >= limits.repeated_compiles
    return "warning" if is_costly else "note"


def _cause(evidence: Observed[Compile], row: Compile, seconds: float) -> str:
    times = " again" if evidence.count == 1 else f" {evidence.count:,} more times"
    took = f", in {format_seconds(seconds)}" if seconds else ""
    function = code(row.function) if row.function else "a function"
    said = f"{action(evidence)} compiled {function}{times}{took}, for the same shapes: "
    earlier = evidence.named(row.earlier)
    where = ""
    if earlier is not None:
        is_here = (earlier.path, earlier.line) == (evidence.site.path, evidence.site.line)
        where = " in an earlier call of this line" if is_here else f" at {at_line(earlier, evidence.site)}"
    if row.reason == "default-device":
        return (
            f"{said}it ran with {row.before}{where} and now with {row.after}, which is part of JAX's cache "
            "key."
        )
    if row.reason == "context":
        return f"{said}JAX's context (a mesh, or a setting in force) was another{where}."
    said += f"{subject(evidence, row=row)} was {row.before}{where} and is {row.after} now"
    more = row.n_changed - 1
    return (
        f"{said}; so {format_count(more, 'other leaf', 'other leaves')} changed." if more > 0 else f"{said}."
    )


def _fix(evidence: Observed[Compile], row: Compile) -> str:
    function = code(row.function) if row.function else "it"
    if row.reason == "default-device":
        return (
            f"Call {function} outside the default_device block: its arguments are committed, so that the "
            "block does nothing for it but cost a compilation."
        )
    if row.reason == "context":
        return f"Call {function} in the same context each time: enter the mesh once, around all of it."
    if "host value" in row.before or "host value" in row.after:
        return (
            f"Feed {function} in one way everywhere: all of it numpy, or all of it through the same "
            "device_put."
        )
    if "uncommitted" not in row.before:
        return f"Feed {function} in one way everywhere, with the same device or sharding in each device_put."
    target = "sharding" if "committed" in row.after and "," in row.after.rpartition(",")[0] else "device"
    line = code(put_once(evidence.words, target, evidence.module), 100)
    where = row.after.removesuffix(", committed").removesuffix(", uncommitted")
    return f"Commit it before the first call already, {line}, on {where}: then all calls have one signature."
