"""Bytes and seconds as text, and back."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moored.errors import InputError
from moored.units import format_bytes, format_count, format_seconds, parse_bytes


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (12_288, "12.3 kB"),
        (999_499, "999 kB"),
        (999_500, "1 MB"),
        (24_576_000, "24.6 MB"),
        (6_520_504_320, "6.52 GB"),
        (65_205_043_200, "65.2 GB"),
        (10**15, "1 PB"),
        (10**18, "1000 PB"),
        (10**22, "10000000 PB"),
        (0.25, "0.25 B"),
        (-2_000_000, "-2 MB"),
    ],
)
def test_bytes(nbytes: float, text: str) -> None:
    assert format_bytes(nbytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (4.5, "4.5 s"),
        (95, "95 s"),
        (3600, "3600 s"),
        (0.9996, "1 s"),
        (0.999, "999 ms"),
        (0.00018, "180 us"),
        (1.6e-7, "160 ns"),
        (9.9996e-4, "1 ms"),
        (3e-10, "0.3 ns"),
        (-0.002, "-2 ms"),
    ],
)
def test_seconds(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


def test_counts() -> None:
    assert format_count(0, "copy", "copies") == "0 copies"
    assert format_count(1, "copy", "copies") == "1 copy"
    assert format_count(12_000, "event") == "12,000 events"


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("0", 0),
        (4096, 4096),
        ("64k", 64_000),
        (" 1.5 MB ", 1_500_000),
        ("1_000kB", 1_000_000),
        ("2GiB", 2 * 2**30),
        ("1Tib", 2**40),
        ("0.3 kB", 300),
        ("9007199254740993", 9_007_199_254_740_993),
    ],
)
def test_parsing(text: str | int, nbytes: int) -> None:
    assert parse_bytes(text) == nbytes


@pytest.mark.parametrize(
    "text", ["", "MB", "1 XB", "-1", "1..2", "1.2.3 MB", "1e3", "one", "1 MB 2", "nan", "_1", "9" * 400]
)
def test_what_is_no_number_of_bytes_is_refused(text: str) -> None:
    with pytest.raises(InputError) as refused:
        parse_bytes(text)
    assert str(refused.value) == (
        f"{text!r} is not a number of bytes; write for example 4096, 64kB, '1 MB' or 2GiB"
    )


@given(st.integers(0, 10**17))
def test_bytes_survive_being_written(nbytes: int) -> None:
    """To three digits, and never as 1000 of a unit while there is a larger one."""
    text = format_bytes(nbytes)
    if nbytes < 999_500 * 10**9:
        assert not text.startswith("1000")
    if not text.endswith("PB"):
        assert parse_bytes(text) == pytest.approx(nbytes, rel=0.005)


@given(st.floats(1e-9, 1e5))
def test_seconds_keep_three_digits(seconds: float) -> None:
    number, unit = format_seconds(seconds).split()
    assert float(number) * {"s": 1, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}[unit] == pytest.approx(
        seconds, rel=0.0051
    )
    assert float(number) < 1000 or unit == "s"


@given(st.text(max_size=30) | st.from_regex(r"\d{1,60}(\.\d{1,60})? ?[kMGT]?i?B", fullmatch=True))
def test_no_text_breaks_the_parser(text: str) -> None:
    with contextlib.suppress(InputError):
        assert parse_bytes(text) >= 0
