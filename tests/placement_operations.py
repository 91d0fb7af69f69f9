"""The one table of operations behind docs/placement.md: each row is run on every JAX, and tests the tracer.

``SETUP`` makes the operands that the rows name. Each has a shape of its own, so that an independent
witness (the profiler) can tell from a buffer's shape which of them moved.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FUNCTIONS", "NOT_INSTALLED", "SECTIONS", "SETUP", "Operation", "operations"]

NOT_INSTALLED = "not installed"

SETUP = """\
with jax.default_device(home):
    u = jnp.ones((302, 64)) * 2  # uncommitted, on home
    keys = jax.random.split(jax.random.key(0), 100)  # uncommitted, on home
    raw_keys = jax.random.split(jax.random.PRNGKey(0), 102)
    mask = jnp.arange(320) % 2 == 0  # uncommitted, on home
c = jax.device_put(jnp.ones((304, 64)) * 2, home)  # committed to home
d = jnp.ones((306, 64)) * 2  # uncommitted, on the default device
h = aligned((308, 64))  # numpy, float32
e = jax.device_put(jnp.ones((310, 64)) * 2, default)  # committed to the default device
two = NamedSharding(jax.sharding.Mesh([default, other], "x"), PartitionSpec("x"))
pinned = SingleDeviceSharding(default, memory_kind="pinned_host")
"""

FUNCTIONS = """\
at = jax.default_device
twice = jax.jit(lambda x: x * 2)
total = jax.jit(lambda x, y: x.sum() + y.sum())
both = jax.jit(lambda x, y: (x * 2, y * 2))
beside = jax.jit(lambda x: (x * 2, jnp.zeros(5)))
unused = jax.jit(lambda x: jnp.zeros(5))
first = jax.jit(lambda x, y: x * 2)  # y is never used
pick = jax.jit(lambda x, y, use: x.sum() + y.sum() if use else x.sum(), static_argnums=2)
to_home = jax.jit(lambda x: x * 2, out_shardings=SingleDeviceSharding(home))
loss = lambda w, x: (w**2).sum() + x.sum()
add_row = lambda carry, row: (carry + row, None)


def inside(x):
    with at(home):
        return x * 2 + jnp.ones(64)


def in_thread(f):
    with futures.ThreadPoolExecutor() as pool:
        return pool.submit(f).result()


def while_suspended(f):
    def generator():
        with at(home):
            yield

    suspended = generator()
    next(suspended)
    return f()
