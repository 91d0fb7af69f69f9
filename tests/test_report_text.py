"""The report for people: what it says first, how it fits, and what it never lets through."""

from __future__ import annotations

import io
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

import gold
from conftest import RunPython
from moored.model.finding import Finding
from moored.model.recording import OwnError, Recording, SeamState
from moored.model.site import Site
from moored.report import text
from moored.report.unseen import unseen
from moored.rules.registry import explain
from recordings import SEAMS, Run, article, header, placements, training


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def rendered(run: Run, width: int | None = 120, color: bool | None = False) -> str:
    out = io.StringIO()
    text.render(run.recording, explain(run.recording, run.sources), file=out, width=width, color=color)
    return out.getvalue()


def finding(**fields: object) -> Finding:
    usual = {
        "rule": "MRD101", "name": "uncommitted-drift", "kind": "implicit-d2d", "severity": "error",
        "site": Site("a.py", 3), "expression": "x", "count": 2, "nbytes": 8, "cause": "Because.",
        "fix": "So.", "source": "cpu:0", "target": "gpu:0",
    }  # fmt: skip
    return Finding(**{**usual, **fields})  # type: ignore[arg-type]


def plain(findings: list[Finding], width: int = 120) -> str:
    out = io.StringIO()
    text.render(Recording(header()), findings, file=out, width=width, color=False)
    return out.getvalue()


# -- what it says ----------------------------------------------------------------------------


def test_the_first_line_tells_the_whole_story(tmp_path: Path) -> None:
    lines = rendered(article(tmp_path)).splitlines()
    assert lines[0] == (
        "commitment_issues.py:9  `array[i]` copied 65.2 GB in 10 copies of the 6.52 GB `array` from cpu:0 "
        "to accel:0"
    )
    assert "  write   array = jax.device_put(array, cpu0)" in lines


def test_it_is_one_line_too_where_the_report_goes_to_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert rendered(article(tmp_path), width=None) == rendered(article(tmp_path), width=120)
    monkeypatch.setenv("COLUMNS", "80")
    assert rendered(article(tmp_path), width=None) == rendered(article(tmp_path), width=80)


@pytest.mark.parametrize("width", [80, 120])
def test_a_report_with_everything(tmp_path: Path, width: int) -> None:
    dead = [SEAMS[0], SeamState("puts", False, "AttributeError: no batched_device_put"), SEAMS[2]]
    errors = [OwnError("reads collect.py:99", "ValueError: no such place", 3)]
    run = training(tmp_path, seams=dead, moored_errors=errors, simulated="accel", exit=1)
    gold.check(f"training_{width}.txt", rendered(run, width))


@pytest.mark.parametrize("width", [80, 120])
def test_the_articles_report(tmp_path: Path, width: int) -> None:
    gold.check(f"article_{width}.txt", rendered(article(tmp_path, simulated="accel"), width))


@pytest.mark.parametrize("width", [80, 120])
def test_a_report_on_placements(tmp_path: Path, width: int) -> None:
    gold.check(f"placements_{width}.txt", rendered(placements(tmp_path), width))


@pytest.mark.parametrize("width", [40, 80, 100, 120, 200])
@pytest.mark.parametrize("run", [training, placements])
def test_no_line_is_wider_than_asked_but_those_to_copy(
    tmp_path: Path, width: int, run: Callable[[Path], Run]
) -> None:
    for row in rendered(run(tmp_path), width).splitlines():
        assert len(row) <= width or row.startswith("  write")


def test_the_line_to_write_is_never_broken(tmp_path: Path) -> None:
    rows = rendered(training(tmp_path), 40).splitlines()
    assert "  write   tokens = jax.device_put(tokens, cpu)" in rows
    assert "  write   table = jax.device_put(embeddings)" in rows


