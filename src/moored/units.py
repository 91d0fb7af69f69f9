"""Bytes and seconds as text, and back.

Decimal units throughout (1 MB is 1,000,000 bytes), as network and memory vendors and
JAX's own messages use them; three significant digits, because no figure of ours is
measured better than that.
"""

from __future__ import annotations

import re
from fractions import Fraction

from moored.errors import InputError

__all__ = ["format_bytes", "format_count", "format_seconds", "parse_bytes"]

_BYTE_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
_SECOND_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))
_FACTORS = {
    "": 1, "b": 1,
    "k": 10**3, "kb": 10**3, "kib": 2**10,
    "m": 10**6, "mb": 10**6, "mib": 2**20,
    "g": 10**9, "gb": 10**9, "gib": 2**30,
    "t": 10**12, "tb": 10**12, "tib": 2**40,
}  # fmt: skip


def _three_digits(value: float) -> str:
    """Round to three significant digits, without an exponent and without trailing zeros."""
    if value == 0:
        return "0"
    text = f"{value:.3g}"
    if "e" in text:
        text = f"{float(text):.0f}" if value >= 1 else f"{float(text):f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def format_bytes(nbytes: float) -> str:
    """Bytes as text in the largest decimal unit that keeps the number at 1 or above.

    >>> format_bytes(65_205_043_200), format_bytes(12_288), format_bytes(4)
    ('65.2 GB', '12.3 kB', '4 B')
    """
    value = float(nbytes)
    for unit in _BYTE_UNITS:
        if abs(value) < 999.5 or unit == _BYTE_UNITS[-1]:
            return f"{_three_digits(value)} {unit}"
        value /= 1000.0
    raise AssertionError("unreachable")


def format_seconds(seconds: float) -> str:
    """Seconds as text, with the unit that keeps the number at 1 or above.

    >>> format_seconds(4.5), format_seconds(0.00018), format_seconds(95), format_seconds(0)
    ('4.5 s', '180 us', '95 s', '0 s')
    """
    if seconds == 0:
        return "0 s"
    for scale, unit in _SECOND_UNITS:
        if abs(seconds) >= scale * 0.9995:
            return f"{_three_digits(seconds / scale)} {unit}"
    return f"{_three_digits(seconds / 1e-9)} ns"


def format_count(count: int, singular: str, plural: str | None = None) -> str:
    """A number and its noun.

    >>> format_count(1, "copy", "copies"), format_count(12000, "copy", "copies")
    ('1 copy', '12,000 copies')
    """
    noun = singular if count == 1 else (plural or singular + "s")
    return f"{count:,} {noun}"


def parse_bytes(text: str | int) -> int:
    """A number of bytes from text such as ``"1 MB"``, ``"64k"``, ``"2GiB"`` or ``"4096"``.

    Raises:
        InputError: the text is not a number with a byte unit.

    >>> parse_bytes("1 MB"), parse_bytes("2GiB"), parse_bytes("4096")
    (1000000, 2147483648, 4096)
    """
    found = re.fullmatch(r"\s*(\d[\d_]{0,39}(?:\.\d{1,39})?)\s*([A-Za-z]*)\s*", str(text))
    factor = _FACTORS.get(found.group(2).lower()) if found else None
    if found is None or factor is None:
        raise InputError(f"{text!r} is not a number of bytes; write for example 4096, 64kB, '1 MB' or 2GiB")
    return int(Fraction(found.group(1).replace("_", "")) * factor)
