"""One traced run: from the program's first line to the report after its last.

The program comes first. Whatever fails in here is said in one line on stderr, and changes neither what
the program did nor its exit code.
"""

from __future__ import annotations

import atexit
import io
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn, TextIO

from moored.diagnose.importhook import when_imported
from moored.diagnose.neighbours import Neighbours
from moored.diagnose.options import REFUSED, TRIPPED, Options, trips
from moored.diagnose.outfile import OutFile
from moored.diagnose.paths import display_paths
from moored.diagnose.program import NotRunnable, Program
from moored.diagnose.tracebacks import clean_hook, install_runtime_hooks
from moored.errors import InputError
from moored.model.finding import Finding
from moored.model.module import Sources
from moored.model.recording import Header, OwnError, Recording
from moored.report import json as report_json
from moored.report import text as report_text
from moored.rules.registry import explain
from moored.trace import simulate
from moored.trace.collect import Collector
from moored.units import format_bytes, format_count

__all__ = ["TracedRun"]


class TracedRun:
    """Runs one program under the tracer and reports when it has ended.

    The report comes after the program's last word: after its threads and its ``atexit`` functions, or
    from within its ``os._exit``. A process that a signal kills reports nothing, as it must; what was
    recorded until then is in the recording file.
    """

    def __init__(self, program: Program, options: Options) -> None:
        self._program, self._options = program, options
        self._cwd, self._pid = _current_folder(), os.getpid()
        self._once = threading.Lock()
        self._neighbours = Neighbours()
        self._os_exit = os._exit
        self._exit: int | str = 0
        self._started = 0.0
        self._jax_imported = False
        self._troubles: list[OwnError] = []
        self._living: Header | None = None  # as of before JAX's own functions at exit
        record = options.record
        try:
            self._collector = Collector(
                user_roots=program.roots, record=record.path if record is not None else None
            )
        except OSError as error:  # no room, as on /dev/full
            name = record.name if record is not None else ""
            raise InputError(
                f"--record {name}: can not be written: {error.strerror}; nothing was run"
            ) from None

    def __call__(self) -> int:
        """Run the program; what it raises is raised.

        Returns:
            0: it ran to its end.
        """
        atexit.register(self._at_exit)  # the first one registered is the last one called
        os._exit = self._exit_at_once
        install_runtime_hooks()
        self._program.set_path()
        self._neighbours.give_way()
        when_imported("jax", self._attach)
        self._started = time.perf_counter()
        try:
            self._program.run()
        except NotRunnable as error:
            print(f"moored: error: {self._program.shown}: {error}", file=sys.stderr)
            self._exit = REFUSED
            raise SystemExit(REFUSED) from None
        except SystemExit as error:
            self._exit = _exit_code(error)
            raise
        except BaseException as error:
            self._exit = type(error).__name__
            sys.excepthook = clean_hook(getattr(sys, "excepthook", sys.__excepthook__))
            raise
        return 0

    # -- while the program runs --------------------------------------------------------------

    def _attach(self) -> None:
        if os.getpid() != self._pid:
            return
        self._jax_imported = True
        with self._fenced("attaching to JAX"):
            if self._options.simulated:
                simulate.finish()
            self._collector.attach()
        # JAX registered its own when it was imported, and they take its clients down: ours comes before.
        atexit.register(self._remember_devices)

    def _remember_devices(self) -> None:
        if os.getpid() == self._pid:
            with self._fenced("listing the devices"):
                self._living = self._collector.snapshot().header
                self._collector.verify()

    @contextmanager
    def _fenced(self, doing: str) -> Iterator[None]:
        """Failures of ours are kept for the report and said on stderr; the program goes on."""
        try:
            yield
        except Exception as error:
            self._troubles.append(OwnError(doing, f"{type(error).__name__}: {error}"))
            _say(f"{doing} failed, the program is not affected: {type(error).__name__}: {error}")

    # -- when it has ended -------------------------------------------------------------------

    def _exit_at_once(self, status: int) -> NoReturn:
        """Takes the place of ``os._exit``."""
        if os.getpid() == self._pid:
            self._exit = status
            if self._finish() and status == 0:
                status = TRIPPED
        self._os_exit(status)

    def _at_exit(self) -> None:
        with suppress(Exception):  # what the interpreter does next anyway; the report is not to cut in before
            sys.stdout.flush()
        try:
            tripped = self._finish()
        except KeyboardInterrupt:
            tripped = False
            _say("the report was interrupted")
        if tripped and self._exit == 0:
            for stream in (sys.stdout, sys.stderr):
                with suppress(Exception):
                    stream.flush()
            self._os_exit(TRIPPED)  # the exit code is settled by now: there is no other way to change it

    def _finish(self) -> bool:
        """Report, once and not in a forked child; returns whether ``--fail-on`` trips."""
        if os.getpid() != self._pid or not self._once.acquire(blocking=False):
            return False
        tripped = False
        with self._fenced("the report"), self._neighbours.ours_first():
            recording, findings = self._recording(), list[Finding]()
            record, output = self._options.record, self._options.output
            if record is not None:
                with self._fenced(f"writing {record.name}"):
                    record.write(recording.to_bytes())
            with self._fenced("explaining the recording"):
                findings = explain(recording, Sources.of(recording), self._options.thresholds)
            written = None
            if output is not None:
                with self._fenced(f"writing {output.name}"):
                    output.write(self._rendered(recording, findings).encode())
                    written = output
            self._print(recording, findings, written)
            tripped = trips(findings, self._options.fail_on)
            if tripped and self._exit == 0:
                bar = self._options.fail_on
                shown = format_bytes(bar) if isinstance(bar, int) else bar
                _say(f"--fail-on {shown} tripped: exit code {TRIPPED}")
        return tripped

    def _recording(self) -> Recording:
        self._collector.detach()
        recording = self._collector.snapshot()
        self._collector.close()
        header = recording.header
        header.argv = self._program.command
        header.cwd = self._cwd
        header.exit = self._exit
        header.seconds = time.perf_counter() - self._started
        header.simulated = header.simulated or simulate.active()
        header.moored_errors = [*header.moored_errors, *self._troubles]
        if self._living is not None and not header.devices:
            header.devices, header.default_device = self._living.devices, self._living.default_device
        display_paths(recording, script=(self._program.path, self._program.shown), cwd=self._cwd)
        return recording

    def _rendered(self, recording: Recording, findings: list[Finding]) -> str:
        if self._options.format == "json":
            return report_json.render(recording, findings)
        text = io.StringIO()
        report_text.render(
            recording, findings, file=text, color=False, show_library=self._options.show_library
        )
        return text.getvalue()

    def _print(self, recording: Recording, findings: list[Finding], output: OutFile | None) -> None:
        """What goes to stderr, after all that the program has written: all of it where no file took it."""
        worth_saying = any(f.severity != "note" for f in findings)
        if self._options.quiet and not worth_saying:
            return
        if not self._jax_imported and "jax" in sys.modules:
            _say("the program imported jax past moored's import hook: nothing was traced")
        elif not self._jax_imported:
            _say("the program never imported jax: there was nothing to trace")
        elif output is not None:
            _say(f"{format_count(len(findings), 'finding')}; the report is in {output.name}")
            for f in findings:
                if f.kind == "device-conflict-error" and f.severity == "error":  # what it died of
                    _say(f"{f.site.text}: {f.cause} {f.fix}")
        elif self._options.format == "json":
            _say(report_json.render(recording, findings), prefix="")
        elif (stderr := _stderr()) is not None:
            report_text.render(recording, findings, file=stderr, show_library=self._options.show_library)
            stderr.flush()


def _current_folder() -> str:
    try:
        return os.getcwd()
    except OSError:
        return ""  # it was deleted: Python runs a program there all the same


def _exit_code(error: SystemExit) -> int:
    """The exit code that the interpreter makes of a SystemExit."""
    if error.code is None:
        return 0
    return error.code if isinstance(error.code, int) else 1


def _stderr() -> TextIO | None:
    """The process's stderr; None where the program has closed it."""
    stderr = sys.__stderr__
    return None if stderr is None or stderr.closed else stderr


def _say(text: str, prefix: str = "moored: ") -> None:
    with suppress(Exception):
        print(f"{prefix}{text}", file=_stderr() or io.StringIO(), flush=True)