def test_nothing_found_is_one_calm_line(tmp_path: Path) -> None:
    run = Run(tmp_path, "x[i]\n").drifted("x[i]", reason="asked", explicit=True, count=3, nbytes=3000)
    assert rendered(run) == (
        "moored: nothing drifted. Watched device to device 3 kB in 3 transfers. The run took 20 s.\n"
    )


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, "`f` copied 8 B in 2 copies of the 4 B `x` from cpu:0 to gpu:0"),
        ({"nbytes": 9}, "`f` copied 9 B in 2 copies of the about 4 B `x` from cpu:0 to gpu:0"),
        ({"count": 1}, "`f` copied the 8 B `x` from cpu:0 to gpu:0, once"),
        ({"expression": ""}, "`f` copied 8 B in 2 copies of an array of 4 B from cpu:0 to gpu:0"),
        ({"kind": "implicit-h2d"}, "`f` uploaded 8 B in 2 uploads of the 4 B `x` from cpu:0 to gpu:0"),
        ({"kind": "implicit-h2d", "count": 1}, "`f` uploaded the 8 B `x` from cpu:0 to gpu:0, once"),
        ({"kind": "implicit-d2h"}, "`f` read `x` 2 times from cpu:0, and waited each time (8 B in all)"),
        ({"kind": "implicit-d2h", "count": 1}, "`f` read the 8 B `x` from cpu:0, and waited for it"),
        ({"kind": "explicit-repeated"}, "`f` put the same 4 B `x` 2 times from cpu:0 to gpu:0 (8 B in all)"),
        ({"kind": "implicit-d2h", "expression": ""},
         "`f` read device arrays 2 times from cpu:0, and waited each time (8 B in all)"),
        ({"kind": "no-op-put", "count": 1},
         "`f` left the 8 B `x` on cpu:0, uncommitted: without a device it does nothing"),
        ({"kind": "no-op-put"},
         "`f` left 2 arrays of 4 B on cpu:0, uncommitted: without a device it does nothing"),
        ({"kind": "misplaced-compute"}, "`f` ran on gpu:0 2 times, not on cpu:0"),
        ({"kind": "misplaced-compute", "count": 1}, "`f` ran on gpu:0, not on cpu:0"),
        ({"kind": "misplaced-array", "count": 1}, "`f` made an array of 8 B on gpu:0, not on cpu:0"),
        ({"kind": "misplaced-array"}, "`f` made 2 arrays of 4 B on gpu:0, not on cpu:0"),
        ({"kind": "placement-recompile", "count": 1}, "`f` compiled again: `x` was cpu:0, is gpu:0"),
        ({"kind": "placement-recompile", "expression": ""},
         "`f` compiled again, 2 times: cpu:0 before, gpu:0 now"),
        ({"kind": "placement-recompile", "expression": "", "source": ""}, "`f` compiled again, 2 times"),
        ({"kind": "captured-constant"}, "`f` baked 8 B into executables: 2 copies of an array of 4 B"),
        ({"kind": "captured-constant", "count": 1}, "`f` baked an array of 8 B into an executable"),
        ({"kind": "host-callback"}, "`f` moved 8 B between device and host in 2 callbacks"),
        ({"kind": "device-conflict-error"},
         "`f` was refused: its arguments are committed to cpu:0 and gpu:0"),
        ({"kind": "device-conflict-error", "source": ""}, "`f` was refused"),
    ],
)  # fmt: skip
def test_headlines(fields: dict[str, object], expected: str) -> None:
    found = finding(site=Site("gone.py", 3, function="f"), **fields)
    assert plain([found]).splitlines()[0] == f"gone.py:3  {expected}"


@pytest.mark.parametrize(
    ("seconds", "seconds_is", "expected"),
    [
        (4.5, "at least", " · at least 4.5 s in these calls"),
        (0.2, "measured", " · 200 ms of waiting, measured"),
        (1.0, "estimate", " · about 1 s, estimated"),
        (None, "", ""),
    ],
)
def test_seconds_say_what_they_are(seconds: float | None, seconds_is: str, expected: str) -> None:
    rows = plain([finding(seconds=seconds, seconds_is=seconds_is)]).splitlines()
    assert rows[1] == f"  error MRD101 uncommitted-drift{expected}"


