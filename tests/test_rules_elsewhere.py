"""Rules on reads of single scalars, and on arrays and work that are elsewhere than the code suggests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from moored.rules.lost_placement import LostPlacement
from moored.rules.registry import explain
from moored.rules.thresholds import DEFAULTS
from recordings import Run, only, severities

MB = 1_000_000

# -- MRD104 ----------------------------------------------------------------------------------


def resharded(folder: Path, **fields: Any) -> Run:
    usual = {
        "reason": "resharded", "api": "jit", "function": "total", "source": "accel:0", "target": "cpu:0",
        "count": 3, "nbytes": 12 * MB,
    }  # fmt: skip
    return Run(folder, "for i in r:\n    total(w)\n").drifted("total(w)", **{**usual, **fields})


def test_an_argument_that_is_laid_out_anew_at_every_call(tmp_path: Path) -> None:
    found = only(resharded(tmp_path))
    assert (found.rule, found.kind, found.severity, found.nbytes) == (
        "MRD104", "implicit-d2d", "error", 12 * MB,
    )  # fmt: skip
    assert found.cause == (
        "`w` is on accel:0, and `total(w)` wants it on cpu:0: each of 3 calls first moves the whole 4 MB "
        "array."
    )
    assert found.fix == (
        "Lay it out as the call wants it once, before the calls: "
        '`w = jax.device_put(w, jax.devices("cpu")[0])`. Then pass that on.'
    )


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"count": 1, "nbytes": 40 * MB}, "note"),
        ({"count": 2, "nbytes": 2 * 64_000}, "error"),
        ({"count": 2, "nbytes": 2 * 63_999}, "warning"),
        ({"count": 9, "nbytes": 9 * 8}, None),
        ({"explicit": True}, None),
    ],
)
def test_how_severe_a_new_layout_is(tmp_path: Path, fields: dict[str, Any], expected: str | None) -> None:
    assert severities(resharded(tmp_path, **fields)) == ([("MRD104", expected)] if expected else [])


def test_a_layout_over_several_devices_is_named(tmp_path: Path) -> None:
    found = only(resharded(tmp_path, source="gpu:0,1 P('x',)", target="gpu:0,1 P(None, 'x')", committed=True))
    assert found.cause.startswith(
        "`w` is committed to gpu:0,1 P('x',), and `total(w)` wants it on gpu:0,1 P(None"
    )
    assert found.fix.endswith(
        "`w = jax.device_put(w, sharding)`, with the sharding gpu:0,1 P(None, 'x'). Then pass that on."
    )


# -- MRD201 or MRD202 ------------------------------------------------------------------------

READS = """\
import numpy as np
losses = [step(i) for i in range(50)]
np.mean(losses)
for v in losses:
    total += float(v)
for i, v in enumerate(losses):
    total += v.item()
for i in range(len(x)):
    total += int(x[i])
[bool(u) for u in losses]
for batch in loader():
    w, loss = step(w, batch)
    history.append(complex(loss))
for out in run():
    print(out)
for k in range(9):
    state = step(state)
    str(state[k])
def summary(rows):
    return np.sum(rows)
def epoch():
    scores = []
    return np.std(scores)
for t in range(9):
    np.isnan(loss)
