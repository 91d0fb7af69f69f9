"""What the seams see: one table of (id, thunk, expected events), on two CPU devices.

Each row runs in this process under a collector of its own; events are compared as
(direction, explicit, seam, shape, count).
"""

import dataclasses
import functools
import signal
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moored.trace import seams
from moored.trace.collect import Collector

pytestmark = pytest.mark.skipif(len(jax.devices()) < 2, reason="needs two devices (see conftest.py)")

HOST = np.ones((300, 10), np.float32)


def home():
    return jax.devices()[1]


def drifting(shape=(300, 10)):
    with jax.default_device(home()):
        return (jnp.zeros(shape) + 1).block_until_ready()


def on_device(shape=(300, 10)):
    return (jnp.zeros(shape) + 1).block_until_ready()


add = jax.jit(lambda x, y: x + y)
scaled = jax.jit(lambda tree: {k: v * 2 for k, v in tree.items()})
prunes = jax.jit(lambda x, y: x * 1.0)


def traced(program, *, attach_first=True):
    collector = Collector()
    collector.attach()
    try:
        program()
        return collector.snapshot()
    finally:
        collector.detach()


def events(recording):
    return sorted((t.direction, t.explicit, t.seam, t.array.shape, t.count) for t in recording.transfers)


def repeat(n, f):
    def program():
        for _ in range(n):
            f()

    return program


def table():
    u, d = drifting(), on_device()
    c = jax.device_put(u, home())
    small = on_device((3,))
    with jax.default_device(home()):
        k = jax.random.split(jax.random.key(0), 100)
    aot = add.lower(HOST, d).compile()
    whole = (300, 10)
    yield "uncommitted array indexed", repeat(4, lambda: u[1]), [("d2d", False, "call", whole, 4)]
    yield "committed array indexed", repeat(4, lambda: c[1]), []
    yield "array on the default device", repeat(4, lambda: d[1] + 1), []
    yield "numpy into jit", repeat(3, lambda: add(HOST, d)), [("h2d", False, "call", whole, 3)]
    yield (
        "numpy leaf of a dict",
        repeat(3, lambda: scaled({"a": HOST, "b": d})),
        [("h2d", False, "call", whole, 3)],
    )
    yield "numpy by keyword", repeat(3, lambda: add(d, y=HOST)), [("h2d", False, "call", whole, 3)]
    yield "pruned argument", repeat(3, lambda: prunes(d, u)), []
    yield "beside a committed operand", repeat(3, lambda: add(d, c)), [("d2d", False, "call", whole, 3)]
    yield "scalars are noise", repeat(3, lambda: add(d, 2.0)), []
    yield "device_put", repeat(2, lambda: jax.device_put(HOST)), [("h2d", True, "put", whole, 2)]
    yield (
        "device_put elsewhere",
        repeat(2, lambda: jax.device_put(d, home())),
        [("d2d", True, "put", whole, 2)],
    )
    yield "device_put where it is", repeat(2, lambda: jax.device_put(d, jax.devices()[0])), []
    yield "float", repeat(3, lambda: float(small[0])), [("d2h", False, "read", (), 3)]
    yield "str", lambda: str(on_device((5,))), [("d2h", False, "read", (5,), 1)]
    yield "device_get", lambda: jax.device_get(on_device((5,))), [("d2h", True, "read", (5,), 1)]
    yield (
        "grad",
        repeat(3, lambda: jax.grad(lambda w: add(w, d).sum())(u)),
        [("d2d", False, "call", whole, 3)],
    )
    yield "vmap", repeat(3, lambda: jax.vmap(lambda r: r * 2)(u)), [("d2d", False, "call", whole, 3)]
    yield "scan", repeat(3, lambda: _scan(u)), [("d2d", False, "call", whole, 3)]
    yield "in a thread", lambda: _in_thread(lambda: add(HOST, d)), [("h2d", False, "call", whole, 1)]
    yield "typed keys", repeat(3, lambda: k[1]), [("d2d", False, "call", (100, 2), 3)]
    yield "ahead-of-time compiled", repeat(3, lambda: aot(HOST, d)), [("h2d", False, "call", whole, 3)]
    yield (
        "a jitted method",
        repeat(3, lambda: Scaler().scale(HOST)),
        [("h2d", False, "call", whole, 3)],
    )
    # Baked into the program each time: the constant is read, and nothing moves in the inner call.
    yield (
        "traced inside another jit",
        repeat(2, lambda: jax.jit(lambda x: add(x, d) + 1)(d)),
        [("d2h", False, "constant", whole, 2)],
    )


