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
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

import msgspec

from moored.errors import RecordingError
from moored.model.site import Site

__all__ = [
    "SCHEMA",
    "ArraySpec",
    "Header",
    "OwnError",
    "Recording",
    "RecordingWriter",
    "SeamState",
    "Transfer",
]

SCHEMA = "moored.recording/1"
_MAGIC = b"moored recording 1\n"
_FRAME = struct.Struct("<II")


class ArraySpec(msgspec.Struct, frozen=True, array_like=True):
    """What one event needs to know of the array that moved.

    ``committed`` is None for values that are not JAX arrays (numpy, Python scalars).
    """

    shape: tuple[int, ...]
    dtype: str
    committed: bool | None = None


class Transfer(msgspec.Struct, kw_only=True):
    """All transfers of one kind from one site, added up.

    Attributes:
        site: Index into ``Recording.sites``: the innermost user frame.
        direction: ``"h2d"`` (numpy or Python values to a device), ``"d2d"`` (from one JAX
            device to another, the CPU device included) or ``"d2h"`` (a read into Python or numpy).
        explicit: The user's own frame asked for it (``device_put``, ``device_get``, ``asarray``).
        seam: Which seam saw it: ``"call"``, ``"put"``, ``"read"`` or ``"constant"``.
        api: What the user's line called, as JAX names it: ``"device_put"``, ``"float"``,
            ``"__getitem__"``; for a jitted function of the user's, ``"jit"``.
        function: The function that JAX ran: ``"step"``, ``"dynamic_slice"``; empty for puts and reads.
        argument: Which leaf of the call it was: ``"[0]['w']"`` (positional argument 0, key "w"),
            ``"['x']"`` (keyword x); empty for puts and reads.
        beside: For ``"follows-committed"``: the leaf, in the same notation, whose device it followed.
        library: The installed package between the user's line and JAX, if any (``"optax"``).
        array: Shape, dtype and committedness of the array.
        source: Where it was: ``"cpu:0"``, ``"gpu:0"``, ``"host"``, ``"cpu:0,1 P('x',)"``.
        target: Where it went, in the same words.
        reason: Why JAX moved it: ``"uncommitted"`` (an uncommitted array off the default device),
            ``"follows-committed"`` (an uncommitted array beside a committed operand elsewhere),
            ``"resharded"`` (the call wanted another sharding), ``"host-value"`` (numpy or a Python
            value), ``"asked"`` (a put), ``"read"``, ``"constant"``.
        origin: Index into ``sites`` of the line that made the array under ``default_device``;
            None where that is not known.
        count: Number of transfers.
        nbytes: Bytes moved, over all of them.
        same_object: How many of them moved the very same object as the one before.
        call_ns: Time inside the calls that carried them. Dispatch is asynchronous: a lower bound.
        wait_ns: For reads: time the host waited for the value to be computed.
        copy_ns: For reads: time of the copy itself.
        predicted: The call was warm before moored could learn it; the count is exact, the target
            was inferred from where the outputs live.
        first_ns: When the first one happened, from the start of the recording.
        last_ns: When the last one happened.
    """

    site: int
    direction: str
    explicit: bool
    seam: str
    api: str
    function: str = ""
    argument: str = ""
    beside: str = ""
    library: str = ""
    array: ArraySpec
    source: str
    target: str
    reason: str
    origin: int | None = None
    count: int = 0
    nbytes: int = 0
    same_object: int = 0
    call_ns: int = 0
    wait_ns: int = 0
    copy_ns: int = 0
    predicted: bool = False
    first_ns: int = 0
    last_ns: int = 0


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


