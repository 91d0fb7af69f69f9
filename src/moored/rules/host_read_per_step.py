"""MRD201 host-read-per-step: Python reads a device value again and again, and waits each time."""

from __future__ import annotations

from collections.abc import Iterator

from moored.model.finding import Finding, Severity
from moored.model.module import Sources
from moored.model.recording import Recording, Transfer
from moored.rules.base import Docs, Evidence, Rule, gather
from moored.rules.thresholds import (
    LARGE_COPY,
    READ_SHARE,
    READ_WAIT_SECONDS,
    REPEATED_READS,
    SAME_LINE_READS,
)
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
            ".item(), "
            "print, formatting, numpy functions. Each read waits until the device has computed the value."
        ),
        why=(
            "JAX runs ahead of the device: Python dispatches the next step while this one is computed. A "
            "read at "
            "every step takes that away, and the device idles while Python prepares the next step."
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
            "For one or two reads of less than 1 MB, and for jax.device_get. Reads behind an `if` that tests "
            "a "
            "remainder (every N steps), reads of an array that was committed to the host, and a few reads on "
            "a "
            "line that runs only once are notes."
        ),
    )

    def explain(self, recording: Recording, sources: Sources) -> Iterator[Finding]:
        """One finding for each line and array that is read."""
        for evidence in gather(
            recording,
            sources,
            lambda t: t.direction == "d2h" and not t.explicit and t.reason == "read",
            noise=0,
        ):
            severity = _severity(evidence)
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
    is_large = evidence.each >= LARGE_COPY
    if evidence.count < REPEATED_READS:
        return "note" if is_large else None
    if all(_is_kept_on_host(t, evidence.recording) for t in evidence.rows):
        return "note"
    module, line = evidence.module, evidence.site.line
    if module is not None:
        runs_once = not module.in_function(line) and module.enclosing_loop(line) is None
        if module.throttled_at(line) or (runs_once and evidence.count < SAME_LINE_READS):
            return "note"
    return "error" if is_large or _share(evidence) is not None else "warning"


def _is_kept_on_host(row: Transfer, recording: Recording) -> bool:
    """An array that the program committed to the CPU, while its computations run elsewhere."""
    is_elsewhere = recording.header.default_device not in (None, row.source)
    return bool(row.array.committed) and row.source.startswith("cpu") and is_elsewhere


def _share(evidence: Evidence) -> float | None:
    """The share of the run that these reads took, where it is worth an error."""
    waited, run = evidence.read_seconds or 0.0, evidence.recording.header.seconds
    if run <= 0 or waited < READ_WAIT_SECONDS or waited < READ_SHARE * run:
        return None
    return waited / run


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
    waited, share = evidence.read_seconds, _share(evidence)
    if waited is not None:
        said += f": {format_seconds(waited)} in all"
        if share is not None:
            said += f", {percent(share)} of the run"
    return f"{said}."


def _fix(evidence: Evidence) -> str:
    what = code(evidence.words) if evidence.words else "the values"
    if all(_is_kept_on_host(t, evidence.recording) for t in evidence.rows):
        return f"Nothing if {what} is meant to live on the host; a numpy array reads faster still."
    if evidence.each >= LARGE_COPY:
        return (
            f"Compute on the device (jax.numpy in place of numpy) and read only the result; or read {what} "
            f"once "
            f"with jax.device_get and work on that. Each read moves {format_bytes(evidence.each)}."
        )
    module, line = evidence.module, evidence.site.line
    loop = module.enclosing_loop(line) if module is not None else None
    if evidence.first.api == "bool":
        if loop == line:
            return "Test it only every few steps, or move the loop to the device with jax.lax.while_loop."
        return "Test it only every few steps, or keep the test on the device (jax.lax.cond, jax.numpy.where)."
    if module is not None and loop is None and not module.in_function(line):
        reads = format_count(evidence.count, "read")
        return f"Read them together, jax.device_get({evidence.words or '...'}): one wait in place of {reads}."
    after = f" after the loop at line {loop}" if loop is not None else " at the end"
    return f"Keep {what} on the device; read every N steps, or all of them{after} with one jax.device_get."
