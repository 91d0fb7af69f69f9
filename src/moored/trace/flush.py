"""Writes what changed to the recording file, once a second, from one daemon thread.

Rows are cumulative, so a frame holds only those that changed and a lost frame is repaired
by the next one. A forked child stops writing: the file is its parent's.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import BinaryIO

from moored.model.recording import Event, Header, RecordingWriter
from moored.model.site import Site

__all__ = ["Flusher"]

_INTERVAL_S = 1.0
Changes = Callable[[], tuple[Header, dict[int, Site], dict[str, dict[int, Event]]]]


class Flusher:
    """Appends changes to ``path`` until closed.

    Raises:
        OSError: the file can not be opened for writing (before anything runs).
    """

    def __init__(self, path: str | os.PathLike[str], changes: Changes) -> None:
        self._file: BinaryIO = open(path, "wb", buffering=0)  # noqa: SIM115 - open as long as we live
        self._writer = RecordingWriter(self._file)
        self._changes = changes
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start the thread; it is the one visible trace of moored in ``threading.enumerate()``."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="moored-flush", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(_INTERVAL_S):
            self.flush()

    def flush(self) -> None:
        """Append one frame now, unless this is a forked child."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            if self._file.closed:
                return
            header, sites, events = self._changes()
            if sites or events:
                self._writer.write(header, sites, events)

    def close(self) -> None:
        """Stop the thread and append what is left."""
        self._stop.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=5 * _INTERVAL_S)
        self.flush()
        self._file.close()
