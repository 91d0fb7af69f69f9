"""The recording file: what is written is read, a torn tail costs an interval, the rest is one clear error."""

from __future__ import annotations

import contextlib
import io
import struct
import zlib
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moored.errors import RecordingError
from moored.model.recording import (
    SCHEMA,
    ArraySpec,
    Header,
    OwnError,
    Recording,
    RecordingWriter,
    SeamState,
    Transfer,
)
from moored.model.site import Site

MAGIC = b"moored recording 1\n"

text = st.text(max_size=12)
count = st.integers(0, 2**62)
sites = st.builds(
    Site,
    path=text,
    line=count,
    end_line=count,
    column=st.none() | count,
    end_column=st.none() | count,
    function=text,
)
arrays = st.builds(
    ArraySpec,
    shape=st.lists(count, max_size=3).map(tuple),
    dtype=text,
    committed=st.sampled_from([None, False, True]),
)


@st.composite
def recordings(draw: st.DrawFn) -> Recording:
    places = draw(st.lists(sites, max_size=4))
    seconds = st.floats(0, 1e9)
    header = draw(
        st.builds(
            Header,
            argv=st.lists(text, max_size=3),
            cwd=text,
            exit=st.none() | st.integers(-64, 255) | text,
            seconds=seconds,
            started=seconds,
            python=text,
            jax=st.none() | text,
            devices=st.lists(text, max_size=3),
            default_device=st.none() | text,
            simulated=st.none() | text,
            seams=st.lists(st.builds(SeamState, name=text, live=st.booleans(), reason=text), max_size=2),
            moored_errors=st.lists(st.builds(OwnError, where=text, error=text, count=count), max_size=2),
            notes=st.lists(text, max_size=2),
        )
    )
    rows: list[Transfer] = []
    if places:
        index = st.integers(0, len(places) - 1)
        row = st.builds(
            Transfer,
            site=index,
            origin=st.none() | index,
            direction=st.sampled_from(["h2d", "d2d", "d2h"]),
            explicit=st.booleans(),
            seam=text,
            api=text,
            function=text,
            argument=text,
            array=arrays,
            source=text,
            target=text,
            reason=text,
            count=count,
            nbytes=count,
            same_object=count,
            call_ns=count,
            wait_ns=count,
            copy_ns=count,
            predicted=st.booleans(),
        )
        rows = draw(st.lists(row, max_size=4))
    return Recording(header, places, rows)


def transfer(site: int = 0, **changes: object) -> Transfer:
    plain = {
        "site": site,
        "direction": "d2d",
        "explicit": False,
        "seam": "call",
        "api": "__getitem__",
        "array": ArraySpec((2000, 6, 1024), "uint16", False),
        "source": "cpu:0",
        "target": "accel:0",
        "reason": "uncommitted",
    }
    return Transfer(**{**plain, **changes})  # type: ignore[arg-type]


def frame(payload: bytes) -> bytes:
    return struct.pack("<II", len(payload), zlib.crc32(payload)) + payload


@given(recordings())
def test_what_is_written_is_read(recording: Recording) -> None:
    assert Recording.from_bytes(recording.to_bytes()) == recording


def test_a_file_is_written_whole_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "run.moored"
    path.write_bytes(b"older")
    recording = Recording(Header(argv=["train.py"]), [Site("train.py", 3)], [transfer()])
    recording.save(path)
    assert Recording.load(path) == recording
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_can_not_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "run.moored").mkdir()
    with pytest.raises(OSError, match=r"run\.moored"):
        Recording().save(tmp_path / "run.moored")
    assert [p.name for p in tmp_path.iterdir()] == ["run.moored"]


def intervals() -> tuple[bytes, list[int], list[Recording]]:
    """A run of three intervals: its file, where each frame ends, and what was known after each."""
    file = io.BytesIO()
    writer = RecordingWriter(file)
    ends, known = [], []
    places = [Site("train.py", 3), Site("train.py", 9)]
    started = Header(argv=["train.py"])
    writer.write(started, {0: places[0]}, {"transfers": {0: transfer(count=1, nbytes=5)}})
    ends.append(file.tell())
    known.append(Recording(started, places[:1], [transfer(count=1, nbytes=5)]))
    grown = {0: transfer(count=2, nbytes=10), 1: transfer(1, count=1)}
    writer.write(None, {1: places[1]}, {"transfers": grown})
    ends.append(file.tell())
    known.append(Recording(started, places, [transfer(count=2, nbytes=10), transfer(1, count=1)]))
    ended = Header(argv=["train.py"], exit=0, seconds=2.5)
    writer.write(ended)
    ends.append(file.tell())
    known.append(Recording(ended, places, known[-1].transfers))
    return file.getvalue(), ends, known


