"""The parent array: its size, its values, and how JAX gets it without a copy.

``jax.random.randint`` takes ten times the array's bytes as scratch (65 GB for 6.52 GB), so the
values are drawn here, block by block, straight into page-aligned host memory; the CPU client of
JAX then uses that very memory.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from moored.errors import InputError, MachineError, MooredError
from moored.units import format_bytes

__all__ = [
    "DTYPES",
    "FULL_SHAPE",
    "QUICK_SHAPE",
    "Shape",
    "allocate",
    "fill",
    "hand_over",
    "nbytes_of",
    "parse_shape",
    "shape_text",
]

Shape = tuple[int, ...]
HostArray = np.ndarray[Any, Any]

FULL_SHAPE: Shape = (530640, 6, 1024)
QUICK_SHAPE: Shape = (16384, 6, 1024)
#: Sizes that JAX keeps as they are; it narrows 64-bit types unless told otherwise.
DTYPES = ("uint16", "int16", "uint8", "int8", "uint32", "int32", "float32", "float16")

_VALUES = 50_000
_BLOCK = 1 << 19  # elements: with its scratch, small enough for a core's cache
_THREADS = 2


def parse_shape(text: str) -> Shape:
    """A shape from text such as ``"530640,6,1024"``.

    Raises:
        InputError: not two or more whole numbers of at least 1.

    >>> parse_shape("530640,6,1024"), parse_shape("64x8")
    ((530640, 6, 1024), (64, 8))
    """
    parts = re.split(r"\s*[,x]\s*", text.strip().strip("()[]"))
    if len(parts) < 2 or not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise InputError(
            f"--shape {text}: not a shape of two or more whole numbers of at least 1; "
            f"write for example --shape {shape_text(FULL_SHAPE)} (the first is the number of rows)"
        )
    return tuple(int(part) for part in parts)


def shape_text(shape: Shape) -> str:
    """A shape as the command line takes it.

    >>> shape_text((530640, 6, 1024))
    '530640,6,1024'
    """
    return ",".join(str(n) for n in shape)


def nbytes_of(shape: Shape, dtype: str) -> int:
    """Bytes of an array.

    >>> nbytes_of((530640, 6, 1024), "uint16")
    6520504320
    """
    return math.prod(shape) * np.dtype(dtype).itemsize


def allocate(shape: Shape, dtype: str) -> HostArray:
    """Page-aligned anonymous memory, in huge pages where the kernel has them.

    Raises:
        MachineError: the system does not give that much.

    >>> allocate((4, 8), "uint16").ctypes.data % 64
    0
    """
    nbytes = nbytes_of(shape, dtype)
    try:
        if os.name == "posix":
            memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        else:
            memory = mmap.mmap(-1, nbytes)
    except (OSError, OverflowError, ValueError) as error:
        raise MachineError(
            f"the system refused {format_bytes(nbytes)} of memory for an array of shape "
            f"{shape_text(shape)} of {dtype} ({error}); ask for a smaller --shape"
        ) from None
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    if advice is not None:
        with contextlib.suppress(OSError):  # a kernel without huge pages: slower to touch, nothing else
            memory.madvise(advice)
    return np.ndarray(shape, dtype, buffer=memory)


def _bound(dtype: str) -> int:
    """One more than the largest value to draw, so that every value is exact in ``dtype``."""
    kind = np.dtype(dtype)
    exact = 2 ** (np.finfo(kind).nmant + 1) if kind.kind == "f" else int(np.iinfo(kind).max) + 1
    return min(_VALUES, exact)


def fill(host: HostArray, seed: int, progress: Callable[[int], None] = lambda nbytes: None) -> None:
    """Draw whole numbers from [0, 50000), or as far as the type goes, into ``host``.

    The same seed gives the same values on any number of threads. A number is the upper part of
    16 random bits times the bound: no bit is thrown away, and the bias is below 1 in 65536.

    Args:
        host: C-contiguous; written in place.
        seed: Not negative.
        progress: Called in this thread with the bytes just done.

    >>> tokens = allocate((3, 4), "uint16")
    >>> fill(tokens, seed=0)
    >>> bool((tokens < 50_000).all())
    True
    """
    flat = host.reshape(-1)
    bound = np.uint32(_bound(host.dtype.name))

    def draw(start: int) -> int:
        part = flat[start : start + _BLOCK]
        words = np.random.SFC64([seed, start // _BLOCK]).random_raw(-(-part.size // 4))
        wide = words.view(np.uint16)[: part.size] * bound
        np.right_shift(wide, 16, out=wide)
        np.copyto(part, wide, casting="unsafe")
        return int(part.nbytes)

    pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="moored-fill")
    try:
        for nbytes in pool.map(draw, range(0, flat.size, _BLOCK)):
            progress(nbytes)
    finally:  # on Ctrl-C: blocks that have not begun are dropped
        pool.shutdown(cancel_futures=True)


def hand_over(host: HostArray, home: Any) -> tuple[Any, bool]:
    """An uncommitted JAX array of ``host`` on the device ``home``, and whether it shares its memory.

    ``device_put`` of 64-byte-aligned memory aliases it on CPU clients; on other devices it copies.

    Raises:
        MooredError: this JAX committed the array all the same.
    """
    import jax

    with jax.default_device(home):
        array = jax.device_put(host)
    array.block_until_ready()
    if array.committed:
        raise MooredError(
            f"jax {jax.__version__} committed an array that device_put made without a device; "
            "the experiment needs an uncommitted one"
        )
    return array, array.unsafe_buffer_pointer() == host.ctypes.data
