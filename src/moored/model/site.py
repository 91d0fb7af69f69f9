"""A user's line: where in their program something happened."""

from __future__ import annotations

import msgspec

__all__ = ["Site"]


class Site(msgspec.Struct, frozen=True, array_like=True):
    """One place in the user's source.

    Columns count UTF-8 bytes from 0, as Python's own code objects do; they are None where
    the interpreter kept no columns (``-X no_debug_ranges``). A site without a Python
    frame (a thread of the runtime) has line 0.

    >>> Site("train.py", 13, function="main").text
    'train.py:13'
    """

    path: str
    line: int
    end_line: int = 0
    column: int | None = None
    end_column: int | None = None
    function: str = ""

    @property
    def text(self) -> str:
        """``path:line``, which terminals and editors make clickable."""
        return f"{self.path}:{self.line}" if self.line else self.path
