"""What the seams see becomes rows, in bounded memory, from any thread.

A row adds up all events that are alike: same place in the user's code, same array, same
way. Counting one more event costs a few attribute stores; everything that takes longer
(source spans, names) is done once per row or when a recording is asked for.

Nothing here may harm the program: every entry from a seam is fenced by ``Collector.failed``,
which counts what went wrong and retires a seam that keeps failing.
"""

from __future__ import annotations

import os
import platform
import threading
import time
import weakref
from collections.abc import Sequence
from types import CodeType
from typing import Any

from moored.model.recording import Header, OwnError, Recording, SeamState, Transfer
from moored.model.site import Site
from moored.trace import seams
from moored.trace.flush import Flusher
from moored.trace.frames import Caller, Frames, resolve
from moored.trace.places import Places

__all__ = ["Collector", "Row"]

_MAX_ROWS = 20_000
_FAILURES_UNTIL_RETIRED = 25
_EXPLICIT = frozenset(
    {
        "array",
        "asarray",
        "copy_to_host_async",
        "device_get",
        "device_put",
        "device_put_replicated",
        "device_put_sharded",
        "from_dlpack",
        "make_array_from_callback",
        "make_array_from_process_local_data",
        "make_array_from_single_device_arrays",
    }
)
_active: Collector | None = None
_attach_lock = threading.RLock()


class Row:
    """One aggregated transfer while the program runs; see ``model.recording.Transfer``."""

    __slots__ = (
        "call_ns", "caller", "copy_ns", "count", "fields", "first_ns", "flushed", "last",
        "last_ns", "nbytes", "origin", "same_object", "wait_ns",
    )  # fmt: skip

    def __init__(self, caller: Caller, fields: dict[str, Any], origin: Caller | None, now: int) -> None:
        self.caller, self.fields, self.origin = caller, fields, origin
        self.count = self.nbytes = self.same_object = 0
        self.call_ns = self.wait_ns = self.copy_ns = 0
        self.first_ns = self.last_ns = now
        self.flushed = 0
        self.last: Any = None

    def seen(self, obj: Any) -> None:
        """Note whether ``obj`` is the very object that the last event of this row moved."""
        last = self.last
        if last is not None and last() is obj:
            self.same_object += 1
            return
        try:
            self.last = weakref.ref(obj)
        except TypeError:
            self.last = None


