"""Whose line it was, through wrappers, threads and libraries: each line is found in this file by its mark."""

import concurrent.futures
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moored.trace.collect import Collector

HOST = np.ones((300, 10), np.float32)
SOURCE = open(__file__).read().splitlines()  # noqa: SIM115 - read once


def line_of(mark):
    (number,) = [i for i, text in enumerate(SOURCE, 1) if text.endswith(f"# <- {mark}")]
    return number


def uploads(program):
    """(line, text under the span) of each upload of HOST."""
    collector = Collector()
    collector.attach()
    try:
        program()
        recording = collector.snapshot()
    finally:
        collector.detach()
    assert recording.header.moored_errors == []
    found = []
    for t in recording.transfers:
        if t.direction == "h2d" and t.array.shape == HOST.shape:
            site = recording.site_of(t)
            assert site.path == __file__
            found.append((site.line, SOURCE[site.line - 1][site.column : site.end_column], t.count))
    return found


double = jax.jit(lambda x: x * 2)
add = jax.jit(lambda x, y: x + y)


def test_two_calls_on_one_line_are_told_apart():
    def program():
        return double(HOST), add(HOST, 1.0)  # <- two calls

    line = line_of("two calls")
    assert sorted(uploads(program)) == [(line, "add(HOST, 1.0)", 1), (line, "double(HOST)", 1)]


def test_a_decorated_function():
    def logged(f):
        @functools.wraps(f)
        def inner(*args):
            return f(*args)

        return inner

    @logged
    def work(x):
        return double(x)  # <- decorated

    assert uploads(lambda: work(HOST)) == [(line_of("decorated"), "double(x)", 1)]


def test_an_executor():
    def work():
        return double(HOST)  # <- executor

    def program():
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            for future in [pool.submit(work) for _ in range(4)]:
                future.result()

    assert uploads(program) == [(line_of("executor"), "double(HOST)", 4)]


def test_a_generator():
    def batches():
        for _ in range(3):
            yield double(HOST)  # <- generator

    assert uploads(lambda: list(batches())) == [(line_of("generator"), "double(HOST)", 3)]


def test_a_custom_vjp():
    @jax.custom_vjp
    def f(x):
        return jnp.sin(x).sum()  # <- forward

    def backward(x, g):
        return (g * jnp.cos(x),)  # <- backward

    f.defvjp(lambda x: (f(x), x), backward)

    def program():
        for _ in range(3):
            jax.grad(f)(HOST)

    found = {line: count for line, _, count in uploads(program)}
    assert found == {line_of("forward"): 3, line_of("backward"): 3}


def test_a_checkpointed_function_under_jit():
    step = jax.jit(jax.grad(lambda x: jax.checkpoint(jnp.sin)(x).sum()))

    def program():
        for _ in range(3):
            step(HOST)  # <- checkpoint

    assert uploads(program) == [(line_of("checkpoint"), "step(HOST)", 3)]


def test_shard_map():
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("d",))
    spec = jax.sharding.PartitionSpec("d")
    mapped = jax.jit(jax.shard_map(lambda x: x * 2, mesh=mesh, in_specs=spec, out_specs=spec))

    def program():
        for _ in range(3):
            mapped(HOST)  # <- shard_map

    assert uploads(program) == [(line_of("shard_map"), "mapped(HOST)", 3)]


def test_a_donated_argument():
    f = jax.jit(lambda x, y: x + y, donate_argnums=0)

    def program():
        x = jnp.zeros(HOST.shape)
        for _ in range(3):
            x = f(x, HOST)  # <- donated

    assert uploads(program) == [(line_of("donated"), "f(x, HOST)", 3)]


def test_flax_nnx():
    nnx = pytest.importorskip("flax.nnx")
    model = nnx.Linear(10, 4, rngs=nnx.Rngs(0))
    forward = nnx.jit(lambda m, x: m(x))

    def program():
        for _ in range(3):
            forward(model, HOST)  # <- nnx

    assert uploads(program) == [(line_of("nnx"), "forward(model, HOST)", 3)]


def test_flax_linen():
    nn = pytest.importorskip("flax.linen")
    model = nn.Dense(4)
    params = model.init(jax.random.key(0), jnp.zeros((1, 10)))
    apply = jax.jit(model.apply)

    def program():
        for _ in range(3):
            apply(params, HOST)  # <- linen

    assert uploads(program) == [(line_of("linen"), "apply(params, HOST)", 3)]


def test_optax_is_folded_into_the_users_line():
    optax = pytest.importorskip("optax")
    transform = optax.adam(0.1)
    params = jnp.zeros(HOST.shape)
    state = transform.init(params)

    def program():
        for _ in range(3):
            transform.update(HOST, state, params)  # <- optax

    found = uploads(program)
    assert [(line, text) for line, text, _ in found] == [
        (line_of("optax"), "transform.update(HOST, state, params)")
    ] * len(found)
    assert found


def test_equinox():
    eqx = pytest.importorskip("equinox")
    forward = eqx.filter_jit(lambda x: x * 2)

    def program():
        for _ in range(3):
            forward(HOST)  # <- equinox

    assert uploads(program) == [(line_of("equinox"), "forward(HOST)", 3)]