def test_many_findings_are_counted_not_listed() -> None:
    found = [finding(site=Site("a.py", n)) for n in range(1, 26)]
    found += [finding(site=Site("b.py", n), severity="note") for n in range(1, 9)]
    rows = plain(found).splitlines()
    assert sum(row.startswith("a.py:") for row in rows) == 20
    assert "... and 5 more findings; --format json has them all" in rows
    assert sum(row.startswith("note MRD101  b.py:") for row in rows) == 5
    assert "... and 3 more notes" in rows
    assert rows[-1] == "moored: 25 errors, 8 notes. Moved nothing. The run took 20 s."


def test_the_measured_seconds_of_a_kind_are_named() -> None:
    rows = plain([finding(seconds=2.0, seconds_is="measured", kind="placement-recompile")]).splitlines()
    assert rows[1].endswith(" · 2 s of compiling, measured")
    rows = plain([finding(seconds=2.0, seconds_is="measured", kind="host-callback")]).splitlines()
    assert rows[1].endswith(" · 2 s of callbacks, measured")


def test_totals_count_callbacks_and_recompiles(tmp_path: Path) -> None:
    run = Run(tmp_path, "step(x)\n").read("step(x)", count=2, nbytes=8)
    run.called_back("step(x)", count=3, nbytes=3_000)
    run.compiled("step(x)", compile_ns=0).compiled("step(x)", reason="sharding", compile_ns=0)
    assert rendered(run, 200).splitlines()[-1] == (
        "moored: 3 warnings. Moved device to host 3.01 kB in 5 transfers (of these 3 kB in 3 "
        "callbacks). Compiled again for placement alone: 2 times. The run took 20 s."
    )


def test_the_library_in_between_is_named_where_asked(tmp_path: Path) -> None:
    run = Run(tmp_path, "fit(x)\nplot(y)\n")
    run.drifted("fit(x)", library="optax", count=3, nbytes=3_000_000)
    run.drifted("plot(y)", library="evil\x1b", count=1, nbytes=3_000)
    out = io.StringIO()
    findings = explain(run.recording, run.sources)
    text.render(run.recording, findings, file=out, width=120, show_library=True)
    assert "  error MRD101 uncommitted-drift · in optax\n" in out.getvalue()
    assert " from cpu:0 to accel:0, once (in evil\\x1b)\n" in out.getvalue()
    assert "in optax" not in rendered(run).replace("that optax works on", "")


# -- the source line -------------------------------------------------------------------------


def source_rows(folder: Path, source: str, expression: str, width: int = 80) -> tuple[str, str]:
    run = Run(folder, source).drifted(expression, count=3, nbytes=3_000_000)
    rows = [row for row in rendered(run, width).splitlines() if "│" in row]
    return rows[0].partition("│")[2], rows[1].partition("│")[2]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("    row = tokens[i]\n", (" row = tokens[i]", "       ^^^^^^^^^")),
        ("s = 'é'; r = tokens[i]\n", (" s = 'é'; r = tokens[i]", "              ^^^^^^^^^")),
        ("s = '日本'; r = tokens[i]\n", (" s = '日本'; r = tokens[i]", "                 ^^^^^^^^^")),
        ("s = '\x1b[31m'; r = tokens[i]\n", (" s = '\\x1b[31m'; r = tokens[i]", " " * 21 + "^^^^^^^^^")),
    ],
)
def test_carets_stand_below_the_expression(tmp_path: Path, source: str, expected: tuple[str, str]) -> None:
    source = f"if True:\n{source}" if source.startswith(" ") else source
    assert source_rows(tmp_path, source, "tokens[i]") == expected


