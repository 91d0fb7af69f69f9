"""Rules on what is compiled again, baked in, called back, or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from conftest import RunPython
from moored.rules.registry import explain
from recordings import Run, only, severities

MB = 1_000_000

# -- MRD501 ----------------------------------------------------------------------------------

RESTORED = """\
import jax
state = step(state, x)
state = restore(path)
with jax.default_device(cpu):
    state = step(restored, x)
"""


def test_a_restored_state_compiles_the_step_again(tmp_path: Path) -> None:
    run = Run(tmp_path, RESTORED).compiled(
        "step(restored, x)",
        earlier="step(state, x)",
        argument="[0]['w']",
        n_changed=3,
        compile_ns=1_500_000_000,
    )
    found = only(run)
    assert (found.rule, found.kind, found.severity) == ("MRD501", "placement-recompile", "warning")
    assert (found.count, found.nbytes, found.seconds, found.seconds_is) == (1, 0, 1.5, "measured")
    assert (found.expression, found.source, found.target) == (
        "restored['w']", "accel:0, uncommitted", "accel:0, committed",
    )  # fmt: skip
    assert found.cause == (
        "`step(restored, x)` compiled `step` again, in 1.5 s, for the same shapes: `restored['w']` was "
        "accel:0, uncommitted at line 2 and is accel:0, committed now; so 2 other leaves changed."
    )
    assert found.fix == (
        "Commit it before the first call already, `jax.device_put(restored['w'], device)`, on accel:0: then "
        "all calls have one signature."
    )


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([{"compile_ns": 999_000_000}], ["note"]),
        ([{"compile_ns": 1_000_000_000}], ["warning"]),
        ([{"count": 2}], ["warning"]),
        ([{}, {"reason": "sharding"}], ["warning", "warning"]),  # of one function
        ([{}, {"function": "evaluate"}], ["note", "note"]),
        ([{"function": "<lambda>"}, {"function": "<lambda>", "at": "step(state, x)"}], ["note", "note"]),
    ],
)
def test_how_severe_a_recompile_is(tmp_path: Path, rows: list[dict[str, Any]], expected: list[str]) -> None:
    run = Run(tmp_path, RESTORED)
    for fields in rows:
        run.compiled(fields.pop("at", "step(restored, x)"), **fields)
    assert severities(run) == [("MRD501", severity) for severity in expected]


@pytest.mark.parametrize(
    ("fields", "cause", "fix"),
    [
        (
            {"reason": "default-device", "argument": "", "before": "no default_device",
             "after": "default_device cpu:0"},
            "it ran with no default_device at line 2 and now with default_device cpu:0, which is part of "
            "JAX's cache key.",
            "Call `step` outside the default_device block: its arguments are committed, so that the block "
            "does nothing for it but cost a compilation.",
        ),
        (
            {"reason": "context", "argument": "", "before": "", "after": ""},
            "JAX's context (a mesh, or a setting in force) was another at line 2.",
            "Call `step` in the same context each time: enter the mesh once, around all of it.",
        ),
        (
            {"reason": "sharding", "before": "a host value (ndarray)"},
            "`restored` was a host value (ndarray) at line 2 and is accel:0, committed now.",
            "Feed `step` in one way everywhere: all of it numpy, or all of it through the same device_put.",
        ),
        (
            {"before": "accel:0, committed", "after": "accel:0, uncommitted"},
            "`restored` was accel:0, committed at line 2 and is accel:0, uncommitted now.",
            "Feed `step` in one way everywhere, with the same device or sharding in each device_put.",
        ),
        (
            {"reason": "sharding", "after": "accel:0,1 replicated, committed"},
            "`restored` was accel:0, uncommitted at line 2 and is accel:0,1 replicated, committed now.",
            "Commit it before the first call already, `restored = jax.device_put(restored, sharding)`, on "
            "accel:0,1 replicated: then all calls have one signature.",
        ),
    ],
    ids=["default-device", "context", "host", "uncommitted", "sharding"],
)  # fmt: skip
def test_recompiles_in_words(tmp_path: Path, fields: dict[str, Any], cause: str, fix: str) -> None:
    found = only(Run(tmp_path, RESTORED).compiled("step(restored, x)", earlier="step(state, x)", **fields))
    assert (
        found.cause == f"`step(restored, x)` compiled `step` again, in 200 ms, for the same shapes: {cause}"
    )
    assert found.fix == fix


def test_an_earlier_call_of_the_same_line(tmp_path: Path) -> None:
    run = Run(tmp_path, RESTORED).compiled("step(state, x)", earlier="step(state, x)")
    assert (
        "was accel:0, uncommitted in an earlier call of this line and is accel:0, committed now."
        in only(run).cause
    )


# -- MRD502 ----------------------------------------------------------------------------------

BAKING = "for i in range(4):\n    f = jax.jit(lambda t: t + table.sum())\n    total = f(total)\n"


def test_a_table_that_is_baked_in_again(tmp_path: Path) -> None:
    run = Run(tmp_path, BAKING).baked(
        "f(total)", shape=(2048, 1024), count=4, nbytes=33_554_432, same_object=3
    )
    run.baked(
        "f(total)", direction="h2d", shape=(2048, 1024), count=4, nbytes=33_554_432, source="host",
        target="accel:0", committed=None,
    )  # fmt: skip
    findings = explain(run.recording, run.sources)
    assert [(f.rule, f.severity, f.nbytes) for f in findings] == [("MRD502", "error", 33_554_432)]
    assert findings[0].kind == "captured-constant"
    run.recording.transfers.pop()
    assert only(run).cause == (
        "`f(total)` compiled a function that closes over an array of 8.39 MB, float32[2048, 1024]: JAX "
        "copied it from cpu:0 to host 4 times, once for each compilation."
    )
    assert only(run).fix == (
        "Define the function once, outside the loop, and pass the array as an argument, committed to where "
        "the function runs: it is then compiled once, and copies nothing."
    )


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"count": 2, "nbytes": 2 * MB, "same_object": 1}, "error"),
        ({"count": 2, "nbytes": MB, "same_object": 1}, "warning"),
        ({"count": 1, "nbytes": 10 * MB}, "warning"),
        ({"count": 1, "nbytes": 10 * MB - 1}, "note"),
        ({"count": 1, "nbytes": MB - 1}, None),
        ({"count": 12, "nbytes": 12 * MB}, "warning"),  # the weights of twelve layers, once each
        ({"count": 12, "nbytes": 12 * 63_999, "same_object": 11}, None),
    ],
)
def test_how_severe_a_constant_is(tmp_path: Path, fields: dict[str, Any], expected: str | None) -> None:
    run = Run(tmp_path, BAKING).baked("f(total)", **fields)
    assert severities(run) == ([("MRD502", expected)] if expected else [])


def test_weights_that_are_baked_in_once_each(tmp_path: Path) -> None:
    run = Run(tmp_path, BAKING).baked("f(total)", count=12, nbytes=48 * MB)
    assert only(run).cause == (
        "`f(total)` compiled a function that closes over 12 arrays of 4 MB, float32[1000, 1000]: JAX copied "
        "them from cpu:0 to host, for the executable to hold as its own."
    )
    assert only(run).fix == (
        "Pass it as an argument: the executable then works on the array itself, and holds no copy."
    )


# -- MRD601 ----------------------------------------------------------------------------------

CALLING = "def f(w):\n    io_callback(log, None, w)\n    jax.debug.print('{}', w.mean())\n"


def test_a_callback_ships_arrays_at_every_step(tmp_path: Path) -> None:
    run = Run(tmp_path, CALLING)
    run.called_back("io_callback(log, None, w)", count=4, nbytes=16 * MB, wait_ns=30_000_000)
    run.called_back(
        "io_callback(log, None, w)", direction="h2d", source="host", target="device", count=4, nbytes=4 * MB
    )
    found = only(run)
    assert (found.rule, found.kind, found.severity) == ("MRD601", "host-callback", "error")
    assert (found.count, found.nbytes, found.seconds, found.seconds_is) == (4, 20 * MB, 0.03, "measured")
    assert found.cause == (
        "`io_callback(log, None, w)` ran 4 times as a callback on the host, and moved 16 MB to the host and "
        "4 MB back to the device; the callback itself took 30 ms."
    )
    assert found.fix == (
        "Compute it with jax.numpy inside the function, or outside of it, before the call, on the host."
    )


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"count": 3, "nbytes": 3 * MB}, "error"),
        ({"count": 3, "nbytes": 3 * MB - 3}, "warning"),
        ({"count": 3, "nbytes": 3_000}, "warning"),
        ({"count": 3, "nbytes": 2_997}, "note"),
        ({"count": 2, "nbytes": 20 * MB}, "note"),
        ({"count": 0, "nbytes": 0}, None),
    ],
)
def test_how_severe_a_callback_is(tmp_path: Path, fields: dict[str, Any], expected: str | None) -> None:
    run = Run(tmp_path, CALLING).called_back("io_callback(log, None, w)", **fields)
    assert severities(run) == ([("MRD601", expected)] if expected else [])


def test_printing_scalars_is_a_note(tmp_path: Path) -> None:
    found = only(Run(tmp_path, CALLING).called_back(
        "jax.debug.print('{}', w.mean())", api="debug_callback", count=100, nbytes=400, shape=()
    ))  # fmt: skip
    assert found.severity == "note"
    assert (
        found.fix == "Nothing while it is there to look at values; leave it out of runs that are to be fast."
    )


# -- MRD602 ----------------------------------------------------------------------------------

NOISE = """\
import jax
key = jax.device_put(jax.random.key(0), home)
params = jax.device_put(weights, main)
params = params + noise
"""


def refused(folder: Path, shape: tuple[int, ...] = (10,), **fields: Any) -> Run:
    return Run(folder, NOISE, exit="ValueError", **fields).refused(
        "params + noise",
        ("[0]", (1000, 1000), "accel:0", "jax.device_put(weights, main)"),
        ("[1]", shape, "cpu:0", None),
    )


def test_a_refusal_is_explained(tmp_path: Path) -> None:
    found = only(refused(tmp_path))
    assert (found.rule, found.kind, found.severity) == ("MRD602", "device-conflict-error", "error")
    assert (found.expression, found.source, found.target, found.nbytes) == ("noise", "cpu:0", "accel:0", 0)
    assert found.cause == (
        "JAX refused `params + noise`: `params` (4 MB) was committed to accel:0 by line 3, and `noise` (40 "
        "B) was committed to cpu:0. JAX does not move what is committed."
    )
    assert found.fix == (
        "Move the smaller one, `noise`, to accel:0 before the call: `noise = jax.device_put(noise, "
        "jax.devices()[0])`."
    )


def test_of_two_of_one_size_the_one_off_the_default_device_moves(tmp_path: Path) -> None:
    assert only(refused(tmp_path, (1000, 1000))).fix.startswith(
        "Move one of them, `noise`, to accel:0 before"
    )


def test_a_refusal_without_operands_is_said_without_them(tmp_path: Path) -> None:
    found = only(Run(tmp_path, NOISE).refused("params + noise"))
    assert found.cause == "JAX refused `params + noise`: its arguments are committed to different devices."
    assert found.fix == "Put all arguments on one device before the call, with jax.device_put."


@pytest.mark.parametrize(("ended", "expected"), [(0, "warning"), (None, "warning"), (3, "warning")])
def test_a_refusal_that_the_program_survived_is_a_warning(
    tmp_path: Path, ended: int | None, expected: str
) -> None:
    run = refused(tmp_path)
    run.recording.header.exit = ended
    assert only(run).severity == expected


def test_what_ended_the_program_comes_first(tmp_path: Path) -> None:
    run = refused(tmp_path).drifted("params + noise", count=100, nbytes=100 * MB, call_ns=10**10)
    assert [f.rule for f in explain(run.recording, run.sources)] == ["MRD602", "MRD101"]


REFUSED = """\
import os
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
import jax
main, home = jax.devices()
small = jax.device_put(jax.numpy.ones(10), home)
large = jax.device_put(jax.numpy.ones((100, 10)), main)
large + small
"""
EXPLAINED = (
    "JAX refused `large + small`: `large` (4 kB) was committed to cpu:0 by line 6, and `small` (40 B) was "
    "committed to cpu:1 by line 5. JAX does not move what is committed."
)


def test_the_explanation_follows_the_traceback(tmp_path: Path, run_python: RunPython) -> None:
    (tmp_path / "train.py").write_text(REFUSED)
    plain = run_python("train.py")
    traced = run_python("-m", "moored", "trace", "train.py")
    assert (traced.returncode, traced.stdout) == (plain.returncode, plain.stdout) == (1, "")
    assert traced.stderr.startswith(plain.stderr)
    told = " ".join(traced.stderr.removeprefix(plain.stderr).split())
    assert "error MRD602 device-conflict" in told
    assert EXPLAINED in told
    # ... also where the report goes elsewhere
    traced = run_python("-m", "moored", "trace", "-q", "-o", "report.txt", "train.py")
    assert traced.stderr.removeprefix(plain.stderr) == (
        f"moored: 1 finding; the report is in report.txt\nmoored: train.py:7: {EXPLAINED} Move the smaller "
        "one, `small`, to cpu:0 before the call: `small = jax.device_put(small, jax.devices()[0])`, or put "
        "it there at line 5 already.\n"
    )