"""
ELEMENTWISE, PER_STEP = "MRD202", "MRD201"


@pytest.mark.parametrize(
    ("expression", "rule"),
    [
        ("np.mean(losses)", ELEMENTWISE),  # the line runs once
        ("float(v)", ELEMENTWISE),
        ("v.item()", ELEMENTWISE),
        ("int(x[i])", ELEMENTWISE),
        ("bool(u)", ELEMENTWISE),
        ("np.std(scores)", ELEMENTWISE),  # a list, whoever calls the function
        ("complex(loss)", PER_STEP),
        ("print(out)", PER_STEP),  # what a generator makes step by step
        ("str(state[k])", PER_STEP),  # made anew by the loop
        ("np.sum(rows)", PER_STEP),  # who knows what rows is
        ("np.isnan(loss)", PER_STEP),
    ],
)
def test_a_line_gets_one_of_the_two_rules_on_reads(tmp_path: Path, expression: str, rule: str) -> None:
    run = Run(tmp_path, READS).read(expression, count=50, nbytes=200)
    assert severities(run) == [(rule, "warning")]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"count": 16, "nbytes": 64}, [("MRD202", "warning")]),
        ({"count": 15, "nbytes": 60}, [("MRD202", "note")]),
        ({"count": 2, "nbytes": 8}, []),
        ({"count": 50, "nbytes": 450}, [("MRD201", "warning")]),  # more than scalars
        ({"count": 50, "nbytes": 200, "wait_ns": 2_000_000_000}, [("MRD202", "error")]),
        ({"count": 50, "nbytes": 200, "committed": True, "source": "cpu:0"}, [("MRD202", "note")]),
        ({"count": 50, "nbytes": 200, "explicit": True}, []),
    ],
)
def test_how_severe_scalar_reads_are(
    tmp_path: Path, fields: dict[str, Any], expected: list[tuple[str, str]]
) -> None:
    assert severities(Run(tmp_path, READS).read("float(v)", **fields)) == expected


def test_scalar_reads_in_words(tmp_path: Path) -> None:
    found = only(Run(tmp_path, READS).read("np.mean(losses)", count=50, nbytes=200, wait_ns=3_000_000))
    assert (found.kind, found.expression, found.seconds_is) == ("implicit-d2h", "losses", "measured")
    assert found.cause == (
        "`np.mean(losses)` reads 50 scalars from accel:0 one at a time, and waits for each of them: 3 ms in "
        "all."
    )
    assert found.fix == (
        "Read them together, `jax.device_get(losses)`: one wait in place of 50 reads; or stack them on the "
        "device (jax.numpy.stack) and read only the result."
    )
    found = only(Run(tmp_path, READS).read("float(v)", count=50, nbytes=200))
    assert found.fix == (
        "Read them all at once, before the loop at line 4, `jax.device_get(losses)`: one wait in place of "
        "50 reads."
    )
    found = only(Run(tmp_path, READS).read("bool(u)", count=50, nbytes=200))
    assert found.fix == "Read them all at once, `jax.device_get(losses)`: one wait in place of 50 reads."
    found = only(Run(tmp_path, READS).read("int(x[i])", count=50, nbytes=200))
    assert found.fix.startswith(
        "Read them all at once, before the loop at line 8, `jax.device_get(x)`: one wait"
    )


# -- MRD302 ----------------------------------------------------------------------------------


def test_a_put_that_does_nothing(tmp_path: Path) -> None:
    run = Run(tmp_path, "import jax\nready = [jax.device_put(b) for b in batches]\n")
    found = only(run.arrived("jax.device_put(b)", count=3, nbytes=12 * MB))
    assert (found.rule, found.kind, found.severity) == ("MRD302", "no-op-put", "warning")
    assert (found.expression, found.count, found.nbytes) == ("b", 3, 12 * MB)
    assert (found.source, found.target) == ("cpu:0", "cpu:0")
    assert found.cause == (
        "`jax.device_put(b)` names no device, so it returned `b` (4 MB) as it was, 3 times: on cpu:0, "
        "uncommitted, while operations run on accel:0."
    )
    assert found.fix == (
        "Name the device: `jax.device_put(b, jax.devices()[0])` moves it to accel:0; with "
        '`jax.devices("cpu")[0]` it stays, committed, and operations come to it.'
    )


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"nbytes": 64_000}, "warning"),
        ({"nbytes": 63_999}, "note"),
        ({"place": "accel:0"}, None),  # where it belongs
        ({"place": "accel:0", "expected": ""}, None),
        ({"committed": True}, None),
    ],
)
def test_how_severe_an_idle_put_is(tmp_path: Path, fields: dict[str, Any], expected: str | None) -> None:
    run = Run(tmp_path, "device_put(b)\n").arrived("device_put(b)", **fields)
    assert severities(run) == ([("MRD302", expected)] if expected else [])


# -- MRD401, and MRD103 beside it --------------------------------------------------------------

STEPS = """\
import jax
scale = jax.device_put(0.5, cpu)
for batch in data:
    w = step(w, scale)
