"""A recording: everything observed in one run, as inert data, saved to one file.

The recording is moored's product: collectors write it, rules read it, and every report
can be made again from it on another machine, without JAX.

The file is a line of magic, then frames. A frame is a length and a CRC-32 (both u32,
little endian), then that many bytes of MessagePack. Each frame replaces the header and
the rows that it names (rows are cumulative), so a process that is killed loses one
interval, not the run, and a torn last frame is ignored.
"""

from __future__ import annotations

import io
import os
import struct
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from moored.errors import RecordingError
from moored.model.events import ArraySpec, Arrival, Compile, Conflict, Event, Execution, Operand, Transfer
from moored.model.site import Site

__all__ = [
    "SCHEMA",
    "ArraySpec",
    "Arrival",
    "Compile",
    "Conflict",
    "Event",
    "Execution",
    "Header",
    "Operand",
    "OwnError",
    "Recording",
    "RecordingWriter",
    "SeamState",
    "Transfer",
]

SCHEMA = "moored.recording/1"
_MAGIC = b"moored recording 1\n"
_FRAME = struct.Struct("<II")
_NOTHING: Mapping[Any, Any] = {}


class SeamState(msgspec.Struct, frozen=True):
    """One seam: whether it was live, why not if not, and what it can not see."""

    name: str
    live: bool
    reason: str = ""
    blind_to: str = ""


class OwnError(msgspec.Struct, frozen=True):
    """moored's own code failed; the program went on unharmed."""

    where: str
    error: str
    count: int = 1


class Header(msgspec.Struct, kw_only=True):
    """What was run, on what, and how it ended.

    ``scalar_uploads`` counts the index scalars and Python numbers (8 bytes or less each) that went
    to a device with calls; they are noise, kept out of ``Recording.transfers`` and only added up here.
    """

    schema: str = SCHEMA
    argv: list[str] = []
    cwd: str = ""
    exit: int | str | None = None
    seconds: float = 0.0
    started: float = 0.0
    python: str = ""
    jax: str | None = None
    devices: list[str] = []
    default_device: str | None = None
    simulated: str | None = None
    scalar_uploads: int = 0
    scalar_nbytes: int = 0
    seams: list[SeamState] = []
    moored_errors: list[OwnError] = []
    notes: list[str] = []


class _Frame(msgspec.Struct, omit_defaults=True):
    header: Header | None = None
    sites: dict[int, Site] = {}
    transfers: dict[int, Transfer] = {}
    executions: dict[int, Execution] = {}
    compiles: dict[int, Compile] = {}
    arrivals: dict[int, Arrival] = {}
    conflicts: dict[int, Conflict] = {}


_KINDS = ("transfers", "executions", "compiles", "arrivals", "conflicts")