def test_a_file_torn_at_any_byte_keeps_every_whole_interval() -> None:
    data, ends, known = intervals()
    for length in range(len(data) + 1):
        whole = sum(end <= length for end in ends)
        if whole:
            assert Recording.from_bytes(data[:length]) == known[whole - 1], length
        else:
            with pytest.raises(RecordingError):
                Recording.from_bytes(data[:length])


def test_a_damaged_byte_costs_that_interval_and_what_follows() -> None:
    data, ends, known = intervals()
    for at in range(ends[0], len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 0x40
        whole = sum(end <= at for end in ends)
        assert Recording.from_bytes(bytes(damaged)) == known[whole - 1], at


@given(st.binary(max_size=200))
def test_no_bytes_break_the_reader(data: bytes) -> None:
    for candidate in (
        data,
        MAGIC + data,
        MAGIC + frame(data),
        MAGIC + frame(msgspec.msgpack.encode({"sites": data})),
    ):
        with contextlib.suppress(RecordingError):
            Recording.from_bytes(candidate)


def refusal(data: bytes) -> str:
    with pytest.raises(RecordingError) as refused:
        Recording.from_bytes(data, name="x.moored")
    return str(refused.value)


def test_foreign_bytes_are_named_as_such() -> None:
    assert refusal(b"%PDF-1.7 and so on\n") == (
        "x.moored: not a moored recording (19 bytes, starting b'%PDF-1.7 and so '); "
        "moored trace --record FILE writes one"
    )
    assert refusal(b"").startswith("x.moored: not a moored recording (0 bytes, starting b'');")


def test_a_run_killed_before_its_first_interval_is_named_as_such() -> None:
    assert refusal(MAGIC) == "x.moored: the recording holds no whole frame (19 bytes)"


def test_a_newer_schema_is_named() -> None:
    payload = msgspec.msgpack.encode({"header": {"schema": "moored.recording/9"}})
    assert (
        refusal(MAGIC + frame(payload))
        == f"x.moored: schema 'moored.recording/9', this moored reads '{SCHEMA}'"
    )


def test_another_version_s_rows_are_named() -> None:
    payload = msgspec.msgpack.encode({"sites": {0: ["a.py", "three"]}})
    assert refusal(MAGIC + frame(payload)) == (
        "x.moored: written by another version of moored: Expected `int`, got `str` - at `$.sites[...][1]`"
    )


@pytest.mark.parametrize("row", [transfer(1), transfer(-1), transfer(0, origin=1)])
def test_a_row_of_a_site_that_is_not_there_is_refused(row: Transfer) -> None:
    data = Recording(Header(), [Site("a.py", 3)], [row]).to_bytes()
    assert refusal(data) == "x.moored: damaged: an event names a site that is not in the file"


def test_a_file_that_can_not_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecordingError) as refused:
        Recording.load(tmp_path / "none.moored")
    assert str(refused.value) == f"{tmp_path / 'none.moored'}: can not be read: No such file or directory"
    with pytest.raises(RecordingError) as refused:
        Recording.load(tmp_path)
    assert str(refused.value) == f"{tmp_path}: can not be read: Is a directory"


def test_names_that_are_not_utf8_are_kept_readable():
    recording = Recording(Header(argv=["\udcff.py"]), [Site("a\udcffb.py", 3)], [transfer(count=1)])
    loaded = Recording.from_bytes(recording.to_bytes())
    assert (loaded.header.argv, loaded.sites[0].path) == (["\\xff.py"], "a\\xffb.py")
    assert loaded.transfers == recording.transfers


def test_zeros_at_the_end_are_a_torn_tail() -> None:
    whole = Recording(sites=[Site("a.py", 3)])
    assert Recording.from_bytes(whole.to_bytes() + bytes(4096)) == whole
