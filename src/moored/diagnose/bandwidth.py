"""How fast copies between host and devices run here, measured."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np

from moored.diagnose.diagnosis import Bandwidth
from moored.placement.devices import Names

__all__ = ["measure"]

_ROUNDS = 5
_ALIGNMENT = 64


def measure(
    jax: Any, device: Any, other: Any | None, nbytes: int, *, names: Names, clock: Callable[[], int]
) -> list[Bandwidth]:
    """Time host to ``device``, ``device`` to host, and ``other`` to ``device`` where there is another.

    Every copy is a real one: the host's array starts off the 64-byte alignment at which a CPU
    client would take it over, and each array is read once (JAX keeps what was read).

    Raises:
        RuntimeError: the device has no room for ``nbytes``.
    """
    host = _misaligned(nbytes)

    def put(target: Any) -> Any:
        return jax.block_until_ready(jax.device_put(host, target))

    def read(array: Any) -> None:
        values = np.asarray(array)
        if device.platform == "cpu":  # there a read is a view, and no copy
            values.copy()

    name = names.device(device)
    copies: list[tuple[str, str, Callable[[], Any], Callable[[Any], Any]]] = [
        ("host", name, lambda: host, lambda _: put(device)),
        (name, "host", lambda: put(device), read),
    ]
    if other is not None:
        copies.append(
            (
                names.device(other),
                name,
                lambda: put(other),
                lambda array: jax.block_until_ready(jax.device_put(array, device)),
            )
        )
    results = []
    for source, target, make, copy in copies:
        array = make()
        if _shares_memory(array, copy(array)):
            results.append(Bandwidth(source, target, nbytes, None, None, _ROUNDS))
            continue
        # That was the first copy: it paid for memory and set-up that the later ones reuse.
        seconds = median(_seconds(make, copy, clock) for _ in range(_ROUNDS))
        results.append(Bandwidth(source, target, nbytes, seconds, nbytes / seconds / 1e9, _ROUNDS))
    return results


def _seconds(make: Callable[[], Any], copy: Callable[[Any], Any], clock: Callable[[], int]) -> float:
    source = make()
    start = clock()
    result = copy(source)
    took = clock() - start
    del result
    return max(took, 1) / 1e9


def _shares_memory(source: Any, result: Any) -> bool:
    """Whether an array "copied" to another device is the same memory there."""
    try:
        return bool(source.unsafe_buffer_pointer() == result.unsafe_buffer_pointer())
    except Exception:  # numpy has no such pointer, and neither have some PJRT plugins
        return False


def _misaligned(nbytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    raw = np.ones(nbytes + _ALIGNMENT, np.uint8)
    start = (_ALIGNMENT // 2 - raw.ctypes.data) % _ALIGNMENT
    return raw[start : start + nbytes]
