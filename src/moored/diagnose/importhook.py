"""Calls back once a module has been imported, and leaves no trace in the module.

The program decides when JAX is imported: it may set ``XLA_FLAGS`` or a platform first.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__all__ = ["when_imported"]


def when_imported(name: str, then: Callable[[], None]) -> None:
    """Call ``then`` as soon as the module ``name`` was executed; at once where it was already.

    Args:
        name: A top-level module.
        then: Called in the importing thread, before the import returns. It must not raise.

    >>> import sys
    >>> when_imported("sys", lambda: print("imported"))
    imported
    """
    if name in sys.modules:
        then()
    else:
        sys.meta_path.insert(0, _Finder(name, then))


class _Finder(MetaPathFinder):
    """Asks the other finders for the module, and wraps the loader that they found."""

    def __init__(self, name: str, then: Callable[[], None]) -> None:
        self._name, self._then = name, then

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        for finder in sys.meta_path:
            find_spec = getattr(finder, "find_spec", None)
            if finder is self or find_spec is None:
                continue
            spec: ModuleSpec | None = find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:  # None: a folder without __init__.py; nothing will be executed
                    spec.loader = _Loader(spec.loader, self._executed)
                return spec
        return None

    def _executed(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        self._then()


class _Loader(Loader):
    """The loader that was found; says when it is done."""

    def __init__(self, loader: Any, executed: Callable[[], None]) -> None:
        self._loader, self._executed = loader, executed

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._executed()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