x = table[idx]
batch = jnp.from_dlpack(rows)
y = step(w, batch)
"""


def pulled(run: Run, expression: str = "step(w, scale)", **fields: Any) -> Run:
    usual = {
        "reason": "follows-committed", "api": "jit", "function": "step", "argument": "[0]", "beside": "[1]",
        "source": "accel:0", "target": "cpu:0", "count": 4, "nbytes": 16 * MB,
    }  # fmt: skip
    return run.drifted(expression, **{**usual, **fields})


def test_a_committed_scalar_takes_the_step_along(tmp_path: Path) -> None:
    run = pulled(Run(tmp_path, STEPS)).ran(
        "step(w, scale)", put_by="jax.device_put(0.5, cpu)", count=4, dragged=4, nbytes=16 * MB
    )
    drags, misplaced = sorted(explain(run.recording, run.sources), key=lambda f: f.rule)
    assert (misplaced.rule, misplaced.kind, misplaced.severity) == (
        "MRD401", "misplaced-compute", "error",
    )  # fmt: skip
    assert (misplaced.count, misplaced.nbytes, misplaced.expression) == (4, 16 * MB, "scale")
    assert (misplaced.source, misplaced.target) == ("accel:0", "cpu:0")
    assert misplaced.cause == (
        "`step(w, scale)` ran on cpu:0, 4 times, not on the default device accel:0, because `scale` is "
        "committed to cpu:0 since line 2. What the call pulls there is told by MRD103 on this line."
    )
    assert misplaced.fix == (
        "Put `scale` on accel:0, or leave it uncommitted: `scale = jax.device_put(scale, jax.devices()[0])`."
    )
    assert drags.cause == (
        "`w` sits on accel:0 uncommitted, and follows `scale` to cpu:0: each `step(w, scale)` first copies "
        "the whole 4 MB array there."
    )
    assert drags.fix == "What MRD401 says of this line ends this copy too."


def test_host_work_on_purpose_is_a_note_at_most(tmp_path: Path) -> None:
    put = {"put_by": "jax.device_put(0.5, cpu)", "count": 9, "dragged": 0}
    run = Run(tmp_path, STEPS).ran("step(w, scale)", **put, nbytes=9 * 64_000)
    assert severities(run) == [("MRD401", "note")]
    assert only(run).cause == (
        "`step(w, scale)` ran on cpu:0, 9 times, not on the default device accel:0, because `scale` is "
        "committed to cpu:0 since line 2; nothing was pulled along."
    )
    assert only(run).fix == "Nothing if this is meant to run on cpu:0."
    assert severities(Run(tmp_path, STEPS).ran("step(w, scale)", **put, nbytes=9 * 63_999)) == []


def test_a_slice_of_a_committed_host_array_is_silent(tmp_path: Path) -> None:
    fields = {"api": "__getitem__", "function": "gather", "argument": "[0]", "count": 9, "nbytes": 900 * MB}
    assert severities(Run(tmp_path, STEPS).ran("table[idx]", **fields)) == []
    # So is one whose index came from the accelerator: it is the index that travels.
    assert severities(Run(tmp_path, STEPS).ran("table[idx]", **fields, dragged=9)) == []


def test_what_was_dragged_once_stays(tmp_path: Path) -> None:
    """Later calls get what the first one returned, committed, and pull nothing any more."""
    run = pulled(Run(tmp_path, STEPS), count=1, nbytes=4 * MB)
    run.ran("step(w, scale)", count=1, dragged=1).ran("step(w, batch)", count=99, nbytes=396 * MB)
    assert [f for f in severities(run) if f[0] == "MRD401"] == [("MRD401", "error"), ("MRD401", "warning")]


def test_pulling_a_counter_along_is_no_misplaced_work(tmp_path: Path) -> None:
    run = pulled(Run(tmp_path, STEPS), count=9, nbytes=36).ran(
        "step(w, scale)", count=9, dragged=9, nbytes=9 * MB
    )
    assert severities(run) == [("MRD401", "note")]


def test_imported_host_memory_takes_the_step_to_the_cpu(tmp_path: Path) -> None:
    run = Run(tmp_path, STEPS)
    run.arrived("jnp.from_dlpack(rows)", api="from_dlpack", reason="dlpack-host", committed=True, count=5)
    run.ran("step(w, batch)", put_by="jnp.from_dlpack(rows)", count=5, nbytes=20 * MB)
    assert severities(run) == [("MRD401", "error"), ("MRD402", "warning")]
    found = next(f for f in explain(run.recording, run.sources) if f.rule == "MRD401")
    assert found.cause.endswith(
        "because `batch` is committed to cpu:0 since line 6. It works on 4 MB of arrays each time."
    )
    assert (
        found.fix
        == "Put `batch` on accel:0 before the call: `batch = jax.device_put(batch, jax.devices()[0])`."
    )


def test_a_device_that_is_named_inside_is_ignored(tmp_path: Path) -> None:
    source = "def f(x):\n    return device_put(x, home)\nr = f(x)\n"
    found = only(Run(tmp_path, source).ran(
        "f(x)\n", function="f", reason="named-inside", ran_on="accel:0", wanted="cpu:0", argument="",
        named_at="device_put(x, home)",
    ))  # fmt: skip
    assert (found.severity, found.source, found.target) == ("warning", "cpu:0", "accel:0")
    assert (
        "ran on accel:0, although cpu:0 is named inside `f` at line 2: a device that is named" in found.cause
    )
    assert found.fix.startswith("Put the arguments on cpu:0 before the call, ")


# -- MRD402 ----------------------------------------------------------------------------------

LOADING = """\
import jax, pickle
import jax.numpy as jnp
def work():
    q.put(jnp.asarray(rows))
