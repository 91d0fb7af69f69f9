"""Attaches the seams to JAX, and turns what they saw into a recording.

Nothing in the tracer may harm the program: every entry from a seam is fenced by ``Store.failed``,
which counts what went wrong and retires a seam that keeps failing.
"""

from __future__ import annotations

import os
import platform
import threading
import time
from collections.abc import Sequence

from moored.errors import MachineError
from moored.model.recording import Event, Header, Recording, SeamState
from moored.model.site import Site
from moored.trace import seams, simulate
from moored.trace.flush import Flusher
from moored.trace.store import Store

__all__ = ["Collector"]

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
#: What of moored stands between or above the frames of a program; a benchmark of ours may be the program.
_OURS = (
    *(os.path.join(_PACKAGE, folder, "") for folder in ("cli", "diagnose", "trace")),
    os.path.join(_PACKAGE, "__main__.py"),
)
_active: Collector | None = None
_attach_lock = threading.RLock()


class Collector:
    """Collects the transfers of a running program into a recording.

    Only one collector is attached at a time; attach and detach may come from any thread.

    Args:
        user_roots: Folders whose files count as user code even under site-packages.
        record: File to append to once a second, so that a killed process loses little.
    """

    def __init__(
        self, *, user_roots: Sequence[str] = (), record: str | os.PathLike[str] | None = None
    ) -> None:
        self.store = Store(user_roots, self._retire)
        self.jax: seams.Internals | None = None
        self.seams: list[seams.Seam] = []
        self._started = time.time()
        self._header = Header()
        self._holders = 1
        self._flusher = Flusher(record, self._changes) if record is not None else None

    def attach(self) -> None:
        """Patch JAX (importing it if needed). Makes no client and touches no device.

        Raises:
            MachineError: JAX is missing, or another collector is attached.
        """
        global _active
        # These load numpy, which the program may want to do for itself.
        from moored.trace import arrivals, callbacks, calls, compiles, puts, reads

        with _attach_lock:
            if _active is not None:
                raise MachineError("a moored collector is attached to this process already")
            jax_ = self.jax = seams.load()
            self.store.late = jax_.backends_ready()
            makers: dict[str, seams.Maker] = {}
            for module in (calls, puts, reads, compiles, callbacks, arrivals):
                makers |= module.makers(self.store, jax_)
            self.seams = seams.make_seams(jax_, hide_buffers=simulate.active() is not None)
            for seam in self.seams:
                seam.attach(makers)
            jax_.forget_dispatch()
            jax_.hide_frames(_OURS)
            _active = self
        if self._flusher is not None:
            self._flusher.start()

    @classmethod
    def hold(cls) -> Collector:
        """The attached collector of this process, or a new one; ``release()`` it when done.

        Watched blocks may nest, and overlap in threads: they share one collector, each looks at what
        came while it held it, and the last one to let go detaches.
        """
        with _attach_lock:
            if _active is not None:
                _active._holders += 1
                return _active
            collector = cls()
            collector.attach()
            return collector

    def release(self) -> None:
        """Let go of a held collector."""
        with _attach_lock:
            self._holders -= 1
            if self._holders <= 0:
                self.detach()

    def detach(self) -> None:
        """Restore everything that attach() replaced, and let go of all of JAX's objects."""
        global _active
        with _attach_lock:
            if _active is not self:
                return
            self._header = self._describe_run()
            for seam in reversed(self.seams):
                seam.detach()
            if self.jax is not None:
                self.jax.show_frames(_OURS)
            _active = None
        self.store.forget_arrays()

    def verify(self) -> None:
        """On a JAX that moored was not checked on: detach, and test each seam with a known event.

        What the test finds dead is dead in the recording too, with the reason. Does nothing on a
        checked JAX, or when the program never made a JAX client.
        """
        jax_ = self.jax
        if jax_ is None or _active is not self or self._holders > 1:
            return
        if jax_.is_checked or not jax_.backends_ready():
            return
        self.detach()
        self._header.seams = self.self_test()
        self._header.notes.append(f"moored was not checked on JAX {jax_.version}; each seam was tested")

    @classmethod
    def self_test(cls) -> list[SeamState]:
        """Send one known event through each seam and say what was seen; see ``selftest``.

        Raises:
            MachineError: JAX is missing, or a collector is attached already.

        >>> [state.name for state in Collector.self_test() if not state.live]
        []
        """
        from moored.trace import selftest

        collector = cls()
        collector.attach()
        try:
            assert collector.jax is not None
            callbacks = selftest.send(collector.jax)
            recording = collector.snapshot()
        finally:
            collector.detach()
        return selftest.verdicts(recording, callbacks=callbacks)

    def close(self) -> None:
        """Detach, and write what is left to the recording file."""
        self.detach()
        if self._flusher is not None:
            self._flusher.close()

    def snapshot(self) -> Recording:
        """Everything seen so far; argv, exit and seconds of the header are the caller's to fill."""
        sites, events = self.store.all()
        header = self._describe_run() if _active is self else self._header
        return Recording(header, sites, **events)  # type: ignore[arg-type]

    def _changes(self) -> tuple[Header, dict[int, Site], dict[str, dict[int, Event]]]:
        sites, events = self.store.changes()
        return (self._describe_run() if _active is self else self._header), sites, events

    def _retire(self, name: str, reason: str) -> None:
        for seam in self.seams:
            if seam.name == name and seam.live:
                seam.detach(reason)

    def _describe_run(self) -> Header:
        store, jax_ = self.store, self.jax
        header = Header(
            started=self._started,
            python=platform.python_version(),
            scalar_uploads=store.scalars[0],
            scalar_nbytes=store.scalars[1],
            seams=[SeamState(s.name, s.live, s.reason, s.blind_to) for s in self.seams],
            moored_errors=store.errors,
        )
        if store.dropped:
            header.notes.append(f"{store.dropped:,} events came when all rows were taken and were not kept")
        if jax_ is not None:
            header.jax = jax_.version
            if jax_.backends_ready():
                try:
                    header.devices = [store.places.device(d) for d in jax_.devices()]
                    header.default_device = store.places.device(jax_.pxla.get_default_device())
                except Exception as error:  # a client that is being torn down
                    header.notes.append(f"devices could not be listed: {type(error).__name__}: {error}")
        return header
