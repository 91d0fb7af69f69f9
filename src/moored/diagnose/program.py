"""Runs a user's program as ``__main__``, as ``python`` itself would, from inside this interpreter.

Each kind of program (script, module, folder or zip file) gets what the interpreter gives it: its own
``__main__`` module in ``sys.modules``, its argv, its first entry of ``sys.path``. What it raises is the
caller's to pass on, untouched. Checked attribute by attribute against plain runs in
``tests/test_transparency.py``, on Python 3.11 to 3.13.
"""

from __future__ import annotations

import builtins
import importlib.util
import os
import pkgutil
import runpy
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from importlib.abc import InspectLoader
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader, SourcelessFileLoader
from types import CodeType, ModuleType
from typing import Any, cast

from moored.diagnose.sourceerror import as_the_interpreter_says
from moored.diagnose.tracebacks import launches
from moored.errors import InputError

__all__ = ["NotRunnable", "Program", "locate_module", "locate_script"]

_BYTE_CODE = importlib.util.MAGIC_NUMBER


class NotRunnable(Exception):
    """Why a module can not be run, found out only after code of its package ran."""


class Program(ABC):
    """A program that was found and not started yet.

    Attributes:
        argv: Its ``sys.argv``.
        shown: How messages name it: as the user wrote it.
        command: How reports name it: that, and its arguments.
        path: Absolute path of its main file or folder; empty where it is found by its module name.
        roots: Folders whose files are the user's code, even under site-packages.
    """

    def __init__(self, command: Sequence[str], args: Sequence[str], path: str, roots: Sequence[str]) -> None:
        self.shown = " ".join(command)
        self.command = [*command, *args]
        self.argv = [command[0], *args]
        self.path, self.roots = path, list(roots)

    @abstractmethod
    def set_path(self) -> None:
        """Set ``sys.path`` as it is when the program starts."""

    @abstractmethod
    def run(self) -> None:
        """Run it as ``__main__``.

        Raises:
            NotRunnable: there is no such module in its package after all.
            BaseException: whatever the program raises.
        """

    def _run_spec(self, spec: ModuleSpec, code: CodeType | None) -> None:
        """Run what the import system found, as ``python -m`` does."""
        assert code is not None
        namespace = self._become_main(
            __file__=spec.origin if spec.has_location else None,
            __cached__=spec.cached,
            __loader__=spec.loader,
            __package__=spec.parent,
            __spec__=spec,
        )
        _execute(code, namespace)

    def _become_main(self, **attributes: Any) -> dict[str, Any]:
        """Put a new ``__main__`` in place of ours, as the interpreter makes it; returns its namespace."""
        launcher = sys.modules["__main__"]
        main = ModuleType("__main__")
        if "__annotations__" in vars(launcher):  # made by the interpreter up to Python 3.13
            vars(main)["__annotations__"] = {}
        vars(main).update(attributes, __builtins__=builtins)
        sys.modules["__main__"] = main
        return vars(main)


def locate_script(path: str, args: Sequence[str]) -> Program:
    """A script, a compiled script, or a folder or zip file with a ``__main__.py``.

    Raises:
        InputError: there is none, or it can not be read.

    >>> locate_script("no_such_file.py", [])
    Traceback (most recent call last):
        ...
    moored.errors.InputError: no_such_file.py: can not be opened: No such file or directory; nothing was run
    """
    if path == "-":
        raise InputError("-: a program from stdin can not be traced; save it to a file and name that")
    try:
        # As the interpreter does it: made absolute, not tidied up ("./train.py" stays "/home/me/./train.py").
        absolute = path if os.path.isabs(path) else f"{os.getcwd()}{os.sep}{path}"
        importer = pkgutil.get_importer(absolute)
        if importer is not None:
            return _Container(path, absolute, args)
        with open(absolute, "rb") as file:
            return _Script(path, absolute, args, file.read())
    except OSError as error:
        raise InputError(f"{path}: can not be opened: {error.strerror}; nothing was run") from None


def locate_module(name: str, args: Sequence[str]) -> Program:
    """A module or package that is found by its name, as ``python -m`` does.

    Raises:
        InputError: there is no module of that name.

    >>> locate_module("no_such_module", [])
    Traceback (most recent call last):
        ...
    moored.errors.InputError: -m no_such_module: there is no module named 'no_such_module'; nothing was run
    """
    program = _Module(name, args)
    program.check()
    return program


