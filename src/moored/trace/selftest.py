"""One known event through each seam: what it really sees, on this JAX and this machine."""

from __future__ import annotations

import numpy as np

from moored.model.recording import Recording, SeamState
from moored.trace.seams import Internals

__all__ = ["send", "verdicts"]

# Shapes that no program is likely to use, so that each event is recognised as ours.
_CALL, _PUT, _READ = (19, 1), (23, 1), (29, 1)
_EXPECTED = {"calls": 2, "puts": 1, "reads": 1}


def send(jax_: Internals) -> None:
    """Send the known events."""
    jax = jax_.jax
    add = jax.jit(lambda x: x + 1)
    host = np.ones(_CALL, np.float32)
    for _ in range(_EXPECTED["calls"]):  # once through Python, once on the C++ fast path
        add(host).block_until_ready()
    jax.device_put(np.ones(_PUT, np.float32)).block_until_ready()
    str(jax.jit(lambda: jax.numpy.ones(_READ))())


def verdicts(recording: Recording) -> list[SeamState]:
    """The seams of a recording of the known events, each judged by what it saw."""
    seen = dict.fromkeys(_EXPECTED, 0)
    for transfer in recording.transfers:
        sent = (transfer.seam, transfer.direction, transfer.array.shape)
        if sent == ("call", "h2d", _CALL):
            seen["calls"] += transfer.count
        elif sent == ("put", "h2d", _PUT):
            seen["puts"] += transfer.count
        elif sent == ("read", "d2h", _READ):
            seen["reads"] += transfer.count
    states = []
    for state in recording.header.seams:
        wanted, got = _EXPECTED.get(state.name, 0), seen.get(state.name, 0)
        live, reason = state.live, state.reason
        if live and got != wanted:
            live = False
            reason = f"self-test: {wanted} known events were sent through it, {got} were seen"
        states.append(SeamState(state.name, live, reason, state.blind_to))
    return states
