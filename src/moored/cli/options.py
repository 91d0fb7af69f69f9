"""Options that several commands have, in the same words."""

from __future__ import annotations

__all__ = ["SHOW_LIBRARY"]

SHOW_LIBRARY = "Name the installed package that stands between a line and JAX, where there is one."
