"""A project's own thresholds: found, checked, documented, and used by whatever explains a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conftest import SRC, RunPython
from moored.errors import InputError
from moored.rules.settings import find_thresholds, page
from moored.rules.thresholds import Thresholds
from recordings import Run, article, severities

MB = 1_000_000


def project(folder: Path, table: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text(table, encoding="utf-8")
    return folder


def test_the_nearest_table_upwards_counts(tmp_path: Path) -> None:
    project(tmp_path, '[tool.moored]\nlarge-copy = "4 MB"\n')
    inner = project(tmp_path / "a", "[tool.other]\nname = 'moored'\n") / "b"
    inner.mkdir()
    assert find_thresholds(inner) == Thresholds(large_copy=4 * MB)
    project(inner, "[tool.moored]\nnoise = 16\n")
    assert find_thresholds(inner) == Thresholds(noise=16)


def test_the_first_folder_with_a_table_above_it_decides(tmp_path: Path) -> None:
    plain, own = tmp_path / "plain", project(tmp_path / "own", "[tool.moored]\nrepeated-reads = 10\n")
    plain.mkdir()
    assert find_thresholds(tmp_path / "gone", plain, own) == Thresholds(repeated_reads=10)
    assert find_thresholds(plain) == Thresholds()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("noise = 65536", Thresholds(noise=65536)),
        ('noise = "1 MiB"', Thresholds(noise=1_048_576)),
        ("read-share = 1", Thresholds(read_share=1)),
        ("compile-seconds = 2.5", Thresholds(compile_seconds=2.5)),
        ("", Thresholds()),
    ],
)
def test_values(tmp_path: Path, line: str, expected: Thresholds) -> None:
    assert find_thresholds(project(tmp_path, f"[tool.moored]\n{line}\n")) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[tool.moored]\nlarge_copy = 1\n",
         "[tool.moored] has no key 'large_copy'; the keys are compile-seconds, large-constant, large-copy, "),
        ("[tool.moored]\nlarge-copy = -1\n",
         '[tool.moored] large-copy = -1: must be a number of bytes (65536 or "64 kB")'),
        ('[tool.moored]\nlarge-copy = "much"\n',
         '[tool.moored] large-copy = "much": must be a number of bytes (65536 or "64 kB")'),
        ("[tool.moored]\nnoise = 1.5\n", "[tool.moored] noise = 1.5: must be a number of bytes"),
        ("[tool.moored]\nnoise = true\n", "[tool.moored] noise = true: must be a number of bytes"),
        ("[tool.moored]\nrepeated-reads = 0\n",
         "[tool.moored] repeated-reads = 0: must be a whole number from 1 on"),
        ("[tool.moored]\nread-share = 1.5\n", "[tool.moored] read-share = 1.5: must be a number from 0 to 1"),
        ("[tool.moored]\nread-share = nan\n", "[tool.moored] read-share = nan: must be a number from 0 to 1"),
        ("[tool.moored]\ncompile-seconds = '1 s'\n",
         '[tool.moored] compile-seconds = "1 s": must be a number of seconds'),
        ("[tool.moored]\ncompile-seconds = [1]\n", "[tool.moored] compile-seconds = [1]: must be a number"),
        ("[tool]\nmoored = 3\n", "tool.moored is 3, not a table; write [tool.moored]"),
        ("[tool.moored\n", "is not valid TOML: "),
    ],
)  # fmt: skip
def test_a_mistake_is_one_message_with_file_and_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    project(tmp_path, text)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as caught:
        find_thresholds(".")
    assert str(caught.value).startswith(f"pyproject.toml: {message}")
    assert "\n" not in str(caught.value)


def test_rules_compare_with_them(tmp_path: Path) -> None:
    run = Run(tmp_path, "tokens[i]\n").drifted("tokens[i]", count=1, nbytes=2 * MB)
    assert severities(run) == [("MRD101", "warning")]
    assert severities(run, Thresholds(large_copy=4 * MB)) == [("MRD101", "note")]
    assert severities(run, Thresholds(noise=2 * MB)) == []


def test_the_page_is_what_the_code_says() -> None:
    written = SRC.parent / "docs" / "thresholds.md"
    assert written.read_text(encoding="utf-8") == page(), (
        "make it anew: python -c 'from moored.rules.settings import page; print(page(), end=\"\")' > "
        "docs/thresholds.md"
    )


# -- who uses them ---------------------------------------------------------------------------


def test_moored_report_uses_those_of_the_program(tmp_path: Path, run_python: RunPython) -> None:
    folder = project(tmp_path / "own", '[tool.moored]\nnoise = "10 GB"\n')
    article(folder).recording.save(folder / "run.moored")
    done = run_python("-m", "moored", "report", "own/run.moored", "--format", "json")
    assert (json.loads(done.stdout)["findings"], done.stderr) == ([], "")


def test_moored_report_uses_those_of_the_current_folder_else(tmp_path: Path, run_python: RunPython) -> None:
    run = article(tmp_path)
    run.recording.header.cwd = "/no/such/folder"
    run.recording.save(tmp_path / "run.moored")
    project(tmp_path, "[tool.moored]\nnotable = 1\n")
    done = run_python("-m", "moored", "report", "run.moored")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith(
        "moored: error: pyproject.toml: [tool.moored] has no key 'notable'; the keys are compile-seconds, "
    )


PROGRAM = """\
import jax
import numpy as np

weights = np.ones((1000, 1000), np.float32)
step = jax.jit(lambda w: w.sum())
for i in range(4):
    step(weights)
print("done")
"""


def test_moored_trace_uses_those_of_the_program(tmp_path: Path, run_python: RunPython) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    plain = run_python("-m", "moored", "trace", "train.py")
    assert "error MRD102 host-array-per-call" in plain.stderr
    project(tmp_path, '[tool.moored]\nnoise = "4 MB"\n')
    assert "MRD102" not in run_python("-m", "moored", "trace", "train.py").stderr


def test_moored_trace_refuses_before_anything_runs(tmp_path: Path, run_python: RunPython) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    project(tmp_path, "[tool.moored]\nnoise = []\n")
    done = run_python("-m", "moored", "trace", "train.py")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        'moored: error: pyproject.toml: [tool.moored] noise = []: must be a number of bytes (65536 or "64 '
        'kB")\n'
    )


def test_watch_uses_those_of_the_program(tmp_path: Path, run_python: RunPython) -> None:
    program = (
        "import moored\nwith moored.watch() as report:\n"
        + "".join(f"    {line}\n" for line in PROGRAM.splitlines() if line)
        + "print([f.rule for f in report.findings])\n"
    )
    (tmp_path / "train.py").write_text(program)
    assert run_python("train.py").stdout == "done\n['MRD102']\n"
    project(tmp_path, '[tool.moored]\nnoise = "4 MB"\n')
    assert run_python("train.py").stdout == "done\n[]\n"
