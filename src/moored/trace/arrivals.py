"""The arrival seam: where arrays end up that device_put, dlpack and pickle make.

``device_put`` shows its result here, which the put seam (what moves) does not: that tells the
line which committed an array, and a put that did nothing. A thread does not inherit the
``default_device`` of the block that started it; ``Thread.start`` remembers it.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

from moored.model.recording import ArraySpec
from moored.trace.frames import Caller
from moored.trace.seams import Internals, Maker
from moored.trace.store import Store

__all__ = ["makers"]


def makers(store: Store, jax_: Internals) -> dict[str, Maker]:
    """Replacements for the patches of the arrival seam."""
    arrivals = _Arrivals(store, jax_)
    return {
        "put_results": arrivals.make_put_results,
        "place_dlpack": arrivals.make_place_dlpack,
        "thread_start": arrivals.make_thread_start,
    }


class _Arrivals:
    def __init__(self, store: Store, jax_: Internals) -> None:
        self.store, self.jax = store, jax_

    def make_put_results(self, original: Any) -> Any:
        def _batched_device_put_impl(*xs: Any, **named: Any) -> Any:
            ys = original(*xs, **named)
            try:
                if not self.store.state.nested:
                    self.put(xs, named.get("devices") or (None,) * len(xs), ys)
            except Exception as error:
                self.store.failed("arrivals", error)
            return ys

        return _batched_device_put_impl

    def put(self, xs: Any, devices: Any, ys: Any) -> None:
        array_type, caller = self.jax.ArrayImpl, None
        for x, device, y in zip(xs, devices, ys, strict=False):
            value = getattr(y, "_base_array", y)
            if type(value) is not array_type:
                continue
            caller = caller or self.store.frames.caller(sys._getframe(2))
            if value._committed:
                self.store.commits(value, caller)
            elif y is x and device is None:
                self.stays(value, caller)
            elif caller.api == "unpickle":
                self.arrived("unpickled", value, caller, "")
            elif device is None and type(getattr(x, "_base_array", x)) is not array_type:
                self.in_thread(value, caller)

    def stays(self, value: Any, caller: Caller) -> None:
        """``device_put(x)``: the array stays where it is, uncommitted."""
        default = self.jax.pxla.get_default_device()
        if value.sharding.device_set != {default}:
            self.arrived("no-op-put", value, caller, self.store.places.device(default))

    def in_thread(self, value: Any, caller: Caller) -> None:
        started = self.store.thread_default()
        if started is not None and self.jax.default_device.value is None:
            expected = self.store.device_words(started[0])
            if expected != self.store.places.sharding(value.sharding):
                self.arrived("thread-default", value, caller, expected, self.store.site(started[1]))

    def make_place_dlpack(self, original: Any) -> Any:
        def _place_array(array: Any, device: Any, dlpack_device: Any, copy: Any) -> Any:
            placed = original(array, device, dlpack_device, copy)
            try:
                default = self.jax.pxla.get_default_device()
                given = self.jax.dlpack_source(sys._getframe(1))  # an array of JAX's own is no news
                is_news = type(given) is not self.jax.ArrayImpl
                if device is None and is_news and placed.sharding.device_set != {default}:
                    caller = self.store.frames.caller(sys._getframe(1))
                    self.store.commits(placed, caller)
                    if dlpack_device.platform == "cpu":
                        self.arrived("dlpack-host", placed, caller, self.store.places.device(default))
            except Exception as error:
                self.store.failed("arrivals", error)
            return placed

        return _place_array

    def make_thread_start(self, original: Any) -> Any:
        def start(thread: threading.Thread) -> None:
            try:
                in_force = self.jax.default_device.value
                if in_force is not None:
                    caller = self.store.frames.caller(sys._getframe(1))
                    self.store.started[thread] = (in_force, caller)
            except Exception as error:
                self.store.failed("arrivals", error)
            original(thread)

        return start

    def arrived(
        self, reason: str, value: Any, caller: Caller, expected: str, origin: int | None = None
    ) -> None:
        fields = {
            "api": caller.api,
            "library": caller.library,
            "reason": reason,
            "array": ArraySpec(tuple(value.shape), str(value.dtype), bool(value._committed)),
            "place": self.store.places.sharding(value.sharding),
            "expected": expected,
            "origin": origin,
        }
        self.store.saw(caller, fields, "arrivals", int(value.nbytes))
