"""Source text as evidence: the user's own words, and silence where they are not certain."""

from __future__ import annotations

import linecache
import os
import sys
import textwrap
from pathlib import Path

import pytest

from moored.model.module import Module, Sources
from moored.model.operands import split_path
from moored.model.recording import Header, Recording
from moored.model.site import Site


def site_of(source: str, expression: str, nth: int = 0) -> Site:
    """The site whose span is the nth occurrence of ``expression``, columns in UTF-8 bytes."""
    at = -1
    for _ in range(nth + 1):
        at = source.index(expression, at + 1)
    before, text = source[:at], source[at : at + len(expression)]
    line = before.count("\n") + 1
    column = len(before.rpartition("\n")[2].encode())
    last = text.rpartition("\n")[2]
    end_column = len(last.encode()) + (column if "\n" not in text else 0)
    return Site("a.py", line, line + text.count("\n"), column, end_column)


def words(
    source: str, expression: str, argument: str, api: str, function: str | None = None, **options: bool
) -> str:
    source = textwrap.dedent(source)
    module = Module("a.py", source)
    return module.argument_at(site_of(source, expression), argument, api, function, **options)


# -- which of the user's words moved ---------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "expression", "argument", "api", "expected"),
    [
        ("acc = step(acc, batch)", "step(acc, batch)", "[1]", "jit", "batch"),
        ("predict(posterior, x)", "predict(posterior, x)", "[0]['w']", "jit", "posterior['w']"),
        ("predict(posterior, x)", "predict(posterior, x)", "[0]", "jit", "posterior"),
        ("f(x, y=targets * 2)", "f(x, y=targets * 2)", "['y']", "jit", "targets * 2"),
        ("f(x, y=state)", "f(x, y=state)", "['y'].params[0]", "jit", "state.params[0]"),
        ("f(a + b)", "f(a + b)", "[0]['w']", "jit", "(a + b)['w']"),
        ("f(x)", "f(x)", "['y']", "jit", ""),
        ("f(x)", "f(x)", "[3]", "jit", ""),
        ("f({'w': w, 'b': b}, x)", "f({'w': w, 'b': b}, x)", "[0]['b']", "jit", "b"),
        ("f((p, q), x)", "f((p, q), x)", "[0][1]['k']", "jit", "q['k']"),
        ("f({**p}, x)", "f({**p}, x)", "[0]['b']", "jit", ""),
        ("f(x)", "f(x)", "[0][<flat index 0>]", "jit", "x"),
        ("f(x, *rest)", "f(x, *rest)", "[0]", "jit", "x"),
        ("f(x, *rest)", "f(x, *rest)", "[2]", "jit", "*rest"),
        ("f(*rest, x)", "f(*rest, x)", "[1]", "jit", ""),
        ("f(x, **named)", "f(x, **named)", "['y']", "jit", ""),
        ("row = tokens[i]", "tokens[i]", "[0]", "__getitem__", "tokens"),
        ("row = self.data.tokens[i, :]", "self.data.tokens[i, :]", "[0]", "__getitem__", "self.data.tokens"),
        ("row = tokens[idx]", "tokens[idx]", "[1]", "__getitem__", "idx"),
        ("row = tokens[idx, j]", "tokens[idx, j]", "[1]", "__getitem__", ""),
        ("jnp.take(images, idx, axis=0)", "jnp.take(images, idx, axis=0)", "[0]", "take", "images"),
        ("c = a + b", "a + b", "[1]", "add", "b"),
        ("c = a + b", "a + b", "[0]", "add", "a"),
        ("a += b", "a += b", "[1]", "add", "b"),
        ("y = -x", "-x", "[0]", "negative", "x"),
        ("y = x.sum()", "x.sum()", "[0]", "sum", "x"),
        ("y = x.T", "x.T", "[0]", "_transpose_property", "x"),
        ("y = x.at[i].set(v)", "x.at[i].set(v)", "[0]", "set", "x"),
        ("y = x.at[i].set(v)", "x.at[i].set(v)", "[2]", "set", ""),
        ("float(loss)", "float(loss)", "", "float", "loss"),
        ("loss.item()", "loss.item()", "", "item", "loss"),
        ("out['loss'].tolist()", "out['loss'].tolist()", "", "tolist", "out['loss']"),
        ("np.mean(losses)", "np.mean(losses)", "", "mean", "losses"),
        ("print(loss)", "print(loss)", "", "str", "loss"),
        ("print('loss', loss)", "print('loss', loss)", "", "str", "loss"),
        ("print(x.shape, loss)", "print(x.shape, loss)", "", "str", "loss"),
        ("print(acc, loss)", "print(acc, loss)", "", "str", ""),
        ("s = f'{loss:.3f}'", "f'{loss:.3f}'", "", "format", "loss"),
        ("log.update(loss)", "log.update(loss)", "", "np.asarray", ""),
        ("t = jax.device_put(table, gpu)", "jax.device_put(table, gpu)", "", "device_put", "table"),
        ("t = jax.device_put(x=table)", "jax.device_put(x=table)", "", "device_put", "table"),
        ("while err > tol: pass", "err > tol", "", "bool", "err > tol"),
        ("ok = not done", "not done", "", "bool", "done"),
        ("while 0 < err < 1: pass", "0 < err < 1", "", "bool", ""),
        ("jnp.concatenate([p, q])", "jnp.concatenate([p, q])", "[0][1]", "concatenate", "q"),
    ],
)  # fmt: skip
def test_the_users_words_for_what_moved(
    source: str, expression: str, argument: str, api: str, expected: str
) -> None:
    assert words(source, expression, argument, api) == expected