def test_a_long_line_is_cut_around_the_expression(tmp_path: Path) -> None:
    source = f"{'a + ' * 40}tokens[i]{' + b' * 40}\n"
    line, carets = source_rows(tmp_path, source, "tokens[i]")
    assert line.startswith(" ...")
    assert line.endswith("...")
    assert len(line) <= 80
    start = carets.index("^")
    assert line[start : start + len(carets.strip())] == "tokens[i]"


def test_an_expression_over_several_lines_is_marked_on_its_first(tmp_path: Path) -> None:
    assert source_rows(tmp_path, "r = tokens[\n    i\n]\n", "tokens[\n    i\n]") == (
        " r = tokens[",
        "     ^^^^^^^",
    )


# -- what it never lets through --------------------------------------------------------------


def test_a_program_can_neither_steer_the_terminal_nor_mark_up_the_report() -> None:
    evil = "a[bold red]\x1b[2J\x07\u202e\r.py"
    found = finding(
        site=Site(evil, 3, function=evil), expression=f"x{evil}", cause=evil, fix=f":smile: {evil}",
        replacement=f"x = {evil}", replacement_after=3, source=evil, target=evil,
    )  # fmt: skip
    shown = plain([found], 200)
    assert "a[bold red]\\x1b[2J\\x07\\u202e\\r.py:3" in shown
    assert ":smile:" in shown
    assert not set(shown) & {"\x1b", "\x07", "\u202e", "\r"}


def test_colours_are_for_terminals_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    run = article(tmp_path)
    findings = explain(run.recording, run.sources)

    def is_coloured(file: io.StringIO, color: bool | None = None) -> bool:
        text.render(run.recording, findings, file=file, width=80, color=color)
        return "\x1b[" in file.getvalue()

    assert is_coloured(Terminal())
    assert not is_coloured(io.StringIO())
    assert is_coloured(io.StringIO(), color=True)
    monkeypatch.setenv("NO_COLOR", "1")
    assert not is_coloured(Terminal())
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert not is_coloured(Terminal())


def test_colours_change_nothing_else(tmp_path: Path) -> None:
    import re

    run = training(tmp_path)
    assert re.sub(r"\x1b\[[\d;]*m", "", rendered(run, 80, color=True)) == rendered(run, 80)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_an_encoding_that_lacks_the_characters_gets_plain_ones(tmp_path: Path, encoding: str) -> None:
    run = Run(tmp_path, "s = '日é'; r = tokens[i]\n").drifted(
        "tokens[i]", count=3, nbytes=3_000_000, call_ns=10**9
    )
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding)
    text.render(run.recording, explain(run.recording, run.sources), file=file, width=80)
    file.flush()
    shown = raw.getvalue().decode(encoding)
    assert "error MRD101 uncommitted-drift - at least 1 s in these calls" in shown
    assert "    1 | s = '\\u65e5" in shown


def test_a_changed_file_is_not_quoted(tmp_path: Path) -> None:
    run = article(tmp_path, started=1000.0)
    out = io.StringIO()
    text.render(run.recording, explain(run.recording), file=out, width=120)
    shown = out.getvalue()
    assert "commitment_issues.py has changed since the run: its lines are not shown." in shown
    assert "│" not in shown
    assert "array[i]" not in shown


