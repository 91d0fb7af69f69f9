"""``moored trace`` around the program: refusals before it, the report after it, and no harm in between."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import SRC, RunPython
from moored.cli.trace import _ended_by_program
from moored.diagnose.outfile import OutFile
from moored.diagnose.tracebacks import clean_exceptions
from moored.errors import InputError
from moored.model.recording import Recording

Trace = Callable[..., "subprocess.CompletedProcess[str]"]
NO_JAX = "moored: the program never imported jax: there was nothing to trace\n"
DRIFT = """
import jax, jax.numpy as jnp
with jax.default_device(jax.devices("cpu")[1]):
    table = jnp.zeros((1000, 1000))
for i in range(20):
    table[i].block_until_ready()
"""


@pytest.fixture
def trace(run_python: RunPython, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trace:
    """Runs ``moored trace ARGUMENTS`` where ``prog.py`` holds the given text."""
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)

    def run(*arguments: str, program: str = "", **options: object) -> subprocess.CompletedProcess[str]:
        (tmp_path / "prog.py").write_text(program)
        return run_python("-m", "moored", "trace", *arguments, **options)

    return run


# -- refusals: exit code 2, one message, and the program has not run -----------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no.py"], "no.py: can not be opened: No such file or directory; nothing was run"),
        (["."], ".: there is no __main__.py in it; nothing was run"),
        (["-"], "-: a program from stdin can not be traced; save it to a file and name that"),
        (["-m", "no.such"], "-m no.such: there is no module named 'no'; nothing was run"),
        (["-m", ".rel"], "-m .rel: a relative name can not be run; nothing was run"),
        (
            ["-o", "no/report", "prog.py"],
            "-o no/report: can not be written: No such file or directory; nothing was run. "
            "Name a file in a folder that exists and is writable",
        ),
        (
            ["--record", ".", "prog.py"],
            "--record .: can not be written: is a directory; nothing was run. "
            "Name a file in a folder that exists and is writable",
        ),
        (
            ["--record", "/dev/full", "prog.py"],
            "--record /dev/full: can not be written: No space left on device; nothing was run",
        ),
        (
            ["-o", "./prog.py", "prog.py"],
            "-o ./prog.py: that is the program; nothing was run. Name another file",
        ),
        (
            ["--record", "prog.py", "./prog.py"],
            "--record prog.py: that is the program; nothing was run. Name another file",
        ),
        (
            ["--record", "x", "-o", "./x", "prog.py"],
            "-o ./x: --record writes there already; nothing was run. Name another file",
        ),
    ],
)
def test_what_can_not_be_run_is_refused_before_it_runs(
    trace: Trace, arguments: list[str], message: str
) -> None:
    done = trace(*arguments, program="open('ran', 'w')")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"moored: error: {message}\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name the program: a script, or -m and a module"),
        (["-m"], "Option '-m' requires an argument."),
        (["--nonsense", "prog.py"], "No such option '--nonsense'."),
        (
            ["--fail-on", "much", "prog.py"],
            "Invalid value for '--fail-on': 'much' is not error, warning or note, "
            "and no number of bytes ('1 MB')",
        ),
        (
            ["--simulate=many", "prog.py"],
            "Invalid value for '--simulate': 'many' is not a number of CPU devices",
        ),
        (["--simulate=1", "prog.py"], "--simulate=1: between 2 and 256 devices can be simulated"),
    ],
)
def test_wrong_usage_is_refused_before_anything_runs(
    trace: Trace, tmp_path: Path, arguments: list[str], message: str
) -> None:
    done = trace(*arguments, program="open('ran', 'w')")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"moored: error: {message}" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "ran").exists()


def test_module_missing_from_its_package_is_refused(trace: Trace, tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg/__init__.py").write_text("")
    done = trace("-m", "pkg.no")
    assert (done.returncode, done.stderr) == (
        2,
        f"moored: error: -m pkg.no: No module named pkg.no\n{NO_JAX}",
    )


def test_own_options_end_where_the_program_begins() -> None:
    def split(line: str) -> str:
        return " ".join(_ended_by_program(line.split(), {"-o", "--output", "-m"}))

    assert split("-q a.py -o x --simulate") == "-q -- a.py -o x --simulate"
    assert split("--simulate a.py") == "--simulate=accel -- a.py"
    assert split("--simulate=2 -o r a.py -m") == "--simulate=2 -o r -- a.py -m"
    assert split("--output=r -m pkg --epochs 1") == "--output=r -m pkg -- --epochs 1"
    assert split("-mpkg -q") == "-mpkg -- -q"
    assert split("-- a.py -- b") == "-- a.py -- b"


# -- the report -----------------------------------------------------------------------------------


def test_report_comes_after_the_last_word_of_the_program(trace: Trace) -> None:
    program = """
