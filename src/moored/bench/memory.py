"""How much memory there is, and how much this process took at its peak."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec

from moored.units import format_bytes

__all__ = ["Available", "Peak", "available"]

_PROC = Path("/proc/self")
_NO_LIMIT = 1 << 60  # version 1 of control groups writes "no limit" as a huge number


class Available(msgspec.Struct, frozen=True):
    """Memory that a process can still take, and what says so."""

    nbytes: int
    source: str

    def __str__(self) -> str:
        """Both, as messages write them.

        >>> str(Available(24_100_000_000, "/proc/meminfo"))
        '24.1 GB is available (/proc/meminfo)'
        """
        return f"{format_bytes(self.nbytes)} is available ({self.source})"


def available(root: Path = Path("/")) -> Available | None:
    """The memory that is left, the strictest of the machine's and the control groups' word.

    Reads ``/proc/meminfo`` and the limits of both versions of control groups, where a container
    or a batch system sets them; page cache that a group can give back counts as available.

    Args:
        root: Where ``proc`` and ``sys`` are mounted.

    Returns:
        None on a machine that has no ``/proc``.

    >>> available(Path("/nowhere")) is None
    True
    """
    words = _group_words(root)
    for line in _lines(root / "proc/meminfo"):
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            words.append(Available(int(rest.split()[0]) * 1024, "/proc/meminfo"))
    return min(words, key=lambda word: word.nbytes, default=None)


def _group_words(root: Path) -> list[Available]:
    words = []
    for line in _lines(root / "proc/self/cgroup"):
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        base = root / "sys/fs/cgroup"
        limit, usage, cache = "memory.max", "memory.current", "inactive_file"
        if controllers:  # version 1: one hierarchy a controller
            if "memory" not in controllers.split(","):
                continue
            base /= "memory"
            limit, usage, cache = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
        here = Path(path.strip("/"))
        for group in [here, *here.parents] if here.parts else [here]:
            top, used = _number(base / group / limit), _number(base / group / usage)
            if top is None or used is None or top >= _NO_LIMIT:
                continue
            left = top - used + _field(base / group / "memory.stat", cache)
            words.append(Available(max(left, 0), f"{limit} of control group /{group}".replace("/.", "/")))
    return words


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def _number(path: Path) -> int | None:
    lines = _lines(path)
    return int(lines[0]) if lines and lines[0].isdigit() else None


def _field(path: Path, name: str) -> int:
    for line in _lines(path):
        key, _, value = line.partition(" ")
        if key == name and value.isdigit():
            return int(value)
    return 0


class Peak:
    """The most resident memory of this process since :meth:`reset`.

    >>> peak = Peak()
    >>> peak.reset()
    >>> peak.nbytes() is None or peak.nbytes() > 1_000_000
    True
    """

    def __init__(self) -> None:
        self.since = "the process started"

    def reset(self) -> None:
        """Forget earlier peaks, where the kernel can (``/proc/self/clear_refs``, proc(5))."""
        try:
            (_PROC / "clear_refs").write_text("5")
        except OSError:
            return
        self.since = "the benchmark started"

    def nbytes(self) -> int | None:
        """The peak, or None where this machine keeps none."""
        for line in _lines(_PROC / "status"):
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        if os.name != "posix":
            return None
        import resource

        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024
