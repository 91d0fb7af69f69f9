"""MRD602 device-conflict: JAX refused a call, because its arguments are committed to different devices."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from moored.model.events import ArraySpec, Conflict, Operand
from moored.model.finding import Finding
from moored.model.module import Sources
from moored.model.operands import split_path
from moored.model.recording import Recording
from moored.rules.base import Docs, Observed, Rule, observe
from moored.rules.thresholds import Thresholds
from moored.rules.wording import action, at_line, code, device_code, is_one_device, put_once
from moored.units import format_bytes

__all__ = ["DeviceConflict"]

_RAISED = ValueError.__name__  # what JAX raises, and how a run that it ended is recorded


class DeviceConflict(Rule):
    """Arguments committed to different devices: JAX raises, and names neither the lines nor the cure."""

    code = "MRD602"
    name = "device-conflict"
    kind = "device-conflict-error"
    docs = Docs(
        what=(
            "Explains the error 'Received incompatible devices for jitted computation': which argument was "
            "committed to which device, and by which line."
        ),
        why=(
            "JAX moves uncommitted arrays to the others, but never an array that is committed. The error "
            "names the call, not the line that put the arguments where they are, which may be far away."
        ),
        example="""\
import jax
import jax.numpy as jnp

key = jax.device_put(jax.random.key(0), jax.devices("cpu")[-1])
params = jax.device_put(jnp.ones((50, 50)), jax.devices()[0])
noise = jax.random.normal(key, (50, 50))
params = params + noise
""",
        instead="""\
import jax
import jax.numpy as jnp

key = jax.device_put(jax.random.key(0), jax.devices()[0])
params = jax.device_put(jnp.ones((50, 50)), jax.devices()[0])
noise = jax.random.normal(key, (50, 50))
params = params + noise
""",
        silent="For any other error. One that the program catches, and goes on after, is a warning.",
    )

    def explain(self, recording: Recording, sources: Sources, limits: Thresholds) -> Iterator[Finding]:
        """One finding for each line that was refused."""
        rows = recording.conflicts
        for evidence in observe(recording, sources, limits, rows, lambda c: (c.function, c.operands)):
            home = recording.header.default_device
            operands = sorted(evidence.first.operands, key=lambda o: (_nbytes(o.array), o.place == home))
            small = operands[0] if operands else None
            large = operands[-1] if operands else None
            if small is not None:
                evidence.words = evidence.words_for(small.argument)
            yield self.finding(
                evidence,
                "error" if recording.header.exit == _RAISED else "warning",
                _cause(evidence),
                _fix(evidence, small, large),
                array=small.array if small is not None else None,
                route=(small.place, large.place) if small is not None and large is not None else None,
            )


def _named(evidence: Observed[Conflict], operand: Operand) -> str:
    words = evidence.words_for(operand.argument)
    if words:
        return code(words)
    row = evidence.first
    steps, _ = split_path(operand.argument)
    if row.library or not steps:
        return f"an array of {format_bytes(_nbytes(operand.array))}"
    step = steps[0][1:-1]
    return f"argument {step if step.isdigit() else code(step[1:-1])} of {code(row.function or row.api)}"


def _cause(evidence: Observed[Conflict]) -> str:
    said = []
    for operand in evidence.first.operands:
        origin = evidence.named(operand.origin)
        by = f" by {at_line(origin, evidence.site)}" if origin is not None else ""
        size = format_bytes(_nbytes(operand.array))
        said.append(f"{_named(evidence, operand)} ({size}) was committed to {operand.place}{by}")
    if not said:
        return f"JAX refused {action(evidence)}: its arguments are committed to different devices."
    listed = said[0] if len(said) == 1 else f"{', '.join(said[:-1])}, and {said[-1]}"
    return f"JAX refused {action(evidence)}: {listed}. JAX does not move what is committed."


def _fix(evidence: Observed[Conflict], small: Operand | None, large: Operand | None) -> str:
    if small is None or large is None or small is large:
        return "Put all arguments on one device before the call, with jax.device_put."
    header, module = evidence.recording.header, evidence.module
    target = device_code(large.place, header, module) if is_one_device(large.place) else "sharding"
    line = code(put_once(evidence.words, target, module), 100)
    origin = evidence.named(small.origin)
    where = f", or put it there at {at_line(origin, evidence.site)} already" if origin is not None else ""
    which = "the smaller one" if _nbytes(small.array) < _nbytes(large.array) else "one of them"
    named = _named(evidence, small)
    return f"Move {which}, {named}, to {large.place} before the call: {line}{where}."


def _nbytes(array: ArraySpec) -> int:
    """Bytes of an array, from its shape and the digits of its dtype (``"bfloat16"``, ``"key<fry>"``)."""
    bits = re.search(r"\d+", array.dtype)
    itemsize = int(bits.group()) / 8 if bits is not None else 8 if array.dtype.startswith("key") else 1
    return int(math.prod(array.shape) * itemsize)
