"""The error that the interpreter itself reports for a script that it can not compile."""

from __future__ import annotations

import os
import tempfile
import warnings

__all__ = ["as_the_interpreter_says"]

_FILE_INPUT = 257  # Py_file_input, the grammar's start symbol for a whole file


def as_the_interpreter_says(error: Exception, content: bytes, path: str) -> Exception:
    """The error for ``content`` in the words of ``python path``.

    ``compile`` words some errors differently than the reader of files does (a byte that is not UTF-8,
    an unknown encoding, a null byte), so the same bytes are handed to that reader. Nothing runs: they
    are known not to compile.

    Args:
        error: What ``compile`` said.
        content: The bytes of the script.
        path: The file name that the error shows.

    Returns:
        The interpreter's own error; ``error`` where it can not be had.

    >>> print(as_the_interpreter_says(SyntaxError("?"), b"# coding: martian", "a.py"))
    encoding problem: martian
    """
    try:
        import ctypes

        libc = ctypes.CDLL(None)
        libc.fdopen.restype = ctypes.c_void_p
        run = ctypes.pythonapi.PyRun_FileExFlags
        run.restype = ctypes.py_object
        run.argtypes = [
            ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.py_object,
            ctypes.py_object, ctypes.c_int, ctypes.c_void_p,
        ]  # fmt: skip
        # Warnings were shown by the first attempt; the filters, which can make errors of them, stay.
        with tempfile.TemporaryFile() as copy, warnings.catch_warnings(record=True):
            copy.write(content)
            copy.seek(0)
            stream = libc.fdopen(os.dup(copy.fileno()), b"rb")
            run(stream, os.fsencode(path), _FILE_INPUT, {}, {}, 1, None)
    except (SyntaxError, ValueError) as said:
        return said.with_traceback(None)
    except Exception:
        return error
    return error