@pytest.mark.parametrize(
    ("source", "expression", "argument", "api", "function", "expected"),
    [
        # What JAX ran is what the line calls, under the name that JAX gives it ...
        ("jnp.take(a, i, axis=0)", "jnp.take(a, i, axis=0)", "[1]", "take", "_take", "i"),
        ("x.max(axis=0)", "x.max(axis=0)", "[0]", "max", "_reduce_max", "x"),
        ("jnp.concatenate([p, q])", "jnp.concatenate([p, q])", "[1]", "concatenate", "concatenate", "q"),
        # ... or only prepares something: then the position proves nothing.
        ("row = x[idx]", "x[idx]", "[0]", "__getitem__", "select_n", "idx"),
        ("row = x[idx]", "x[idx]", "[0]", "__getitem__", "gather", "x"),
        ("row = x[idx]", "x[idx]", "[0]", "__getitem__", "broadcast_in_dim", ""),
        ("row = x[None]", "x[None]", "[0]", "__getitem__", "broadcast_in_dim", "x"),
        ("c = a + b", "a + b", "[0]", "add", "convert_element_type", ""),
        ("c = a + 1", "a + 1", "[0]", "add", "convert_element_type", "a"),
        ("c = a > b", "a > b", "[0]", "gt", "greater", ""),
        ("jnp.full((3,), v)", "jnp.full((3,), v)", "[0]", "full", "broadcast_in_dim", "v"),
        ("jnp.einsum('ij->i', a)", "jnp.einsum('ij->i', a)", "[0][0]", "einsum", "_einsum", "a[0]"),
        # A call through other code has other positions.
        ("outs = list(map(step, xs))", "map(step, xs)", "[0]", "jit", "step", ""),
        ("run = partial(step, p)\nrun(x)", "run(x)", "[1]", "jit", "step", ""),
        ("run = partial(jax.jit, static_argnums=1)(step)\nrun(x, 2)", "run(x, 2)", "[0]", "jit", "step", "x"),
        ("train = make(opt)\ntrain(p, x)", "train(p, x)", "[1]", "jit", "step", "x"),
        # Methods: the tracer counts the arguments in the parentheses; the object itself is "['self']".
        ("class M:\n    @jax.jit\n    def f(self, x): pass\nm.f(y)", "m.f(y)", "[0]", "jit", "f", "y"),
        (
            "class M:\n    @jax.jit\n    def f(self, x): pass\nm.f(y)",
            "m.f(y)", "['self'].w", "jit", "f", "m.w",
        ),
        (
            "class M:\n    @jax.jit\n    def f(self, x): pass\nM.f(m, y)",
            "M.f(m, y)", "[0]", "jit", "f", "y",
        ),
        (
            "class M:\n    @jax.jit\n    def f(self, x): pass\nM.f(m, y)",
            "M.f(m, y)", "['self'].w", "jit", "f", "m.w",
        ),
        ("class M:\n    @jax.jit\n    def f(cls, x): pass\nM.f(y)", "M.f(y)", "[1]", "jit", "f", "y"),
        ("self.f = jax.jit(f)\nself.f(y)", "self.f(y)", "[0]", "jit", "f", "y"),
        ("trainer.f(y, z)", "trainer.f(y, z)", "[1]", "jit", "f", ""),
        ("import lib\nlib.f(y, z)", "lib.f(y, z)", "[1]", "jit", "f", "z"),
        ("model(x)", "model(x)", "[0]", "jit", "__call__", "x"),
        ("model(x)", "model(x)", "['self'].w", "jit", "__call__", "model.w"),
    ],
)  # fmt: skip
def test_positions_count_only_where_the_line_shows_the_call_that_ran(
    source: str, expression: str, argument: str, api: str, function: str, expected: str
) -> None:
    header = "from functools import partial\nimport jax\nimport jax.numpy as jnp\n"
    assert words(header + source, expression, argument, api, function) == expected


