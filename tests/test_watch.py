"""moored.watch(): nested, overlapping in threads, and inside a traced program."""

import json
import threading

import jax
import numpy as np
import pytest

import moored
from moored.trace import seams

HOST = np.ones((50, 50), np.float32)
double = jax.jit(lambda x: x * 2)


def uploads(report):
    return sum(t.count for t in report.recording.transfers if t.direction == "h2d")


def test_blocks_nest():
    with moored.watch() as outer:
        double(HOST)
        with moored.watch() as inner:
            double(HOST)
            double(HOST)
        double(HOST)
    assert (uploads(outer), uploads(inner)) == (4, 2)


def test_blocks_overlap_in_threads():
    entered, leave = threading.Event(), threading.Event()
    reports = []

    def other():
        with moored.watch() as report:
            reports.append(report)
            entered.set()
            leave.wait(30)

    thread = threading.Thread(target=other)
    with moored.watch() as first:
        thread.start()
        entered.wait(30)
        double(HOST)
    double(HOST)  # the first block was left; the other one still watches
    leave.set()
    thread.join()
    assert (uploads(first), uploads(reports[0])) == (1, 2)


def test_everything_is_restored_after_the_last_block():
    before = seams.load().PjitFunction.__dict__["__call__"]
    with moored.watch():
        assert seams.load().PjitFunction.__dict__["__call__"] is not before
    assert seams.load().PjitFunction.__dict__["__call__"] is before


def test_an_exception_passes_through_and_the_report_is_whole():
    def fails():
        with moored.watch() as report:
            reports.append(report)
            double(HOST)
            raise ZeroDivisionError

    reports = []
    with pytest.raises(ZeroDivisionError):
        fails()
    assert uploads(reports[0]) == 1


def test_the_report_is_readable_inside_and_out(tmp_path):
    with moored.watch() as report:
        for _ in range(4):
            double(HOST)
        assert uploads(report) == 4
    assert [f.rule for f in report.findings] == ["MRD102"]
    assert "double(HOST)" in str(report)
    assert json.loads(report.to_json())["schema"] == "moored.report/1"
    report.save(tmp_path / "run.moored")
    from moored.model.recording import Recording

    assert Recording.load(tmp_path / "run.moored") == report.recording


def test_a_traced_program_may_watch(run_python, tmp_path):
    (tmp_path / "program.py").write_text(
        "import jax, numpy as np, moored\n"
        "f = jax.jit(lambda x: x + 1)\n"
        "with moored.watch() as report:\n"
        "    f(np.ones(100, np.float32))\n"
        "print(sum(t.count for t in report.recording.transfers))\n"
        "f(np.ones(100, np.float32))\n"
    )
    run = run_python("-m", "moored", "trace", "--format", "json", "-o", "report.json", "program.py")
    assert (run.returncode, run.stdout) == (0, "1\n"), run.stderr
    assert json.loads((tmp_path / "report.json").read_text())["totals"]


def test_on_a_jax_that_was_not_checked_each_seam_is_tested(monkeypatch):
    monkeypatch.setattr(seams, "CheckedOn", frozenset())
    with moored.watch() as report:
        double(HOST)
    header = report.recording.header
    assert uploads(report) == 1
    assert [s.name for s in header.seams if not s.live] == []
    assert header.notes == [f"moored was not checked on JAX {jax.__version__}; each seam was tested"]


def test_on_a_jax_that_was_not_checked_a_blind_seam_is_named(monkeypatch):
    from moored.trace import reads

    monkeypatch.setattr(seams, "CheckedOn", frozenset())
    monkeypatch.setattr(reads, "_saw", lambda *a: None)
    with moored.watch() as report:
        double(HOST)
    (state,) = [s for s in report.recording.header.seams if s.name == "reads"]
    assert not state.live
    assert "1 known events were sent through it, 0 were seen" in state.reason


CURED = """\
import jax, jax.numpy as jnp
import moored
from moored.rules.registry import explain

home = jax.devices("cpu")[-1]
x = jax.device_put(jnp.ones((500, 500)), home)
y = jax.device_put(jnp.ones((500, 500)), home)
w = jnp.ones((500, 500))
step = jax.jit(lambda w, x, y: w + x @ y)

def run():
    with moored.watch() as report:
        for _ in range(3):
            step(w, x, y)
    return [f for f in report.findings if f.severity != "note"]

found = run()
(fix,) = [f.fix for f in found if f.rule == "MRD401"]
print(fix)
for line in fix.split(": ")[-1].strip(".").split("; "):
    exec(line.strip("`"))
print(len(run()))
"""


def test_the_cure_for_misplaced_compute_names_every_committed_argument(run_python, tmp_path):
    two = "import os; os.environ['XLA_FLAGS'] = '--xla_force_host_platform_device_count=2'\n"
    (tmp_path / "program.py").write_text(two + CURED)
    run = run_python("program.py")
    text, left = run.stdout.strip().splitlines()
    assert "JAX refuses arguments that are committed apart" in text, run.stderr
    assert left == "0"
