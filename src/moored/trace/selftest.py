"""One known event through each seam: what it really sees, on this JAX and this machine."""

from __future__ import annotations

import pickle
from contextlib import suppress

import numpy as np

from moored.model.recording import Recording, SeamState
from moored.trace.seams import Internals

__all__ = ["send", "verdicts"]

# Shapes that no program is likely to use, so that each event is recognised as ours.
_CALL, _PUT, _READ, _PICKLE, _CALLBACK = (19, 1), (23, 1), (29, 1), (31, 1), (37, 1)
_EXPECTED = {"calls": 2, "puts": 1, "reads": 1, "compiles": 1, "arrivals": 1, "callbacks": 1}


def send(jax_: Internals) -> bool:
    """Send the known events.

    Returns:
        Whether host callbacks run here (they do not on the simulated accelerator).
    """
    jax = jax_.jax
    jnp = jax.numpy
    add = jax.jit(lambda x: x + 1)
    host = np.ones(_CALL, np.float32)
    for _ in range(_EXPECTED["calls"]):  # once through Python, once on the C++ fast path
        result = add(host).block_until_ready()
    add(jax.device_put(result, result.device)).block_until_ready()  # the same, but committed: compiles again
    jax.device_put(np.ones(_PUT, np.float32)).block_until_ready()
    str(jax.jit(lambda: jnp.ones(_READ))())
    pickle.loads(pickle.dumps(jax.jit(lambda: jnp.ones(_PICKLE))()))
    spec = jax.ShapeDtypeStruct(_CALLBACK, np.float32)
    with suppress(Exception):
        ship = jax.jit(lambda x: jax.pure_callback(lambda y: np.asarray(y) + 1, spec, x))
        ship(jnp.ones(_CALLBACK)).block_until_ready()
        return True
    return False


def verdicts(recording: Recording, *, callbacks: bool = True) -> list[SeamState]:
    """The seams of a recording of the known events, each judged by what it saw.

    Args:
        recording: Of the known events.
        callbacks: Whether ``send`` could run a host callback.
    """
    seen = dict.fromkeys(_EXPECTED, 0)
    known: dict[tuple[str, str, tuple[int, ...]], str] = {
        ("call", "h2d", _CALL): "calls",
        ("put", "h2d", _PUT): "puts",
        ("read", "d2h", _READ): "reads",
        ("callback", "d2h", _CALLBACK): "callbacks",
    }
    for transfer in recording.transfers:
        name = known.get((transfer.seam, transfer.direction, transfer.array.shape))
        if name is not None:
            seen[name] += transfer.count
    seen["compiles"] = sum(c.count for c in recording.compiles if c.array and c.array.shape == _CALL)
    seen["arrivals"] = sum(
        a.count for a in recording.arrivals if (a.reason, a.array.shape) == ("unpickled", _PICKLE)
    )
    states = []
    for state in recording.header.seams:
        wanted, got = _EXPECTED.get(state.name, 0), seen.get(state.name, 0)
        live, reason = state.live, state.reason
        if live and got != wanted and (callbacks or state.name != "callbacks"):
            live = False
            reason = f"self-test: {wanted} known events were sent through it, {got} were seen"
        states.append(SeamState(state.name, live, reason, state.blind_to))
    return states