class Recording(msgspec.Struct):
    """Everything observed in one run.

    >>> recording = Recording(sites=[Site("a.py", 3)])
    >>> Recording.from_bytes(recording.to_bytes()) == recording
    True
    """

    header: Header = msgspec.field(default_factory=Header)
    sites: list[Site] = msgspec.field(default_factory=list)
    transfers: list[Transfer] = msgspec.field(default_factory=list)
    executions: list[Execution] = msgspec.field(default_factory=list)
    compiles: list[Compile] = msgspec.field(default_factory=list)
    arrivals: list[Arrival] = msgspec.field(default_factory=list)
    conflicts: list[Conflict] = msgspec.field(default_factory=list)

    def site_of(self, event: Event) -> Site:
        """The user's line of an event."""
        return self.sites[event.site]

    def since(self, earlier: Recording) -> Recording:
        """What came after ``earlier``, a recording of the same run.

        >>> row = dict(site=0, direction="h2d", explicit=False, seam="call", api="jit", source="host",
        ...            target="cpu:0", reason="host-value", array=ArraySpec((3,), "float32"))
        >>> before = Recording(sites=[Site("a.py", 3)], transfers=[Transfer(**row, count=2, nbytes=24)])
        >>> after = Recording(sites=[Site("a.py", 3)], transfers=[Transfer(**row, count=5, nbytes=60)])
        >>> [(t.count, t.nbytes) for t in after.since(before).transfers]
        [(3, 36)]
        """
        header = msgspec.structs.replace(
            self.header,
            scalar_uploads=self.header.scalar_uploads - earlier.header.scalar_uploads,
            scalar_nbytes=self.header.scalar_nbytes - earlier.header.scalar_nbytes,
        )
        later = {kind: _later(getattr(self, kind), getattr(earlier, kind)) for kind in _KINDS}
        return Recording(header, self.sites, **later)

    def to_bytes(self) -> bytes:
        """The recording as the bytes of its file."""
        out = io.BytesIO()
        writer = RecordingWriter(out)
        events = {kind: dict(enumerate(getattr(self, kind))) for kind in _KINDS}
        writer.write(self.header, dict(enumerate(self.sites)), events)
        return out.getvalue()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the recording to ``path``, whole or not at all.

        Raises:
            OSError: the file can not be written.
        """
        target = Path(path)
        part = target.with_name(f".{target.name}.{os.getpid()}.part")
        try:
            part.write_bytes(self.to_bytes())
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Recording:
        """Read a recording from ``path``; a torn last frame is ignored.

        Raises:
            RecordingError: the file can not be read, or is not a recording of this schema.
        """
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            raise RecordingError(f"{os.fspath(path)}: can not be read: {error.strerror}") from None
        return cls.from_bytes(data, name=os.fspath(path))

    @classmethod
    def from_bytes(cls, data: bytes, name: str = "recording") -> Recording:
        """Decode the bytes of a recording file.

        Raises:
            RecordingError: the bytes are not a recording of this schema.
        """
        if not data.startswith(_MAGIC):
            raise RecordingError(
                f"{name}: not a moored recording ({len(data):,} bytes, starting {data[:16]!r}); "
                "moored trace --record FILE writes one"
            )
        header, sites, seen = Header(), dict[int, Site](), False
        events: dict[str, dict[int, Any]] = {kind: {} for kind in _KINDS}
        for payload in _frames(memoryview(data)[len(_MAGIC) :]):
            try:
                frame = _decoder.decode(payload)
            except msgspec.MsgspecError as error:
                raise RecordingError(f"{name}: written by another version of moored: {error}") from None
            header = frame.header or header
            sites.update(frame.sites)
            for kind in _KINDS:
                events[kind].update(getattr(frame, kind))
            seen = True
        if not seen:
            raise RecordingError(f"{name}: the recording holds no whole frame ({len(data):,} bytes)")
        if header.schema != SCHEMA:
            raise RecordingError(f"{name}: schema {header.schema!r}, this moored reads {SCHEMA!r}")
        ordered = {kind: [rows[i] for i in sorted(rows)] for kind, rows in events.items()}
        named = {index for rows in ordered.values() for row in rows for index in _sites_of(row)}
        if sorted(sites) != list(range(len(sites))) or any(not 0 <= i < len(sites) for i in named):
            raise RecordingError(f"{name}: damaged: an event names a site that is not in the file")
        return cls(header, [sites[i] for i in range(len(sites))], **ordered)


_COUNTERS = frozenset(
    {
        "call_ns",
        "compared",
        "compile_ns",
        "copy_ns",
        "count",
        "dragged",
        "nbytes",
        "same_content",
        "same_object",
        "wait_ns",
    }
)
_TIMES = ("first_ns", "last_ns")


def _identity(event: Event) -> tuple[object, ...]:
    """What makes a row a row: everything but its counters and times."""
    fields = event.__struct_fields__
    return tuple(getattr(event, name) for name in fields if name not in _COUNTERS and name not in _TIMES)


def _later(now: list[Any], before: list[Any]) -> list[Any]:
    """The rows of now that have grown since before, less what they were then."""
    known = {_identity(event): event for event in before}
    later = []
    for event in now:
        then = known.get(_identity(event))
        if then is None:
            later.append(event)
        elif event.count > then.count:
            grown = _COUNTERS.intersection(event.__struct_fields__)
            changes = {name: getattr(event, name) - getattr(then, name) for name in grown}
            later.append(msgspec.structs.replace(event, **changes, first_ns=then.last_ns))
    return later


def _sites_of(event: Event) -> Iterable[int]:
    """The indices of sites that an event names."""
    for name in ("site", "origin", "named_at", "earlier"):
        index = getattr(event, name, None)
        if index is not None:
            yield index
    for operand in getattr(event, "operands", ()):
        if operand.origin is not None:
            yield operand.origin


def _frames(data: memoryview) -> Iterable[memoryview]:
    """The payloads of all whole frames; stops at the first torn or damaged one."""
    at = 0
    while at + _FRAME.size <= len(data):
        length, checksum = _FRAME.unpack_from(data, at)
        payload = data[at + _FRAME.size : at + _FRAME.size + length]
        # Nothing at all has checksum 0: zeros at the end are what a machine that went down leaves.
        if not length or len(payload) < length or zlib.crc32(payload) != checksum:
            return
        yield payload
        at += _FRAME.size + length


class RecordingWriter:
    """Appends frames to a binary file that is open for writing, unbuffered for the best."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._file.write(_MAGIC)

    def write(
        self,
        header: Header | None,
        sites: Mapping[int, Site] = _NOTHING,
        events: Mapping[str, Mapping[int, Event]] = _NOTHING,
    ) -> None:
        """Append one frame: a new header, and the sites and rows that changed, by kind and index."""
        frame = _Frame(header, dict(sites), **{k: dict(v) for k, v in events.items()})  # type: ignore[arg-type]
        try:
            payload = _encoder.encode(frame)
        except UnicodeEncodeError:  # a path or an argument with bytes that are not UTF-8
            payload = _encoder.encode(_scrubbed(msgspec.to_builtins(frame)))
        self._file.write(_FRAME.pack(len(payload), zlib.crc32(payload)) + payload)


def _scrubbed(value: Any) -> Any:
    """The same data, with bytes that are not UTF-8 written as escapes."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    if isinstance(value, dict):
        return {_scrubbed(key): _scrubbed(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_scrubbed(item) for item in value]
    return value


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Frame)
