"""Keeps moored's modules and the program's apart in one interpreter.

moored runs in the program's process, so what it imported is in ``sys.modules`` already when the
program starts. A program with a ``click.py`` of its own beside it must get that one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder
from types import ModuleType

__all__ = ["Neighbours"]


class Neighbours:
    """The modules that moored loaded and that the program would find elsewhere under the same name."""

    def __init__(self) -> None:
        self._path = list(sys.path)
        self._ours: dict[str, ModuleType] = {}

    def give_way(self) -> None:
        """Forget those of our modules that ``sys.path``, now the program's, finds elsewhere.

        Without moored they would be imported from there. Modules that the interpreter itself loads at
        its start, built-in and frozen ones come before any folder, and stay. So does moored.
        """
        for name in _loaded_by_us():
            if _is_elsewhere(name):
                for loaded in [m for m in sys.modules if m == name or m.startswith(f"{name}.")]:
                    self._ours[loaded] = sys.modules.pop(loaded)

    @contextmanager
    def ours_first(self) -> Iterator[None]:
        """While it lasts, imports get moored's own neighbours: for the report, when the program has ended."""
        path, theirs = sys.path[:], {name: sys.modules.get(name) for name in self._ours}
        sys.path[:] = self._path
        sys.modules.update(self._ours)
        try:
            yield
        finally:
            sys.path[:] = path
            for name, module in theirs.items():
                if module is None:
                    sys.modules.pop(name, None)
                else:
                    sys.modules[name] = module


def _loaded_by_us() -> set[str]:
    """Top-level modules that came after the launcher: ``sys.modules`` keeps the order of loading."""
    order = list(sys.modules)
    start = min(order.index(name) for name in ("runpy", "moored") if name in sys.modules)
    before = {name.partition(".")[0] for name in order[:start]}
    return {name.partition(".")[0] for name in order[start:]} - before - {"moored", "__main__", "__mp_main__"}


def _is_elsewhere(name: str) -> bool:
    if BuiltinImporter.find_spec(name) is not None or FrozenImporter.find_spec(name) is not None:
        return False
    loaded: str | None = getattr(sys.modules.get(name), "__file__", None)
    spec = PathFinder.find_spec(name)
    # Without an origin: a folder without __init__.py, or nothing there (another finder found ours).
    if spec is None or not spec.origin or loaded is None or spec.origin == loaded:
        return False
    return os.path.realpath(spec.origin) != os.path.realpath(loaded)