class Scaler:
    @jax.jit
    def scale(self, x):
        return x * 2

    def halve(self, x):
        return x / 2


jax.tree_util.register_pytree_node(Scaler, lambda s: ((), None), lambda aux, children: Scaler())


def _scan(xs):
    return jax.lax.scan(lambda carry, x: (carry + x.sum(), None), 0.0, xs)


def _in_thread(f):
    thread = threading.Thread(target=f)
    thread.start()
    thread.join()


@pytest.mark.parametrize("name", [row[0] for row in table()] if len(jax.devices()) > 1 else [])
def test_events(name):
    (program, expected) = next((row[1], row[2]) for row in table() if row[0] == name)
    recording = traced(program)
    assert recording.header.moored_errors == []
    assert events(recording) == expected


def test_under_grad_the_drifting_argument_is_seen_each_time():
    u, d = drifting(), on_device()
    recording = traced(repeat(3, lambda: jax.grad(lambda w: add(w, d).sum())(u)))
    moved = [t for t in recording.transfers if t.reason == "uncommitted" and t.array.shape == (300, 10)]
    assert sum(t.count for t in moved) == 3


def test_iteration_moves_the_parent_once_per_chunk():
    u = drifting()
    recording = traced(lambda: [row.shape for row in u])
    # JAX slices 100 rows at a time; what else it does there (0.10 reads its loop bounds back) is not ours.
    moved = [t for t in recording.transfers if t.direction == "d2d"]
    assert [(t.count, t.nbytes, t.api) for t in moved] == [(3, 3 * 12_000, "__iter__")]


def test_static_values_that_prune_are_told_apart():
    u, d = drifting(), on_device()
    f = jax.jit(lambda x, y, use: x + y if use else x, static_argnums=2)
    recording = traced(repeat(5, lambda: (f(d, u, True), f(d, u, False))))
    assert events(recording) == [("d2d", False, "call", (300, 10), 5)]


def test_changing_trees_are_told_apart():
    u, d = drifting(), on_device()
    f = jax.jit(lambda tree, x: x + tree["a"] if "a" in tree else x)
    recording = traced(repeat(5, lambda: (f({"a": u}, d), f({"b": u}, d))))
    assert events(recording) == [("d2d", False, "call", (300, 10), 5)]


def test_shapes_that_prune_are_told_apart():
    f = jax.jit(lambda x, y: x + y if x.shape[0] > 100 else x)
    u, d, u2, d2 = drifting(), on_device(), drifting((30, 10)), on_device((30, 10))
    recording = traced(repeat(5, lambda: (f(d, u), f(d2, u2))))
    assert events(recording) == [("d2d", False, "call", (300, 10), 5)]


def test_a_row_names_argument_origin_and_reason():
    u, d = drifting(), on_device()

    def program():
        with jax.default_device(home()):
            made = jnp.zeros((777, 3)) + 1
        for _ in range(2):
            scaled({"first": d, "second": made})

    transfers = traced(program).transfers
    (row,) = [t for t in transfers if t.direction == "d2d"]
    assert (row.argument, row.function, row.api, row.reason) == (
        "[0]['second']",
        "<lambda>",
        "jit",
        "uncommitted",
    )
    assert (row.source, row.target, row.array.committed, row.same_object) == ("cpu:1", "cpu:0", False, 1)
    recording = traced(program)
    (row,) = [t for t in recording.transfers if t.direction == "d2d"]
    assert recording.sites[row.origin].line == recording.sites[row.site].line - 2
    assert recording.sites[row.site].function.endswith("program")
    assert u is not None


