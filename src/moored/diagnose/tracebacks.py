"""Tracebacks as the untraced run prints them: no frame of moored, click or runpy in them.

An exception that leaves the program has passed through the frames that started it, and may
have passed through moored's wrappers around JAX on the way. Both kinds are cut out where the
traceback is printed; one that the program itself catches is left as it is.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from types import CodeType, TracebackType
from typing import Any, TypeVar

__all__ = [
    "ExceptHook",
    "clean_exceptions",
    "clean_hook",
    "clean_traceback",
    "install_runtime_hooks",
    "launches",
]

_Function = TypeVar("_Function", bound=Callable[..., Any])

ExceptHook = Callable[[type[BaseException], BaseException, TracebackType | None], Any]

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Only these folders hold code that can stand between a program and JAX. The rest of the package may
# itself be the program (`moored trace -m moored bench lookup`) and is then shown.
_OURS = tuple(os.path.join(_PACKAGE, folder, "") for folder in ("diagnose", "trace"))
_launchers: set[CodeType] = set()


def launches(function: _Function) -> _Function:
    """Mark a function as one that starts the program: it and all frames above it are cut off.

    >>> launches(clean_hook) is clean_hook
    True
    """
    _launchers.add(function.__code__)
    return function


def clean_traceback(traceback: TracebackType | None) -> TracebackType | None:
    """The traceback without moored's frames and without what started the program.

    The traceback itself is not changed; one that holds no such frame is returned as it is.

    >>> clean_traceback(None) is None
    True
    """
    entries = list(_entries(traceback))
    kept = entries
    for at, entry in enumerate(entries):
        if entry.tb_frame.f_code in _launchers:
            kept = entries[at + 1 :]
            while kept and _is_runpy(kept[0]):
                del kept[0]
    shown: list[TracebackType] = []
    for entry in kept:
        if not entry.tb_frame.f_code.co_filename.startswith(_OURS):
            shown.append(entry)
            continue
        # The import system hides its own frames, but not on the far side of a loader of ours.
        while shown and _is_importlib(shown[-1]):
            shown.pop()
    if len(shown) == len(entries):
        return traceback
    clean: TracebackType | None = None
    for entry in reversed(shown):
        clean = TracebackType(clean, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return clean


def clean_exceptions(error: BaseException | None) -> None:
    """Clean the tracebacks of an exception, of all that led to it, and of a group's members, in place.

    >>> clean_exceptions(ValueError("no traceback yet"))
    """
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        clean = clean_traceback(one.__traceback__)
        if clean is not one.__traceback__:
            one.__traceback__ = clean
        waiting += [one.__cause__, one.__context__]
        if isinstance(one, BaseExceptionGroup):
            waiting += one.exceptions


def clean_hook(hook: ExceptHook) -> ExceptHook:
    """``hook``, handed tracebacks without moored's frames."""

    def excepthook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        clean = clean_traceback(traceback)
        clean_exceptions(error)
        sys.last_traceback = clean
        try:
            hook(kind, error, clean)
        except SystemExit:
            raise
        except BaseException as failure:
            # What the interpreter prints when a hook fails; left to it, our frame would be in there.
            clean_exceptions(failure)
            failure.__context__ = None
            print("Error in sys.excepthook:", file=sys.stderr)
            sys.__excepthook__(type(failure), failure, failure.__traceback__)
            print("\nOriginal exception was:", file=sys.stderr)
            sys.__excepthook__(kind, error, clean)

    return excepthook


def install_runtime_hooks() -> None:
    """Wrap the hooks that print exceptions of threads, and those that nobody can catch.

    A program that installs its own afterwards replaces ours, and gets what Python hands it.
    """
    of_threads, unraisable = threading.excepthook, sys.unraisablehook

    def thread_hook(args: threading.ExceptHookArgs) -> None:
        clean_exceptions(args.exc_value)
        clean = clean_traceback(args.exc_traceback)
        if clean is not args.exc_traceback:
            args = threading.ExceptHookArgs((args.exc_type, args.exc_value, clean, args.thread))
        of_threads(args)

    def unraisable_hook(args: sys.UnraisableHookArgs) -> None:
        clean_exceptions(args.exc_value)
        clean = clean_traceback(args.exc_traceback)
        if clean is not args.exc_traceback:
            fields: Any = (args.exc_type, args.exc_value, clean, args.err_msg, args.object)
            args = type(args)(fields)  # type: ignore[call-arg]  # a structseq: it takes one sequence
        unraisable(args)

    threading.excepthook = thread_hook
    sys.unraisablehook = unraisable_hook


def _entries(traceback: TracebackType | None) -> Iterator[TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def _is_runpy(entry: TracebackType) -> bool:
    return entry.tb_frame.f_code.co_filename == "<frozen runpy>"


def _is_importlib(entry: TracebackType) -> bool:
    return entry.tb_frame.f_code.co_filename.startswith("<frozen importlib")
