"""``moored.where``: tells where every leaf is, and does nothing else."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import moored
from isolated import ON_ACCELERATOR, ON_FOUR_CPUS, output
from moored import where
from moored.placement.table import _shorten

CPU = jax.devices("cpu")[0]


@pytest.fixture
def unused_tcp_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def only(tree):
    (row,) = where(tree).rows
    return row


def test_committed_and_uncommitted_arrays_are_told_apart():
    made = only(jnp.ones((3, 4)))
    put = only(jax.device_put(jnp.ones((3, 4)), CPU))
    assert (made.committed, put.committed) == (False, True)
    assert (put.kind, put.shape, put.dtype, put.nbytes) == ("jax array", (3, 4), "float32", 48)
    assert (put.device, put.memory_kind, put.shares) == ("cpu:0", "device", {"cpu:0": 48})


@pytest.mark.parametrize(
    ("leaf", "kind", "array", "device", "nbytes"),
    [
        (np.ones((2, 3), np.int16), "numpy", "int16[2,3]", "host", 12),
        (np.array(["a", "bc"]), "numpy", "<U2[2]", "host", 16),
        (np.float32(1.5), "scalar", "float32[]", "host", 4),
        (3, "scalar", "int[]", "host", 0),
        (2.5, "scalar", "float[]", "host", 0),
        (True, "scalar", "bool[]", "host", 0),
        (1j, "scalar", "complex[]", "host", 0),
        ("resnet", "other", "str", "-", 0),
        (object(), "other", "object", "-", 0),
        (jax.ShapeDtypeStruct((5,), np.float32), "other", "float32[5]", "-", 0),
    ],
    ids=lambda value: type(value).__name__,
)
def test_leaves_that_are_no_jax_arrays(leaf, kind, array, device, nbytes):
    row = only(leaf)
    assert (row.kind, row.array, row.device, row.nbytes) == (kind, array, device, nbytes)
    assert row.committed is None
    assert row.memory_kind is None


def test_typed_keys_count_the_counters_inside():
    row = only(jax.device_put(jax.random.split(jax.random.key(0), 4), CPU))
    assert (row.kind, row.dtype, row.shape, row.nbytes) == ("key array", "key<fry>", (4,), 32)
    assert row.committed is True


def test_deleted_and_donated_arrays_do_not_raise_and_hold_nothing():
    deleted, key = jnp.ones(4), jax.random.key(0)
    deleted.delete()
    key.delete()
    donated = jnp.arange(8.0)
    jax.jit(lambda x: x + 1, donate_argnums=0)(donated)
    placement = where({"a": deleted, "b": donated, "c": key})
    assert [row.kind for row in placement.rows] == ["deleted"] * 3
    assert [row.array for row in placement.rows] == ["float32[4]", "float32[8]", "key<fry>[]"]
    assert placement.totals == {}


@pytest.mark.parametrize("transform", [jax.jit, jax.vmap, jax.grad], ids=["jit", "vmap", "grad"])
def test_tracers_are_rows_like_others(transform):
    seen = []

    def step(x):
        seen.append(where({"x": x, "n": 1}))
        return x.sum()

    transform(step)(jnp.ones(3) if transform is not jax.vmap else jnp.ones((2, 3)))
    rows = {row.path: row for row in seen[0].rows}
    assert (rows["['x']"].kind, rows["['x']"].array, rows["['x']"].device) == (
        "tracer",
        "float32[3]",
        "traced",
    )
    assert rows["['n']"].kind == "scalar"


def test_paths_are_keystr_and_none_is_no_leaf():
    tree = {"a": [jnp.ones(1), None], "b": (np.ones(1),), "c": None}
    expected = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)]
    assert [row.path for row in where(tree).rows] == expected == ["['a'][0]", "['b'][0]"]
    assert only(jnp.ones(1)).path == ""


def test_an_object_that_is_there_twice_counts_once_in_the_totals():
    tied = jnp.ones(256)
    placement = where({"embed": tied, "head": tied, "own": jnp.ones(256)})
    assert len(placement.rows) == 3
    assert placement.totals == {"cpu:0": 2048}


def test_flax_modules_and_optimisers():
    nnx = pytest.importorskip("flax.nnx")
    optax = pytest.importorskip("optax")
    model = nnx.Linear(3, 4, rngs=nnx.Rngs(0))
    rows = {row.path: row for row in where(model).rows}
    assert rows[".kernel.value"].array == "float32[3,4]"
    assert rows[".kernel.value"].committed is False
    optimiser = nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)
    assert any("count" in row.path and row.nbytes == 4 for row in where(optimiser).rows)


def test_the_table_verbatim():
    tree = {
        "encoder": {"attention": {"query_projection": {"kernel": jnp.ones((256, 64))}}},
        "step": 3,
        "tokens": np.zeros((1000, 1024), np.uint16),
        "w": jax.device_put(jnp.ones((256, 64)), CPU),
    }
    lines = str(where(tree)).splitlines()
    assert lines == [
        "path              array                bytes  device  memory  committed  kind",
        "['enc...kernel']  float32[256,64]    65.5 kB  cpu:0   device  no         jax array",
        "['step']          int[]                    -  host    -       -          scalar",
        "['tokens']        uint16[1000,1024]  2.05 MB  host    -       -          numpy",
        "['w']             float32[256,64]    65.5 kB  cpu:0   device  yes        jax array",
        "",
        "total: cpu:0 131 kB; host 2.05 MB",
        "4 leaves, 1 uncommitted",
    ]
    assert repr(where(tree)) == str(where(tree))


def test_a_tree_without_leaves_says_so():
    assert str(where({"a": None, "b": []})) == "no leaves"


def test_long_paths_lose_their_middle():
    short = _shorten("['params']['layer_11']['attention']['kernel']", 20)
    assert len(short) == 20
    assert short == "['para...]['kernel']"


def test_nothing_is_read_moved_or_started():
    assert (
        output("""
        import numpy as np
        import moored
        import jax
        from jax.extend import backend
        print(moored.where({"tokens": np.ones(3), "step": 1}).totals)
        import jax._src.xla_bridge as bridge
        print("started:", bridge.backends_are_initialized())
    """)
        == "{'host': 24}\nstarted: False\n"
    )


def test_a_pending_computation_is_not_waited_for():
    # The loop would run for hours: were where() to wait for it, this would never end.
    assert (
        output("""
        import os
        import jax, jax.numpy as jnp
        from moored import where
        endless = jax.jit(lambda x: jax.lax.fori_loop(0, 2**31 - 1, lambda _, y: jnp.tanh(y @ y), x))
        pending = endless(jnp.ones((256, 256)))
        row, = where(pending).rows
        print(pending.is_ready(), row.array, row.committed, flush=True)
        os._exit(0)
    """)
        == "False float32[256,256] False\n"
    )


def test_where_itself_moves_and_reads_nothing():
    tree = {
        "a": jnp.ones(3),
        "key": jax.random.key(0),
        "n": np.ones(3),
        "s": jax.device_put(jnp.ones(3), CPU),
    }
    with moored.watch() as report:
        str(where(tree))
    assert report.recording.transfers == []


def test_sharded_arrays_count_what_each_device_holds():
    assert output(
        """
        import jax, numpy as np
        from jax.sharding import NamedSharding, PartitionSpec as P
        from moored import where
        mesh = jax.make_mesh((2, 2), ("x", "y"))
        for spec in (P("x", "y"), P("x"), P(("x", "y")), P()):
            placement = where(jax.device_put(np.ones((8, 8), np.float32), NamedSharding(mesh, spec)))
            (row,) = placement.rows
            print(row.device, row.nbytes, *placement.totals.items(), row.shares == placement.totals)
        keys = jax.random.split(jax.random.key(0), 8)
        print(where(jax.device_put(keys, NamedSharding(mesh, P("x")))).totals)
        """,
        simulate=ON_FOUR_CPUS,
    ).splitlines() == [
        "cpu:0-3 P('x', 'y') 256 ('cpu:0', 64) ('cpu:1', 64) ('cpu:2', 64) ('cpu:3', 64) True",
        "cpu:0-3 P('x',) 256 ('cpu:0', 128) ('cpu:1', 128) ('cpu:2', 128) ('cpu:3', 128) True",
        "cpu:0-3 P(('x', 'y'),) 256 ('cpu:0', 64) ('cpu:1', 64) ('cpu:2', 64) ('cpu:3', 64) True",
        "cpu:0-3 replicated 256 ('cpu:0', 256) ('cpu:1', 256) ('cpu:2', 256) ('cpu:3', 256) True",
        "{'cpu:0': 32, 'cpu:1': 32, 'cpu:2': 32, 'cpu:3': 32}",
    ]


def test_two_clients_that_both_call_themselves_cpu_are_told_apart():
    assert output(
        """
        import jax, jax.numpy as jnp, numpy as np
        from jax.sharding import SingleDeviceSharding
        from moored import where
        accel, cpu = jax.devices()[0], jax.devices("cpu")[0]
        assert str(accel) == str(cpu)
        with jax.default_device(cpu):
            drifting = jnp.ones(256)
        pinned = jax.device_put(jnp.ones(256), SingleDeviceSharding(accel, memory_kind="pinned_host"))
        print(where([jnp.ones(256), drifting, pinned]))
        """,
        simulate=ON_ACCELERATOR,
    ).splitlines() == [
        "path  array           bytes  device   memory       committed  kind",
        "[0]   float32[256]  1.02 kB  accel:0  device       no         jax array",
        "[1]   float32[256]  1.02 kB  cpu:0    device       no         jax array",
        "[2]   float32[256]  1.02 kB  accel:0  pinned_host  yes        jax array",
        "",
        "total: accel:0 1.02 kB; accel:0 pinned_host 1.02 kB; cpu:0 1.02 kB",
        "3 leaves, 2 uncommitted",
    ]


def test_devices_of_other_processes_are_counted_and_not_touched(unused_tcp_port):
    code = """
        import sys
        import jax, numpy as np
        from jax.sharding import NamedSharding, PartitionSpec as P
        from moored import where
        jax.distributed.initialize(sys.argv[1], 2, int(sys.argv[2]))
        mesh = jax.make_mesh((2,), ("x",))
        values = np.arange(8, dtype=np.float32)
        array = jax.make_array_from_callback((8,), NamedSharding(mesh, P("x")), lambda index: values[index])
        row, = where(array).rows
        print(array.is_fully_addressable, row.array, row.nbytes, len(row.shares), set(row.shares.values()))
    """
    address = f"127.0.0.1:{unused_tcp_port}"
    with ThreadPoolExecutor() as pool:
        printed = list(pool.map(lambda rank: output(code, address, str(rank)), range(2)))
    assert printed == ["False float32[8] 32 2 {16}\n"] * 2