def test_a_methods_arguments_are_counted_without_self():
    (row,) = traced(lambda: Scaler().scale(HOST)).transfers
    assert row.argument == "[0]"
    held = Holder(HOST)
    (row,) = traced(lambda: held.scale(2.0)).transfers
    assert row.argument == "['self'].w"
    bound = jax.jit(Scaler().halve)  # has its object already
    (row,) = traced(lambda: bound(HOST)).transfers
    assert row.argument == "[0]"


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Holder:
    w: np.ndarray

    @jax.jit
    def scale(self, x):
        return self.w * x


def test_the_operand_that_pulled_is_named():
    d = on_device()
    c = jax.device_put(np.float32(1), home())
    (row,) = traced(lambda: add(d, c)).transfers
    assert (row.argument, row.beside, row.reason) == ("[0]", "[1]", "follows-committed")


def patched():
    """What the seams replace."""
    internals = seams.load()
    return [
        internals.PjitFunction.__dict__["__call__"],
        internals.PjitFunction.__flags__,
        internals.pxla.shard_args,
        internals.pxla.batched_device_put,
        internals.pxla.InputsHandler.__call__,
        internals.pxla.ExecuteReplicated.__call__,
        internals.ArrayImpl.__dict__["_value"],
        internals.pjit._get_jaxpr_as_fun,
        internals.pjit._pjit_call_impl_python,
        internals.callback._FlatCallback.__init__,
        internals.callback._FlatCallback.__call__,
        internals.debugging.debug_callback_p.impl,
        internals.dispatch._batched_device_put_impl,
        internals.dlpack._place_array,
        threading.Thread.start,
    ]


def test_everything_is_restored():
    before, inside = patched(), []
    recording = traced(lambda: (add(HOST, HOST), inside.extend(patched())))
    assert recording.transfers
    assert patched() == before
    assert all(now != then for now, then in zip(inside, before, strict=True))


def test_everything_is_restored_after_an_exception():
    before = patched()
    with pytest.raises(ZeroDivisionError):
        traced(lambda: jax.jit(lambda x: 1 / 0)(HOST))
    assert patched() == before


def test_a_seam_that_jax_lacks_is_dead_and_the_others_live(monkeypatch):
    monkeypatch.delattr(jax._src.array.ArrayImpl, "_value")
    states = {s.name: s for s in traced(lambda: add(HOST, HOST)).header.seams}
    assert (states["reads"].live, states["calls"].live, states["puts"].live) == (False, True, True)
    assert "KeyError: '_value'" in states["reads"].reason


def test_self_test_sends_one_event_through_each_seam():
    assert [(s.name, s.live, s.reason) for s in Collector.self_test()] == [
        ("calls", True, ""),
        ("puts", True, ""),
        ("reads", True, ""),
        ("compiles", True, ""),
        ("callbacks", True, ""),
        ("arrivals", True, ""),
    ]


def test_self_test_can_fail(monkeypatch):
    from moored.trace import reads

    monkeypatch.setattr(reads, "_saw", lambda *a: None)
    states = {s.name: s for s in Collector.self_test()}
    assert not states["reads"].live
    assert states["reads"].reason == "self-test: 1 known events were sent through it, 0 were seen"


def test_moored_failing_does_not_harm_the_call(monkeypatch):
    from moored.trace.plans import Planner

    def broken(*a, **k):
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(Planner, "learnt", broken)
    result = []
    f = jax.jit(lambda x: x + 1)
    recording = traced(lambda: result.append(f(HOST)))
    assert float(result[0][0, 0]) == 2.0
    assert [(e.error, e.count) for e in recording.header.moored_errors] == [("ZeroDivisionError: ours", 1)]


