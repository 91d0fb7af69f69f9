"""Where a finding becomes a note, a warning or an error: every number, in one place.

Bytes are decimal. The figures are judgements, not measurements: at about 10 GB/s, 64 kB is where
a copy starts to cost more than the call that carries it, and 1 MB is about 0.1 ms.
"""

from __future__ import annotations

__all__ = [
    "BYTES_PER_SECOND",
    "LARGE_COPY",
    "LARGE_TOTAL",
    "NOISE",
    "NOTABLE_COPY",
    "READ_SHARE",
    "READ_WAIT_SECONDS",
    "REPEATED_PUTS",
    "REPEATED_READS",
    "SAME_LINE_READS",
    "SMALL_REPEAT",
]

NOISE = 8
"""Bytes an event up to which a copy is an index or a Python scalar: folded, never a finding."""

NOTABLE_COPY = 64_000
"""Bytes an event from which a repeated copy is an error (d2d) or a warning (puts)."""

LARGE_COPY = 1_000_000
"""Bytes from which even a single copy is worth a warning, and a repeated put an error."""

LARGE_TOTAL = 100_000_000
"""Bytes in all from which repeated copies are an error however small each one is."""

SMALL_REPEAT = 1_000
"""Bytes an event below which the repeated upload of a host array is only a note."""

REPEATED_PUTS = 3
"""Puts of one large object from which they are an error."""

REPEATED_READS = 3
"""Reads from which a read on one line counts as one per step."""

SAME_LINE_READS = 16
"""Reads from which a line that runs only once is reading scalars one by one."""

READ_SHARE = 0.05
"""Share of the run that the host waited in one line's reads, from which they are an error ..."""

READ_WAIT_SECONDS = 0.010
"""... if they also waited at least this long."""

BYTES_PER_SECOND = 10e9
"""A link's speed, for sorting findings that were not timed; never shown."""
