"""Rows: what the seams see, added up, in bounded memory, from any thread.

A row adds up all events that are alike: same place in the user's code, same array, same
way. Counting one more event costs a few attribute stores; what takes longer (source spans,
names) is done once per row.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
import zlib
from collections.abc import Callable, Sequence
from types import CodeType
from typing import Any

from moored.model.recording import Arrival, Compile, Conflict, Event, Execution, OwnError, Transfer
from moored.model.site import Site
from moored.trace.frames import Caller, Frames, resolve
from moored.trace.interrupts import raised_by_handler
from moored.trace.places import Places

__all__ = ["Row", "Store"]

_MAX_ROWS = 20_000
_COMPARED_NBYTES = (1_000, 64_000_000)  # smaller ones do not matter, larger ones take too long
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


class Row:
    """One aggregated event while the program runs; ``model.events`` says what its numbers mean."""

    __slots__ = (
        "call_ns", "caller", "checksum", "compared", "compile_ns", "copy_ns", "count", "dragged", "fields",
        "first_ns", "flushed", "last", "last_ns", "nbytes", "same_content", "same_object", "wait_ns",
    )  # fmt: skip

    def __init__(self, caller: Caller, fields: dict[str, Any], now: int) -> None:
        self.caller, self.fields = caller, fields
        self.count = self.nbytes = self.same_object = self.dragged = 0
        self.call_ns = self.wait_ns = self.copy_ns = self.compile_ns = 0
        self.first_ns = self.last_ns = now
        self.flushed = self.compared = self.same_content = 0
        self.last: Any = None
        self.checksum: tuple[int, int] | None = None  # of the event with that number

    def seen(self, obj: Any) -> None:
        """Note whether ``obj`` is the very object that the last event of this row moved."""
        last = self.last
        if last is not None and last() is obj:
            self.same_object += 1
            return
        # The first pair, the second, and then one in ever more: reading the content costs.
        if self.count & (self.count - 1) == 0 or (self.count - 1) & (self.count - 2) == 0:
            self.compare(obj)
        try:
            self.last = weakref.ref(obj)
        except TypeError:
            self.last = None

    def compare(self, obj: Any) -> None:
        """Note whether a host array has the content of the one before."""
        flags = getattr(obj, "flags", None)
        if flags is None or not getattr(flags, "c_contiguous", False):
            return
        if not _COMPARED_NBYTES[0] <= obj.nbytes <= _COMPARED_NBYTES[1]:
            return
        before, self.checksum = self.checksum, (self.count, zlib.crc32(obj.view("u1").data))
        if before is not None and before[0] == self.count - 1:
            self.compared += 1
            self.same_content += before[1] == self.checksum[1]


class _ThreadState(threading.local):
    """Per thread: what JAX's Python dispatch just ran, and whether events belong to an outer one."""

    ran: Any = None  # (executable, args) of the last Python-dispatched execution
    nested: bool = False  # inside a placement that is already accounted for
    jaxpr_fun: Any = None  # identity of the function that jit_p.bind is about to call
    jaxpr: Any = None  # what JAX's Python dispatch is about to compile and run
    compile_ns: int = 0  # what the compiler took since the last call that was accounted for