with jax.default_device(home):
    t.start()
restored = pickle.loads(blob)
batch = jnp.from_dlpack(rows)
"""


def test_a_thread_forgets_its_block(tmp_path: Path) -> None:
    found = only(Run(tmp_path, LOADING).arrived(
        "jnp.asarray(rows)", api="asarray", reason="thread-default", place="accel:0", expected="cpu:0",
        started_by="t.start()", count=4, nbytes=16 * MB,
    ))  # fmt: skip
    assert (found.rule, found.kind, found.severity, found.count) == (
        "MRD402",
        "misplaced-array",
        "warning",
        4,
    )
    assert (found.source, found.target) == ("cpu:0", "accel:0")
    assert found.cause == (
        "`jnp.asarray(rows)` made 4 arrays of 4 MB each on accel:0: its thread was started at line 6 inside "
        "a block with default_device cpu:0, and a thread does not inherit that."
    )
    assert found.fix == (
        'Name the device where the array is made, `jax.device_put(value, jax.devices("cpu")[0])`, or open '
        '`with jax.default_device(jax.devices("cpu")[0]):` inside the function that the thread runs.'
    )


@pytest.mark.parametrize(
    ("expected", "severity", "was"),
    [
        ("", "note", "pickle keeps no placement"),
        ("cpu:0", "warning", "it was on cpu:0 when it was pickled"),
        ("accel:0", None, ""),
    ],
)
def test_what_pickle_restores(tmp_path: Path, expected: str, severity: str | None, was: str) -> None:
    run = Run(tmp_path, LOADING).arrived(
        "pickle.loads(blob)", api="unpickle", reason="unpickled", place="accel:0", expected=expected
    )
    if severity is None:
        assert severities(run) == []
        return
    found = only(run)
    assert (found.kind, found.severity, found.nbytes) == ("implicit-h2d", severity, 4 * MB)
    assert (found.source, found.target, found.expression) == ("host", "accel:0", "")
    assert found.cause == (
        f"`pickle.loads(blob)` restored an array of 4 MB to the default device accel:0, uncommitted; {was}."
    )


def test_imported_memory_that_nothing_follows_is_a_note(tmp_path: Path) -> None:
    """``device_put(from_dlpack(x), gpu)`` imports without a copy, and then puts."""
    found = only(Run(tmp_path, LOADING).arrived(
        "jnp.from_dlpack(rows)", api="from_dlpack", reason="dlpack-host", committed=True
    ))  # fmt: skip
    assert found.severity == "note"
    assert found.cause == (
        "`jnp.from_dlpack(rows)` imported an array of 4 MB from host memory: committed to cpu:0, not on the "
        "default device accel:0. Whatever uses it runs on cpu:0."
    )
    assert found.fix == (
        "Pass `device=jax.devices()[0]` to `from_dlpack`, or use `jax.device_put(array, jax.devices()[0])` "
        "in its place."
    )


def test_a_rule_says_which_other_kind_it_finds(tmp_path: Path) -> None:
    run = Run(tmp_path, LOADING).arrived(
        "pickle.loads(blob)", reason="unpickled", place="accel:0", expected=""
    )
    rule = LostPlacement()
    rule.also = ()  # type: ignore[misc]
    with pytest.raises(AssertionError, match="MRD402 does not announce the kind 'implicit-h2d'"):
        list(rule.explain(run.recording, run.sources, DEFAULTS))
