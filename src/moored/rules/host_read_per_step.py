"""MRD201 host-read-per-step: Python reads a device value again and again, and waits each time."""

from __future__ import annotations

from collections.abc import Iterator

from moored.model.finding import Finding, Severity
from moored.model.module import Sources
from moored.model.recording import Recording
from moored.rules.base import Docs, Evidence, Rule
from moored.rules.reading import is_elementwise, is_kept_on_host, reads, runs_once, share_of_run
from moored.rules.thresholds import Thresholds
from moored.rules.wording import action, code, percent, subject
from moored.units import format_bytes, format_count, format_seconds

__all__ = ["HostReadPerStep"]


class HostReadPerStep(Rule):
    """Reads of device values into Python or numpy that repeat."""

    code = "MRD201"
    name = "host-read-per-step"
    kind = "implicit-d2h"
    docs = Docs(
        what=(
            "Finds lines that read a device value into Python or numpy again and again: float, bool, int, "
            ".item(), print, formatting, numpy functions. Each read waits until the device has computed the "
            "value."
        ),
        why=(
            "JAX runs ahead of the device: Python dispatches the next step while this one is computed. A "
            "read at every step takes that away, and the device idles while Python prepares the next step."
        ),
        example="""\
import jax
import jax.numpy as jnp

step = jax.jit(lambda w: (w * 0.9, (w * w).sum()))
w = jnp.ones((100, 100))
history = []
for i in range(5):
    w, loss = step(w)
    history.append(float(loss))
""",
        instead="""\
import jax
import jax.numpy as jnp

step = jax.jit(lambda w: (w * 0.9, (w * w).sum()))
w = jnp.ones((100, 100))
history = []
for i in range(5):
    w, loss = step(w)
    history.append(loss)
history = jax.device_get(history)
""",
        silent=(
            "For one or two reads of less than 1 MB, and for jax.device_get. Reads behind an `if` that "
            "tests a remainder (every N steps), reads of an array that was committed to the host, and a few "
            "reads on a line that runs only once are notes. Lines that read the scalars of one collection "
            "are MRD202's."
        ),
    )

    def explain(self, recording: Recording, sources: Sources, limits: Thresholds) -> Iterator[Finding]:
        """One finding for each line and array that is read."""
        for evidence in reads(recording, sources, limits):
            severity = None if is_elementwise(evidence) else _severity(evidence)
            if severity is not None:
                yield self.finding(
                    evidence,
                    severity,
                    _cause(evidence),
                    _fix(evidence),
                    seconds=evidence.read_seconds,
                    seconds_is="measured",
                )


def _severity(evidence: Evidence) -> Severity | None:
    limits = evidence.limits
    is_large = evidence.each >= limits.large_copy
    if evidence.count < limits.repeated_reads:
        return "note" if is_large else None
    if is_kept_on_host(evidence):
        return "note"
    module, line = evidence.module, evidence.site.line
    is_rare = runs_once(evidence) and evidence.count < limits.same_line_reads
    if is_rare or (module is not None and module.throttled_at(line)):
        return "note"
    return "error" if is_large or share_of_run(evidence) is not None else "warning"


def _cause(evidence: Evidence) -> str:
    row = evidence.first
    reader = row.library or (action(evidence) if evidence.words != evidence.expression else "Python")
    what = (
        "device arrays"
        if row.library and not evidence.words
        else subject(evidence, plural=evidence.count > 1)
    )
    times = "once" if evidence.count == 1 else f"{evidence.count:,} times"
    said = f"{reader} reads {what} from {row.source} into host memory {times}"
    said += ", and waits each time until it is computed"
    waited, share = evidence.read_seconds, share_of_run(evidence)
    if waited is not None:
        said += f": {format_seconds(waited)} in all"
        if share is not None:
            said += f", {percent(share)} of the run"
    return f"{said}."


def _fix(evidence: Evidence) -> str:
    what = code(evidence.words) if evidence.words else "the values"
    if is_kept_on_host(evidence):
        return f"Nothing if {what} is meant to live on the host; a numpy array reads faster still."
    if evidence.each >= evidence.limits.large_copy:
        return (
            f"Compute on the device (jax.numpy in place of numpy) and read only the result; or read {what} "
            f"once with jax.device_get and work on that. Each read moves {format_bytes(evidence.each)}."
        )
    module, line = evidence.module, evidence.site.line
    loop = module.enclosing_loop(line) if module is not None else None
    if evidence.first.api == "bool":
        if loop == line:
            return "Test it only every few steps, or move the loop to the device with jax.lax.while_loop."
        return "Test it only every few steps, or keep the test on the device (jax.lax.cond, jax.numpy.where)."
    if runs_once(evidence):
        reads = format_count(evidence.count, "read")
        return f"Read them together, jax.device_get({evidence.words or '...'}): one wait in place of {reads}."
    after = f" after the loop at line {loop}" if loop is not None else " at the end"
    return f"Keep {what} on the device; read every N steps, or all of them{after} with one jax.device_get."
