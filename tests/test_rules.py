"""From recordings to findings: what each rule says, how severe it is, and when it is silent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import isolated
from moored.model.events import ArraySpec, Arrival, Compile, Conflict, Execution, Operand, Transfer
from moored.model.module import Module, Sources
from moored.model.recording import Header, Recording
from moored.model.site import Site
from moored.report.words import headline
from moored.rules.base import Rule
from moored.rules.registry import RULES, explain
from moored.rules.wording import device_code
from recordings import Run, article, only, severities

MB = 1_000_000


# -- MRD101 ----------------------------------------------------------------------------------


def test_the_articles_program_gets_the_line_to_write(tmp_path: Path) -> None:
    found = only(article(tmp_path))
    assert (found.rule, found.name, found.kind) == ("MRD101", "uncommitted-drift", "implicit-d2d")
    assert (found.severity, found.site.line, found.count, found.nbytes) == ("error", 9, 10, 65_205_043_200)
    assert (found.expression, found.seconds, found.seconds_is) == ("array", 4.5, "at least")
    assert (found.replacement, found.replacement_after) == ("array = jax.device_put(array, cpu0)", 6)
    assert found.cause == (
        "`array` was made under jax.default_device(cpu0) at line 6, so it sits on cpu:0 without being "
        "committed to it; each `array[i]` runs on the default device accel:0 and first copies the whole "
        "6.52 GB array there."
    )
    assert found.fix == (
        "Commit it to cpu:0 once: write `array = jax.device_put(array, cpu0)` after line 6. With that, "
        "`array[i]` runs on cpu:0 and `array` stays there. What it returns stays there too: put it on "
        "accel:0 before computing with it, `jax.device_put(array[i], jax.devices()[0])`."
    )


LOOKUPS = {
    "last statement of the block": (
        "with jax.default_device(home):\n    images = make()\nimages[idx]\n",
        ("images = jax.device_put(images, home)", 2),
    ),
    "not the last one": (
        "with jax.default_device(home):\n    images = make()\n    labels = 1\nimages[idx]\n",
        ("    images = jax.device_put(images, home)", 2),
    ),
    "over several lines": (
        "with jax.default_device(home):\n    images = make(\n        1,\n    )\nimages[idx]\n",
        ("images = jax.device_put(images, home)", 4),
    ),
    "used inside the block": (
        "with jax.default_device(home):\n    images = make()\n    with jax.default_device(None): "
        "images[idx]\n",
        ("    images = jax.device_put(images, home)", 2),
    ),
    "in a function": (
        "def load():\n    with jax.default_device(home):\n        images = make()\n    return images[idx]\n",
        ("    images = jax.device_put(images, home)", 3),
    ),
    "in a loop of the block": (
        "with jax.default_device(home):\n    for _ in r:\n        images = make()\nimages[idx]\n",
        ("        images = jax.device_put(images, home)", 3),
    ),
    "on the line of the block": (
        "with jax.default_device(home): images = make()\nimages[idx]\n",
        ("images = jax.device_put(images, home)", 1),
    ),
    "no block around it: a helper made it": (
        "images = make()\nimages[idx]\n",
        ('images = jax.device_put(images, jax.devices("cpu")[0])', 1),
    ),
    "an attribute": (
        "self.images = make()\nself.images[idx]\n",
        ('self.images = jax.device_put(self.images, jax.devices("cpu")[0])', 1),
    ),
    "part of what was made": (
        "images = make()\nimages['train'][idx]\n",
        ('images = jax.device_put(images, jax.devices("cpu")[0])', 1),
    ),
    "under another name, made by JAX": (
        "import jax.numpy as jnp\ndata = jnp.zeros(make())\nimages[idx]\n",
        ('data = jax.device_put(data, jax.devices("cpu")[0])', 2),
    ),
    "under another name, inside who knows what": ("data = Data(make())\nimages[idx]\n", (None, None)),
    "two targets": ("images, labels = make()\nimages[idx]\n", (None, None)),
}


@pytest.mark.parametrize("name", LOOKUPS)
def test_the_line_goes_after_the_statement_that_made_the_array(tmp_path: Path, name: str) -> None:
    source, expected = LOOKUPS[name]
    used = next(e for e in ("self.images[idx]", "images['train'][idx]", "images[idx]") if e in source)
    run = Run(tmp_path, f"import jax\n{source}").drifted(used, made_by="make(", count=5, nbytes=5 * MB)
    found = only(run)
    text, after = expected
    assert (found.replacement, found.replacement_after) == (text, None if after is None else after + 1)
    if text is not None:
        compile("\n".join(_with_line(run.text, text, after + 1)), "a.py", "exec")


def _with_line(source: str, text: str, after: int) -> list[str]:
    lines = source.replace("return", "pass;").split("\n")
    return [*lines[:after], text, *lines[after:]]


def test_an_imported_name_is_spelt_as_the_file_spells_it(tmp_path: Path) -> None:
    source = "import jax as j\nx = make()\nx[i]\n"
    run = Run(tmp_path, source).drifted("x[i]", made_by="make()", count=5, nbytes=5 * MB)
    assert only(run).replacement == 'x = j.device_put(x, j.devices("cpu")[0])'
    source = "import jax\nfrom jax import device_put\nx = make()\nx[i]\n"
    run = Run(tmp_path, source).drifted("x[i]", made_by="make()", count=5, nbytes=5 * MB)
    assert only(run).replacement == 'x = device_put(x, jax.devices("cpu")[0])'


def test_an_array_that_is_used_whole_goes_to_where_it_is_used(tmp_path: Path) -> None:
    source = """\
        import jax
        with jax.default_device(cpu):
            weights = make()
        for i in range(9):
            y = step(weights)
        """
    run = Run(tmp_path, source).drifted(
        "step(weights)", made_by="make()", api="jit", function="step", count=9, nbytes=36 * MB
    )
    found = only(run)
    assert (found.replacement, found.replacement_after) == (
        "weights = jax.device_put(weights, jax.devices()[0])",
        3,
    )
    assert found.fix == (
        "Put it on accel:0 once: write `weights = jax.device_put(weights, jax.devices()[0])` after line 3."
    )


def test_without_an_origin_the_fix_is_in_words(tmp_path: Path) -> None:
    run = Run(tmp_path, "tokens[i]\n").drifted("tokens[i]", count=3, nbytes=3 * MB)
    found = only(run)
    assert found.replacement is None
    assert found.cause == (
        "`tokens` sits on cpu:0 without being committed to it; each `tokens[i]` runs on the default device "
        "accel:0 and first copies the whole 1 MB array there."
    )
    assert found.fix == (
        "Commit `tokens` to cpu:0 once, where it is made: "
        '`tokens = jax.device_put(tokens, jax.devices("cpu")[0])`. '
        "With that, `tokens[i]` runs on cpu:0 and `tokens` stays there. What it returns stays there too: put "
        "it on accel:0 before computing with it, `jax.device_put(tokens[i], jax.devices()[0])`."
    )


def test_without_source_nothing_is_quoted(tmp_path: Path) -> None:
    run = Run(tmp_path, "tokens[i]\n").drifted("tokens[i]", count=3, nbytes=3 * MB)
    (tmp_path / "train.py").unlink()
    found = only(run)
    assert found.expression == ""
    assert found.cause == (
        "An array sits on cpu:0 without being committed to it; each `dynamic_slice` runs on the default "
        "device accel:0 and first copies the whole 1 MB array there."
    )


def test_an_origin_in_another_file_is_named_with_it(tmp_path: Path) -> None:
    other = Run(tmp_path, "import jax\nwith jax.default_device(cpu):\n    tokens = make()\n", "data.py")
    run = Run(tmp_path, "tokens[i]\n").drifted("tokens[i]", count=3, nbytes=3 * MB)
    run.recording.sites.append(other.recording.sites[other.site("make()")])
    run.recording.transfers[0].origin = len(run.recording.sites) - 1
    found = only(run)
    assert "was made under jax.default_device(cpu) at data.py:3, so" in found.cause
    assert found.origin is not None
    assert (found.origin.path, found.replacement_after) == ("data.py", 3)


@pytest.mark.parametrize(
    ("count", "each", "expected"),
    [
        (10, 64_000, "error"),
        (10, 63_999, "warning"),
        (10_000, 10_000, "error"),  # little by little, 100 MB
        (2, 9, "warning"),
        (1, MB, "warning"),
        (1, MB - 1, "note"),
    ],
)
def test_how_severe_a_drift_is(tmp_path: Path, count: int, each: int, expected: str) -> None:
    run = Run(tmp_path, "tokens[i]\n").drifted("tokens[i]", count=count, nbytes=count * each)
    assert severities(run) == [("MRD101", expected)]


def test_index_scalars_are_noise(tmp_path: Path) -> None:
    run = Run(tmp_path, "tokens[i]\n").drifted("tokens[i]", count=1000, nbytes=8000, shape=())
    run.uploaded("tokens[i]", count=1000, nbytes=8000, same_object=999, shape=())
    assert severities(run) == []


def test_one_expression_that_runs_several_functions_is_one_finding(tmp_path: Path) -> None:
    run = Run(tmp_path, "jax.nn.softmax(x)\n")
    for function in ("_reduce_max", "subtract"):
        run.drifted("jax.nn.softmax(x)", api="softmax", function=function, count=3, nbytes=3 * MB)
    found = only(run)
    assert (found.expression, found.count, found.nbytes) == ("x", 6, 6 * MB)


def test_two_operands_of_one_call_are_two_findings(tmp_path: Path) -> None:
    run = Run(tmp_path, "f(a, b)\n")
    run.drifted("f(a, b)", api="jit", function="f", argument="[0]", count=3, nbytes=3 * MB)
    run.drifted("f(a, b)", api="jit", function="f", argument="[1]", count=3, nbytes=6 * MB)
    assert [(f.expression, f.nbytes) for f in explain(run.recording, run.sources)] == [
        ("b", 6 * MB),
        ("a", 3 * MB),
    ]


def test_what_a_library_does_is_not_put_in_the_users_words(tmp_path: Path) -> None:
    run = Run(tmp_path, "optim.update(grads, state)\n").drifted(
        "optim.update(grads, state)", api="jit", function="update", library="optax", count=3, nbytes=3 * MB
    )
    found = only(run)
    assert found.expression == ""
    assert found.cause.startswith("An array that optax works on sits on cpu:0")


# -- MRD102 ----------------------------------------------------------------------------------

FEEDING = """\
import jax
import numpy as np

