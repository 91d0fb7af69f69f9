"""The cases: small plain JAX programs (``cases/NAME.py``), and what must be found in each (``NAME.json``).

Each program runs once plainly and once under ``moored trace``. The traced run must leave exit code and
standard output as they were, report what is expected, with its bytes, and nothing above a note elsewhere.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from conftest import SRC
from moored.rules.registry import RULES

CASES = Path(__file__).parent / "cases"
EXPECTED: dict[str, dict[str, Any]] = {
    p.stem: json.loads(p.read_text()) for p in sorted(CASES.glob("*.json"))
}
NEEDS = {"accel": ["lammps-jax-pjrt-cpu"], "one-cpu": [], "two-cpu": []}
LIMIT_S = 60

# JAX 0.10.2's CPU client ends the process with this, now and then, where a step that nobody waited for still
# runs at exit; seen on a busy machine with `from_dlpack_trains_on_host.py` alone, without moored. More rarely
# the same program, again without moored, does not end at all.
RUNTIME_ABORT = "terminate called without an active exception"
TRIES = 8
HANGS = 2

# Kinds that only the source shows, and the rule that will check it.
RULE_OF_KIND = {"ignored-placement": "MRD403"}
# On a CPU backend these go through the buffer protocol, which no seam sees; the source shows them.
UNSEEN_AT_RUN_TIME = {("numpy_stats_on_device_array", 15): "MRD201 has no check of the source yet"}


class Run(NamedTuple):
    """How one case went, plainly and traced."""

    plain_exit: int
    plain_out: str
    exit: int
    out: str
    err: str
    findings: list[dict[str, Any]]


@functools.cache
def run(name: str, folder: Path) -> Run:
    report = folder / f"{name}.json"
    program = f"{name}.py"
    trace = ["-m", "moored", "trace", "--format", "json", "-o", os.fspath(report), program]
    environment = {**os.environ, "PYTHONPATH": os.fspath(SRC)}

    def python(*arguments: str) -> subprocess.CompletedProcess[str]:
        hung = 0
        for _ in range(TRIES):
            try:
                done = subprocess.run(
                    [sys.executable, *arguments],
                    cwd=CASES,
                    env=environment,
                    capture_output=True,
                    text=True,
                    timeout=LIMIT_S,
                )
            except subprocess.TimeoutExpired:
                hung += 1
                if hung > HANGS:
                    raise
                continue
            if done.returncode != -signal.SIGABRT or RUNTIME_ABORT not in done.stderr:
                break
        return done

    with ThreadPoolExecutor(2) as both:
        plain, traced = both.map(lambda arguments: python(*arguments), ([program], trace))
    findings = json.loads(report.read_text())["findings"] if report.exists() else []
    return Run(plain.returncode, plain.stdout, traced.returncode, traced.stdout, traced.stderr, findings)


@pytest.fixture(scope="session")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cases")


def lines_of(expectation: dict[str, Any]) -> set[int]:
    return {expectation["line"], *expectation.get("also_lines", [])}


def shortfall(findings: list[dict[str, Any]], expectation: dict[str, Any]) -> str | None:
    """What the findings lack of one expectation; None where they hold it."""
    kind = expectation["kind"]
    found = [f for f in findings if f["kind"] == kind and f["line"] in lines_of(expectation)]
    if not found:
        return f"no {kind} on line {expectation['line']}"
    expected = expectation["bytes_per_event"] * expectation["count"]
    measured = sum(f["nbytes"] for f in found)
    moves = kind.startswith(("implicit", "explicit")) and expectation["bytes_per_event"] > 64
    if moves and abs(measured - expected) > 0.1 * expected:
        return f"line {expectation['line']} {kind}: {measured} bytes, expected {expected}"
    return None


def beside_the_point(findings: list[dict[str, Any]], case: dict[str, Any]) -> list[dict[str, Any]]:
    """Findings above a note on lines where nothing is expected or allowed."""
    allowed = set(case.get("may_report_lines", [])).union(*map(lines_of, case["expect"]))
    return [f for f in findings if f["severity"] != "note" and f["line"] not in allowed]


def needing(name: str) -> list[pytest.MarkDecorator]:
    """Skips a case, and says so, where a package that it needs is missing."""
    case = EXPECTED[name]
    missing = []
    for package in ["jax", *NEEDS[case["device_setup"]], *case["requires"]]:
        try:
            metadata.distribution(package)
        except metadata.PackageNotFoundError:
            missing.append(package)
    return [pytest.mark.skip(reason=f"{name} needs {', '.join(missing)}")] if missing else []


def not_built(name: str, expectation: dict[str, Any]) -> list[pytest.MarkDecorator]:
    place = (name, expectation["line"])
    if place in UNSEEN_AT_RUN_TIME:
        return [pytest.mark.xfail(strict=True, reason=UNSEEN_AT_RUN_TIME[place])]
    rule = RULE_OF_KIND.get(expectation["kind"])
    is_built = rule is None or rule in RULES
    return [] if is_built else [pytest.mark.xfail(strict=True, reason=f"rule {rule} not built yet")]


ALL = [pytest.param(name, marks=needing(name)) for name in EXPECTED]
EXPECTATIONS = [
    pytest.param(
        name,
        expectation,
        id=f"{name}:{expectation['line']}:{expectation['kind']}",
        marks=[*needing(name), *not_built(name, expectation)],
    )
    for name, case in EXPECTED.items()
    for expectation in case["expect"]
]


@pytest.mark.parametrize("name", ALL)
def test_tracing_changes_nothing(name: str, reports: Path) -> None:
    seen = run(name, reports)
    assert seen.plain_exit == EXPECTED[name]["expected_exit"]
    assert (seen.exit, seen.out) == (seen.plain_exit, seen.plain_out), seen.err


@pytest.mark.parametrize(("name", "expectation"), EXPECTATIONS)
def test_what_is_there_is_found(name: str, expectation: dict[str, Any], reports: Path) -> None:
    assert shortfall(run(name, reports).findings, expectation) is None


@pytest.mark.parametrize("name", ALL)
def test_what_is_not_there_is_not_found(name: str, reports: Path) -> None:
    assert beside_the_point(run(name, reports).findings, EXPECTED[name]) == []
    assert (reports / f"{name}.json").exists()


def test_every_program_has_its_expectations() -> None:
    assert {p.stem for p in CASES.glob("*.py")} == EXPECTED.keys()
    assert len(EXPECTED) == 28  # 27 patterns from public reports, and one of ours


def test_the_scale_can_tell() -> None:
    """The two measures above, on findings made up for them."""
    expectation = {
        "line": 13,
        "kind": "implicit-d2d",
        "bytes_per_event": 100,
        "count": 10,
        "also_lines": [14],
    }
    right = {"line": 14, "kind": "implicit-d2d", "nbytes": 1050, "severity": "error"}
    assert shortfall([right], expectation) is None
    assert shortfall([{**right, "line": 15}], expectation) == "no implicit-d2d on line 13"
    assert shortfall([{**right, "kind": "implicit-h2d"}], expectation) == "no implicit-d2d on line 13"
    assert shortfall([{**right, "nbytes": 100}], expectation) == (
        "line 13 implicit-d2d: 100 bytes, expected 1000"
    )
    case = {"expect": [expectation], "may_report_lines": [20]}
    assert beside_the_point([right, {**right, "line": 20}], case) == []
    assert beside_the_point([{**right, "line": 15, "severity": "note"}], case) == []
    assert beside_the_point([{**right, "line": 15}], case) == [{**right, "line": 15}]
