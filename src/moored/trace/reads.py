"""The read seam: device arrays read into Python or numpy.

A read waits until the value was computed, then copies it; the two are timed apart, which
the asynchronous seams can not do. On a CPU device the "copy" is a view, and counts all the
same: the program would wait on an accelerator too.
"""

from __future__ import annotations

import sys
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from moored.model.recording import ArraySpec
from moored.trace.interrupts import raised_by_handler
from moored.trace.seams import Internals

if TYPE_CHECKING:
    from moored.trace.store import Store

__all__ = ["makers"]

_now = time.perf_counter_ns
#: What the methods of an array that read it are called in a program.
_WORDS = {
    "__float__": "float",
    "__int__": "int",
    "__bool__": "bool",
    "__index__": "index",
    "__complex__": "complex",
    "__format__": "format",
    "__repr__": "repr",
    "__str__": "str",
    "__array__": "np.asarray",
    "__iter__": "iter",
    "__reduce__": "pickle",
}


def makers(store: Store, jax_: Internals) -> dict[str, Callable[[Any], Any]]:
    """The replacement for the patch of the read seam."""

    def make_value(original: Any) -> Any:
        state, fget, known = store.state, original.fget, _Known()

        def _value(array: Any) -> Any:
            if state.nested or array._npy_value is not None:  # staging of a put, or read before
                return fget(array)
            start = _now()
            try:
                array.block_until_ready()
            except Exception as error:  # deleted, or its computation failed: the original says so below
                if raised_by_handler(error):
                    raise
                return fget(array)
            ready = _now()
            value = fget(array)
            end = _now()
            try:
                _saw(store, known, array, ready - start, end - ready, end)
            except Exception as error:
                store.failed("reads", error)
            return value

        return property(_value, doc=original.__doc__)

    return {"value": make_value, "buffer": lambda original: original}


class _Known:
    """Arrays that were read already: by identity, without holding them."""

    def __init__(self) -> None:
        self._refs: dict[int, weakref.ref[Any]] = {}

    def __contains__(self, array: Any) -> bool:
        known = self._refs.get(id(array))
        return known is not None and known() is array

    def add(self, array: Any) -> None:
        key, refs = id(array), self._refs
        refs[key] = weakref.ref(array, lambda _: refs.pop(key, None))


def _saw(store: Store, known: _Known, array: Any, waited: int, copied: int, end: int) -> None:
    caller = store.frames.caller(sys._getframe(2))
    constant = any("ir_constant" in name for name in caller.inside)
    if not constant:  # which is baked into each executable anew
        if array in known:  # an accelerator's array keeps what was read of it; one on a CPU does not
            return
        known.add(array)
    explicit = store.is_explicit(caller) and not constant
    fields = {
        "direction": "d2h",
        "explicit": explicit,
        "seam": "constant" if constant else "read",
        "api": _WORDS.get(caller.api, caller.api),
        "library": caller.library,
        "array": ArraySpec(tuple(array.shape), str(array.dtype), bool(array._committed)),
        "source": store.places.sharding(array.sharding),
        "target": "host",
        "reason": "constant" if constant else "asked" if explicit else "read",
    }
    row = store.row(caller, fields)
    row.count += 1
    row.nbytes += int(array.nbytes)
    row.wait_ns += waited
    row.copy_ns += copied
    row.last_ns = end - store.epoch_ns
    row.seen(array)