class _ThreadState(threading.local):
    """Per thread: what JAX's Python dispatch just ran, and whether events belong to an outer one."""

    ran: Any = None  # (executable, args) of the last Python-dispatched execution
    nested: bool = False  # inside a placement that is already accounted for
    jaxpr_fun: Any = None  # identity of the function that jit_p.bind is about to call


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
        self.frames = Frames(user_roots)
        self.places = Places()
        self.state = _ThreadState()
        self.rows: dict[Any, Row] = {}
        self.scalars = [0, 0]  # uploads, bytes
        self.started = time.time()
        self.epoch_ns = time.perf_counter_ns()
        self.jax: seams.Internals | None = None
        self.seams: list[seams.Seam] = []
        self.late = False
        self._made_by: dict[int, tuple[weakref.ref[Any], Caller]] = {}
        self._makers: dict[Any, Caller | None] = {}
        self._errors: dict[tuple[str, str], int] = {}
        self._sites: dict[tuple[int, int], int] = {}
        self._site_list: list[Site] = []
        self._site_index: dict[Site, int] = {}
        self._site_lock = threading.Lock()
        self._codes: list[CodeType | None] = []  # keeps the ids in _sites valid
        self._dropped = self._sites_flushed = 0
        self._header = Header()
        self._lock = threading.Lock()
        self._holders = 1
        self._flusher = Flusher(record, self._changes) if record is not None else None

    # -- attaching -------------------------------------------------------------------------

    def attach(self) -> None:
        """Patch JAX (importing it if needed). Makes no client and touches no device.

        Raises:
            MachineError: JAX is missing, or another collector is attached.
        """
        global _active
        from moored.errors import MachineError
        from moored.trace import calls, puts, reads

        with _attach_lock:
            if _active is not None:
                raise MachineError("a moored collector is attached to this process already")
            jax_ = self.jax = seams.load()
            self.late = jax_.backends_ready()
            makers = calls.makers(self, jax_) | puts.makers(self, jax_) | reads.makers(self, jax_)
            self.seams = seams.make_seams(jax_)
            for seam in self.seams:
                seam.attach(makers)
            jax_.forget_dispatch()
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
            _active = None
        self.places.clear()
        self._made_by.clear()
        self._makers.clear()
        for row in list(self.rows.values()):
            row.last = None

    def verify(self) -> None:
        """On a JAX that moored was not checked on: detach, and test each seam with a known event.

        What the test finds dead is dead in the recording too, with the reason. Does nothing on a
        checked JAX, or when the program never made a JAX client.
        """
        jax_ = self.jax
        if jax_ is None or _active is not self or jax_.is_checked or not jax_.backends_ready():
            return
        from moored.trace.selftest import self_test

        self.detach()
        self._header.seams = self_test()
        self._header.notes.append(f"moored was not checked on JAX {jax_.version}; each seam was tested")

    def close(self) -> None:
        """Detach, and write what is left to the recording file."""
        self.detach()
        if self._flusher is not None:
            self._flusher.close()

    # -- called by the seams ---------------------------------------------------------------

    def row(self, caller: Caller, fields: dict[str, Any], origin: Caller | None = None) -> Row:
        """The row for events that are alike in caller and fields; made when there is none."""
        # By site, not by instruction: CPython 3.11 may stop at an instruction or in its inline cache.
        key = (self._site(caller), *fields.values())
        row = self.rows.get(key)
        if row is None:
            with self._lock:
                if len(self.rows) >= _MAX_ROWS:
                    self._dropped += 1
                    return Row(caller, fields, None, 0)  # counted, not kept
                now = time.perf_counter_ns() - self.epoch_ns
                row = self.rows.setdefault(key, Row(caller, fields, origin, now))
        return row

    def is_explicit(self, caller: Caller) -> bool:
        """Whether the user's own frame asked for the transfer."""
        return not caller.library and caller.api in _EXPLICIT

    def made_under_default_device(self, array: Any, caller: Caller) -> None:
        """Remember which line made this array under ``default_device``."""
        key, made_by = id(array), self._made_by
        made_by[key] = (weakref.ref(array, lambda _: made_by.pop(key, None)), caller)
        self.makes_under_default_device((array.shape, array.dtype, array.sharding), caller)

    def makes_under_default_device(self, kind: Any, caller: Caller) -> None:
        """Remember which line makes arrays of this (shape, dtype, sharding) under ``default_device``.

        For arrays that JAX wraps once more after the seam saw them. Two lines that make arrays of
        the same kind cancel each other: silence beats a guess.
        """
        if len(self._makers) < _MAX_ROWS:
            known = self._makers.setdefault(kind, caller)
            if known is None or self._site(known) != self._site(caller):
                self._makers[kind] = None

    def origin_of(self, array: Any) -> Caller | None:
        """The line that made an uncommitted array under ``default_device``, where that is known."""
        made = self._made_by.get(id(array))
        if made is not None and made[0]() is array:
            return made[1]
        return self._makers.get((array.shape, array.dtype, array.sharding))

    def failed(self, seam: str, error: Exception) -> None:
        """moored's own code failed: count it, and retire a seam that keeps failing."""
        at = error.__traceback__
        while at is not None and at.tb_next is not None:
            at = at.tb_next
        place = f"{os.path.basename(at.tb_frame.f_code.co_filename)}:{at.tb_lineno}" if at else ""
        key = (f"{seam} {place}".strip(), f"{type(error).__name__}: {error}"[:300])
        self._errors[key] = self._errors.get(key, 0) + 1
        if sum(self._errors.values()) >= _FAILURES_UNTIL_RETIRED:
            for candidate in self.seams:
                if candidate.name == seam and candidate.live:
                    candidate.detach(f"retired after moored failed {_FAILURES_UNTIL_RETIRED} times: {key[1]}")

    # -- the recording ---------------------------------------------------------------------

    def snapshot(self) -> Recording:
        """Everything seen so far; argv, exit and seconds of the header are the caller's to fill."""
        with self._lock:
            rows = list(self.rows.values())
            transfers = [self._transfer(row) for row in rows if row.count]
            sites = list(self._site_list)
        header = self._describe_run() if _active is self else self._header
        return Recording(header, sites, transfers)

    def _site(self, caller: Caller) -> int:
        key = (id(caller.code), caller.lasti)
        index = self._sites.get(key)
        if index is None:
            site = resolve(caller.code, caller.lasti)
            with self._site_lock:
                index = self._site_index.setdefault(site, len(self._site_list))
                if index == len(self._site_list):
                    self._site_list.append(site)
                self._sites[key] = index
                self._codes.append(caller.code)
        return index

    def _transfer(self, row: Row) -> Transfer:
        return Transfer(
            site=self._site(row.caller),
            origin=self._site(row.origin) if row.origin is not None else None,
            count=row.count,
            nbytes=row.nbytes,
            same_object=row.same_object,
            call_ns=row.call_ns,
            wait_ns=row.wait_ns,
            copy_ns=row.copy_ns,
            first_ns=row.first_ns,
            last_ns=row.last_ns,
            **row.fields,
        )

    def _changes(self) -> tuple[Header, dict[int, Site], dict[int, Transfer]]:
        """Header, and what changed since the last flush, by index."""
        with self._lock:
            known, changed = self._sites_flushed, {}
            for index, row in enumerate(self.rows.values()):
                if row.count != row.flushed:
                    row.flushed = row.count
                    changed[index] = self._transfer(row)
            sites = {i: self._site_list[i] for i in range(known, len(self._site_list))}
            self._sites_flushed = len(self._site_list)
        return (self._describe_run() if _active is self else self._header), sites, changed

    def _describe_run(self) -> Header:
        jax_ = self.jax
        header = Header(
            started=self.started,
            python=platform.python_version(),
            scalar_uploads=self.scalars[0],
            scalar_nbytes=self.scalars[1],
            seams=[SeamState(s.name, s.live, s.reason, s.blind_to) for s in self.seams],
            moored_errors=[OwnError(where, text, n) for (where, text), n in self._errors.items()],
        )
        if self._dropped:
            header.notes.append(f"{self._dropped:,} events came after {_MAX_ROWS:,} rows and were not kept")
        if jax_ is not None:
            header.jax = jax_.version
            if jax_.backends_ready():
                self._describe_devices(header, jax_)
        return header

    def _describe_devices(self, header: Header, jax_: seams.Internals) -> None:
        try:
            clients = list(jax_.xla_bridge._backends.values())
            header.devices = [self.places.device(d) for client in clients for d in client.devices()]
            header.default_device = self.places.device(jax_.pxla.get_default_device())
        except Exception as error:  # a client that is being torn down
            header.notes.append(f"devices could not be listed: {type(error).__name__}: {error}")
