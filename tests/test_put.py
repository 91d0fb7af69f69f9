"""``moored.put``: commits whole trees, verifies, copies nothing that is there, and refuses by name."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from jax.sharding import NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

from isolated import ON_ACCELERATOR, ON_FOUR_CPUS, output
from moored import PlacementError, put, where

CPU, *OTHERS = jax.devices("cpu")
needs_two = pytest.mark.skipif(not OTHERS, reason="needs two CPU devices (see conftest.py)")


def aligned(n: int, dtype=np.float32) -> np.ndarray:
    raw = np.zeros(n * np.dtype(dtype).itemsize + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + n * np.dtype(dtype).itemsize].view(dtype)


def refusal(tree, place="cpu") -> str:
    with pytest.raises(PlacementError) as caught:
        put(tree, place)
    return str(caught.value)


def test_every_kind_of_leaf_is_committed_with_its_value():
    tree = {
        "array": jnp.arange(6.0).reshape(2, 3),
        "bfloat16": np.ones(3, ml_dtypes.bfloat16),
        "bool": True,
        "complex": 1j,
        "empty": np.zeros((3, 0)),
        "int": 3,
        "key": jax.random.key(7),
        "none": None,
        "numpy": np.arange(5, dtype=np.uint16),
        "scalar": np.float16(1.5),
        "strided": np.arange(12, dtype=np.int32)[::2],
        "zero": np.zeros((), np.int8),
    }
    placed = put(tree, CPU)
    assert jax.tree_util.tree_structure(placed) == jax.tree_util.tree_structure(tree)
    assert {row.committed for row in where(placed).rows} == {True}
    assert {row.device for row in where(placed).rows} == {"cpu:0"}
    key = placed.pop("key")
    assert (jax.random.key_data(key) == jax.random.key_data(tree.pop("key"))).all()
    jax.tree.map(
        lambda new, old: np.testing.assert_array_equal(np.asarray(new), np.asarray(old)), placed, tree
    )


def test_python_numbers_stay_weakly_typed():
    assert put(2.0, CPU).weak_type
    assert (put(2.0, CPU) * jnp.ones(1, jnp.bfloat16)).dtype == jnp.bfloat16


@pytest.mark.parametrize("committed", [False, True])
def test_what_is_there_costs_no_copy(committed):
    array = jnp.arange(1000.0)
    if committed:
        array = jax.device_put(array, CPU)
    key = jax.random.key(0)
    placed, placed_key = put((array, key), CPU)
    assert placed.unsafe_buffer_pointer() == array.unsafe_buffer_pointer()
    data, data_before = jax.random.key_data(placed_key), jax.random.key_data(key)
    assert data.unsafe_buffer_pointer() == data_before.unsafe_buffer_pointer()
    assert placed.committed
    assert placed_key.committed


@needs_two
def test_to_another_device_and_back():
    placed = put({"a": jnp.ones(3), "b": np.ones(2)}, OTHERS[0])
    assert {row.device for row in where(placed).rows} == {"cpu:1"}
    assert {row.device for row in where(put(placed, "cpu:0")).rows} == {"cpu:0"}


@needs_two
def test_prefix_trees_of_places():
    tree = {"params": {"w": np.ones(3), "b": None, "deep": [1, 2]}, "step": 0}
    rows = where(put(tree, {"params": OTHERS[0], "step": "cpu"})).rows
    assert {row.path: row.device for row in rows} == {
        "['params']['deep'][0]": "cpu:1",
        "['params']['deep'][1]": "cpu:1",
        "['params']['w']": "cpu:1",
        "['step']": "cpu:0",
    }
    shardings = jax.tree.map(lambda x: x.sharding, put(tree, OTHERS[0]))
    assert {row.device for row in where(put(tree, shardings)).rows} == {"cpu:1"}


def test_memory_kinds_are_part_of_the_place():
    pinned = put(jnp.ones(3), SingleDeviceSharding(CPU, memory_kind="pinned_host"))
    assert pinned.sharding.memory_kind == "pinned_host"
    assert put(pinned, CPU).sharding.memory_kind == "device"


def test_flax_modules_keep_their_type():
    nnx = pytest.importorskip("flax.nnx")
    model = nnx.Linear(3, 4, rngs=nnx.Rngs(0))
    placed = put(model, CPU)
    assert type(placed) is nnx.Linear
    assert {row.committed for row in where(placed).rows} == {True}
    assert placed(jnp.ones((1, 3))).committed


# --- numpy sources: the aliasing rule ---


def test_jax_itself_aliases_aligned_numpy_memory_and_ignores_may_alias():
    """Why put() protects: the claim of its docstring, shown on this JAX."""
    source = aligned(1000)
    for array in (jax.device_put(source, CPU), jax.device_put(source, CPU, may_alias=False)):
        assert array.unsafe_buffer_pointer() == source.ctypes.data
    source[0] = 7
    assert array[0] == 7


@pytest.mark.parametrize("size", [1, 1000, 1 << 18])
@pytest.mark.parametrize("may_alias", [None, False])
def test_a_writeable_source_may_be_written_to_afterwards(size, may_alias):
    source = aligned(size)
    placed = put({"x": source}, CPU, may_alias=may_alias)["x"]
    source[:] = 7
    assert not np.asarray(placed).any()


def test_a_read_only_source_is_taken_over_without_a_copy():
    source = aligned(1000)
    source.flags.writeable = False
    assert put(source, CPU).unsafe_buffer_pointer() == source.ctypes.data
    assert put(source, CPU, may_alias=False).unsafe_buffer_pointer() != source.ctypes.data


def test_a_read_only_memory_map_is_taken_over(tmp_path):
    np.arange(4096, dtype=np.int32).tofile(tmp_path / "tokens.bin")
    tokens = np.memmap(tmp_path / "tokens.bin", np.int32, "r")
    placed = put(tokens, CPU)
    assert placed.unsafe_buffer_pointer() == tokens.ctypes.data
    assert placed[4095] == 4095


def test_aliasing_on_request():
    source = aligned(1000)
    assert put(source, CPU, may_alias=True).unsafe_buffer_pointer() == source.ctypes.data


@given(
    hnp.arrays(
        st.sampled_from([np.int8, np.uint16, np.int32, np.float32, np.complex64, np.bool_]),
        hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=40),
        elements={"allow_nan": False},
    ),
    st.sampled_from([None, True, False]),
    st.booleans(),
)
def test_numpy_values_arrive_whatever_their_layout(array, may_alias, transposed):
    source = array.T if transposed else array
    expected = source.copy()
    placed = put(source, CPU, may_alias=may_alias)
    assert placed.committed
    assert placed.dtype == expected.dtype
    np.testing.assert_array_equal(np.asarray(placed), expected)


# --- refusals ---


def test_leaves_that_can_not_go_are_named_with_reasons_verbatim():
    gone = jnp.ones((2, 3))
    gone.delete()
    tree = {"a": np.ones(3), "gone": gone, "name": "resnet", "objects": np.array([object()]), "z": 2**40}
    assert refusal(tree) == (
        "moored.put: 4 of 5 leaves can not be placed:\n"
        "  ['gone']: float32[2, 3] was deleted or donated; its values are gone\n"
        "  ['name']: a value of type str, neither a number nor an array\n"
        "  ['objects']: numpy dtype object holds no numbers that JAX knows\n"
        "  ['z']: Python int 1099511627776 too large to convert to int32\n"
        "Nothing was placed."
    )


def test_five_are_listed_and_the_rest_counted():
    message = refusal(["x"] * 8)
    assert message.splitlines()[0] == "moored.put: 8 of 8 leaves can not be placed:"
    assert message.splitlines()[-2:] == ["  and 3 more", "Nothing was placed."]
    assert message.count("a value of type str") == 5


@pytest.mark.parametrize(
    ("leaf", "reason"),
    [
        (b"x", "a value of type bytes, neither a number nor an array"),
        (np.array(["a"]), "numpy dtype <U1 holds no numbers that JAX knows"),
        (np.datetime64("2020"), "numpy dtype datetime64[Y] holds no numbers that JAX knows"),
        (np.zeros(2, [("a", "i4")]), "numpy dtype [('a', '<i4')] holds no numbers that JAX knows"),
        (
            jax.ShapeDtypeStruct((3,), np.float32),
            "a value of type ShapeDtypeStruct, neither a number nor an array",
        ),
        (range(3), "a value of type range, neither a number nor an array"),
    ],
    ids=["bytes", "str array", "datetime", "structured", "abstract", "range"],
)
def test_reasons(leaf, reason):
    assert refusal(leaf).splitlines()[1] == f"  (root): {reason}"


def test_donated_arrays_and_deleted_keys_are_named():
    donated, key = jnp.arange(4.0), jax.random.key(0)
    jax.jit(lambda x: x * 2, donate_argnums=0)(donated)
    key.delete()
    message = refusal([donated, key])
    assert "[0]: float32[4] was deleted or donated" in message
    assert "[1]: key<fry>[] was deleted or donated" in message


def test_under_jit_it_says_that_a_tracer_has_no_place():
    with pytest.raises(PlacementError, match=r"\['x'\]: is traced \(inside jit, grad or vmap\)"):
        jax.jit(lambda x: put({"x": x}, CPU))(jnp.ones(3))


@needs_two
def test_a_shape_that_the_sharding_does_not_divide():
    sharding = NamedSharding(jax.make_mesh((2,), ("data",), devices=[CPU, OTHERS[0]]), P("data"))
    assert refusal({"ok": np.ones((4, 2)), "odd": np.ones((3, 2)), "flat": 1.0}, sharding) == (
        "moored.put: 2 of 3 leaves can not be placed:\n"
        "  ['flat']: shape [] does not divide over cpu:0,1 P('data',) (mesh data=2)\n"
        "  ['odd']: shape [3, 2] does not divide over cpu:0,1 P('data',) (mesh data=2)\n"
        "Nothing was placed."
    )


@pytest.mark.parametrize(
    ("place", "message"),
    [
        (
            P("x"),
            "P('x',) is a PartitionSpec and names no devices; write jax.sharding.NamedSharding(mesh, spec)",
        ),
        (
            3,
            "a value of type int is no place; "
            "write a jax.Device, a jax.sharding.Sharding, or a name such as 'cpu' or 'gpu:1'",
        ),
        ("cpu:x", "'cpu:x' is no device name; write a platform or a device: 'cpu', 'gpu:1'"),
        ("", "'' is no device name; write a platform or a device: 'cpu', 'gpu:1'"),
    ],
)
def test_places_that_are_none(place, message):
    assert refusal(1, place) == f"moored.put: {message}"


@needs_two
def test_unknown_names_list_what_there_is():
    assert refusal(1, "rocm") == "moored.put: there is no platform 'rocm' here; JAX has cpu:0,1"
    assert refusal(1, "cpu:7") == "moored.put: there is no device 'cpu:7' here; JAX has cpu:0,1"


@pytest.mark.parametrize(
    "place", [{"b": CPU}, {"a": CPU, "b": None}, [CPU], None], ids=["key", "none", "list", "nothing"]
)
def test_places_that_do_not_match_the_tree(place):
    message = refusal({"a": 1, "b": 2}, place)
    assert message.startswith("moored.put: where is no place and no prefix of the tree: ")
    assert message.endswith("; one device is jax.devices(...)[0]") == isinstance(place, list)


def test_a_refused_tree_leaves_its_arrays_alone():
    array = jnp.ones(3)
    refusal({"a": array, "b": "text"})
    assert not array.committed
    assert not array.is_deleted()


# --- devices of other clients, and many of them ---


def test_onto_a_simulated_accelerator_and_back():
    assert output(
        """
        import jax, jax.numpy as jnp, numpy as np
        from moored import put, where
        with jax.default_device(jax.devices("cpu")[0]):
            tree = {"w": jnp.ones(256), "key": jax.random.key(0)}
        tree["tokens"] = np.zeros(64, np.uint16)
        there = put(tree, "accel")
        by_name = put(tree, "gpu:1")
        back = put(there, "cpu")
        for placed in (there, by_name, back):
            print({row.device for row in where(placed).rows}, {row.committed for row in where(placed).rows})
        try:
            put(tree, "cpu:1")
        except Exception as error:
            print(error)
        source = np.zeros(1 << 16, np.float32)
        placed = put(source, "accel")
        source[:] = 7
        print(float(placed.sum()))
        """,
        simulate=ON_ACCELERATOR + "import jax; simulate.finish()\n",
    ).splitlines() == [
        "{'accel:0'} {True}",
        "{'accel:1'} {True}",
        "{'cpu:0'} {True}",
        "moored.put: there is no device 'cpu:1' here; JAX has accel:0-3, cpu:0",
        "0.0",
    ]


def test_onto_meshes():
    assert output(
        """
        import jax, jax.numpy as jnp, numpy as np
        from jax.sharding import NamedSharding, PartitionSpec as P
        from moored import put, where
        mesh = jax.make_mesh((2, 2), ("data", "model"))
        rows, whole = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())
        batch, keys = np.arange(64, dtype=np.int32).reshape(8, 8), jax.random.split(jax.random.key(0), 4)
        placed = put({"batch": batch, "keys": keys, "n": 3}, {"batch": rows, "keys": rows, "n": whole})
        print(*(row.device for row in where(placed).rows), sep="; ")
        again = put(placed, {"batch": rows, "keys": rows, "n": whole})
        pointers = lambda array: [shard.data.unsafe_buffer_pointer() for shard in array.addressable_shards]
        print(pointers(again["batch"]) == pointers(placed["batch"]))
        batch[:] = -1
        print(np.array_equal(np.asarray(placed["batch"]), np.arange(64).reshape(8, 8)))
        """,
        simulate=ON_FOUR_CPUS,
    ).splitlines() == ["cpu:0-3 P('data',); cpu:0-3 P('data',); cpu:0-3 replicated", "True", "True"]
