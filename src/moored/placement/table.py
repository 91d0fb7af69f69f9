"""What ``where`` returns: rows, totals per device, and their table."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from moored.units import format_bytes, format_count

__all__ = ["Placement", "Row"]

_WIDTH = 80
_SHORTEST_PATH = 16
_SHOWN_DEVICES = 8
_HEADINGS = ("path", "array", "bytes", "device", "memory", "committed", "kind")


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One leaf of a pytree, and where it is.

    Attributes:
        path: The leaf's path, as ``jax.tree_util.keystr`` prints it; empty where the tree is one leaf.
        kind: ``"jax array"``, ``"key array"`` (typed PRNG keys), ``"numpy"``, ``"scalar"`` (of Python or
            numpy), ``"deleted"`` (deleted or donated), ``"tracer"`` or ``"other"``.
        shape: The global shape; None where the leaf has none.
        dtype: Its dtype; the type's name for Python scalars and other objects.
        nbytes: Bytes of its values, counted once however they are replicated; 0 where nothing
            is held (deleted arrays, tracers, Python scalars, other objects).
        device: Device or sharding in words: ``"gpu:0"``, ``"gpu:0-3 P('data',)"``; ``"host"`` for numpy
            and scalars, ``"traced"`` for tracers, ``"gone"`` for deleted arrays, ``"-"`` for other objects.
        memory_kind: ``"device"``, ``"pinned_host"``, ...; None where the leaf is no live JAX array.
        committed: Whether JAX may move it: False means that it may. None for what is no live JAX array.
        shares: Bytes that each device holds, replicas included, by device name; a memory other than
            the device's own is part of the name (``"gpu:0 pinned_host"``).
    """

    path: str
    kind: str
    shape: tuple[int, ...] | None
    dtype: str
    nbytes: int
    device: str
    memory_kind: str | None = None
    committed: bool | None = None
    shares: dict[str, int] = {}

    @property
    def array(self) -> str:
        """Shape and dtype as one word, ``"float32[3,4]"``."""
        return self.dtype if self.shape is None else f"{self.dtype}[{','.join(map(str, self.shape))}]"


class Placement(msgspec.Struct, frozen=True):
    """Where the leaves of a pytree are; prints as a table.

    Attributes:
        rows: One per leaf, in the tree's order.
        totals: Bytes held by each device, and by the host, over all leaves; an object that is in
            the tree twice (tied weights) counts once.

    >>> import numpy as np
    >>> from moored import where
    >>> placement = where({"tokens": np.zeros(1024, np.uint16), "step": 3})
    >>> placement.totals, [row.path for row in placement.rows if row.kind == "numpy"]
    ({'host': 2048}, ["['tokens']"])
    """

    rows: tuple[Row, ...]
    totals: dict[str, int]

    def __str__(self) -> str:
        return _table(self)

    __repr__ = __str__


def _table(placement: Placement) -> str:
    if not placement.rows:
        return "no leaves"
    cells = [_HEADINGS, *(_cells(row) for row in placement.rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(_HEADINGS))]
    gaps = 2 * (len(widths) - 1)
    widths[0] = min(widths[0], max(_SHORTEST_PATH, _WIDTH - gaps - sum(widths[1:])))
    return "\n".join([*(_line(line, widths) for line in cells), "", *_summary(placement)])


def _cells(row: Row) -> tuple[str, ...]:
    committed = "-" if row.committed is None else "yes" if row.committed else "no"
    nbytes = format_bytes(row.nbytes) if row.nbytes else "-"
    return (row.path or "(root)", row.array, nbytes, row.device, row.memory_kind or "-", committed, row.kind)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [f"{_shorten(cells[0], widths[0]):<{widths[0]}}"]
    for heading, cell, width in zip(_HEADINGS[1:], cells[1:], widths[1:], strict=True):
        padded.append(f"{cell:>{width}}" if heading == "bytes" else f"{cell:<{width}}")
    return "  ".join(padded).rstrip()


def _shorten(path: str, width: int) -> str:
    """A path with its middle left out: both its ends tell leaves apart.

    >>> _shorten("['params']['encoder']['layer_11']['w']", 24)
    "['params...yer_11']['w']"
    """
    if len(path) <= width:
        return path
    head = (width - 3) * 2 // 5
    return f"{path[:head]}...{path[len(path) - (width - 3 - head) :]}"


def _summary(placement: Placement) -> list[str]:
    totals = list(placement.totals.items())
    shown = [f"{name} {format_bytes(nbytes)}" for name, nbytes in totals[:_SHOWN_DEVICES]]
    if rest := totals[_SHOWN_DEVICES:]:
        shown.append(f"{format_count(len(rest), 'more device')} {format_bytes(sum(n for _, n in rest))}")
    loose = sum(row.committed is False for row in placement.rows)
    lines = [f"total: {'; '.join(shown) or 'nothing held'}"]
    lines.append(f"{format_count(len(placement.rows), 'leaf', 'leaves')}, {loose:,} uncommitted")
    return lines