posterior = load()
outs = []
for epoch in range(3):
    for i in range(4):
        outs.append(predict(posterior, x))
"""


def test_parameters_on_the_host_are_one_finding_and_one_line(tmp_path: Path) -> None:
    run = Run(tmp_path, FEEDING)
    for key, shape, nbytes, ns in (("b", (1000,), 4000, 7_000_000), ("w", (1000, 2048), 8_192_000, 0)):
        run.uploaded(
            "predict(posterior, x)", function="predict", argument=f"[0]['{key}']", shape=shape, count=12,
            nbytes=12 * nbytes, same_object=11, call_ns=ns,
        )  # fmt: skip
    found = only(run)
    assert (found.rule, found.kind, found.severity) == ("MRD102", "implicit-h2d", "error")
    assert (found.count, found.nbytes, found.expression) == (12, 12 * 8_196_000, "posterior")
    assert found.array == ArraySpec((1000, 2048), "float32", None)
    assert found.seconds == 0.007
    assert (found.replacement, found.replacement_after) == ("posterior = jax.device_put(posterior)", 5)
    assert found.cause == (
        "`posterior` is held in host memory (numpy, or Python values); each `predict(posterior, x)` uploads "
        "all 8.2 MB of it to accel:0, and every time it was the very same object."
    )
    assert (
        found.fix
        == "Upload it once: write `posterior = jax.device_put(posterior)` before the loop at line 6."
    )


def test_a_single_leaf_is_named_to_the_end(tmp_path: Path) -> None:
    run = Run(tmp_path, FEEDING).uploaded(
        "predict(posterior, x)",
        function="predict",
        argument="[0]['w']",
        count=12,
        nbytes=12 * MB,
        same_object=11,
    )
    found = only(run)
    assert (found.expression, found.replacement) == ("posterior['w']", None)
    assert found.fix == (
        "Upload it once, before the calls, where `posterior['w']` is made or loaded: "
        "`jax.device_put(posterior['w'])`."
    )


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("step(w)", ("error", True)),
        ("w = step(w)", ("error", False)),  # bound in the loop: no line before it would do
        ("log(w); step(w)", ("error", False)),  # another call may change it
        ("w[:] = next(it); step(w)", ("note", False)),  # refilled: the same object, new values
        ("np.copyto(w, b); step(w)", ("note", False)),
        ("rng.random(out=w); step(w)", ("note", False)),
        ("w += 1; step(w)", ("note", False)),
        ("w.fill(i); step(w)", ("note", False)),
        ("print(w.shape); step(w)", ("error", True)),
    ],
)
def test_a_loop_that_changes_the_array_is_not_told_to_put_it_once(
    tmp_path: Path, body: str, expected: tuple[str, bool]
) -> None:
    source = f"import numpy as np\nfor i in range(9):\n    {body}\n"
    run = Run(tmp_path, source).uploaded("step(w)", count=9, nbytes=9 * MB, same_object=8)
    found = only(run)
    assert (found.severity, found.replacement is not None) == expected


@pytest.mark.parametrize(("parameters", "has_line"), [("w, xs", True), ("xs", False)])
def test_a_global_is_not_told_to_be_bound_in_the_function_that_reads_it(
    tmp_path: Path, parameters: str, has_line: bool
) -> None:
    source = f"def run({parameters}):\n    for x in xs:\n        step(w)\n"
    found = only(Run(tmp_path, source).uploaded("step(w)", count=9, nbytes=9 * MB, same_object=8))
    assert (found.replacement is not None) == has_line


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"count": 3, "nbytes": 3 * MB, "same_object": 2}, "error"),
        ({"count": 3, "nbytes": 900_000, "same_object": 2}, "warning"),
        ({"count": 1000, "nbytes": 900_000, "same_object": 999}, "note"),  # 900 bytes each
        ({"count": 100, "nbytes": 100 * MB}, "note"),  # a new batch each time
        ({"count": 1, "nbytes": 100 * MB}, "note"),
        ({"count": 100, "nbytes": 90_000}, None),
    ],
)
def test_how_severe_an_upload_is(tmp_path: Path, fields: dict[str, int], expected: str | None) -> None:
    run = Run(tmp_path, "step(w)\n").uploaded("step(w)", **fields)
    assert severities(run) == ([("MRD102", expected)] if expected else [])


def test_batches_and_single_uploads_in_words(tmp_path: Path) -> None:
    run = Run(tmp_path, "step(w)\n").uploaded("step(w)", count=10, nbytes=40 * MB)
    assert only(run).cause == (
        "`w` is a new host array for each of 10 calls; `step(w)` uploads it to accel:0 before it can start."
    )
    run = Run(tmp_path, "step(w)\n").uploaded("step(w)", nbytes=4 * MB)
    assert only(run).cause == ("`w` was held in host memory; `step(w)` uploaded its 4 MB to accel:0, once.")


def test_batches_of_equal_content_and_of_64_bits(tmp_path: Path) -> None:
    run = Run(tmp_path, "step(w)\n").uploaded("step(w)", count=9, nbytes=36 * MB, compared=5, same_content=5)
    found = only(run)
    assert (found.severity, found.fix) == (
        "note",
        "If it never changes, make it and put it on the device once: `w = jax.device_put(w)`.",
    )
    assert found.cause.startswith(
        "`w` is a new host array, with the content of the one before, for each of 9"
    )
    run = Run(tmp_path, "step(w)\n").uploaded("step(w)", count=9, nbytes=36 * MB, dtype="float64", compared=5)
    found = only(run)
    assert found.cause.endswith(" JAX first converts it from float64 to 32 bits, on the host, each time.")
    assert found.fix.endswith(" Make it float32 where it is made, not at each call.")


# -- MRD103 ----------------------------------------------------------------------------------


def dragged(folder: Path, **fields: object) -> Run:
    usual = {
        "reason": "follows-committed", "api": "jit", "function": "attend", "source": "accel:0",
        "target": "cpu:0", "beside": "[1]", "count": 4, "nbytes": 67_108_864,
    }  # fmt: skip
    return Run(folder, "acc.append(attend(weights, scale))\n").drifted(
        "attend(weights, scale)", **{**usual, **fields}
    )


def test_the_operand_that_pulled_is_named(tmp_path: Path) -> None:
    found = only(dragged(tmp_path))
    assert (found.rule, found.severity, found.expression) == ("MRD103", "error", "weights")
    assert found.cause == (
        "`weights` sits on accel:0 uncommitted, and `scale` is committed to cpu:0: each `attend(weights, "
        "scale)` runs there, and first copies the whole 16.8 MB array there."
    )
    assert found.fix == (
        "If this is to run on accel:0, put `scale` there: `scale = jax.device_put(scale, "
        "jax.devices()[0])`. If it is to run on cpu:0, put `weights` on cpu:0 once: "
        '`weights = jax.device_put(weights, jax.devices("cpu")[0])`.'
    )


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"beside": ""}, "and another operand is committed to cpu:0:"),
        ({"beside": "[2]"}, "and argument 2 of `attend` is committed to cpu:0:"),
        ({"beside": "['bias']"}, "and argument `bias` of `attend` is committed to cpu:0:"),
    ],
)
def test_the_operand_that_pulled_is_not_guessed(
    tmp_path: Path, fields: dict[str, str], expected: str
) -> None:
    assert expected in only(dragged(tmp_path, **fields)).cause


def test_state_that_a_mesh_pulls_over_is_laid_out_once(tmp_path: Path) -> None:
    run = dragged(tmp_path, source="gpu:0", target="gpu:0,1 replicated", count=1, nbytes=4 * MB)
    found = only(run)
    assert found.severity == "warning"
    assert "`scale` is committed to gpu:0,1: `attend(weights, scale)` ran there" in found.cause
    assert found.fix == (
        "Lay `weights` out as the call wants it once, before the first call, and keep it so: `weights = "
        "jax.device_put(weights, sharding)`."
    )


# -- MRD201 ----------------------------------------------------------------------------------

LOGGING = """\
for i in range(30):
    w, loss = step(w)
    history.append(float(loss))
    if i % 10 == 0:
        print(loss)