# -- what moored could not see ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, []),
        ({"exit": 3}, ["The program ended with 3; what it moved until then is above."]),
        ({"exit": "ValueError"}, ["The program ended with ValueError; what it moved until then is above."]),
        ({"seams": [SeamState("reads", False, "RuntimeError: patched")]},
         ["Not seen: reads, because RuntimeError: patched."]),
        ({"devices": ["cpu:0"], "default_device": "cpu:0"},
         ["Not seen: copies between devices. There is only cpu:0 here, so nothing can drift; "
          "--simulate adds a simulated accelerator."]),
        ({"seams": [SeamState("reads", True, "", "np.asarray on CPU arrays")], "default_device": "cpu:0"},
         ["Not seen: np.asarray on CPU arrays. On a GPU each of these reads waits and copies; "
         "--simulate shows them."]),
        ({"seams": [SeamState("reads", True, "", "np.asarray")], "default_device": "gpu:0"}, []),
        ({"scalar_uploads": 999, "scalar_nbytes": 4_000}, []),
        ({"scalar_uploads": 12_000, "scalar_nbytes": 60_000},
         ["12,000 indices and Python numbers (60 kB) went to a device with calls; they are not counted "
          "above."]),
        ({"moored_errors": [OwnError("calls a.py:1", "KeyError: 3", 1)]},
         ["moored itself failed 1 time in calls a.py:1: KeyError: 3; the program was not affected."]),
        ({"notes": ["7 events came after 20,000 rows and were not kept"]},
         ["Note: 7 events came after 20,000 rows and were not kept."]),
    ],
)  # fmt: skip
def test_what_could_not_be_seen_is_said(fields: dict[str, object], expected: list[str]) -> None:
    assert list(unseen(Recording(header(**fields)))) == expected


# -- moored report ---------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    run = article(tmp_path)
    run.recording.save(tmp_path / "run.moored")
    return tmp_path / "run.moored"


def test_moored_report_prints_either_format(saved: Path, run_python: RunPython) -> None:
    done = run_python("-m", "moored", "report", "run.moored", "--width", "80")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == rendered(article(saved.parent), 80)
    done = run_python("-m", "moored", "report", "run.moored", "--format", "json")
    assert json.loads(done.stdout)["findings"][0]["nbytes"] == 65_205_043_200


def test_moored_report_writes_a_file(saved: Path, run_python: RunPython) -> None:
    done = run_python("-m", "moored", "report", "run.moored", "-o", "out.txt", "--width", "80")
    assert (done.returncode, done.stdout) == (0, "")
    assert (saved.parent / "out.txt").read_text() == rendered(article(saved.parent), 80)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gone.moored"], "moored: error: gone.moored: can not be read: No such file or directory\n"),
        (["commitment_issues.py"], "moored: error: commitment_issues.py: not a moored recording ("),
        (["run.moored", "-o", "./run.moored"],
         "moored: error: -o ./run.moored: that is the recording; name another file\n"),
        (["run.moored", "-o", "no/such/folder.txt"],
         "moored: error: -o no/such/folder.txt: can not be written: No such file or directory\n"),
    ],
)  # fmt: skip
def test_moored_report_refuses_in_one_message(
    saved: Path, run_python: RunPython, arguments: list[str], message: str
) -> None:
    done = run_python("-m", "moored", "report", *arguments)
    assert done.returncode == 2
    assert done.stderr.startswith(message)
    assert done.stderr.count("\n") == 1


def test_moored_report_names_the_library(saved: Path, run_python: RunPython) -> None:
    run = Run(saved.parent, "fit(x)\n").drifted("fit(x)", library="optax", count=3, nbytes=3_000_000)
    run.recording.save(saved)
    done = run_python("-m", "moored", "report", "run.moored", "--show-library")
    assert "uncommitted-drift · in optax\n" in done.stdout


def test_moored_report_needs_no_jax(saved: Path, run_python: RunPython) -> None:
    (saved.parent / "jax.py").write_text("raise ImportError('there is no JAX here')\n")
    done = run_python("-m", "moored", "report", "run.moored")
    assert done.returncode == 0, done.stderr


def test_a_report_that_is_not_read_to_its_end_is_no_error(saved: Path, run_python: RunPython) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        done = run_python(
            "-m", "moored", "report", "run.moored", stdout=write_end, stderr=-1, capture_output=False
        )
    finally:
        os.close(write_end)
    assert "Traceback" not in done.stderr
    assert stat.S_ISREG(os.stat(saved).st_mode)
