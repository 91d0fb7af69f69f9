"""Calls that JAX refuses because their arguments are committed to different devices."""

from __future__ import annotations

import sys

from moored.model.recording import ArraySpec, Operand
from moored.trace.plans import Call, unwrap
from moored.trace.seams import Internals
from moored.trace.store import Store

__all__ = ["refused"]

_WORDS = "incompatible devices"  # of JAX's own message; the error itself is a plain ValueError


def refused(store: Store, jax_: Internals, error: BaseException, call: Call) -> None:
    """If that is why the call raised: note which argument is committed where, and by which line."""
    if type(error) is not ValueError or _WORDS not in str(error):
        return
    paths, operands = call.paths(jax_), dict[str, Operand]()
    for index, leaf in enumerate(call.leaves):
        value = unwrap(leaf)
        if type(value) is jax_.ArrayImpl and value._committed:
            place = store.places.sharding(value.sharding)
            spec = ArraySpec(tuple(value.shape), str(value.dtype), True)
            path = paths[index] if index < len(paths) else ""
            operands.setdefault(place, Operand(path, spec, place, store.committed_at(value)))
    if len(operands) < 2:
        return
    caller = store.frames.caller(sys._getframe(3))
    fields = {
        "api": caller.api or "jit",
        "function": call.function.name,
        "library": caller.library,
        "operands": tuple(operands.values()),
    }
    store.saw(caller, fields, "conflicts")
