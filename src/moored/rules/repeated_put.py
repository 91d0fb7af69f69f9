"""MRD301 repeated-put: the same object is put on a device again and again."""

from __future__ import annotations

from collections.abc import Iterator

from moored.model.finding import Finding, Severity
from moored.model.module import Sources
from moored.model.recording import Recording
from moored.rules.base import Docs, Evidence, Rule, gather
from moored.rules.repair import is_refilled, move_before_loop
from moored.rules.thresholds import Thresholds
from moored.rules.wording import action, code, subject
from moored.units import format_bytes

__all__ = ["RepeatedPut"]


class RepeatedPut(Rule):
    """Explicit puts that move the very same object as the put before."""

    code = "MRD301"
    name = "repeated-put"
    kind = "explicit-repeated"
    docs = Docs(
        what=(
            "Finds device_put, asarray and array calls that move the very same object to a device that they "
            "moved it to before. JAX does not remember the earlier copy."
        ),
        why=(
            "Every put after the first moves bytes that are on the device already. A table of 16.8 MB put "
            "in each of 8 steps moves 134 MB."
        ),
        example="""\
import jax
import numpy as np

table = np.ones((1000, 1000), np.float32)
lookup = jax.jit(lambda t, i: t[i].sum())

out = []
for i in range(5):
    t = jax.device_put(table)
    out.append(lookup(t, i))
""",
        instead="""\
import jax
import numpy as np

table = np.ones((1000, 1000), np.float32)
lookup = jax.jit(lambda t, i: t[i].sum())

out = []
t = jax.device_put(table)
for i in range(5):
    out.append(lookup(t, i))
""",
        silent=(
            "For objects that are new at each put (a note, where they have the content of the one before), "
            "for objects of less than 64 kB, and for buffers that the loop refills between the puts."
        ),
    )

    def explain(self, recording: Recording, sources: Sources, limits: Thresholds) -> Iterator[Finding]:
        """One finding for each object that is put again at a line."""
        for evidence in gather(recording, sources, limits, lambda t: (
            t.explicit and t.direction in ("h2d", "d2d") and t.seam != "callback"
        )):  # fmt: skip
            severity = _severity(evidence)
            if severity is None or is_refilled(evidence):
                continue
            edit = move_before_loop(evidence) if evidence.repeats else None
            if edit is not None:
                fix = f"Put it once: move line {evidence.site.line} before the loop at line {edit.after + 1}."
            else:
                what = code(evidence.words) if evidence.words else "it"
                fix = f"Put {what} once, before the calls that need it, and pass on what device_put returned."
            yield self.finding(
                evidence, severity, _cause(evidence), fix, seconds=evidence.call_seconds, edit=edit
            )


def _severity(evidence: Evidence) -> Severity | None:
    limits = evidence.limits
    if evidence.each < limits.notable_copy or not (evidence.repeats or evidence.is_equal_each_time):
        return None
    if not evidence.repeats:
        return "note"
    is_costly = evidence.each >= limits.large_copy and evidence.repeats + 1 >= limits.repeated_puts
    return "error" if is_costly else "warning"


def _cause(evidence: Evidence) -> str:
    if not evidence.repeats:
        again = (
            f"{evidence.count:,} times, other objects of {format_bytes(evidence.each)} with the same content"
        )
    elif evidence.repeats == evidence.count - 1:
        again = f"the same {format_bytes(evidence.each)} object all {evidence.count:,} times"
    else:
        again = (
            f"the same {format_bytes(evidence.each)} object as the time before in {evidence.repeats:,} of "
            f"{evidence.count:,} times"
        )
    return f"{action(evidence)} moved {subject(evidence)} to {evidence.first.target}, {again}."