class Store:
    """Everything that the seams have seen, and who caused it.

    Args:
        user_roots: Folders whose files count as user code even under site-packages.
        retire: Called with a seam's name and the reason when moored's code keeps failing in it.
    """

    def __init__(self, user_roots: Sequence[str], retire: Callable[[str, str], None]) -> None:
        self.frames = Frames(user_roots)
        self.places = Places()
        self.state = _ThreadState()
        self.rows: dict[str, dict[Any, Row]] = {kind: {} for kind in _KINDS}
        self.scalars = [0, 0]  # uploads, bytes
        self.epoch_ns = time.perf_counter_ns()
        self.late = False  # JAX had run before the seams were attached
        self.dropped = 0
        self._retire = retire
        self._made_by: dict[int, tuple[weakref.ref[Any], Caller]] = {}
        self._makers: dict[Any, Caller | None] = {}
        self._committed_by: dict[int, tuple[weakref.ref[Any], Caller]] = {}
        #: Threads that were started inside a ``default_device`` block: its device, and the line.
        self.started: weakref.WeakKeyDictionary[threading.Thread, tuple[Any, Caller]] = (
            weakref.WeakKeyDictionary()
        )
        self._errors: dict[tuple[str, str], int] = {}
        self._sites: dict[tuple[int, int], int] = {}
        self._site_list: list[Site] = []
        self._site_index: dict[Site, int] = {}
        self._codes: list[CodeType | None] = []  # keeps the ids in _sites valid
        self._sites_flushed = 0
        self._lock = threading.RLock()
        _stores.add(self)

    # -- rows ------------------------------------------------------------------------------

    def row(self, caller: Caller, fields: dict[str, Any], kind: str = "transfers") -> Row:
        """The row for events that are alike in caller and fields; made when there is none."""
        # By site, not by instruction: CPython 3.11 may stop at an instruction or in its inline cache.
        rows, key = self.rows[kind], (self.site(caller), *fields.values())
        row = rows.get(key)
        if row is None:
            with self._lock:
                now = self.now()
                if sum(map(len, self.rows.values())) >= _MAX_ROWS:
                    self.dropped += 1
                    return Row(caller, fields, now)  # counted, not kept
                row = rows.setdefault(key, Row(caller, fields, now))
        return row

    def saw(self, caller: Caller, fields: dict[str, Any], kind: str, nbytes: int = 0) -> Row:
        """Count one event of another kind than a transfer."""
        row = self.row(caller, fields, kind)
        row.count += 1
        row.nbytes += nbytes
        row.last_ns = self.now()
        return row

    def now(self) -> int:
        """Nanoseconds since the recording began."""
        return time.perf_counter_ns() - self.epoch_ns

    def is_explicit(self, caller: Caller) -> bool:
        """Whether the user's own frame asked for the transfer."""
        return not caller.library and caller.api in _EXPLICIT

    # -- where arrays were made ------------------------------------------------------------

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
            if known is None or self.site(known) != self.site(caller):
                self._makers[kind] = None

    def origin_of(self, array: Any) -> Caller | None:
        """The line that made an uncommitted array under ``default_device``, where that is known."""
        made = self._made_by.get(id(array))
        if made is not None and made[0]() is array:
            return made[1]
        return self._makers.get((array.shape, array.dtype, array.sharding))

    def commits(self, array: Any, caller: Caller) -> None:
        """Remember which line committed this array."""
        key, known = id(array), self._committed_by
        known[key] = (weakref.ref(array, lambda _: known.pop(key, None)), caller)

    def committed_at(self, array: Any) -> int | None:
        """The index of the line that committed an array, where that is known."""
        known = self._committed_by.get(id(array))
        return self.site(known[1]) if known is not None and known[0]() is array else None

    def thread_default(self) -> tuple[Any, Caller] | None:
        """The ``default_device`` of the block in which this thread was started, and the line."""
        return self.started.get(threading.current_thread()) if self.started else None

    def device_words(self, device: Any) -> str:
        """A device, or the name of a platform, in words."""
        return device if isinstance(device, str) else self.places.device(device)

    def forget_arrays(self) -> None:
        """Let go of everything of JAX's, so that it can tear its clients down in its own order."""
        self.places.clear()
        self._made_by.clear()
        self._makers.clear()
        self._committed_by.clear()
        self.started.clear()
        for row in list(self.rows["transfers"].values()):
            row.last = None

    # -- moored's own failures -------------------------------------------------------------

    def failed(self, seam: str, error: Exception) -> None:
        """moored's own code failed: count it, and retire a seam that keeps failing.

        Raises:
            Exception: ``error`` itself, where a signal handler of the program raised it.
        """
        if raised_by_handler(error):
            raise error
        at = error.__traceback__
        while at is not None and at.tb_next is not None:
            at = at.tb_next
        place = f"{os.path.basename(at.tb_frame.f_code.co_filename)}:{at.tb_lineno}" if at else ""
        key = (f"{seam} {place}".strip(), f"{type(error).__name__}: {error}"[:300])
        self._errors[key] = self._errors.get(key, 0) + 1
        if sum(self._errors.values()) >= _FAILURES_UNTIL_RETIRED:
            self._retire(seam, f"retired after moored failed {_FAILURES_UNTIL_RETIRED} times: {key[1]}")

    @property
    def errors(self) -> list[OwnError]:
        """What failed in moored's own code so far."""
        return [OwnError(where, text, n) for (where, text), n in list(self._errors.items())]

    # -- as data ---------------------------------------------------------------------------

    def all(self) -> tuple[list[Site], dict[str, list[Event]]]:
        """All sites, and all rows so far by kind."""
        with self._lock:
            events = {
                kind: [_event(kind, row, self.site(row.caller)) for row in rows.values() if row.count]
                for kind, rows in self.rows.items()
            }
            return list(self._site_list), events

    def changes(self) -> tuple[dict[int, Site], dict[str, dict[int, Event]]]:
        """What is new since the last time this was asked, by kind and index."""
        with self._lock:
            changed: dict[str, dict[int, Event]] = {}
            for kind, rows in self.rows.items():
                for index, row in enumerate(rows.values()):
                    if row.count != row.flushed:
                        row.flushed = row.count
                        changed.setdefault(kind, {})[index] = _event(kind, row, self.site(row.caller))
            known, self._sites_flushed = self._sites_flushed, len(self._site_list)
            return {i: self._site_list[i] for i in range(known, len(self._site_list))}, changed

    def site(self, caller: Caller) -> int:
        """The index of a caller's place in the source."""
        key = (id(caller.code), caller.lasti)
        index = self._sites.get(key)
        if index is None:
            site = resolve(caller.code, caller.lasti)
            with self._lock:
                index = self._site_index.setdefault(site, len(self._site_list))
                if index == len(self._site_list):
                    self._site_list.append(site)
                self._sites[key] = index
                self._codes.append(caller.code)
        return index


_stores: weakref.WeakSet[Store] = weakref.WeakSet()


def _unlock() -> None:
    """In a forked child: a lock that another thread held at the fork would never be let go."""
    for store in _stores:
        store._lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unlock)


_KINDS: dict[str, Any] = {
    "transfers": Transfer,
    "executions": Execution,
    "compiles": Compile,
    "arrivals": Arrival,
    "conflicts": Conflict,
}
_NUMBERS = {
    kind: [name for name in Row.__slots__ if name in struct.__struct_fields__]
    for kind, struct in _KINDS.items()
}


def _event(kind: str, row: Row, site: int) -> Event:
    numbers = {name: getattr(row, name) for name in _NUMBERS[kind]}
    event: Event = _KINDS[kind](site=site, **row.fields, **numbers)
    return event
