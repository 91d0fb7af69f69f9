"""Where a finding becomes a note, a warning or an error: every number, in one place.

Bytes are decimal. The figures are judgements, not measurements: at about 10 GB/s, 64 kB is where
a copy starts to cost more than the call that carries it, and 1 MB is about 0.1 ms.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

__all__ = ["BYTES_PER_SECOND", "DEFAULTS", "Thresholds"]

BYTES_PER_SECOND = 10e9
"""A link's speed, for sorting findings that were not timed; never shown."""


def _bytes(description: str) -> Meta:
    return Meta(ge=0, description=description, extra={"unit": "bytes"})


def _count(description: str) -> Meta:
    return Meta(ge=1, description=description, extra={"unit": "count"})


class Thresholds(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    """The numbers that rules compare with; a project sets its own under ``[tool.moored]``.

    >>> Thresholds(large_copy=4_000_000).large_copy, Thresholds().large_copy
    (4000000, 1000000)
    """

    noise: Annotated[
        int,
        _bytes(
            "Up to this many bytes an event, a copy is an index or a Python scalar: folded, never a finding."
        ),
    ] = 8
    small_repeat: Annotated[
        int, _bytes("Below this many bytes an event, repeated uploads and callbacks are only a note.")
    ] = 1_000
    notable_copy: Annotated[
        int,
        _bytes(
            "From this many bytes an event, repeated copies are errors (between devices) or warnings (puts)."
        ),
    ] = 64_000
    large_copy: Annotated[
        int,
        _bytes(
            "From this many bytes, a single copy is worth a warning, and a repeated put or read an error."
        ),
    ] = 1_000_000
    large_constant: Annotated[
        int, _bytes("From this many bytes, an array that was baked into an executable once is a warning.")
    ] = 10_000_000
    large_total: Annotated[
        int,
        _bytes("From this many bytes in all, repeated copies are an error however small each one is."),
    ] = 100_000_000
    repeated_puts: Annotated[
        int, _count("From this many puts of one large object on, they are an error.")
    ] = 3
    repeated_reads: Annotated[
        int, _count("From this many reads (or callbacks) on, a line is taken to read at every step.")
    ] = 3
    same_line_reads: Annotated[
        int, _count("From this many reads on, a line that runs only once is reading scalars one by one.")
    ] = 16
    repeated_compiles: Annotated[
        int,
        _count("From this many compilations of one function for placement alone on, they are a warning."),
    ] = 2
    compile_seconds: Annotated[
        float,
        Meta(
            ge=0,
            description="From this many seconds, even one compilation for placement alone is a warning.",
            extra={"unit": "seconds"},
        ),
    ] = 1.0
    read_share: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="From this share of the run spent waiting in one line's reads, they are errors ...",
            extra={"unit": "share"},
        ),
    ] = 0.05
    read_wait_seconds: Annotated[
        float,
        Meta(
            ge=0,
            description="... if they also waited at least this many seconds.",
            extra={"unit": "seconds"},
        ),
    ] = 0.010


DEFAULTS = Thresholds()