import atexit, sys, threading
def say(text): print(text); print(text, file=sys.stderr)
atexit.register(say, "at exit")
threading.Thread(target=lambda: (threading.main_thread().join(), say("thread"))).start()
say("main")
"""
    done = trace("prog.py", program=program)
    assert done.stdout == "main\nthread\nat exit\n"
    assert done.stderr == f"main\nthread\nat exit\n{NO_JAX}"


def test_report_does_not_cut_into_buffered_output(trace: Trace) -> None:
    done = trace("-m", "prog", program="print('x' * 100)", stderr=subprocess.STDOUT, capture_output=False,
                 stdout=subprocess.PIPE)  # fmt: skip
    assert done.stdout == f"{'x' * 100}\n{NO_JAX}"


@pytest.mark.parametrize(
    ("program", "code", "recorded"),
    [
        ("", 0, 0),
        ("raise SystemExit(3)", 3, 3),
        ("raise SystemExit('text')", 1, 1),
        ("raise ValueError", 1, "ValueError"),
        ("a b", 1, "SyntaxError"),
        ("raise KeyboardInterrupt", -2, "KeyboardInterrupt"),
        ("import os; os._exit(7)", 7, 7),
        ("import os, threading; threading.Thread(target=os._exit, args=(6,)).start()", 6, 6),
    ],
)
def test_recording_and_report_say_how_the_program_ended(
    trace: Trace, tmp_path: Path, program: str, code: int, recorded: int | str
) -> None:
    done = trace("-o", "r.json", "--format", "json", "--record", "r.moored", "prog.py", "-v", program=program)
    assert done.returncode == code
    header = Recording.load(tmp_path / "r.moored").header
    assert (header.exit, header.argv, header.cwd) == (recorded, ["prog.py", "-v"], os.fspath(tmp_path))
    assert json.loads((tmp_path / "r.json").read_text())["header"]["exit"] == recorded


def test_files_are_written_where_they_were_named_though_the_program_moves_away(
    trace: Trace, tmp_path: Path
) -> None:
    trace("-o", "r.txt", "--record", "r.moored", "prog.py", program="import os; os.mkdir('d'); os.chdir('d')")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d", "prog.py", "r.moored", "r.txt"]
    assert list((tmp_path / "d").iterdir()) == []


def test_quiet_says_nothing_about_a_clean_run(trace: Trace) -> None:
    done = trace("-q", "prog.py", program="import jax.numpy as jnp; jnp.ones(2).block_until_ready()")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_forked_child_does_not_report(trace: Trace) -> None:
    for leave in ("sys.exit(0)", "os._exit(0)"):
        done = trace("prog.py", program=f"import os, sys\nif os.fork() == 0: {leave}\nos.wait()")
        assert done.stderr == NO_JAX


def test_failure_of_the_report_does_not_touch_the_exit_code(trace: Trace) -> None:
    breaks = (
        "import moored.diagnose.run as run\ndef no(*a): raise KeyError('x')\nrun.explain = no\nimport sys\n"
    )
    for leave in ("sys.exit(0)", "sys.exit(4)", "import os; os._exit(5)"):
        done = trace("--fail-on", "note", "prog.py", program=breaks + leave)
        assert done.returncode == int(leave.rpartition("(")[2][0])
        assert done.stderr == (
            f"moored: explaining the recording failed, the program is not affected: KeyError: 'x'\n{NO_JAX}"
        )


def test_failure_to_attach_leaves_the_program_alone_and_is_reported(trace: Trace, tmp_path: Path) -> None:
    breaks = "import moored.trace.collect as c\ndef no(self): raise KeyError('x')\nc.Collector.attach = no\n"
    done = trace(
        "--record", "r.moored", "-q", "prog.py", program=f"{breaks}import jax\nprint(jax.numpy.ones(2))"
    )
    assert (done.returncode, done.stdout) == (0, "[1. 1.]\n")
    assert "moored: attaching to JAX failed, the program is not affected: KeyError: 'x'\n" in done.stderr
    errors = Recording.load(tmp_path / "r.moored").header.moored_errors
    assert [(error.where, error.error) for error in errors] == [("attaching to JAX", "KeyError: 'x'")]


def test_program_beside_modules_named_like_ours_is_still_reported(trace: Trace, tmp_path: Path) -> None:
    for name in ("rich", "msgspec", "platform", "json"):
        (tmp_path / f"{name}.py").write_text("mine = True")
    program = "import rich, msgspec\nassert rich.mine and msgspec.mine\n"
    done = trace("--format", "json", "-o", "r", "prog.py", program=program)
    assert (done.returncode, done.stderr) == (0, NO_JAX)
    assert json.loads((tmp_path / "r").read_text())["findings"] == []


# -- with JAX -------------------------------------------------------------------------------------


def test_drift_is_found_at_the_line_as_the_user_names_it(trace: Trace, tmp_path: Path) -> None:
    done = trace("--simulate=2", "--record", "r", "--format", "json", "./prog.py", program=DRIFT)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stderr)["findings"][0]
    assert (found["path"], found["line"], found["rule"]) == ("./prog.py", 6, "MRD101")
    assert (found["count"], found["nbytes"]) == (20, 80_000_000)
    header = Recording.load(tmp_path / "r").header
    assert (header.simulated, header.devices) == ("2 cpu devices", ["cpu:0", "cpu:1"])


@pytest.mark.parametrize(
    ("fail_on", "ending", "code"),
    [
        ("error", "", 3),
        ("note", "import os; os._exit(0)", 3),
        ("1 MB", "", 3),
        ("79999999", "", 3),
        ("80000000", "", 0),
        ("error", "raise SystemExit(4)", 4),
        ("error", "1/0", 1),
    ],
)
def test_fail_on_turns_success_and_nothing_else_into_3(
    trace: Trace, fail_on: str, ending: str, code: int
) -> None:
    done = trace("--simulate=2", "--fail-on", fail_on, "prog.py", program=f"{DRIFT}print('end')\n{ending}")
    assert done.returncode == code, done.stderr
    assert done.stdout == ("end\n" if "_exit" not in ending else "")
    shown = {"79999999": "80 MB"}.get(fail_on, fail_on)
    assert (f"moored: --fail-on {shown} tripped: exit code 3\n" in done.stderr) == (code == 3)


def test_help_shows_how_to_call_it(trace: Trace) -> None:
    done = trace("--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "  moored trace train.py --epochs 1\n" in done.stdout


def test_simulated_accelerator_is_there_when_the_program_imports_jax(trace: Trace) -> None:
    pytest.importorskip("lammps_jax_pjrt_cpu")
    program = (
        "import jax\nprint(len(jax.devices('gpu')), jax.devices()[0].client is jax.devices('cpu')[0].client)"
    )
    done = trace("--simulate", "-o", os.devnull, "prog.py", program=program)
    assert (done.returncode, done.stdout) == (0, "4 False\n"), done.stderr


def test_what_was_recorded_before_a_kill_survives_it(trace: Trace, tmp_path: Path) -> None:
    program = f"""{DRIFT}