print(loss, w, i)
np.mean(history)
"""


def test_a_read_at_every_step(tmp_path: Path) -> None:
    run = Run(tmp_path, LOGGING).read("float(loss)", count=30, nbytes=120, wait_ns=900_000, copy_ns=100_000)
    found = only(run)
    assert (found.rule, found.kind, found.severity) == ("MRD201", "implicit-d2h", "warning")
    assert (found.expression, found.seconds, found.seconds_is) == ("loss", 0.001, "measured")
    assert found.cause == (
        "`float(loss)` reads `loss` from accel:0 into host memory 30 times, and waits each time until it is "
        "computed: 1 ms in all."
    )
    assert found.fix == (
        "Keep `loss` on the device; read every N steps, or all of them after the loop at line 1 with one "
        "jax.device_get."
    )


@pytest.mark.parametrize(
    ("wait_s", "run_s", "expected"),
    [(2.0, 20.0, "error"), (0.9, 20.0, "warning"), (0.009, 0.01, "warning"), (2.0, 0.0, "warning")],
)
def test_reads_that_take_a_good_part_of_the_run_are_errors(
    tmp_path: Path, wait_s: float, run_s: float, expected: str
) -> None:
    run = Run(tmp_path, LOGGING, seconds=run_s).read(
        "float(loss)", count=30, nbytes=120, wait_ns=int(wait_s * 1e9)
    )
    found = only(run)
    assert found.severity == expected
    assert found.cause.endswith(": 2 s in all, 10 % of the run.") == (expected == "error")


@pytest.mark.parametrize(
    ("expression", "fields", "expected"),
    [
        ("float(loss)", {"count": 2, "nbytes": 8}, None),
        ("float(loss)", {"count": 2, "nbytes": 2 * MB}, "note"),
        ("float(loss)", {"count": 3, "nbytes": 3 * MB}, "error"),
        ("print(loss)", {"count": 3, "nbytes": 12}, "note"),  # every ten steps
        ("print(loss, w, i)", {"count": 3, "nbytes": 12}, "note"),  # one line, once
        ("float(loss)", {"count": 30, "nbytes": 120, "explicit": True}, None),
        ("float(loss)", {"count": 30, "nbytes": 120, "committed": True, "source": "cpu:0"}, "note"),
        ("float(loss)", {"count": 30, "nbytes": 120, "committed": True}, "warning"),
    ],
)
def test_how_severe_reads_are(tmp_path: Path, expression: str, fields: dict, expected: str | None) -> None:  # type: ignore[type-arg]
    run = Run(tmp_path, LOGGING).read(expression, **fields)
    assert severities(run) == ([("MRD201", expected)] if expected else [])


def test_other_reads_in_words(tmp_path: Path) -> None:
    run = Run(tmp_path, "while err > tol:\n    sweep()\n").read("err > tol", api="bool", count=41, nbytes=41)
    assert only(run).cause == (
        "Python reads `err > tol` from accel:0 into host memory 41 times, and waits each time until it is "
        "computed."
    )
    assert only(run).fix == (
        "Test it only every few steps, or move the loop to the device with jax.lax.while_loop."
    )
    run = Run(tmp_path, "for i in r:\n    if err > tol: stop()\n").read(
        "err > tol", api="bool", count=9, nbytes=9
    )
    assert only(run).fix == (
        "Test it only every few steps, or keep the test on the device (jax.lax.cond, jax.numpy.where)."
    )
    run = Run(tmp_path, LOGGING).read("print(loss, w, i)", count=3, nbytes=12)
    assert only(run).fix == "Read them together, jax.device_get(...): one wait in place of 3 reads."
    run = Run(tmp_path, LOGGING).read("float(loss)", count=30, nbytes=120, library="matplotlib")
    assert only(run).cause == (
        "Matplotlib reads device arrays from accel:0 into host memory 30 times, and waits each time until "
        "it is computed."
    )


# -- MRD301 ----------------------------------------------------------------------------------

PUTTING = """\
import jax
for i in range(8):
    t = jax.device_put(table)
    use(t)
