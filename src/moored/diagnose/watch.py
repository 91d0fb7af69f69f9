"""``moored.watch()``: trace a block of a program and explain what was seen."""

from __future__ import annotations

import io
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from moored.model.finding import Finding
from moored.model.module import Sources
from moored.model.recording import Recording
from moored.report import json as json_report
from moored.report import text as text_report
from moored.rules.registry import explain
from moored.rules.settings import find_thresholds
from moored.rules.thresholds import Thresholds
from moored.trace import simulate
from moored.trace.collect import Collector

__all__ = ["Report", "watch"]


class Report:
    """What a watched block moved; complete once the block was left, readable inside it too."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._started = time.perf_counter()
        self._before = collector.snapshot()
        self._recording: Recording | None = None
        self._thresholds: Thresholds | None = None

    @property
    def recording(self) -> Recording:
        """Everything observed, as data."""
        if self._recording is not None:
            return self._recording
        recording = self._collector.snapshot().since(self._before)
        recording.header.argv = list(sys.argv)
        recording.header.cwd = os.getcwd()
        recording.header.simulated = simulate.active()
        recording.header.seconds = time.perf_counter() - self._started
        return recording

    @property
    def findings(self) -> list[Finding]:
        """The rules applied to the recording, worst first.

        Raises:
            InputError: the project's ``[tool.moored]`` has an unknown key, or a value of the wrong type.
        """
        return self._explained(self.recording)

    def _explained(self, recording: Recording) -> list[Finding]:
        if self._thresholds is None:
            self._thresholds = find_thresholds(os.path.dirname(sys.argv[0]), os.getcwd())
        return explain(recording, Sources.of(recording), self._thresholds)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the recording to a file that ``moored report`` reads.

        Raises:
            OSError: the file can not be written.
        """
        self.recording.save(path)

    def to_json(self) -> str:
        """The report in the schema ``moored.report/1``."""
        recording = self.recording
        return json_report.render(recording, self._explained(recording))

    def __str__(self) -> str:
        recording, out = self.recording, io.StringIO()
        text_report.render(recording, self._explained(recording), file=out, width=80, color=False)
        return out.getvalue()

    def _close(self) -> None:
        self._collector.verify()
        self._recording = self.recording
        self._collector.release()


@contextmanager
def watch() -> Iterator[Report]:
    """Trace the block inside ``with``, in all threads. Blocks may nest, also under ``moored trace``.

    Yields:
        A ``Report``: ``report.findings``, ``report.recording``, ``print(report)``, ``report.save(path)``.

    Raises:
        MachineError: JAX is missing.

    >>> import jax, numpy as np
    >>> double = jax.jit(lambda x: x * 2)
    >>> weights = np.ones(1000, np.float32)
    >>> with watch() as report:
    ...     for _ in range(3):
    ...         y = double(weights)
    >>> [(t.direction, t.argument, t.count, t.nbytes) for t in report.recording.transfers]
    [('h2d', '[0]', 3, 12000)]
    """
    report = Report(Collector.hold())
    try:
        yield report
    finally:
        report._close()