class Recording(msgspec.Struct):
    """Everything observed in one run.

    >>> recording = Recording(sites=[Site("a.py", 3)])
    >>> Recording.from_bytes(recording.to_bytes()) == recording
    True
    """

    header: Header = msgspec.field(default_factory=Header)
    sites: list[Site] = msgspec.field(default_factory=list)
    transfers: list[Transfer] = msgspec.field(default_factory=list)

    def site_of(self, transfer: Transfer) -> Site:
        """The user's line of a transfer."""
        return self.sites[transfer.site]

    def since(self, earlier: Recording) -> Recording:
        """What came after ``earlier``, a recording of the same run.

        >>> row = dict(site=0, direction="h2d", explicit=False, seam="call", api="jit", source="host",
        ...            target="cpu:0", reason="host-value", array=ArraySpec((3,), "float32"))
        >>> before = Recording(sites=[Site("a.py", 3)], transfers=[Transfer(**row, count=2, nbytes=24)])
        >>> after = Recording(sites=[Site("a.py", 3)], transfers=[Transfer(**row, count=5, nbytes=60)])
        >>> [(t.count, t.nbytes) for t in after.since(before).transfers]
        [(3, 36)]
        """
        known = {_identity(t): t for t in earlier.transfers}
        later = []
        for transfer in self.transfers:
            then = known.get(_identity(transfer))
            if then is None:
                later.append(transfer)
            elif transfer.count > then.count:
                changes = {name: getattr(transfer, name) - getattr(then, name) for name in _COUNTERS}
                later.append(msgspec.structs.replace(transfer, **changes, first_ns=then.last_ns))
        header = msgspec.structs.replace(
            self.header,
            scalar_uploads=self.header.scalar_uploads - earlier.header.scalar_uploads,
            scalar_nbytes=self.header.scalar_nbytes - earlier.header.scalar_nbytes,
        )
        return Recording(header, self.sites, later)

    def to_bytes(self) -> bytes:
        """The recording as the bytes of its file."""
        out = io.BytesIO()
        writer = RecordingWriter(out)
        writer.write(self.header, enumerate(self.sites), enumerate(self.transfers))
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
        header, sites, transfers = Header(), dict[int, Site](), dict[int, Transfer]()
        seen = False
        for payload in _frames(memoryview(data)[len(_MAGIC) :]):
            try:
                frame = _decoder.decode(payload)
            except msgspec.MsgspecError as error:
                raise RecordingError(f"{name}: written by another version of moored: {error}") from None
            header = frame.header or header
            sites.update(frame.sites)
            transfers.update(frame.transfers)
            seen = True
        if not seen:
            raise RecordingError(f"{name}: the recording holds no whole frame ({len(data):,} bytes)")
        if header.schema != SCHEMA:
            raise RecordingError(f"{name}: schema {header.schema!r}, this moored reads {SCHEMA!r}")
        ordered = [transfers[i] for i in sorted(transfers)]
        if sorted(sites) != list(range(len(sites))) or any(
            not 0 <= index < len(sites) for t in ordered for index in (t.site, t.origin) if index is not None
        ):
            raise RecordingError(f"{name}: damaged: a transfer names a site that is not in the file")
        return cls(header, [sites[i] for i in range(len(sites))], ordered)


_COUNTERS = ("count", "nbytes", "same_object", "call_ns", "wait_ns", "copy_ns")


def _identity(transfer: Transfer) -> tuple[object, ...]:
    """What makes a row a row: everything but its counters and times."""
    fields = transfer.__struct_fields__
    return tuple(
        getattr(transfer, name) for name in fields if name not in _COUNTERS and not name.endswith("_ns")
    )


def _frames(data: memoryview) -> Iterable[memoryview]:
    """The payloads of all whole frames; stops at the first torn or damaged one."""
    at = 0
    while at + _FRAME.size <= len(data):
        length, checksum = _FRAME.unpack_from(data, at)
        payload = data[at + _FRAME.size : at + _FRAME.size + length]
        if len(payload) < length or zlib.crc32(payload) != checksum:
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
        sites: Iterable[tuple[int, Site]] = (),
        transfers: Iterable[tuple[int, Transfer]] = (),
    ) -> None:
        """Append one frame: a new header, and the sites and rows that changed, by index."""
        payload = _encoder.encode(_Frame(header, dict(sites), dict(transfers)))
        self._file.write(_FRAME.pack(len(payload), zlib.crc32(payload)) + payload)


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Frame)