"""


def test_a_table_put_in_a_loop_moves_before_it(tmp_path: Path) -> None:
    run = Run(tmp_path, PUTTING).put("jax.device_put(table)", count=8, nbytes=8 * 16_777_216, same_object=7)
    found = only(run)
    assert (found.rule, found.kind, found.severity) == ("MRD301", "explicit-repeated", "error")
    assert (found.replacement, found.replacement_after) == ("t = jax.device_put(table)", 1)
    assert found.cause == (
        "`jax.device_put(table)` moved `table` to accel:0, the same 16.8 MB object all 8 times."
    )
    assert found.fix == "Put it once: move line 3 before the loop at line 2."


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("use(jax.device_put(table))", None),  # no name to keep it under
        ("t = jax.device_put(table); t = t + 1", None),
        ("table = step(); t = jax.device_put(table)", None),
        ("t = jax.device_put(table, gpu)", "t = jax.device_put(table, gpu)"),
    ],
)
def test_a_put_moves_only_where_that_is_certain(tmp_path: Path, line: str, expected: str | None) -> None:
    source = f"import jax\nfor i in range(8):\n    {line}\n"
    expression = "jax.device_put(table, gpu)" if "gpu" in line else "jax.device_put(table)"
    run = Run(tmp_path, source).put(expression, count=8, nbytes=8 * MB, same_object=7)
    assert only(run).replacement == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"count": 3, "nbytes": 3 * MB, "same_object": 2}, "error"),
        ({"count": 2, "nbytes": 2 * MB, "same_object": 1}, "warning"),
        ({"count": 9, "nbytes": 9 * 64_000, "same_object": 8}, "warning"),
        ({"count": 9, "nbytes": 9 * 63_999, "same_object": 8}, None),
        ({"count": 9, "nbytes": 9 * MB}, None),
    ],
)
def test_how_severe_puts_are(tmp_path: Path, fields: dict[str, int], expected: str | None) -> None:
    run = Run(tmp_path, PUTTING).put("jax.device_put(table)", **fields)
    assert severities(run) == ([("MRD301", expected)] if expected else [])


@pytest.mark.parametrize(("compared", "same", "expected"), [(5, 5, "note"), (5, 4, None), (1, 1, None)])
def test_other_objects_with_the_same_content(
    tmp_path: Path, compared: int, same: int, expected: str | None
) -> None:
    run = Run(tmp_path, PUTTING).put(
        "jax.device_put(table)", count=8, nbytes=32 * MB, compared=compared, same_content=same
    )
    assert severities(run) == ([("MRD301", expected)] if expected else [])
    if expected:
        assert only(run).cause == (
            "`jax.device_put(table)` moved `table` to accel:0, 8 times, other objects of 4 MB with the same "
            "content."
        )
        assert only(run).replacement is None


def test_a_buffer_that_is_refilled_is_no_repeated_put(tmp_path: Path) -> None:
    source = "for i in range(8):\n    table[:] = next(it)\n    t = jax.device_put(table)\n"
    run = Run(tmp_path, source).put("jax.device_put(table)", count=8, nbytes=8 * MB, same_object=7)
    assert severities(run) == []


# -- all of them -----------------------------------------------------------------------------


def test_the_worst_comes_first_by_severity_then_by_cost(tmp_path: Path) -> None:
    run = Run(tmp_path, LOGGING + "small[i]\nlarge[i]\n")
    run.read("float(loss)", count=30, nbytes=120, wait_ns=3_000_000_000)
    run.uploaded("step(w)", nbytes=500 * MB)
    run.drifted("small[i]", count=10, nbytes=10 * MB)
    run.drifted("large[i]", count=10, nbytes=100_000 * MB)
    assert severities(run) == [
        ("MRD101", "error"), ("MRD201", "error"), ("MRD101", "error"), ("MRD102", "note"),
    ]  # fmt: skip
    assert [f.expression for f in explain(run.recording, run.sources)] == ["large", "loss", "small", "w"]


def test_the_codes_names_and_kinds_are_the_documented_ones() -> None:
    assert {code: (rule.name, rule.kind) for code, rule in RULES.items()} == {
        "MRD101": ("uncommitted-drift", "implicit-d2d"),
        "MRD102": ("host-array-per-call", "implicit-h2d"),
        "MRD103": ("committed-drags", "implicit-d2d"),
        "MRD104": ("reshard-per-call", "implicit-d2d"),
        "MRD201": ("host-read-per-step", "implicit-d2h"),
        "MRD202": ("elementwise-host-loop", "implicit-d2h"),
        "MRD301": ("repeated-put", "explicit-repeated"),
        "MRD302": ("put-without-device", "no-op-put"),
        "MRD401": ("misplaced-compute", "misplaced-compute"),
        "MRD402": ("lost-placement", "misplaced-array"),
        "MRD501": ("placement-recompile", "placement-recompile"),
        "MRD502": ("captured-constant", "captured-constant"),
        "MRD601": ("host-callback-traffic", "host-callback"),
        "MRD602": ("device-conflict", "device-conflict-error"),
    }
    assert {code: rule.also for code, rule in RULES.items() if rule.also} == {"MRD402": ("implicit-h2d",)}
    assert list(RULES) == sorted(RULES)


def test_devices_in_the_words_of_jax() -> None:
    default = Header(default_device="gpu:0")
    assert device_code("gpu:1", default, None) == "jax.devices()[1]"
    assert device_code("cpu:0", default, None) == 'jax.devices("cpu")[0]'
    assert device_code("cpu:0", Header(), Module("a.py", "import jax as j")) == 'j.devices("cpu")[0]'
    assert device_code("gpu:0,1 P('x',)", default, None) is None
    assert device_code("cpu:0/pinned_host", default, None) is None


# Every rule's example is flagged by it, and what its page says to use instead is silent.

_DRIVER = """
import contextlib, json, runpy, sys
import moored
found = {}
for path in sys.argv[1:]:
    with moored.watch() as report, contextlib.suppress(ValueError):  # the trap of one of them
        runpy.run_path(path)
    found[path] = [[f.rule, f.severity, f.site.path == path] for f in report.findings]