def test_a_seam_that_keeps_failing_is_retired(monkeypatch):
    from moored.trace.plans import Planner

    def broken(*a, **k):
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(Planner, "learnt", broken)
    recording = traced(repeat(40, lambda: jax.jit(lambda x: x + 1)(HOST)))
    (state,) = [s for s in recording.header.seams if s.name == "calls"]
    assert not state.live
    assert state.reason == "retired after moored failed 25 times: ZeroDivisionError: ours"


def test_watched_functions_are_freed():
    import gc
    import weakref

    collector = Collector()
    collector.attach()
    try:
        f = jax.jit(lambda x: x + 1)
        f(HOST)
        watcher = weakref.ref(f)
        del f
        gc.collect()
        assert watcher() is None
    finally:
        collector.detach()


def test_donated_arguments_and_exceptions_pass_through():
    collector = Collector()
    collector.attach()
    try:
        f = jax.jit(lambda x: x + 1, donate_argnums=0)
        x = on_device()
        y = f(x)
        assert x.is_deleted()
        with pytest.raises((RuntimeError, ValueError), match=r"deleted|donated"):
            f(x)
        with pytest.raises(ZeroDivisionError):
            jax.jit(lambda x: 1 / 0)(y)
        assert collector.store.state.ran is None
        assert jax._src.core.trace_state_clean()
    finally:
        collector.detach()
    assert collector.snapshot().header.moored_errors == []


def test_an_environment_inside_the_users_folder_is_not_theirs():
    from moored.trace.frames import Frames

    kinds = Frames(["/home/me/project"]).kinds
    library, user = (
        kinds["/home/me/project/.venv/lib/python3.12/site-packages/optax/a.py"],
        kinds["/home/me/project/a.py"],
    )
    assert (library, user) == (1, 2)
    inside = Frames(["/venv/lib/python3.12/site-packages/flax/examples"]).kinds
    assert inside["/venv/lib/python3.12/site-packages/flax/examples/train.py"] == 2
    assert inside["/venv/lib/python3.12/site-packages/flax/linen.py"] == 1


def test_equal_shardings_made_anew_for_each_call_are_counted_for_ever(monkeypatch):
    monkeypatch.setattr("moored.trace.plans._MAX_KEYS", 8)
    batches = [jax.device_put(HOST, jax.sharding.SingleDeviceSharding(jax.devices()[0])) for _ in range(40)]

    def program():
        for batch in batches:
            add(HOST, batch)

    assert events(traced(program)) == [("h2d", False, "call", (300, 10), 40)]


def test_many_functions_do_not_end_the_counting_of_one_that_is_warm(monkeypatch):
    monkeypatch.setattr("moored.trace.plans._MAX_FUNCTIONS", 8)
    functions = [jax.jit(lambda x, n=n: x + n) for n in range(20)]

    def program():
        for function in functions:
            function(1.0)
            add(HOST, HOST)

    assert sum(t.count for t in traced(program).transfers) == 2 * 20


def test_an_executable_that_ran_past_the_seam_is_not_taken_for_the_next_call():
    shows = jax.jit(lambda x: jax.debug.callback(lambda v: None, x[0, 0])).lower(HOST).compile()
    two = jax.jit(lambda x, y: x.sum() + y.sum())
    other = np.ones((7, 7), np.float32)

    def program():
        two(HOST, other)
        shows(HOST)
        two(HOST, other)
        jax.effects_barrier()

    recording = traced(program)
    uploads = [(t.array.shape, t.count) for t in recording.transfers if t.function == "<lambda>"]
    assert sorted(uploads) == [((7, 7), 1), ((7, 7), 1), ((300, 10), 1), ((300, 10), 1)]  # two lines
    assert recording.header.moored_errors == []


class _Alarm(Exception):
    pass