import os, pathlib, signal, threading
empty = pathlib.Path("r").stat().st_size
while pathlib.Path("r").stat().st_size == empty:
    threading.Event().wait(0.01)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = trace("--simulate=2", "--record", "r", "prog.py", program=program)
    assert (done.returncode, done.stdout, done.stderr) == (-9, "", "")
    recording = Recording.load(tmp_path / "r")
    assert [(t.count, t.nbytes) for t in recording.transfers if t.direction == "d2d"] == [(20, 80_000_000)]


# -- parts ----------------------------------------------------------------------------------------


def test_output_file_is_replaced_whole_and_through_links(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_text("before")
    link.symlink_to(real)
    out = OutFile(link, "-o")
    assert real.read_text() == "before"
    out.write(b"after")
    assert (real.read_text(), link.is_symlink(), sorted(p.name for p in tmp_path.iterdir())) == (
        "after", True, ["link", "real"],
    )  # fmt: skip


def test_output_to_a_device_does_not_replace_it() -> None:
    OutFile(os.devnull, "-o").write(b"gone")
    assert not Path(os.devnull).is_file()


def test_output_file_that_can_not_be_written_names_the_option(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"^--record .*/x/y: can not be written: No such file or directory; "
    ):
        OutFile(tmp_path / "x/y", "--record")


def test_cleaning_leaves_tracebacks_without_our_frames_as_they_are() -> None:
    def fail() -> None:
        try:
            raise KeyError
        except KeyError as cause:
            raise ValueError from cause

    with pytest.raises(ValueError, match=r"^$") as raised:
        fail()
    error, cause = raised.value, raised.value.__cause__
    assert cause is not None
    before = error.__traceback__, cause.__traceback__
    cause.__context__ = error  # a circle must not hang it
    clean_exceptions(error)
    assert (error.__traceback__, cause.__traceback__) == before


def test_a_report_that_no_file_takes_goes_to_stderr(trace: Trace) -> None:
    done = trace("-o", "/dev/full", "prog.py", program="import jax")
    assert done.returncode == 0
    assert "the report is in" not in done.stderr
    assert "nothing drifted" in done.stderr


def test_a_program_runs_in_a_folder_that_was_deleted(tmp_path: Path) -> None:
    (tmp_path / "prog.py").write_text("import jax\nprint('ran')\n")
    gone = tmp_path / "gone"
    gone.mkdir()
    command = f"rmdir {gone}; exec {sys.executable} -m moored trace {tmp_path}/prog.py"
    done = subprocess.run(
        ["sh", "-c", command], cwd=gone, env={**os.environ, "PYTHONPATH": os.fspath(SRC)},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "ran\n"), done.stderr
    assert "nothing drifted" in done.stderr
