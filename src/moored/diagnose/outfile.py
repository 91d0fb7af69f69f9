"""A file that is written whole or not at all, and known to be writable before the program runs."""

from __future__ import annotations

import os
from pathlib import Path

from moored.errors import InputError

__all__ = ["OutFile"]


class OutFile:
    """A file named on the command line, kept by its absolute path: the program may change directory.

    Args:
        path: As the user wrote it.
        option: The option that named it, for messages.

    Raises:
        InputError: it can not be written; found out by trying, without touching the file itself.
    """

    def __init__(self, path: str | os.PathLike[str], option: str) -> None:
        self.name = os.fspath(path)
        # Through links: replacing a link by a file would cut off whoever reads what it points to.
        self.path = Path(os.path.realpath(path))
        # /dev/stderr, a pipe: nothing to replace there.
        self._special = self.path.exists() and not self.path.is_file() and not self.path.is_dir()
        try:
            if self.path.is_dir():
                raise IsADirectoryError(21, "is a directory")
            if self._special:
                return
            if self.path.exists():
                self.path.open("ab").close()
            self._part.open("xb").close()
            self._part.unlink()
        except OSError as error:
            reason = error.strerror or str(error)
            raise InputError(
                f"{option} {self.name}: can not be written: {reason}; nothing was run. "
                "Name a file in a folder that exists and is writable"
            ) from None

    @property
    def _part(self) -> Path:
        return self.path.with_name(f".{self.path.name}.{os.getpid()}.part")

    def is_at(self, path: str | os.PathLike[str]) -> bool:
        """Whether writing here would write to ``path``; a device or a pipe loses nothing."""
        return not self._special and self.path == Path(os.path.realpath(path))

    def write(self, data: bytes) -> None:
        """Put ``data`` there.

        Raises:
            OSError: the file can not be written.

        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     OutFile(folder + "/report.txt", "-o").write(b"one copy")
        ...     pathlib.Path(folder, "report.txt").read_text()
        'one copy'
        """
        if self._special:
            with self.path.open("wb", buffering=0) as file:
                file.write(data)
            return
        try:
            self._part.write_bytes(data)
            self._part.replace(self.path)
        finally:
            self._part.unlink(missing_ok=True)