@pytest.mark.parametrize("kind", ["function", "partial", "object"])
def test_what_a_signal_handler_raises_in_our_code_reaches_the_program(monkeypatch, kind):
    def function(number, frame):
        raise _Alarm

    class Handler:
        def __call__(self, number, frame):
            raise _Alarm

    handler = {"function": function, "partial": functools.partial(function), "object": Handler()}[kind]
    before = signal.signal(signal.SIGUSR1, handler)
    monkeypatch.setattr("moored.trace.frames.Frames.caller", lambda *_: signal.raise_signal(signal.SIGUSR1))
    collector = Collector()
    collector.attach()
    try:
        for moves in (lambda: add(HOST, 1.0), lambda: jax.device_put(HOST), lambda: float(on_device(()))):
            with pytest.raises(_Alarm):
                moves()
        assert collector.snapshot().header.moored_errors == []
    finally:
        collector.detach()
        signal.signal(signal.SIGUSR1, before)


def test_jax_names_the_user_s_line_and_not_ours():
    inner = jax.jit(lambda x: jnp.sin(x) * 2)

    def program():
        nonlocal text
        text = jax.jit(lambda x: inner(x) + inner(x * 2)).lower(1.0).as_text(debug_info=True)

    text = ""
    hidden = list(seams.load()._source_info._exclude_paths)
    traced(program)
    assert "test_seams.py" in text
    assert "moored/trace" not in text
    assert seams.load()._source_info._exclude_paths == hidden


@pytest.mark.parametrize(
    ("same", "upload"), [(True, double := jax.jit(lambda x: x * 2)), (True, jax.device_put), (False, double)]
)
def test_equal_content_of_other_arrays_is_noted(same, upload):
    def program():
        for i in range(40):
            upload(np.full((500, 10), 1.0 if same else i, np.float32))

    (row,) = traced(program).transfers
    assert (row.count, row.same_object) == (40, 0)
    assert row.compared == 7  # 1-2, 2-3, 3-4, 4-5, 8-9, 16-17, 32-33
    assert row.same_content == (7 if same else 0)


def test_a_layout_over_devices_is_counted_once_and_not_its_slices_too():
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("d",))
    spread = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("d"))
    u, laid_out = drifting(), jax.device_put(HOST, spread)
    recording = traced(repeat(5, lambda: add(laid_out, u)))
    assert [(t.function, t.count) for t in recording.transfers] == [("<lambda>", 5)]


def test_bytes_of_a_host_value_follow_x64_call_by_call():
    wide = np.ones(1000)

    def program():
        for n in range(10):
            with jax.enable_x64(n % 2 == 0):
                add(wide, 1.0)

    assert sum(t.nbytes for t in traced(program).transfers) == 5 * 8000 + 5 * 4000


def test_indices_that_are_arrays_are_noise_too():
    u = drifting()
    index = on_device(()).astype(np.int32)
    recording = traced(repeat(3, lambda: u[index]))
    assert events(recording) == [("d2d", False, "call", (300, 10), 3)]


def test_host_memory_that_comes_through_dlpack_is_news_and_an_array_of_jax_is_not():
    with jax.default_device(home()):  # the default device is another than the CPU device of dlpack
        recording = traced(lambda: (jnp.from_dlpack(HOST), jnp.from_dlpack(on_device())))
    assert [(a.reason, a.place, a.expected, a.count) for a in recording.arrivals] == [
        ("dlpack-host", "cpu:0", "cpu:1", 1)
    ]


def test_callbacks_count_as_callbacks_and_not_as_reads():
    @jax.jit
    def step(x):
        jax.debug.print("{s}", s=x.sum())
        jax.debug.callback(lambda v: float(v[0, 0]), x)
        return jax.pure_callback(lambda v: np.asarray(v) * 2, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    d = on_device()

    def program():
        for _ in range(3):
            step(d).block_until_ready()
        jax.effects_barrier()

    recording = traced(program)
    seen = sorted((t.seam, t.direction, t.api, t.count, t.nbytes) for t in recording.transfers)
    assert seen == [
        ("callback", "d2h", "debug_callback", 3, 36_000),
        ("callback", "d2h", "debug_print", 3, 12),
        ("callback", "d2h", "pure_callback", 3, 36_000),
        ("callback", "h2d", "pure_callback", 3, 36_000),
    ]
