"""MRD302 put-without-device: device_put(x) without a device left an array where it was."""

from __future__ import annotations

from collections.abc import Iterator

from moored.model.events import Arrival
from moored.model.finding import Finding
from moored.model.module import Sources
from moored.model.recording import Recording
from moored.rules.base import Docs, Observed, Rule, observe
from moored.rules.thresholds import Thresholds
from moored.rules.wording import action, code, device_code, put_on
from moored.units import format_bytes

__all__ = ["PutWithoutDevice"]


class PutWithoutDevice(Rule):
    """A put that names no device neither moves nor commits an array that is on a device already."""

    code = "MRD302"
    name = "put-without-device"
    kind = "no-op-put"
    docs = Docs(
        what=(
            "Finds device_put(x) without a device, for an uncommitted array off the default device. Such a "
            "put returns the array as it is: it moves nothing and commits nothing."
        ),
        why=(
            "The code reads as if the array were now on the accelerator. It is not, and it drifts there "
            "whole with every operation that uses it (MRD101)."
        ),
        example="""\
import jax
import jax.numpy as jnp

home = jax.devices("cpu")[-1]
with jax.default_device(home):
    batch = jnp.ones((1000, 1000))
batch = jax.device_put(batch)
""",
        instead="""\
import jax
import jax.numpy as jnp

home = jax.devices("cpu")[-1]
with jax.default_device(home):
    batch = jnp.ones((1000, 1000))
batch = jax.device_put(batch, jax.devices()[0])
""",
        silent=(
            "For arrays that are committed or on the default device, where the put does no harm, and for "
            "numpy values, which it does move. Arrays of less than 64 kB are notes."
        ),
    )

    def explain(self, recording: Recording, sources: Sources, limits: Thresholds) -> Iterator[Finding]:
        """One finding for each line whose puts did nothing."""
        rows = [a for a in recording.arrivals if a.reason == "no-op-put" and _is_astray(a, recording)]
        for evidence in observe(recording, sources, limits, rows, lambda a: a.place):
            place = evidence.first.place
            yield self.finding(
                evidence,
                "warning" if evidence.each >= limits.notable_copy else "note",
                _cause(evidence),
                _fix(evidence),
                route=(place, place),
            )


def _default(row: Arrival, recording: Recording) -> str:
    return row.expected or recording.header.default_device or ""


def _is_astray(row: Arrival, recording: Recording) -> bool:
    return not row.array.committed and row.place != _default(row, recording)


def _cause(evidence: Observed[Arrival]) -> str:
    row = evidence.first
    what = code(evidence.words) if evidence.words else "its array"
    size = format_bytes(evidence.each)
    times = "" if evidence.count == 1 else f", {evidence.count:,} times"
    return (
        f"{action(evidence)} names no device, so it returned {what} ({size}) as it was{times}: on "
        f"{row.place}, uncommitted, while operations run on "
        f"{_default(row, evidence.recording) or 'the default device'}."
    )


def _fix(evidence: Observed[Arrival]) -> str:
    row, header, module = evidence.first, evidence.recording.header, evidence.module
    what = evidence.words or "x"
    target = _default(row, evidence.recording)
    there = put_on(what, device_code(target, header, module) or "device", module)
    home = device_code(row.place, header, module) or "device"
    return (
        f"Name the device: {code(there, 100)} moves it to {target or 'that device'}; with {code(home)} it "
        "stays, committed, and operations come to it."
    )