print(json.dumps(found))
"""
_ON_CPUS = {"MRD601"}  # the simulated accelerator has no host callbacks


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[str, str, bool]]]:
    """What moored finds in all examples, run on a simulated accelerator."""
    folder = tmp_path_factory.mktemp("examples")
    found: dict[str, list[tuple[str, str, bool]]] = {}
    for simulate, rules in (
        (isolated.ON_ACCELERATOR, [r for r in RULES.values() if r.code not in _ON_CPUS]),
        (isolated.ON_FOUR_CPUS, [r for r in RULES.values() if r.code in _ON_CPUS]),
    ):
        paths = []
        for rule in rules:
            for kind in ("example", "instead"):
                path = folder / f"{rule.code}_{kind}.py"
                path.write_text(getattr(rule.docs, kind), encoding="utf-8")
                paths.append(str(path))
        done = isolated.run(_DRIVER, *paths, simulate=simulate)
        assert done.returncode == 0, done.stderr
        found |= {Path(k).stem: [tuple(f) for f in v] for k, v in json.loads(done.stdout).items()}
    return found


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_a_rules_example_is_flagged_and_its_repair_is_silent(
    rule: Rule, examples: dict[str, list[tuple[str, str, bool]]]
) -> None:
    flagged = examples[f"{rule.code}_example"]
    serious = {code for code, severity, is_here in flagged if severity != "note" and is_here}
    assert serious == {rule.code, *rule.docs.companions}
    assert [f for f in examples[f"{rule.code}_instead"] if f[1] != "note"] == []


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_a_rules_page_is_whole(rule: Rule) -> None:
    docs = rule.docs
    assert all(text.strip().endswith(".") for text in (docs.what, docs.why, docs.silent))
    assert docs.example != docs.instead
    assert rule.__doc__


_TEXT = "import jax\nfor i in r:\n    y = f(x, k=z)[i] + float(a.b) @ t[i, :]\n    s = f'{y} é {z}'\n"
_paths = st.sampled_from(["[0]", "[1]['w']", "['k'].x", "", "[0][<flat index 3>]", "[-1]", "nonsense", "[9]"])
_names = st.sampled_from(
    ["jit", "", "__getitem__", "f", "float", "take", "bool", "__call__", "select_n", "concatenate"]
)


@given(
    span=st.tuples(*[st.integers(-1, 60)] * 4), argument=_paths, beside=_paths, api=_names, function=_names,
    direction=st.sampled_from(["h2d", "d2d", "d2h"]), numbers=st.tuples(*[st.integers(0, 10**12)] * 4),
    reason=st.sampled_from(
        ["uncommitted", "follows-committed", "host-value", "asked", "read", "resharded", "named-inside",
         "commitment", "sharding", "default-device", "context", "dlpack-host", "thread-default", "unpickled",
         "no-op-put"]
    ),
    seam=st.sampled_from(["call", "put", "read", "constant", "callback"]),
    target=st.sampled_from(["accel:0", "host", "cpu:0,1 P('x',)", ""]),
)  # fmt: skip
def test_no_recording_makes_a_rule_fail(
    span: tuple[int, int, int, int], argument: str, beside: str, api: str, function: str, direction: str,
    numbers: tuple[int, int, int, int], reason: str, target: str, seam: str,
) -> None:  # fmt: skip
    count, nbytes, same, ns = numbers
    row = Transfer(
        site=0, origin=0, direction=direction, explicit=reason == "asked", seam=seam, api=api,
        function=function, argument=argument, beside=beside, array=ArraySpec((), "float32", None),
        source="cpu:0", target=target, reason=reason, count=count, nbytes=nbytes, same_object=same,
        call_ns=ns, wait_ns=ns,
    )  # fmt: skip
    sources = Sources()
    sources._modules["a.py"] = Module("a.py", _TEXT)
    recording = Recording(sites=[Site("a.py", *span)], transfers=[row])
    recording.executions.append(
        Execution(
            site=0, api=api, function=function, ran_on=target, default_device="accel:0", argument=argument,
            reason=reason, count=count, nbytes=nbytes, dragged=same, origin=0, named_at=0, wanted="cpu:0",
        )
    )  # fmt: skip
    recording.compiles.append(
        Compile(
            site=0, api=api, function=function, reason=reason, argument=beside, n_changed=same, before=target,
            after="cpu:0, committed", earlier=0, count=count, compile_ns=ns,
        )
    )  # fmt: skip
    recording.arrivals.append(
        Arrival(site=0, api=api, reason=reason, array=row.array, place="cpu:0", expected=target, count=count)
    )
    leaves = tuple(Operand(leaf, row.array, place) for leaf, place in ((argument, "cpu:0"), (beside, target)))
    recording.conflicts.append(Conflict(site=0, api=api, function=function, operands=leaves, count=count))
    for finding in explain(recording, sources):
        assert finding.cause
        assert finding.fix
        assert headline(finding, "f(x)")
