"""MRD104 reshard-per-call: an argument is laid out otherwise than the call wants it, at every call."""

from __future__ import annotations

from collections.abc import Iterator

from moored.model.finding import Finding
from moored.model.module import Sources
from moored.model.recording import Recording
from moored.rules.base import Docs, Evidence, Rule, gather
from moored.rules.thresholds import Thresholds
from moored.rules.uncommitted_drift import copy_severity
from moored.rules.wording import (
    action,
    at_line,
    code,
    device_code,
    how_much,
    is_one_device,
    put_once,
    subject,
)

__all__ = ["ReshardPerCall"]


class ReshardPerCall(Rule):
    """The sharding of an argument is not the one that the call was compiled for: JAX moves it each time."""

    code = "MRD104"
    name = "reshard-per-call"
    kind = "implicit-d2d"
    docs = Docs(
        what=(
            "Finds arguments whose sharding (or device) is not the one that the call names for them, by "
            "in_shardings or in an executable that was compiled ahead of time. JAX lays them out anew at "
            "every call, and throws the copy away after it."
        ),
        why=(
            "The bytes cross the links between devices each time. Laid out once as the call wants them, "
            "they cross once."
        ),
        example="""\
import jax
import jax.numpy as jnp

host = jax.sharding.SingleDeviceSharding(jax.devices("cpu")[-1])
weights = jnp.ones((1000, 1000))
total = jax.jit(lambda w: w.sum(), in_shardings=host)

out = []
for i in range(3):
    out.append(total(weights))
""",
        instead="""\
import jax
import jax.numpy as jnp

host = jax.sharding.SingleDeviceSharding(jax.devices("cpu")[-1])
weights = jax.device_put(jnp.ones((1000, 1000)), host)
total = jax.jit(lambda w: w.sum(), in_shardings=host)

out = []
for i in range(3):
    out.append(total(weights))
""",
        silent="For arguments of 8 bytes or less, and for puts. A layout that changes once is a note.",
    )

    def explain(self, recording: Recording, sources: Sources, limits: Thresholds) -> Iterator[Finding]:
        """One finding for each argument that is laid out anew at a line."""
        for evidence in gather(recording, sources, limits, lambda t: (
            t.direction == "d2d" and not t.explicit and t.reason == "resharded" and t.seam == "call"
        )):  # fmt: skip
            yield self.finding(
                evidence,
                "note" if evidence.count < 2 else copy_severity(evidence),
                _cause(evidence),
                _fix(evidence),
                seconds=evidence.call_seconds,
            )


def _cause(evidence: Evidence) -> str:
    row, act = evidence.first, action(evidence)
    state = "committed to" if row.array.committed else "on"
    origin = evidence.origin
    made = f" since {at_line(origin, evidence.site)}" if origin is not None and row.array.committed else ""
    said = f"{subject(evidence)} is {state} {row.source}{made}, and {act} wants it on {row.target}"
    if evidence.count == 1:
        return f"{said}: the call first moved {how_much(evidence)}."
    return f"{said}: each of {evidence.count:,} calls first moves {how_much(evidence)}."


def _fix(evidence: Evidence) -> str:
    row, module = evidence.first, evidence.module
    if evidence.count == 1:
        return "Nothing if it stays at one call."
    if is_one_device(row.target):
        device = device_code(row.target, evidence.recording.header, module)
    else:
        device = "sharding"
    line = code(put_once(evidence.words, device, module), 100)
    where = "" if is_one_device(row.target) else f", with the sharding {row.target}"
    return f"Lay it out as the call wants it once, before the calls: {line}{where}. Then pass that on."