def test_a_host_value_may_be_a_constant_of_jax_so_a_single_candidate_proves_nothing() -> None:
    source = "import jax\njax.image.resize(img, (8, 8))"
    call = "jax.image.resize(img, (8, 8))"
    assert words(source, call, "[1]", "resize", "dot_general") == "img"
    assert words(source, call, "[1]", "resize", "dot_general", from_host=True) == ""
    assert words("x[idx]", "x[idx]", "[0]", "__getitem__", "add", from_host=True) == "idx"


def test_without_columns_only_the_one_call_of_its_name_is_certain() -> None:
    module = Module("a.py", "y = step(p, x)\nz = step(p, x) + step(p, y)\nr = t[i]\n")
    assert module.argument_at(Site("a.py", 1), "[1]", "jit", "step") == "x"
    assert module.argument_at(Site("a.py", 2), "[1]", "jit", "step") == ""
    assert module.argument_at(Site("a.py", 3), "[0]", "__getitem__", "dynamic_slice") == "t"
    assert module.expression_at(Site("a.py", 2)) == "z = step(p, x) + step(p, y)"


class Probe:
    """Stands for an array: notes the instruction that the test's own frame was at when it was used."""

    def __init__(self, sites: list[Site]) -> None:
        self.sites = sites

    def _seen(self) -> None:
        frame = sys._getframe(2)
        positions = list(frame.f_code.co_positions())[frame.f_lasti // 2]
        line, end_line, column, end_column = positions
        assert line is not None
        self.sites.append(Site("probe.py", line, end_line or line, column, end_column))

    def __bool__(self) -> bool:
        self._seen()
        return False

    def __float__(self) -> float:
        self._seen()
        return 0.0

    def __format__(self, spec: str) -> str:
        self._seen()
        return ""

    def __iter__(self):  # type: ignore[no-untyped-def]
        self._seen()
        return iter(())

    def __getitem__(self, index: object) -> Probe:
        self._seen()
        return self

    def __add__(self, other: object) -> Probe:
        self._seen()
        return self

    def __iadd__(self, other: object) -> Probe:
        self._seen()
        return self

    def sum(self) -> Probe:
        self._seen()
        return self


@pytest.mark.parametrize(
    ("statement", "argument", "api", "expected"),
    [
        ("for row in a: pass", "", "iter", "a"),
        ("rows = [row for row in a]", "", "iter", "a"),
        ("if a: pass", "", "bool", "a"),
        ("while a: pass", "", "bool", "a"),
        ("ok = 1 if a else 2", "", "bool", "a"),
        ("float(a)", "", "float", "a"),
        ("s = f'é {a:.3f}'", "", "format", "a"),
        ("row = a[0]", "[0]", "__getitem__", "a"),
        ("s = 'éé'; row = a[0]", "[0]", "__getitem__", "a"),
        ("c = a + b", "[1]", "add", "b"),
        ("a += b", "[1]", "add", "b"),
        ("c = (a\n     + b)", "[1]", "add", "b"),
        ("y = (a\n     .sum())", "[0]", "sum", "a"),
    ],
)
def test_words_from_the_spans_that_this_python_really_gives(
    statement: str, argument: str, api: str, expected: str
) -> None:
    sites: list[Site] = []
    exec(compile(statement, "probe.py", "exec"), {"a": Probe(sites), "b": Probe(sites)})
    assert len(sites) == 1
    assert Module("probe.py", statement).argument_at(sites[0], argument, api) == expected


def test_two_values_in_one_f_string_are_told_apart_or_not_named() -> None:
    sites: list[Site] = []
    statement = "s = f'{a:.1f} {b:.1f}'"
    exec(compile(statement, "probe.py", "exec"), {"a": Probe(sites), "b": Probe(sites)})
    module = Module("probe.py", statement)
    found = [module.argument_at(site, "", "format") for site in sites]
    assert found == (["a", "b"] if sys.version_info >= (3, 12) else ["", ""])


# -- expressions and lines -------------------------------------------------------------------


def test_expressions_count_columns_in_bytes_and_come_on_one_line() -> None:
    source = "s = 'é'; row = tokens[\n    i,\n    :\n]\n"
    assert (
        Module("a.py", source).expression_at(site_of(source, "tokens[\n    i,\n    :\n]")) == "tokens[ i, : ]"
    )


def test_an_expression_that_can_not_be_found_is_the_line() -> None:
    module = Module("a.py", "if x:\n    this is ! python\n")
    assert module.expression_at(Site("a.py", 2, 2, 4, 9)) == "this is ! python"
    assert module.expression_at(Site("a.py", 99, 99, 0, 1)) == ""
    assert module.tree is None
    assert module.enclosing_loop(2) is None


SOURCE = textwrap.dedent(
    """\
    import jax
    import jax as j
    from jax import default_device as on

    with jax.default_device(cpu):
        tokens = load(path)
        with open(name) as f, on(jax.devices("cpu")[1]):
            inner = (
                make()
            )
        def later():
            late = make()
    outside = make()
    with j.default_device(home): short = make()
    for epoch in range(3):
        while True:
            self.batch = next(it)
            if step % 10 == 0:
                print(loss)
        else:
            after = 1
    out = [
        f(b)
        for b in batches
    ]
    a, b = make()
    x = y = make()
    total: float = make()
    """
)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (5, None),
        (6, "cpu"),
        (8, 'jax.devices("cpu")[1]'),
        (9, 'jax.devices("cpu")[1]'),
        (12, None),
        (13, None),
        (14, "home"),
    ],
)
def test_the_default_device_around_a_line(line: int, expected: str | None) -> None:
    assert Module("a.py", SOURCE).default_device_at(line) == expected


