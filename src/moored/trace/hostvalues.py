"""What host values (numpy arrays, Python numbers) become on a device.

Apart from ``places`` so that only attaching loads numpy: a traced program may want to set
``OMP_NUM_THREADS`` first.
"""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["host_spec"]

_NARROWED = {"f8": "f4", "i8": "i4", "u8": "u4", "c16": "c8"}


def host_spec(value: Any, x64: bool) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and dtype that a host value has on a device; without x64, 64-bit types narrow.

    >>> host_spec(np.ones((2, 3)), x64=False)
    ((2, 3), dtype('float32'))
    """
    dtype = np.dtype(value.dtype) if hasattr(value, "dtype") else np.asarray(value).dtype
    if not x64:
        dtype = np.dtype(_NARROWED.get(dtype.str[1:], dtype))
    return tuple(getattr(value, "shape", ())), dtype
