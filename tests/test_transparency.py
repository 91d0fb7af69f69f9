"""A traced program does what it does without moored: streams, tracebacks, exit status, all of it."""

from __future__ import annotations

import os
import py_compile
import re
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from conftest import SRC
from transparency_cases import JAX, PLAIN, Case

# Python's own -m shows two frames of runpy above the program's; under moored there is none.
_RUNPY = re.compile(r'  File "<frozen runpy>", line \d+, in \w+\n')
_OURS = re.compile(r"^moored: .*\n", re.MULTILINE)
# moored's frames take a place or two on the stack, so a runaway recursion is cut off that much earlier.
_REPEATS = re.compile(r"\[Previous line repeated \d+ more times\]")
_ADDRESS = re.compile(r"0x[0-9a-f]{6,}")


def _environment(extra: dict[str, str]) -> dict[str, str]:
    path = os.pathsep.join([os.fspath(SRC), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return {**inherited, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", **extra}


def _run(case: Case, before: list[str], folder: Path, *, merged: bool) -> tuple[int, str, str]:
    for name, content in case.sources().items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    if "prog.zip" in case.target:
        with zipfile.ZipFile(folder / "prog.zip", "w") as archive:
            archive.write(folder / "zipped/__main__.py", "__main__.py")
    if "prog.pyc" in case.target:
        py_compile.compile(str(folder / "prog.py"), str(folder / "prog.pyc"))
    done = subprocess.run(
        [sys.executable, *case.flags, *before, *case.target],
        cwd=folder,
        env=_environment(case.env),
        input=case.stdin.encode(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if merged else subprocess.PIPE,
        timeout=120,
        check=False,
    )
    texts = []
    for stream in (done.stdout, done.stderr or b""):
        text = _RUNPY.sub("", stream.decode(errors="backslashreplace"))
        texts.append(_ADDRESS.sub("0x", _REPEATS.sub("[Previous line repeated]", text)))
    return done.returncode, texts[0], texts[1]


@pytest.mark.parametrize("case", PLAIN + JAX, ids=lambda case: case.name)
def test_program_does_the_same_with_and_without_moored(case: Case, tmp_path: Path) -> None:
    trace = ["-m", "moored", "trace", "-o", os.devnull]
    plain = _run(case, [], tmp_path, merged=False)
    code, out, err = _run(case, trace, tmp_path, merged=False)

    assert plain[0] == case.exit, plain[2]
    assert (code, out) == plain[:2], err
    assert _OURS.sub("", err) == plain[2]
    if case.merged:
        assert (
            _OURS.sub("", _run(case, trace, tmp_path, merged=True)[1])
            == _run(case, [], tmp_path, merged=True)[1]
        )


def test_comparison_would_see_a_difference(tmp_path: Path) -> None:
    case = Case("tells", "import sys\nprint('moored' in sys.modules)")
    assert _run(case, [], tmp_path, merged=False)[1] == "False\n"
    assert _run(case, ["-m", "moored", "trace"], tmp_path, merged=False)[1] == "True\n"


def test_interrupt_from_the_keyboard_ends_as_without_and_still_reports(tmp_path: Path) -> None:
    (tmp_path / "prog.py").write_text("import jax\nprint('ready', flush=True)\ninput()\n")
    process = subprocess.Popen(
        [sys.executable, "-m", "moored", "trace", "-o", "report.txt", "prog.py"],
        cwd=tmp_path,
        env=_environment({}),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)

    assert process.returncode == -signal.SIGINT
    assert err.startswith('Traceback (most recent call last):\n  File "')
    assert err.splitlines()[-2:] == ["KeyboardInterrupt", "moored: 0 findings; the report is in report.txt"]
    assert (tmp_path / "report.txt").exists()
