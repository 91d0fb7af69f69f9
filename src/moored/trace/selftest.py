"""One known event through each seam: what it really sees, on this JAX and this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from moored.model.recording import Recording, SeamState

if TYPE_CHECKING:
    from moored.trace.collect import Collector

__all__ = ["self_test", "verdicts"]

# Shapes that no program is likely to use, so that each event is recognised as ours.
_CALL, _PUT, _READ = (19, 1), (23, 1), (29, 1)
_EXPECTED = {"calls": 2, "puts": 1, "reads": 1}


def self_test() -> list[SeamState]:
    """Attach, send one known event through each seam, detach, and say what was seen.

    Returns:
        One state a seam: live when it saw exactly what was sent, else with the reason.

    Raises:
        MachineError: JAX is missing, or a collector is attached already.

    >>> [(state.name, state.live) for state in self_test()]
    [('calls', True), ('puts', True), ('reads', True)]
    """
    from moored.trace.collect import Collector

    collector = Collector()
    collector.attach()
    try:
        _send(collector)
        recording = collector.snapshot()
    finally:
        collector.detach()
    return verdicts(recording)


def _send(collector: Collector) -> None:
    assert collector.jax is not None
    jax = collector.jax.jax
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
