"""The put seam: device_put, asarray and what else places host values or arrays on request.

JAX's ``device_put`` and ``asarray`` end in ``shard_args`` or ``batched_device_put``, one
calling the other; only the outermost of them counts. Placements that belong to a call are
the call seam's (``nested``), as are the constants of a function, which are marked as such.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from moored.model.recording import ArraySpec
from moored.trace.hostvalues import host_spec
from moored.trace.places import Places
from moored.trace.seams import Internals

if TYPE_CHECKING:
    from moored.trace.frames import Caller
    from moored.trace.store import Store

__all__ = ["makers"]

_SCALAR_NBYTES = 8
_ORIGIN_NBYTES = 1024
_now = time.perf_counter_ns


def makers(store: Store, jax_: Internals) -> dict[str, Callable[[Any], Any]]:
    """Replacements for the patches of the put seam."""
    puts = _Puts(store, jax_)
    return {"shard_args": puts.make_shard_args, "batched_device_put": puts.make_batched_device_put}


class _Puts:
    def __init__(self, store: Store, jax_: Internals) -> None:
        self.store, self.jax = store, jax_
        #: JAX functions that place the inputs of a call: the call seam has counted them.
        self.of_calls = frozenset({"cc_shard_arg"})

    def make_shard_args(self, original: Any) -> Any:
        state = self.store.state

        def shard_args(
            shardings: Any, layouts: Any, semantics: Any, args: Any, *rest: Any, **named: Any
        ) -> Any:
            if state.nested:
                return original(shardings, layouts, semantics, args, *rest, **named)
            called_by = sys._getframe(1).f_code.co_name
            start = _now()
            state.nested = True  # last before the try: a signal may come in after any call
            try:
                out = original(shardings, layouts, semantics, args, *rest, **named)
            finally:
                state.nested = False
            if called_by not in self.of_calls:
                reason = "constant" if called_by == "shard_const_args" else ""
                self.saw(list(zip(args, shardings, strict=False)), _now() - start, reason)
            return out

        return shard_args

    def make_batched_device_put(self, original: Any) -> Any:
        state = self.store.state

        def batched_device_put(
            aval: Any, sharding: Any, xs: Any, devices: Any, *rest: Any, **named: Any
        ) -> Any:
            if state.nested:
                return original(aval, sharding, xs, devices, *rest, **named)
            start = _now()
            state.nested = True  # last before the try: a signal may come in after any call
            try:
                out = original(aval, sharding, xs, devices, *rest, **named)
            finally:
                state.nested = False
            self.saw_shards(aval, sharding, xs, devices, _now() - start)
            return out

        return batched_device_put

    @staticmethod
    def of_callback(caller: Caller) -> bool:
        """Whether JAX stages the arguments of a callback: the callback seam counts those."""
        return any(name.endswith("_callback_impl") for name in caller.inside)

    def saw(self, placed: Sequence[tuple[Any, Any]], elapsed: int, reason: str) -> None:
        """Whole values, each with the sharding that it goes to."""
        store = self.store
        try:
            caller: Caller | None = None
            for value, sharding in placed:
                inner = getattr(value, "_base_array", value)
                is_array = type(inner) is self.jax.ArrayImpl
                if is_array:
                    nbytes = store.places.moved(inner, sharding)
                else:
                    shape, dtype = host_spec(inner, self.jax.jax.config.jax_enable_x64)
                    nbytes = Places.uploaded(shape, dtype.itemsize, sharding)
                self.note_origin(inner, sharding)
                if nbytes == 0:
                    continue
                if not is_array and nbytes <= _SCALAR_NBYTES:
                    store.scalars[0] += 1
                    store.scalars[1] += nbytes
                    continue
                caller = caller or store.frames.caller(sys._getframe(2))
                if self.of_callback(caller):
                    return
                self.count(caller, inner, sharding, nbytes, elapsed, reason, value)
                elapsed = 0
        except Exception as error:
            store.failed("puts", error)

    def saw_shards(self, aval: Any, sharding: Any, xs: Any, devices: Any, elapsed: int) -> None:
        """One array made of shards, each for its device."""
        store = self.store
        try:
            nbytes = 0
            whole: Any = None
            for shard, device in zip(xs, devices, strict=False):
                if type(shard) is self.jax.ArrayImpl:
                    nbytes += 0 if shard.sharding.device_set == {device} else int(shard.nbytes)
                    whole = shard
                else:
                    shape, dtype = host_spec(shard, self.jax.jax.config.jax_enable_x64)
                    nbytes += Places.uploaded(shape, dtype.itemsize, _OneDevice)
                    whole = shard if whole is None else whole
            if len(xs) == 1:
                self.note_origin(whole, sharding)
            if nbytes <= _SCALAR_NBYTES:
                store.scalars[0] += nbytes > 0
                store.scalars[1] += nbytes
                return
            caller = store.frames.caller(sys._getframe(2))
            self.count(caller, whole, sharding, nbytes, elapsed, "", whole if len(xs) == 1 else None, aval)
        except Exception as error:
            store.failed("puts", error)

    def count(self, caller: Caller, value: Any, sharding: Any, nbytes: int, elapsed: int, reason: str,
              obj: Any, aval: Any = None) -> None:  # fmt: skip
        store = self.store
        is_array = type(value) is self.jax.ArrayImpl
        explicit = store.is_explicit(caller) and not reason
        shaped = aval if aval is not None else value
        fields = {
            "direction": "d2d" if is_array else "h2d",
            "explicit": explicit,
            "seam": "constant" if reason == "constant" else "put",
            "api": caller.api,
            "library": caller.library,
            "array": ArraySpec(
                tuple(int(n) for n in getattr(shaped, "shape", ())),
                str(getattr(shaped, "dtype", type(shaped).__name__)),
                bool(value._committed) if is_array else None,
            ),
            "source": store.places.sharding(value.sharding) if is_array else "host",
            "target": store.places.sharding(sharding),
            "reason": reason or ("asked" if explicit else "host-value" if not is_array else "asked"),
        }
        row = store.row(caller, fields)
        row.count += 1
        row.nbytes += nbytes
        row.call_ns += elapsed
        row.last_ns = _now() - store.epoch_ns
        if obj is not None:
            row.seen(obj)

    def note_origin(self, value: Any, sharding: Any) -> None:
        """Under ``default_device``, host data that goes to that device stays uncommitted there."""
        in_force = self.jax.default_device.value
        if in_force is None or type(value) is self.jax.ArrayImpl or len(sharding.device_set) != 1:
            return
        shape, dtype = host_spec(value, self.jax.jax.config.jax_enable_x64)
        if dtype.itemsize * int(getattr(value, "size", 1)) >= _ORIGIN_NBYTES:
            caller = self.store.frames.caller(sys._getframe(3))
            self.store.makes_under_default_device((shape, dtype, sharding), caller)


class _OneDevice:
    """Stands for a sharding on one device, where only the number of elements counts."""

    @staticmethod
    def addressable_devices_indices_map(shape: tuple[int, ...]) -> dict[int, tuple[slice, ...]]:
        return {0: (slice(None),) * len(shape)}