class _Script(Program):
    """One file of source, or of byte code."""

    def __init__(self, shown: str, path: str, args: Sequence[str], content: bytes) -> None:
        folder = os.path.dirname(os.path.realpath(path))
        super().__init__([shown], args, path, [folder])
        self._folder, self._content = folder, content
        self._compiled = path.endswith(".pyc") or content.startswith(_BYTE_CODE)

    def set_path(self) -> None:
        if not sys.flags.safe_path:
            sys.path[0] = self._folder

    def run(self) -> None:
        sys.argv[:] = self.argv
        loader_type = SourcelessFileLoader if self._compiled else SourceFileLoader
        loader = loader_type("__main__", self.path)
        namespace = self._become_main(__file__=self.path, __cached__=None, __loader__=loader)
        try:
            _execute(self._code(loader), namespace)
        finally:
            # So does the interpreter: both are gone when threads and atexit functions run on.
            namespace.pop("__file__", None)
            namespace.pop("__cached__", None)
            _flush_as_the_interpreter_does()

    @launches
    def _code(self, loader: SourceFileLoader | SourcelessFileLoader) -> CodeType:
        content, self._content = self._content, b""
        if self._compiled:
            code = loader.get_code("__main__")
            assert code is not None
            return code
        try:
            return compile(content, self.path, "exec", dont_inherit=True)
        except (SyntaxError, ValueError) as error:
            raise as_the_interpreter_says(error, content, self.path) from None


class _Module(Program):
    """What ``python -m name`` runs."""

    def __init__(self, name: str, args: Sequence[str]) -> None:
        super().__init__(["-m", name], args, "", [])
        self._name = name

    def set_path(self) -> None:
        if not sys.flags.safe_path:
            with suppress(FileNotFoundError):  # the folder that we are in was deleted
                sys.path[0] = os.getcwd()

    def check(self) -> None:
        """See whether there is such a module, as far as that can be told without running any of it."""
        top = self._name.partition(".")[0]
        if not top:
            raise InputError(f"{self.shown}: a relative name can not be run; nothing was run")
        path = sys.path[:]
        try:
            self.set_path()
            spec = next(filter(None, (finder.find_spec(top, None) for finder in sys.meta_path)), None)
        finally:
            sys.path[:] = path
        if spec is None:
            raise InputError(f"{self.shown}: there is no module named {top!r}; nothing was run")
        self.roots = list(spec.submodule_search_locations or ())

    def run(self) -> None:
        sys.argv[:] = self.argv
        _, spec, code = _module_details(self._name)
        sys.argv[0] = spec.origin or self._name
        self._run_spec(spec, code)


class _Container(Program):
    """A folder or zip file with a ``__main__.py``."""

    def __init__(self, shown: str, path: str, args: Sequence[str]) -> None:
        super().__init__([shown], args, path, [path])
        self._find()

    def set_path(self) -> None:
        if sys.flags.safe_path:
            sys.path.insert(0, self.path)
        else:
            sys.path[0] = self.path

    def _find(self) -> ModuleSpec:
        spec = PathFinder.find_spec("__main__", [self.path])
        if spec is None or spec.loader is None:
            raise InputError(f"{self.shown}: there is no __main__.py in it; nothing was run")
        return spec

    def run(self) -> None:
        sys.argv[:] = self.argv
        spec = self._find()
        self._run_spec(spec, cast("InspectLoader", spec.loader).get_code("__main__"))


@launches
def _module_details(name: str) -> tuple[str, ModuleSpec, CodeType]:
    # The interpreter's own search for -m, its warnings and reasons included; pdb and others use it too.
    details: tuple[str, ModuleSpec, CodeType] = runpy._get_module_details(name, NotRunnable)  # type: ignore[attr-defined]
    return details


@launches
def _execute(code: CodeType, namespace: dict[str, Any]) -> None:
    exec(code, namespace)


def _flush_as_the_interpreter_does() -> None:
    """A script's output is flushed when its last line has run, before threads and atexit functions end."""
    for stream in (sys.stderr, sys.stdout):
        with suppress(Exception):
            stream.flush()
