"""Exceptions that are the program's own although they came up in moored's code.

A signal handler runs between any two instructions of the main thread, moored's included. What it
raises (the timeout of a test, of a data loader) is meant for the program, and must reach it.
"""

from __future__ import annotations

import signal
from types import CodeType
from typing import Any

__all__ = ["raised_by_handler"]


def raised_by_handler(error: BaseException) -> bool:
    """Whether an exception came out of one of the program's signal handlers.

    >>> raised_by_handler(ValueError("raised nowhere"))
    False
    """
    codes: set[CodeType] | None = None
    at = error.__traceback__
    while at is not None:
        codes = _handlers() if codes is None else codes
        if at.tb_frame.f_code in codes:
            return True
        at = at.tb_next
    return False


def _handlers() -> set[CodeType]:
    codes: set[CodeType] = set()
    for number in signal.valid_signals():
        handler: Any = signal.getsignal(number)
        if handler is None or isinstance(handler, int):
            continue
        while hasattr(handler, "func"):  # functools.partial
            handler = handler.func
        for function in (handler, type(handler).__call__):
            code = getattr(getattr(function, "__func__", function), "__code__", None)
            if code is not None:
                codes.add(code)
    return codes
