"""The command line's own manners: help, versions, refusals, exit codes. Each command has tests of its own."""

from __future__ import annotations

import os
import platform
import re
import signal
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import click
import pytest

import moored
from conftest import SRC, RunPython
from moored import cli
from moored.errors import MachineError

# Runs a piece of Python with moored.cli imported and a command `probe` in it, made from the words of `body`.
PROBE = """
import sys, types, click, moored.cli as cli
@click.command()
def probe():
    "Does what the test says."
    {body}
module = types.ModuleType("moored.cli.probe")
module.command = probe
sys.modules["moored.cli.probe"] = module
cli.COMMANDS = ("probe",)
import moored.__main__
sys.argv = ["moored", "probe"]
moored.__main__.main()
"""


def moored_command(run_python: RunPython, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_python("-m", "moored", *arguments)


def test_help_names_each_command_and_shows_examples(run_python: RunPython) -> None:
    done = moored_command(run_python, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    listed = re.search(r"^Commands:\n((?:  .*\n)+)", done.stdout, re.MULTILINE)
    assert listed is not None
    rows = re.findall(r"^  (\w+)  +(\S.*(?:\n    .*)*)", listed.group(1), re.MULTILINE)
    assert [name for name, _ in rows] == list(cli.COMMANDS) == ["bench", "trace", "report", "doctor"]
    assert all(help.endswith(".") and "..." not in help for _, help in rows)
    assert "Examples:\n    moored bench lookup " in done.stdout
    for command in re.findall(r"^    moored (\w+)", done.stdout, re.MULTILINE):
        assert command in cli.COMMANDS


def test_without_arguments_it_prints_the_help(run_python: RunPython) -> None:
    done = moored_command(run_python)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == moored_command(run_python, "-h").stdout


@pytest.mark.parametrize("name", [*cli.COMMANDS, "bench lookup"])
def test_each_command_has_help_of_its_own(run_python: RunPython, name: str) -> None:
    done = moored_command(run_python, *name.split(), "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"Usage: moored {name} ")
    assert "\\b" not in done.stdout
    assert "\n  Examples:\n" in done.stdout or name == "bench"


def test_help_imports_no_jax(run_python: RunPython) -> None:
    script = "import sys; sys.modules['jax'] = None; from moored.cli import main; sys.exit(main(['--help']))"
    done = run_python("-c", script)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Commands:" in done.stdout


def test_importing_the_command_line_imports_no_command(run_python: RunPython) -> None:
    done = run_python(
        "-c", "import sys, moored.cli; print([n for n in sys.modules if n.startswith('moored.cli.')])"
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_version_tells_what_a_bug_report_needs(run_python: RunPython) -> None:
    done = moored_command(run_python, "--version")
    jax = metadata.version("jax")
    expected = f"moored {moored.__version__} (Python {platform.python_version()}, JAX {jax})\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, expected, "")


def test_version_works_without_jax(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def nothing_installed(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", nothing_installed)
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.endswith(", JAX is not installed)\n")


def test_an_unknown_command_is_refused_with_the_known_ones(run_python: RunPython) -> None:
    done = moored_command(run_python, "trac", "x.py")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "Usage: moored [OPTIONS] [COMMAND] [ARGS]...\n"
        "moored: error: There is no command 'trac'; the commands are bench, trace, report, doctor.\n"
        "Try 'moored --help'.\n"
    )


def test_an_unknown_option_is_refused(run_python: RunPython) -> None:
    done = moored_command(run_python, "--colour")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(
        "Usage: moored [OPTIONS] [COMMAND] [ARGS]...\nmoored: error: No such option"
    )
    assert "--colour" in done.stderr  # the rest of the words are click's
    assert done.stderr.endswith("\nTry 'moored --help'.\n")


@pytest.mark.parametrize(
    ("body", "code", "out", "err"),
    [
        ("return 3", 3, "", ""),
        ("return 'words'", 0, "", ""),
        ("return lambda: 4", 4, "", ""),
        ("click.get_current_context().exit(5)", 5, "", ""),
        (
            "import moored; raise moored.MachineError('no JAX here; install it')",
            2,
            "",
            "moored: error: no JAX here; install it\n",
        ),
        (
            "raise click.FileError('a.txt', 'gone')",
            2,
            "",
            "moored: error: Could not open file 'a.txt': gone\n",
        ),
        ("raise KeyboardInterrupt", 130, "", "moored: interrupted\n"),
        ("print('said'); raise SystemExit(6)", 6, "said\n", ""),
    ],
)
def test_exit_codes_and_messages(run_python: RunPython, body: str, code: int, out: str, err: str) -> None:
    done = run_python("-c", PROBE.format(body=body))
    assert (done.returncode, done.stdout, done.stderr) == (code, out, err)


@pytest.mark.parametrize(
    "error", ["moored.InputError", "click.UsageError", "BrokenPipeError", "KeyboardInterrupt"]
)
def test_what_a_program_raises_passes_untouched(run_python: RunPython, error: str) -> None:
    """The run of a user's program comes after click and after our own refusals: none of them may catch it."""
    body = f"import moored\n    def run(): raise {error}('of the program')\n    return run"
    done = run_python("-c", PROBE.format(body=body))
    assert done.returncode == (-signal.SIGINT if error == "KeyboardInterrupt" else 1)
    assert done.stderr.endswith(f"{error.rpartition('.')[2]}: of the program\n")
    assert "moored: " not in done.stderr


def test_a_reader_that_goes_away_is_no_error(run_python: RunPython) -> None:
    script = PROBE.format(body="sys.stdout.write('x' * 100_000)")
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert b"Traceback" not in err
    assert b"Exception ignored" not in err


def test_main_gives_the_code_of_a_refusal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @click.command()
    def command() -> None:
        raise MachineError("two\nlines")

    monkeypatch.setattr(cli._Commands, "get_command", lambda self, ctx, name: command)
    assert cli.main(["doctor"]) == 2
    assert capsys.readouterr() == ("", "moored: error: two\nlines\n")


def test_a_closed_stdout_does_not_keep_a_program_from_running(tmp_path: Path) -> None:
    (tmp_path / "prog.py").write_text("import sys\nsys.exit(7 if sys.stdout is None else 8)\n")
    command = f"{sys.executable} -m moored trace prog.py >&-"
    done = subprocess.run(
        ["sh", "-c", command], cwd=tmp_path, env={**os.environ, "PYTHONPATH": os.fspath(SRC)},
        stderr=subprocess.PIPE, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, "Traceback" in done.stderr) == (7, False), done.stderr
