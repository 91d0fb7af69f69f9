"""Where arrays are, and how many bytes must cross to lay them out elsewhere.

Devices are compared as objects: two clients can both call themselves "cpu".
"""

from __future__ import annotations

import math
from typing import Any

from moored.trace import seams

__all__ = ["Places"]

_MAX_CACHED = 4096


def _extent(index: tuple[slice, ...], shape: tuple[int, ...]) -> tuple[range, ...]:
    return tuple(range(*s.indices(n)) for s, n in zip(index, shape, strict=True))


def _size(extent: tuple[range, ...]) -> int:
    return math.prod(len(r) for r in extent)


def _overlap(a: tuple[range, ...], b: tuple[range, ...]) -> int:
    return math.prod(max(0, min(x.stop, y.stop) - max(x.start, y.start)) for x, y in zip(a, b, strict=True))


def _memory(sharding: Any) -> str | None:
    kind = getattr(sharding, "memory_kind", None)
    # An unnamed memory is the device's default one; "device" is its usual name.
    return None if kind in (None, "device", "unpinned_host") else str(kind)


class Places:
    """Names of places and sizes of moves, cached for one attach.

    The caches hold shardings, and with them devices: ``clear()`` on detaching lets JAX tear its
    clients down in its own order.
    """

    def __init__(self) -> None:
        self._platforms: dict[int, str] = {}
        self._names: dict[Any, str] = {}
        self._moves: dict[Any, int] = {}

    def clear(self) -> None:
        """Forget all shardings and devices."""
        self._platforms.clear()
        self._names.clear()
        self._moves.clear()

    def device(self, device: Any) -> str:
        """``"cpu:0"``: the platform under which the client was registered, and the device's id."""
        key = id(device.client)
        platform = self._platforms.get(key)
        if platform is None:
            platform = self._platforms[key] = seams.client_platform(device)
        return f"{platform}:{device.id}"

    def sharding(self, sharding: Any) -> str:
        """``"cpu:0"``, ``"tpu:0,1,2,3 P('data',)"``, and the memory kind unless it is the usual."""
        name = self._names.get(sharding)
        if name is None:
            if len(self._names) > _MAX_CACHED:
                self._names.clear()
            name = self._names[sharding] = self._name(sharding)
        return name

    def _name(self, sharding: Any) -> str:
        devices = sorted(sharding.device_set, key=lambda d: d.id)
        if not devices:
            return type(sharding).__name__
        name = self.device(devices[0])
        if len(devices) > 1:
            ids = [d.id for d in devices]
            run = ids == list(range(ids[0], ids[0] + len(ids))) and len(ids) > 2
            name = name.rpartition(":")[0] + ":" + (f"{ids[0]}-{ids[-1]}" if run else ",".join(map(str, ids)))
            spec = getattr(sharding, "spec", None)
            if spec is not None:
                name += f" P{tuple(spec)}" if len(spec) else " replicated"
        memory = _memory(sharding)
        return f"{name} {memory}" if memory else name

    def moved(self, array: Any, wanted: Any) -> int:
        """Bytes that must cross to lay ``array`` out as ``wanted``; 0 when it already is.

        A shard that its device holds already does not count; of one that it holds in part, the
        missing part does. Works on deleted (donated) arrays.
        """
        have = array.sharding
        if have is wanted:
            return 0
        key = (have, wanted, array.shape, array.dtype)
        nbytes = self._moves.get(key)
        if nbytes is None:
            if len(self._moves) > _MAX_CACHED:
                self._moves.clear()
            nbytes = self._moves[key] = self._moved(have, wanted, array.shape, array.dtype.itemsize)
        return nbytes

    @staticmethod
    def _moved(have: Any, wanted: Any, shape: tuple[int, ...], itemsize: int) -> int:
        held = {d: _extent(i, shape) for d, i in have.addressable_devices_indices_map(shape).items()}
        same_memory = _memory(have) == _memory(wanted)
        elements = 0
        for device, index in wanted.addressable_devices_indices_map(shape).items():
            extent = _extent(index, shape)
            elements += _size(extent)
            if same_memory and device in held:
                elements -= _overlap(extent, held[device])
        return elements * itemsize

    @staticmethod
    def uploaded(shape: tuple[int, ...], itemsize: int, wanted: Any) -> int:
        """Bytes that a host value of this shape sends to the devices of ``wanted``."""
        indices = wanted.addressable_devices_indices_map(tuple(shape)).values()
        return sum(_size(_extent(i, shape)) for i in indices) * itemsize
