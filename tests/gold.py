"""Golden files: what a report looked like when somebody last read it with care."""

from __future__ import annotations

from pathlib import Path

import pytest

GOLDEN = Path(__file__).parent / "golden"


def check(name: str, actual: str) -> None:
    """Fail where a text is not that of ``golden/NAME``, and leave it beside it as ``NAME.actual``."""
    gold, beside = GOLDEN / name, GOLDEN / f"{name}.actual"
    expected = gold.read_text(encoding="utf-8") if gold.exists() else None
    if actual == expected:
        beside.unlink(missing_ok=True)
        return
    beside.write_text(actual, encoding="utf-8")
    pytest.fail(f"not as {gold.name}; compare it with {beside}, and if that is right: mv {beside} {gold}")
