"""A project's own thresholds: ``[tool.moored]`` of the nearest pyproject.toml that has one."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from typing import Any

import msgspec

from moored.errors import InputError
from moored.rules.thresholds import Thresholds
from moored.units import format_bytes, parse_bytes

__all__ = ["find_thresholds", "page", "read_thresholds"]

_Field = msgspec.inspect.Field
_WANTED = {
    "bytes": 'a number of bytes (65536 or "64 kB")',
    "count": "a whole number from 1 on",
    "seconds": "a number of seconds",
    "share": "a number from 0 to 1",
}


def find_thresholds(*folders: str | os.PathLike[str]) -> Thresholds:
    """The thresholds that hold in a folder: of the nearest pyproject.toml upwards with ``[tool.moored]``.

    Args:
        folders: Where to look from, the first that has such a table above it decides. Ones that do not
            exist are passed over.

    Returns:
        The defaults, where there is no such table.

    Raises:
        InputError: the file is no TOML, or a key of the table is unknown or of the wrong type.

    >>> find_thresholds("/no/such/folder") == Thresholds()
    True
    """
    seen: set[Path] = set()
    for folder in folders:
        try:
            path = Path(os.path.abspath(folder))
        except OSError:  # relative to a current folder that was deleted
            continue
        if not path.is_dir():
            continue
        for candidate in (path, *path.parents):
            if candidate in seen:
                break
            seen.add(candidate)
            found = read_thresholds(candidate / "pyproject.toml")
            if found is not None:
                return found
    return Thresholds()


def read_thresholds(path: Path) -> Thresholds | None:
    """The thresholds of one pyproject.toml; None where there is none, or no ``[tool.moored]`` in it.

    Raises:
        InputError: as for ``find_thresholds``.
    """
    try:
        text = path.read_bytes()
    except OSError:
        return None  # none there, or not ours to read
    if b"moored" not in text:
        return None
    try:
        tool = tomllib.loads(text.decode()).get("tool", {})
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{_shown(path)}: is not valid TOML: {error}") from None
    table = tool.get("moored") if isinstance(tool, dict) else None
    if table is None:
        return None
    if not isinstance(table, dict):
        raise InputError(f"{_shown(path)}: tool.moored is {table!r}, not a table; write [tool.moored]")
    fields = {field.encode_name: field for field in _fields()}
    values: dict[str, Any] = {}
    for key, value in table.items():
        field = fields.get(key)
        if field is None:
            raise InputError(
                f"{_shown(path)}: [tool.moored] has no key {key!r}; the keys are {', '.join(sorted(fields))}"
            )
        values[field.name] = _value(f"{_shown(path)}: [tool.moored] {key}", field, value)
    return Thresholds(**values)


def page() -> str:
    """The text of ``docs/thresholds.md``.

    >>> page().startswith("# Thresholds")
    True
    """
    rows = [f"| `{f.encode_name}` | {_default(f)} | {_unit(f)} | {_description(f)} |\n" for f in _fields()]
    return (
        "# Thresholds\n\n"
        "Where a finding becomes a note, a warning or an error. A project sets its own in "
        "`pyproject.toml`:\n\n"
        '    [tool.moored]\n    large-copy = "4 MB"\n    repeated-reads = 10\n\n'
        "The nearest `pyproject.toml` with such a table counts, searched upwards from the program's folder,\n"
        'then from the current one. Bytes are whole numbers or text with a unit (`65536`, `"64 kB"`,\n'
        '`"1 MiB"`). `moored trace`, `moored report` and `moored.watch()` use them; an unknown key or a\n'
        "value of the wrong type is refused, before anything runs. The defaults are judgements, not\n"
        "measurements: at about 10 GB/s, 64 kB is where a copy starts to cost more than the call that "
        "carries it.\n\n"
        "| key | default | unit | meaning |\n|---|---|---|---|\n" + "".join(rows)
    )


def _fields() -> tuple[Any, ...]:
    info = msgspec.inspect.type_info(Thresholds)
    assert isinstance(info, msgspec.inspect.StructType)
    return info.fields


def _meta(field: Any) -> tuple[str, str]:
    """Unit and description of a field."""
    kind = field.type
    assert isinstance(kind, msgspec.inspect.Metadata)
    return str((kind.extra or {})["unit"]), str((kind.extra_json_schema or {})["description"])


def _unit(field: Any) -> str:
    return _meta(field)[0]


def _description(field: Any) -> str:
    return _meta(field)[1]


def _default(field: Any) -> str:
    return f"`{format_bytes(field.default)}`" if _unit(field) == "bytes" else f"`{field.default}`"


def _value(where: str, field: Any, value: object) -> int | float:
    unit = _unit(field)
    wrong = InputError(f"{where} = {_toml(value)}: must be {_WANTED[unit]}")
    if isinstance(value, bool):
        raise wrong
    if unit == "bytes":
        if isinstance(value, str):
            try:
                return parse_bytes(value)
            except InputError:
                raise wrong from None
        if isinstance(value, int) and value >= 0:
            return value
    elif unit == "count":
        if isinstance(value, int) and value >= 1:
            return value
    elif isinstance(value, (int, float)) and 0 <= value <= (1 if unit == "share" else float("inf")):
        return value
    raise wrong


def _toml(value: object) -> str:
    """A value as a TOML file has it, near enough to be found there."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return '"' + re.sub(r'(["\\])', r"\\\1", value) + '"'
    return repr(value)


def _shown(path: Path) -> str:
    """The path as seen from the current folder, where it lies below it."""
    try:
        return os.fspath(path.relative_to(Path.cwd()))
    except (ValueError, OSError):
        return os.fspath(path)
