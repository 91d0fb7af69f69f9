"""Text for people: the headline of a finding, and strings of the program made harmless."""

from __future__ import annotations

import re
import unicodedata

from moored.model.finding import Finding
from moored.units import format_bytes, format_count

__all__ = ["GLUE", "glued", "harmless", "headline", "shortened"]

_UNSAFE = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}
_MEASURE = re.compile(r"(?<=\d) (?=(?:[kMGTP]?B|[mun]?s|%|times)\b|%)")
GLUE = "\ue000"
"""Stands for a space at which no line may break; a program's own is escaped by ``harmless``."""


def glued(text: str) -> str:
    """Text whose numbers keep their units on the same line.

    >>> glued("all 3 MB of it").replace(GLUE, "_")
    'all 3_MB of it'
    """
    return _MEASURE.sub(GLUE, text)


def harmless(text: str) -> str:
    r"""A program's string with everything that could steer a terminal spelt out.

    >>> harmless("a\x1b[31mb\n"), harmless("\u202e"), harmless("é")
    ('a\\x1b[31mb\\n', '\\u202e', 'é')
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(repr(c)[1:-1] if unicodedata.category(c) in _UNSAFE else c for c in text.expandtabs(4))


def shortened(text: str, longest: int) -> str:
    """A text with its middle left out where it is long.

    >>> shortened("tokens[i]", 20), shortened("f(aaaaaaaaaaaaaaaaaaaaaaaaa)", 12)
    ('tokens[i]', 'f(aaa...aaa)')
    """
    if len(text) <= longest:
        return text
    tail = (longest - 3) // 2
    return f"{text[: longest - 3 - tail]}...{text[-tail:]}"


def headline(finding: Finding, expression: str = "") -> str:
    """One sentence: what the line did, how much of what it moved, how often, from where to where.

    Args:
        finding: What was found.
        expression: The line's own expression; empty where the source can not be had.
    """
    f = finding
    act = _code(expression or f.site.function or "this line")
    what = _code(f.expression) if f.expression else "an array"
    total, each, route = format_bytes(f.nbytes), _each(f), f"from {f.source} to {f.target}"
    once = f.count == 1
    match f.kind:
        case "implicit-d2d" | "implicit-h2d":
            noun = ("copy", "copies") if f.kind == "implicit-d2d" else ("upload", "uploads")
            verb = "copied" if f.kind == "implicit-d2d" else "uploaded"
            if once:
                return f"{act} {verb} {_sized(what, total)} {route}, once"
            return f"{act} {verb} {total} in {format_count(f.count, *noun)} of {_sized(what, each)} {route}"
        case "implicit-d2h":
            what = what if f.expression else "device arrays" if not once else what
            act = "Python" if f.expression and f.expression == expression else act
            if once:
                return f"{act} read {_sized(what, total)} from {f.source}, and waited for it"
            return (
                f"{act} read {what} {f.count:,} times from {f.source}, and waited each time ({total} in all)"
            )
        case "explicit-repeated":
            same = _sized(what, each, article=False)
            return f"{act} put the same {same} {f.count:,} times {route} ({total} in all)"
        case "no-op-put":
            arrays = _arrays(f, what, each)
            return f"{act} left {arrays} on {f.source}, uncommitted: without a device it does nothing"
        case "misplaced-compute":
            times = "" if once else f" {f.count:,} times"
            return f"{act} ran on {f.target}{times}, not on {f.source}"
        case "misplaced-array":
            return f"{act} made {_arrays(f, '', each)} on {f.target}, not on {f.source}"
        case "placement-recompile":
            times = "" if once else f", {f.count:,} times"
            changed = f": {what} was {f.source}, is {f.target}"
            if not f.expression:
                changed = f": {f.source} before, {f.target} now" if f.source and f.target else ""
            return f"{act} compiled again{times}{changed}"
        case "captured-constant":
            if once:
                return f"{act} baked an array of {total} into an executable"
            return f"{act} baked {total} into executables: {f.count:,} copies of an array of {each}"
        case "host-callback":
            return f"{act} moved {total} between device and host in {format_count(f.count, 'callback')}"
        case "device-conflict-error":
            there = f": its arguments are committed to {f.source} and {f.target}" if f.source else ""
            return f"{act} was refused{there}"
        case _:
            return f"{act}: {f.name}"


def _code(text: str) -> str:
    return f"`{shortened(text, 48)}`"


def _sized(what: str, size: str, *, article: bool = True) -> str:
    """Say "the 6.52 GB `array`", or "an array of 6.52 GB" where the program has no word for it."""
    if not what.startswith("`"):
        return f"{what} of {size}"
    return f"the {size} {what}" if article else f"{size} {what}"


def _arrays(finding: Finding, what: str, each: str) -> str:
    """Say "the 2.1 MB `b`", or "3 arrays of 2.1 MB" where there were several."""
    if finding.count > 1:
        return f"{finding.count:,} arrays of {each}"
    return _sized(what, each) if what.startswith("`") else f"an array of {each}"


def _each(finding: Finding) -> str:
    each, rest = divmod(finding.nbytes, max(finding.count, 1))
    return f"{'about ' if rest else ''}{format_bytes(each)}"
