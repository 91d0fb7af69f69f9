"""The report for programs: its schema, and that it is always JSON."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

import gold
from moored.model.finding import Finding
from moored.model.recording import OwnError, Recording, SeamState
from moored.model.site import Site
from moored.report.json import render
from moored.rules.registry import explain
from recordings import SEAMS, article, header, placements, training


def test_a_report_with_everything(tmp_path: Path) -> None:
    dead = [*SEAMS[:1], SeamState("puts", False, "AttributeError: no batched_device_put"), SEAMS[2]]
    errors = [OwnError("reads collect.py:99", "ValueError: no such place", 3)]
    run = training(tmp_path, seams=dead, moored_errors=errors, simulated="accel", exit=1)
    gold.check("training.json", render(run.recording, explain(run.recording, run.sources)))


def test_a_report_on_placements(tmp_path: Path) -> None:
    run = placements(tmp_path)
    gold.check("placements.json", render(run.recording, explain(run.recording, run.sources)))


def test_the_fields_are_the_documented_ones(tmp_path: Path) -> None:
    run = article(tmp_path)
    report = json.loads(render(run.recording, explain(run.recording, run.sources)))
    assert list(report) == ["schema", "header", "findings", "totals"]
    assert report["schema"] == "moored.report/1"
    assert list(report["header"]) == [
        "argv", "exit", "seconds", "python", "jax", "devices", "default_device", "seams", "moored_errors",
    ]  # fmt: skip
    assert report["header"]["seams"][0] == {"name": "calls", "live": True, "reason": ""}
    assert report["findings"] == [
        {
            "rule": "MRD101",
            "name": "uncommitted-drift",
            "kind": "implicit-d2d",
            "severity": "error",
            "path": "commitment_issues.py",
            "line": 9,
            "end_line": 9,
            "function": "<module>",
            "count": 10,
            "nbytes": 65_205_043_200,
            "seconds": 4.5,
            "seconds_is": "at least",
            "cause": "`array` was made under jax.default_device(cpu0) at line 6, so it sits on cpu:0 without "
            "being committed to it; each `array[i]` runs on the default device accel:0 and first copies the "
            "whole 6.52 GB array there.",
            "fix": "Commit it to cpu:0 once: write `array = jax.device_put(array, cpu0)` after line 6. With "
            "that, `array[i]` runs on cpu:0 and `array` stays there. What it returns stays there too: put it "
            "on accel:0 before computing with it, `jax.device_put(array[i], jax.devices()[0])`.",
            "fixable": False,
            "array": {"shape": [530640, 6, 1024], "dtype": "uint16", "committed": False},
            "source": "cpu:0",
            "target": "accel:0",
        }
    ]
    assert report["totals"] == {
        "errors": 1,
        "warnings": 0,
        "notes": 0,
        "h2d": {"count": 0, "nbytes": 0},
        "d2d": {"count": 10, "nbytes": 65_205_043_200},
        "d2h": {"count": 0, "nbytes": 0},
        "callbacks": {"count": 0, "nbytes": 0},
        "recompiles": {"count": 0, "seconds": 0.0},
    }


@pytest.mark.parametrize("odd", ["\udc80.py", "\x1b[31m", '"\\\n', "é日"])
@pytest.mark.parametrize("seconds", [math.inf, math.nan, None, 0.0])
def test_it_is_json_whatever_a_program_is_called_and_does(odd: str, seconds: float | None) -> None:
    found = Finding(
        rule="MRD101", name="uncommitted-drift", kind="implicit-d2d", severity="error", site=Site(odd, 0),
        cause=odd, seconds=seconds,
    )  # fmt: skip
    shown = render(Recording(header(argv=[odd], seconds=seconds or 0.0)), [found])
    assert shown.isascii()
    report = json.loads(shown, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert report["findings"][0]["path"] == report["header"]["argv"][0] == odd
    assert report["findings"][0]["array"] is None
    assert report["findings"][0]["seconds"] in (None, 0.0)
