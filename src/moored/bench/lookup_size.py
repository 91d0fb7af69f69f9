"""The size of the parent: what memory allows, said before anything is allocated."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from moored.bench.devices import device_name
from moored.bench.memory import Available
from moored.bench.parent import Shape, nbytes_of, shape_text
from moored.errors import MachineError
from moored.units import format_bytes

__all__ = ["Limit", "device_limit", "host_limit", "settle_shape"]

_JAX_NBYTES = 600_000_000  # JAX, its devices and its compiler, resident; generous
_DEVICE_NBYTES = 64_000_000


class Limit(msgspec.Struct, frozen=True):
    """One kind of memory: how many times the parent must fit, and how much there is.

    Attributes:
        available: What is left.
        copies: How often the parent is there at the peak.
        base: Bytes beside it.
        what: What those are, in words.
    """

    available: Available
    copies: int
    base: int
    what: str

    def need(self, parent_nbytes: int) -> int:
        """Bytes at the peak, for a parent of that size."""
        return self.copies * parent_nbytes + self.base

    def rows(self, row_nbytes: int) -> int:
        """The most rows that fit, rounded down to two digits, since what is available changes.

        >>> Limit(Available(10_000_000_000, "/proc/meminfo"), 2, 600_000_000, "").rows(12_288)
        380000
        """
        most = max(0, (self.available.nbytes - self.base) // (self.copies * row_nbytes))
        grain = int(10 ** max(0, len(str(most)) - 2))
        return most // grain * grain


def host_limit(left: Available | None) -> list[Limit]:
    """The host's memory as a limit; none where it is not known."""
    what = f"the parent, one copy of it, {format_bytes(_JAX_NBYTES)} for JAX"
    return [] if left is None else [Limit(left, 2, _JAX_NBYTES, what)]


def device_limit(device: Any) -> list[Limit]:
    """A device's own memory as a limit, where it keeps account of it."""
    stats = device.memory_stats() or {}
    if "bytes_limit" not in stats:
        return []
    left = int(stats["bytes_limit"]) - int(stats.get("bytes_in_use", 0))
    source = f"memory of {device_name(device)}"
    what = f"one copy of the parent on {device_name(device)}"
    return [Limit(Available(left, source), 1, _DEVICE_NBYTES, what)]


def settle_shape(shape: Shape, dtype: str, limits: Sequence[Limit], *, asked: bool) -> tuple[Shape, str]:
    """The shape to use, and a sentence where it is not the one that was meant.

    Args:
        shape: What is meant.
        dtype: Of the parent.
        limits: The memory that it must fit in.
        asked: The user wrote this shape: it is used or refused, never made smaller.

    Raises:
        MachineError: the shape that was asked for does not fit, or no shape does.

    >>> settle_shape((530640, 6, 1024), "uint16", [], asked=False)
    ((530640, 6, 1024), '')
    """
    nbytes = nbytes_of(shape, dtype)
    short = [limit for limit in limits if limit.need(nbytes) > limit.available.nbytes]
    if not short:
        return shape, ""
    row_nbytes = math.prod(shape[1:]) * np.dtype(dtype).itemsize
    worst = min(short, key=lambda limit: limit.rows(row_nbytes))
    rows = worst.rows(row_nbytes)
    fitting = (rows, *shape[1:])
    figures = (
        f"{shape_text(shape)} of {dtype} is {format_bytes(nbytes)} and needs "
        f"{format_bytes(worst.need(nbytes))} at the peak ({worst.what}); {worst.available}"
    )
    if rows == 0:
        raise MachineError(f"--shape {figures}: not even one row of {format_bytes(row_nbytes)} fits")
    if asked:
        raise MachineError(f"--shape {figures}; the largest that fits: --shape {shape_text(fitting)}")
    return fitting, (
        f"{figures}. Used instead, because it fits: {shape_text(fitting)}, "
        f"{format_bytes(nbytes_of(fitting, dtype))}."
    )
