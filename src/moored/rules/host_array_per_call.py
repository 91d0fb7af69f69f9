"""MRD102 host-array-per-call: numpy leaves go into a call again, and are uploaded again, each time."""

from __future__ import annotations

import math
from collections.abc import Iterator

from moored.model.finding import Finding, Severity
from moored.model.module import Sources
from moored.model.recording import Recording
from moored.rules.base import Docs, Evidence, Rule, gather
from moored.rules.repair import is_refilled, put_before_loop
from moored.rules.thresholds import Thresholds
from moored.rules.wording import action, code, put_on, put_once, subject
from moored.units import format_bytes, format_count

__all__ = ["HostArrayPerCall"]


class HostArrayPerCall(Rule):
    """Host arrays as arguments: JAX uploads them at every call, changed or not."""

    code = "MRD102"
    name = "host-array-per-call"
    kind = "implicit-h2d"
    docs = Docs(
        what=(
            "Finds numpy arrays (and lists) that are passed to a jitted function or to jax.numpy. They are "
            "uploaded at every call; JAX keeps no copy on the device from one call to the next. It is an "
            "error where the very same objects come again, because then every upload but the first was for "
            "nothing."
        ),
        why=(
            "A call can not start before its arguments have arrived. Parameters of 8.19 MB passed as numpy "
            "to 12 calls move 98.3 MB; put on the device once, they move 8.19 MB."
        ),
        example="""\
import jax
import numpy as np

weights = np.ones((1000, 1000), np.float32)
predict = jax.jit(lambda w, i: w[i].sum())

out = []
for i in range(3):
    out.append(predict(weights, i))
""",
        instead="""\
import jax
import numpy as np

weights = np.ones((1000, 1000), np.float32)
predict = jax.jit(lambda w, i: w[i].sum())

weights = jax.device_put(weights)
out = []
for i in range(3):
    out.append(predict(weights, i))
""",
        silent=(
            "For values of 8 bytes or less, and for new arrays of under 1 kB. Larger arrays that are new at "
            "each call (batches), buffers that the loop refills, single calls and small repeats are notes."
        ),
    )

    def explain(self, recording: Recording, sources: Sources, limits: Thresholds) -> Iterator[Finding]:
        """One finding for each argument that is uploaded at a line."""
        for evidence in gather(recording, sources, limits, lambda t: (
            t.direction == "h2d" and not t.explicit and t.seam == "call" and t.reason == "host-value"
        )):  # fmt: skip
            seconds = evidence.call_seconds
            if evidence.repeats and not is_refilled(evidence):
                edit = put_before_loop(evidence)
                fix = _hoist(evidence, edit.after + 1 if edit is not None else None)
                yield self.finding(
                    evidence, _severity(evidence), _same(evidence), fix, seconds=seconds, edit=edit
                )
            elif evidence.each < limits.small_repeat:
                continue
            elif evidence.count > 1:
                yield self.finding(evidence, "note", _fresh(evidence), _fresh_fix(evidence), seconds=seconds)
            else:
                yield self.finding(evidence, "note", _once(evidence), _once_fix(evidence), seconds=seconds)


def _severity(evidence: Evidence) -> Severity:
    if evidence.repeated_nbytes >= evidence.limits.large_copy:
        return "error"
    return "warning" if evidence.each >= evidence.limits.small_repeat else "note"


def _same(evidence: Evidence) -> str:
    again = "every time" if evidence.repeats == evidence.count - 1 else f"{evidence.repeats:,} times"
    return (
        f"{subject(evidence)} is held in host memory (numpy, or Python values); each {action(evidence)} "
        f"uploads all {format_bytes(evidence.each)} of it to {evidence.first.target}, and {again} it was the "
        "very same object."
    )


def _hoist(evidence: Evidence, loop_line: int | None) -> str:
    line = _put(evidence)
    if loop_line is not None:
        return f"Upload it once: write {line} before the loop at line {loop_line}."
    what = f"{code(evidence.words)} is" if evidence.words else "it is"
    return f"Upload it once, before the calls, where {what} made or loaded: {line}."


_FEED = (
    "Nothing if the calls are long. Otherwise put the next one on the device (jax.device_put) while the "
    "call before it still runs: the upload is then hidden."
)


def _fresh(evidence: Evidence) -> str:
    kind = "is written to again" if evidence.repeats else "is a new host array"
    equal = ", with the content of the one before," if evidence.is_equal_each_time else ""
    said = (
        f"{subject(evidence)} {kind}{equal} for each of {format_count(evidence.count, 'call')}; "
        f"{action(evidence)} uploads it to {evidence.first.target} before it can start."
    )
    wide = _narrowed(evidence)
    return f"{said} JAX first converts it from {wide} to 32 bits, on the host, each time." if wide else said


def _narrowed(evidence: Evidence) -> str:
    """The 64-bit type of an array that goes to the device in 32 bits; empty where it does not."""
    row = evidence.first
    wide = row.array.dtype if row.array.dtype in ("float64", "int64", "uint64") else ""
    return wide if row.nbytes < 8 * math.prod(row.array.shape) * row.count else ""


def _fresh_fix(evidence: Evidence) -> str:
    if evidence.is_equal_each_time:
        return f"If it never changes, make it and put it on the device once: {_put(evidence)}."
    wide = _narrowed(evidence)
    narrow = f" Make it {wide.replace('64', '32')} where it is made, not at each call." if wide else ""
    return f"{_FEED}{narrow}"


def _put(evidence: Evidence) -> str:
    return code(put_once(evidence.words, None, evidence.module), 100)


def _once(evidence: Evidence) -> str:
    return (
        f"{subject(evidence)} was held in host memory; {action(evidence)} uploaded its "
        f"{format_bytes(evidence.nbytes)} to {evidence.first.target}, once."
    )


def _once_fix(evidence: Evidence) -> str:
    put = code(put_on(evidence.words or "x", None, evidence.module))
    return f"Nothing if it stays at one call; {put} keeps it on the device."