def test_another_librarys_default_device_is_not_jaxs() -> None:
    source = "import torch\nwith torch.default_device(cpu):\n    x = make()\n"
    assert Module("a.py", source).default_device_at(3) is None


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (6, "tokens"), (9, "inner"), (14, "short"), (17, "self.batch"), (23, "out"), (26, None), (27, None),
        (28, "total"), (19, None), (1, None),
    ],
)  # fmt: skip
def test_the_single_target_that_a_line_assigns(line: int, expected: str | None) -> None:
    assert Module("a.py", SOURCE).assignment_at(line) == expected


def test_statements_loops_and_indentation() -> None:
    module = Module("a.py", SOURCE)
    assert module.statement_span(9) == (8, 10)
    assert module.indentation(8) == " " * 8
    assert [module.enclosing_loop(n) for n in (6, 15, 17, 19, 21, 23)] == [None, 15, 16, 16, 15, 22]
    assert [module.throttled_at(n) for n in (17, 19, 21)] == [False, True, False]
    assert module.in_function(12)
    assert not module.in_function(6)


def test_a_function_in_a_loop_is_not_repeated_by_it() -> None:
    module = Module("a.py", "for i in r:\n    def f():\n        g()\n    f()\n")
    assert module.enclosing_loop(3) is None
    assert module.enclosing_loop(4) == 1


# -- finding files ---------------------------------------------------------------------------


def test_encodings_are_read_as_python_reads_them(tmp_path: Path) -> None:
    (tmp_path / "latin.py").write_bytes(b"# -*- coding: latin-1 -*-\nx = '\xe9'; y = f(a)\n")
    (tmp_path / "bom.py").write_bytes(b"\xef\xbb\xbfy = f(a)\r\n")
    sources = Sources(os.fspath(tmp_path))
    latin, bom = sources.module("latin.py"), sources.module("bom.py")
    assert latin is not None
    assert latin.line(2) == "x = 'é'; y = f(a)"
    assert latin.argument_at(Site("latin.py", 2, 2, 14, 18), "[0]", "jit") == "a"
    assert bom is not None
    assert bom.lines == ["y = f(a)", ""]
    assert sources.module("latin.py") is latin


@pytest.mark.parametrize(
    "data", [b"\x7fELF\0\0", b"# coding: no-such-codec\n", b"x = '\xff'\n", b"#" * 4_000_001], ids=repr
)  # fmt: skip
def test_a_file_that_is_no_source_has_no_module(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.py").write_bytes(data)
    assert Sources(os.fspath(tmp_path)).module("a.py") is None


def test_missing_files_folders_and_odd_names_have_no_module(tmp_path: Path) -> None:
    sources = Sources(os.fspath(tmp_path))
    assert [sources.module(name) for name in ("gone.py", ".", "<string>", "nul\0.py", "")] == [None] * 5


def test_a_file_that_changed_since_the_run_is_not_quoted(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_text("x = 1\n")
    os.utime(file, (1000.0, 1000.0))
    recording = Recording(Header(cwd=os.fspath(tmp_path), started=1500.0))
    assert Sources.of(recording).module("a.py") is not None
    os.utime(file, (2000.0, 2000.0))
    sources = Sources.of(recording)
    assert sources.module("a.py") is None
    assert sources.changed == {"a.py"}


def test_notebook_cells_are_found_where_ipython_keeps_them() -> None:
    name = "<moored test cell>"
    linecache.cache[name] = (7, None, ["y = f(a)\n"], name)
    try:
        module = Sources().module(name)
    finally:
        del linecache.cache[name]
    assert module is not None
    assert module.line(1) == "y = f(a)"


def test_a_leafs_path_splits_into_steps() -> None:
    assert split_path("[0]['it\\'s'].b[-1]") == (["[0]", "['it\\'s']", ".b", "[-1]"], "")
    assert split_path("nonsense") == ([], "nonsense")
