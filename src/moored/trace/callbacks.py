"""The callback seam: arrays that an executable ships to the host and back.

Callbacks run on threads of the runtime, with no user frame above them. What is known of them is
the line that made the callback, while JAX traced it.
"""

from __future__ import annotations

import sys
import time
import weakref
from typing import Any

from moored.model.recording import ArraySpec
from moored.trace.frames import Caller
from moored.trace.seams import Internals, Maker
from moored.trace.store import Store

__all__ = ["makers"]

_MAX_KNOWN = 4096


def makers(store: Store, jax_: Internals) -> dict[str, Maker]:
    """Replacements for the patches of the callback seam."""
    made_at: dict[int, tuple[weakref.ref[Any], Caller]] = {}

    def make_init(original: Any) -> Any:
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            try:
                if len(made_at) < _MAX_KNOWN:
                    key = id(self)
                    caller = store.frames.caller(sys._getframe(1))
                    made_at[key] = (weakref.ref(self, lambda _: made_at.pop(key, None)), caller)
            except Exception as error:
                store.failed("callbacks", error)

        return __init__

    def make_call(original: Any) -> Any:
        def __call__(self: Any, *arrays: Any) -> Any:
            start = time.perf_counter_ns()
            with _Inside(store):
                results = original(self, *arrays)
            elapsed = time.perf_counter_ns() - start
            try:
                known = made_at.get(id(self))
                caller = known[1] if known is not None and known[0]() is self else _defined(self)
                _saw(store, caller, arrays, results, elapsed)
            except Exception as error:
                store.failed("callbacks", error)
            return results

        return __call__

    def make_debug(original: Any) -> Any:
        def impl(*arrays: Any, **named: Any) -> Any:
            start = time.perf_counter_ns()
            with _Inside(store):
                results = original(*arrays, **named)
            elapsed = time.perf_counter_ns() - start
            try:
                made_by = getattr(named.get("callback"), "__qualname__", "")
                api = "debug_print" if made_by.startswith("_make_flat_callback") else "debug_callback"
                # On a CPU device the callback runs inside the call; elsewhere on a thread of the runtime.
                caller = store.frames.caller(sys._getframe(1))._replace(api=api)
                _saw(store, caller, arrays, (), elapsed)
            except Exception as error:
                store.failed("callbacks", error)
            return results

        return impl

    return {
        "callback_made": make_init,
        "callback_run": make_call,
        "debug_callback": make_debug,
    }


class _Inside:
    """While a callback runs, what it reads and puts is its own traffic, counted here and nowhere else."""

    def __init__(self, store: Store) -> None:
        self.state = store.state

    def __enter__(self) -> None:
        self.outer, self.state.nested = self.state.nested, True

    def __exit__(self, *_: object) -> None:
        self.state.nested = self.outer


def _defined(callback: Any) -> Caller:
    """The definition of the callback's function, for one that was made before moored came."""
    function = callback.callback_func
    while hasattr(function, "func"):
        function = function.func
    return Caller(getattr(function, "__code__", None), 0, "callback", "", ())


def _saw(store: Store, caller: Caller, arrays: Any, results: Any, elapsed: int) -> None:
    for direction, values in (("d2h", arrays), ("h2d", results)):
        nbytes = sum(int(getattr(value, "nbytes", 0)) for value in values)
        if not nbytes:
            continue
        largest = max(values, key=lambda value: getattr(value, "nbytes", 0))
        fields = {
            "direction": direction,
            "explicit": True,
            "seam": "callback",
            "api": caller.api or "callback",
            "library": caller.library,
            "array": ArraySpec(tuple(largest.shape), str(largest.dtype), None),
            "source": "device" if direction == "d2h" else "host",
            "target": "host" if direction == "d2h" else "device",
            "reason": "callback",
        }
        row = store.row(caller, fields)
        row.count += 1
        row.nbytes += nbytes
        row.wait_ns += elapsed if direction == "d2h" else 0
        row.last_ns = store.now()
