"""The words that rules share: how a thing is named, where it is, which device expression gives it."""

from __future__ import annotations

import re
from typing import Any

from moored.model.module import Module
from moored.model.operands import split_path
from moored.model.recording import Header
from moored.model.site import Site
from moored.rules.evidence import Evidence, Observed
from moored.units import format_bytes

__all__ = [
    "action",
    "at_line",
    "code",
    "device_code",
    "how_much",
    "is_lookup",
    "is_one_device",
    "percent",
    "put_on",
    "put_once",
    "subject",
]

_LONGEST = 48
# What JAX runs to take a part of an array: it can run at the array's home, and only the part needs to travel.
_LOOKUPS = frozenset(
    {
        "dynamic_index_in_dim",
        "dynamic_slice",
        "dynamic_slice_in_dim",
        "gather",
        "index_in_dim",
        "rewriting_take",
        "slice",
        "slice_in_dim",
        "take",
        "take_along_axis",
        "unstack",
    }
)
_DEVICE = re.compile(r"([A-Za-z_][\w.-]*):(\d+)")


def code(text: str, longest: int = _LONGEST) -> str:
    """Source text in backquotes, cut in the middle where it is long.

    >>> code("tokens[i]"), code("f(" + "x, " * 40 + "x)", 20)
    ('`tokens[i]`', '`f(x, x, x...x, x, x)`')
    """
    if len(text) > longest:
        half = (longest - 3) // 2
        text = f"{text[: longest - 3 - half].rstrip()}...{text[-half:].lstrip()}"
    return f"`{text}`"


def subject(evidence: Observed[Any], plural: bool = False, row: Any = None) -> str:
    """What moved: the user's words, or its place in the call of a row (the first one), or "an array"."""
    if evidence.words:
        return code(evidence.words)
    row = evidence.first if row is None else row
    steps, _ = split_path(row.argument)
    if row.library:
        return f"an array that {row.library} works on"
    if row.api != "jit" or not steps or not row.function:
        return "arrays" if plural else "an array"
    step = steps[0][1:-1]
    return f"argument {step if step.isdigit() else code(step[1:-1])} of {code(row.function)}"


def action(evidence: Observed[Any]) -> str:
    """What the line did: its expression, or what JAX ran."""
    row = evidence.first
    text = evidence.expression or getattr(row, "function", "") or row.api
    return code(text) if text else "the line"


def how_much(evidence: Evidence) -> str:
    """What one event copies: "the whole 24.6 MB array", "all 8.19 MB of it"."""
    size = format_bytes(evidence.each)
    one = len({(t.argument, t.array.shape, t.array.dtype) for t in evidence.rows}) == 1
    return f"the whole {size} array" if one else f"all {size} of it"


def is_lookup(function: str) -> bool:
    """Whether a function of JAX's takes a part of an array.

    >>> is_lookup("_take"), is_lookup("dynamic_slice"), is_lookup("matmul")
    (True, True, False)
    """
    return function.strip("_") in _LOOKUPS


def at_line(origin: Site, site: Site) -> str:
    """A line, with its file only where that is another one."""
    return f"line {origin.line}" if origin.path == site.path else origin.text


def is_one_device(place: str) -> bool:
    """Whether the words for a place name a single device in its own memory."""
    return _DEVICE.fullmatch(place) is not None


def device_code(place: str, header: Header, module: Module | None) -> str | None:
    """The expression that gives a device, ``jax.devices("cpu")[0]``; None for a sharding."""
    found = _DEVICE.fullmatch(place)
    if found is None:
        return None
    platform, index = found.groups()
    jax = module.spelling("jax") if module is not None else "jax"
    is_default = header.default_device is not None and header.default_device.rpartition(":")[0] == platform
    return f"{jax}.devices()[{index}]" if is_default else f'{jax}.devices("{platform}")[{index}]'


def put_on(what: str, device: str | None, module: Module | None) -> str:
    """``jax.device_put(what, device)`` as this file would spell it."""
    spelled = (
        next((n for n, full in module.imports.items() if full == "jax.device_put"), None) if module else None
    )
    call = spelled or f"{module.spelling('jax') if module is not None else 'jax'}.device_put"
    return f"{call}({what}, {device})" if device else f"{call}({what})"


def put_once(words: str, device: str | None, module: Module | None) -> str:
    """The statement that puts something once, as far as the user's words allow to write it.

    >>> put_once("w", None, None), put_once("state['w']", None, None), put_once("", None, None)
    ('w = jax.device_put(w)', "jax.device_put(state['w'])", 'x = jax.device_put(x)')
    >>> put_once("*args", None, None)
    'args = jax.device_put(args)'
    """
    name = words.lstrip("*") or "x"  # f(*args): the tuple can be put as a whole, the unpacked can not
    put = put_on(name, device, module)
    return f"{name} = {put}" if name.isidentifier() else put


def percent(share: float) -> str:
    """A share as a percentage.

    >>> percent(0.123), percent(0.004), percent(1.2)
    ('12 %', 'under 1 %', '100 %')
    """
    return "under 1 %" if share < 0.01 else f"{min(share, 1.0) * 100:.0f} %"