"""


@dataclass(frozen=True)
class Operation:
    """One row.

    Attributes:
        code: The line that is run; its value (or the ``x`` that it assigns) is the result.
        reads: Which operand it reads into Python or numpy, or how many bytes if none in whole.
        blind: Why moored's tracer can not agree with the witness, where it does not: a strict xfail.
        needs: The package that it imports.
    """

    code: str
    reads: str | int = ""
    blind: str = ""
    needs: str = ""


_HOME = "with at(home): x = "
O = Operation  # noqa: E741 - as short as a table wants it

SECTIONS: dict[str, list[Operation]] = {
    "Making arrays": [
        O("jnp.zeros((8, 64))"),
        O("jax.random.normal(jax.random.key(0), (8, 64))"),
        O(_HOME + "jnp.zeros((8, 64))"),
        O(_HOME + "jnp.ones((8, 64)) + 1"),
        O(_HOME + "jax.random.normal(jax.random.key(0), (8, 64))"),
        O('with at("cpu"): x = jnp.zeros((8, 64))'),
        O("jnp.zeros((8, 64), device=home)"),
        O("jnp.zeros((8, 64), device=default)"),
        O("jnp.zeros_like(u)"),
        O("jnp.zeros_like(c)"),
    ],
    "Random keys": [
        O("keys[3]"),
        O("raw_keys[3]"),
        O("jax.vmap(jax.random.normal)(keys)"),
        O("jax.vmap(jax.random.normal)(jax.device_put(keys, home))"),
        O("jax.random.key_data(keys)"),
    ],
    "Converting and putting": [
        O("jnp.asarray(h)"),
        O(_HOME + "jnp.asarray(h)"),
        O("jnp.asarray(h, device=home)"),
        O("jnp.asarray([1.0] * 320)"),
        O("jnp.asarray(u)"),
        O("jnp.asarray(c)"),
        O("jnp.array(u)"),
        O("jnp.array(c)"),
        O("u.astype(jnp.float32)"),
        O("u.astype(jnp.int32)"),
        O("c.astype(jnp.int32)"),
        O("jax.device_put(h)"),
        O(_HOME + "jax.device_put(h)"),
        O("jax.device_put(h, home)"),
        O("jax.device_put(u)"),
        O("jax.device_put(c)"),
        O("jax.device_put(u, home)"),
        O("jax.device_put(u, u.sharding)"),
        O("jax.device_put(u, default)"),
        O("jax.device_put(c, default)"),
        O("jax.device_put(d, home)"),
        O("jax.device_put(d, other)"),
        O("jax.device_put(h, two)"),
        O("jax.device_put(d, two)"),
        O("jax.device_put(u, two)"),
        O("jax.device_put(d, pinned)"),
        O("jax.device_put(h, pinned)"),
        O("jax.make_array_from_callback(h.shape, two, lambda i: h[i])"),
        O("jnp.from_dlpack(h)"),
        O("jnp.from_dlpack(u)"),
        O("jnp.from_dlpack(c)"),
    ],
    "Indexing, shaping, combining": [
        O("u[:]"),
        O("u[3]"),
        O("c[3]"),
        O("u[3:5]"),
        O("u[np.array([3, 5])]"),
        O("u.reshape(-1)"),
        O("u.T"),
        O("[u[i] for i in (3, 4, 5)]"),
        O("list(raw_keys)"),
        O("c.reshape(-1)"),
        O("u.at[3].set(0.0)"),
        O("c.at[3].set(0.0)"),
        O("u + 1"),
        O("u + np.ones(64, np.float32)"),
        O("jnp.concatenate([u, d])"),
        O("jnp.concatenate([c, d])"),
        O("jnp.concatenate([u, c])"),
        O("jnp.concatenate([e, u])"),
        O("jnp.concatenate([c, e])"),
        O("jnp.concatenate([c, h])"),
        O("u @ d.T"),
        O("jnp.where(mask[:, None], d[:1], 0.0)"),
    ],
    "Calls: jit and transformations": [
        O("twice(u)"),
        O("twice(c)"),
        O("twice(h)"),
        O("total(u, d)"),
        O("total(c, d)"),
        O("total(c, h)"),
        O("both(c, d)"),
        O("beside(u)"),
        O("beside(c)"),
        O("unused(c)"),
        O("first(d, u)"),
        O("first(d, c)"),
        O("pick(d, u, True)"),
        O("pick(d, u, False)"),
        O("to_home(d)"),
        O("jax.jit(lambda x: x + c[0])(d)", reads="c"),
        O("jax.jit(lambda x: x + u[0])(d)", reads="u"),
        O("jax.jit(lambda x: jax.device_put(x, home) * 2)(d)"),
        O("jax.jit(inside)(d)"),
        O(_HOME + "twice(d)"),
        O(_HOME + "twice(e)"),
        O("twice.lower(u).compile()(u)"),
        O("twice.lower(jax.device_put(u, home)).compile()(u)"),
        O("jax.grad(loss)(u, d)"),
        O("jax.grad(loss)(c, d)"),
        O("jax.value_and_grad(loss)(d, u)"),
        O("jax.vmap(lambda row: row * 2)(u)"),
        O("jax.lax.scan(add_row, jnp.zeros(64), u)[0]"),
        O("jax.lax.scan(add_row, jnp.zeros(64), c)[0]"),
        O("jax.lax.while_loop(lambda x: x[0, 0] < 9, lambda x: x + 1, u)"),
    ],
    "Threads and generators": [
        O(_HOME + "in_thread(lambda: jnp.zeros((8, 64)))"),
        O(_HOME + "in_thread(lambda: twice(u))"),
        O("while_suspended(lambda: jnp.zeros((8, 64)))"),
        O("while_suspended(lambda: twice(d))"),
    ],
    "Into Python, numpy and files, and back": [
        O("float(d[0, 0])", reads=4),
        O("d.tolist()", reads="d"),
        O("jax.device_get(d)", reads="d"),
        O("np.asarray(d)", reads="d"),
        O("np.asarray(u)", reads="u"),
        O("np.sin(d)", reads="d"),
        O("np.mean(d)"),
        O("d[0, 0].item()", reads=4),
        O("pickle.loads(pickle.dumps(c))", reads="c"),
        O("copy.deepcopy(c)"),
        O("copy.deepcopy(u)"),
        O("jax.tree.map(jnp.asarray, {'w': c, 'b': h})"),
    ],
    "Libraries": [
        O("load_file(file_of((8, 64)))", needs="safetensors"),
        O(_HOME + "load_file(file_of((8, 64)))", needs="safetensors"),
        O("orbax_restored(c)", reads="c", needs="orbax"),
        O(_HOME + "orbax_restored(d)", reads="d", needs="orbax"),
        O("from_bytes(d, to_bytes(d))", reads="d", needs="flax"),
        O("optax.adam(1e-3).init(c)", needs="optax"),
        O("optax.apply_updates(c, d[:1])", needs="optax"),
        O(_HOME + "nnx.state(linear())", needs="flax"),
    ],
}


def operations() -> list[Operation]:
    """All rows, in order."""
    return [operation for rows in SECTIONS.values() for operation in rows]
