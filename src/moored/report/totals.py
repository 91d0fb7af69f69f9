"""The one line of totals: findings by severity, and what moved which way."""

from __future__ import annotations

from collections.abc import Sequence

from moored.model.finding import SEVERITIES, Finding
from moored.model.recording import Recording, Transfer
from moored.units import format_bytes, format_count, format_seconds

__all__ = ["DIRECTIONS", "totals_line"]

DIRECTIONS = {"h2d": "host to device", "d2d": "device to device", "d2h": "device to host"}


def totals_line(recording: Recording, findings: Sequence[Finding]) -> str:
    """Findings by severity, what moved which way, what was compiled again, how long it all took.

    >>> totals_line(Recording(), [])
    'moored: nothing drifted. Watched no transfers.'
    """
    counts = [
        format_count(n, severity)
        for severity in SEVERITIES
        if (n := sum(f.severity == severity for f in findings))
    ]
    moved = []
    for direction, words in DIRECTIONS.items():
        rows = [t for t in recording.transfers if t.direction == direction]
        if rows:
            moved.append(f"{words} {_volume(rows, 'transfer')}{_by_callbacks(rows)}")
    seconds = recording.header.seconds
    ran = f" The run took {format_seconds(seconds)}." if seconds > 0 else ""
    ran = _recompiled(recording) + ran
    if not counts:
        return f"moored: nothing drifted. Watched {', '.join(moved) or 'no transfers'}.{ran}"
    return f"moored: {', '.join(counts)}. Moved {', '.join(moved) or 'nothing'}.{ran}"


def _volume(rows: Sequence[Transfer], noun: str) -> str:
    return f"{format_bytes(sum(t.nbytes for t in rows))} in {format_count(sum(t.count for t in rows), noun)}"


def _by_callbacks(rows: Sequence[Transfer]) -> str:
    """How much of what moved one way was moved by callbacks."""
    called = [t for t in rows if t.seam == "callback"]
    return f" (of these {_volume(called, 'callback')})" if called else ""


def _recompiled(recording: Recording) -> str:
    count = sum(c.count for c in recording.compiles)
    if not count:
        return ""
    took = sum(c.compile_ns for c in recording.compiles) / 1e9
    said = f" Compiled again for placement alone: {format_count(count, 'time')}"
    return f"{said}, {format_seconds(took)}." if took else f"{said}."
