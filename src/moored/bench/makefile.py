"""What ``make bench`` asks: how to trace the example on the benchmark's devices, in its memory.

``python -m moored.bench.makefile trace`` prints options for ``moored trace``; ``... program ARGS``
prints arguments for ``examples/commitment_issues.py``, where ARGS went to the benchmark.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from moored.bench.devices import choose
from moored.bench.lookup_size import host_limit, settle_shape
from moored.bench.memory import available
from moored.bench.parent import FULL_SHAPE, QUICK_SHAPE, shape_text
from moored.errors import MooredError

__all__ = ["program_arguments", "trace_options"]


def trace_options() -> str:
    """``--simulate``, ``--simulate=2``, or nothing where there is a real accelerator."""
    simulated = choose(None, None, None).simulated
    if simulated is None:
        return ""
    return "--simulate" if simulated == "accel" else "--simulate=2"


def program_arguments(bench_arguments: Sequence[str]) -> str:
    """``--shape ROWS,6,1024`` where the full size was not meant or does not fit.

    >>> program_arguments(["--quick"])
    '--shape 16384,6,1024'
    """
    if "--quick" in bench_arguments:
        return f"--shape {shape_text(QUICK_SHAPE)}"
    shape, _ = settle_shape(FULL_SHAPE, "uint16", host_limit(available()), asked=False)
    return "" if shape == FULL_SHAPE else f"--shape {shape_text(shape)}"


if __name__ == "__main__":
    try:
        print(trace_options() if sys.argv[1:] == ["trace"] else program_arguments(sys.argv[2:]))
    except MooredError as error:
        sys.exit(f"moored: error: {error}")
