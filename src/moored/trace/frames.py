"""Which frame is the user's: from a Python stack to a line of their program.

The site of an event is the innermost frame of user code. Frames of JAX, numpy, moored and
the standard library are passed over; frames of installed packages are remembered (the
finding names the library that read) but are not the user's, unless the program itself
lives there.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Sequence
from types import CodeType, FrameType
from typing import NamedTuple

from moored.model.site import Site

__all__ = ["Caller", "Frames", "resolve"]

_SKIP, _LIBRARY, _USER, _STDLIB = 0, 1, 2, 3
_PACKAGE_FOLDERS = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_ALWAYS_SKIPPED = ("jax", "jaxlib", "numpy", "ml_dtypes", "opt_einsum")
#: Frames of JAX that stand around the function that was called.
_AROUND = frozenset({"reraise_with_filtered_traceback", "wrapper", "deferring_binary_op"})
#: Where a jitted function enters JAX's Python: the user called the function, not these.
_ENTRIES_OF_JIT = frozenset({"cache_miss", "_run_python_pjit", "_python_pjit_helper"})
#: What stands in for something that users call by another name.
_NAMES = {
    "_getitem": "__getitem__",
    "<genexpr>": "__iter__",  # what iterating over an array runs
    "_chunk_iter": "__iter__",
    "_reconstruct_array": "unpickle",
}
_MOORED = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


class Caller(NamedTuple):
    """Who caused an event.

    Attributes:
        code: Code object of the user's frame, None where no Python frame was found.
        lasti: Offset of the instruction that it is executing.
        api: Name of the JAX function that user or library code called; empty where the
            call went straight into C++.
        library: Installed package between the user and JAX, or an empty string.
        inside: Names of the JAX functions on the way, outermost first.
    """

    code: CodeType | None
    lasti: int
    api: str
    library: str
    inside: tuple[str, ...]


class _Kinds(dict[str, int]):
    """File name -> kind of code, worked out once per file."""

    def __init__(self, user_roots: Sequence[str]) -> None:
        paths = sysconfig.get_paths()
        self.user_roots = tuple(os.path.join(os.path.abspath(r), "") for r in user_roots)
        self.stdlib = tuple(os.path.join(paths[k], "") for k in ("stdlib", "platstdlib"))
        self.packages = tuple({os.path.join(paths[k], "") for k in ("purelib", "platlib")})
        self.skipped = tuple(
            os.path.join(folder, name, "") for folder in self._folders() for name in _ALWAYS_SKIPPED
        )

    def _folders(self) -> Sequence[str]:
        """Folders that hold packages: the interpreter's own and those on the path."""
        found = [p.rstrip(os.sep) for p in self.packages]
        found += [p for p in sys.path if p.endswith(("site-packages", "dist-packages"))]
        return found

    def __missing__(self, path: str) -> int:
        self[path] = kind = self._classify(path)
        return kind

    def _classify(self, path: str) -> int:
        if path.startswith((_MOORED, "<frozen", "<__array_function__", "<string>")):
            return _SKIP
        if path.startswith(self.skipped) or self._is_skipped_package(path):
            return _SKIP
        if any(self._owns(root, path) for root in self.user_roots):
            return _USER
        if path.startswith(self.packages) or any(folder in path for folder in _PACKAGE_FOLDERS):
            return _LIBRARY
        return _STDLIB if path.startswith(self.stdlib) else _USER

    @staticmethod
    def _owns(root: str, path: str) -> bool:
        """Whether a file is the user's own: below the folder, and not in an environment inside it."""
        below = path[len(root) - 1 :] if path.startswith(root) else ""
        return bool(below) and not any(folder in below for folder in _PACKAGE_FOLDERS)

    @staticmethod
    def _is_skipped_package(path: str) -> bool:
        for folder in _PACKAGE_FOLDERS:
            _, found, rest = path.rpartition(folder)
            if found:
                return rest.split(os.sep, 1)[0] in _ALWAYS_SKIPPED
        return False


def _public(name: str) -> str:
    """The name under which users know a function of JAX: ``grad_f`` is what ``grad`` returns."""
    if name in _ENTRIES_OF_JIT:
        return "jit"
    if name == "op":  # an operator of a traced value: the primitive has the better name
        return ""
    name = name.removeprefix("_operator_").removesuffix("_f")
    return _NAMES.get(name) or (name[1:] if name.startswith("_") and not name.startswith("__") else name)


def _package_of(path: str) -> str:
    for folder in _PACKAGE_FOLDERS:
        _, found, rest = path.rpartition(folder)
        if found:
            return rest.split(os.sep, 1)[0].removesuffix(".py")
    return ""


class Frames:
    """Finds user frames. One per collector, because what counts as user code is its own.

    Args:
        user_roots: Folders whose files count as user code even under site-packages.
    """

    def __init__(self, user_roots: Sequence[str] = ()) -> None:
        self.kinds: dict[str, int] = _Kinds(user_roots)

    def user_frame(self, frame: FrameType | None) -> FrameType | None:
        """The innermost user frame at or above ``frame``, or None."""
        kinds = self.kinds
        while frame is not None and kinds[frame.f_code.co_filename] != _USER:
            frame = frame.f_back
        return frame

    def caller(self, frame: FrameType | None) -> Caller:
        """Walk from ``frame`` to the user and tell what lies between.

        Without a user frame (a worker thread of a library, a program that is a library's own
        entry point) the innermost library frame stands in.
        """
        inside: list[str] = []
        library: FrameType | None = None
        outermost_library = ""
        api = ""
        while frame is not None:
            code = frame.f_code
            kind = self.kinds[code.co_filename]
            if kind == _USER:
                return Caller(code, frame.f_lasti, _public(api), outermost_library, tuple(reversed(inside)))
            if kind == _LIBRARY:
                library = library or frame
                outermost_library = _package_of(code.co_filename)
            elif kind == _SKIP and library is None and not code.co_filename.startswith((_MOORED, "<")):
                inside.append(code.co_name)
                if code.co_name not in _AROUND:
                    api = code.co_name
            frame = frame.f_back
        if library is not None:
            return Caller(
                library.f_code,
                library.f_lasti,
                _public(api),
                _package_of(library.f_code.co_filename),
                tuple(reversed(inside)),
            )
        return Caller(None, 0, _public(api), "", tuple(reversed(inside)))


def resolve(code: CodeType | None, lasti: int) -> Site:
    """The source span of one instruction.

    ``co_positions`` decodes the whole table of a code object (up to milliseconds for a large
    function): this is for reporting, once per site.
    """
    if code is None:
        return Site("<no python frame>", 0)
    line: int | None = None
    end_line: int | None = None
    column: int | None = None
    end_column: int | None = None
    for index, position in enumerate(code.co_positions()):
        if index == lasti // 2:
            line, end_line, column, end_column = position
            break
    line = line or code.co_firstlineno
    return Site(code.co_filename, line, end_line or line, column, end_column, code.co_qualname)
