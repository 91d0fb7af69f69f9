"""What the seams can not see, each as a test that must fail: when one passes, the docs are out of date."""

import jax
import jax.experimental
import jax.numpy as jnp
import numpy as np
import pytest

from moored.trace.collect import Collector

BIG = (300, 10)


def traced(program):
    collector = Collector()
    collector.attach()
    try:
        program()
        return collector.snapshot()
    finally:
        collector.detach()


def reads(recording):
    return sum(t.count for t in recording.transfers if t.direction == "d2h")


def array():
    return (jnp.zeros(BIG) + 1).block_until_ready()


@pytest.mark.xfail(strict=True, reason="numpy reads the buffer of an array on a CPU device directly")
@pytest.mark.parametrize(
    "read",
    [np.asarray, lambda x: x[0, 0].item(), np.sum, lambda x: np.stack([x, x]), memoryview],
    ids=["asarray", "item", "sum", "stack", "memoryview"],
)
def test_numpy_reads_on_a_cpu_device(read):
    x = array()
    assert reads(traced(lambda: read(x))) == 1


@pytest.mark.xfail(strict=True, reason="another library takes the buffer through dlpack")
def test_dlpack_exports():
    x = array()
    assert reads(traced(lambda: np.from_dlpack(x))) == 1


@pytest.mark.xfail(strict=True, reason="traffic inside an executable: XLA schedules it")
def test_a_collective_inside_an_executable():
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("d",))
    split = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("d"))
    whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    x = jax.device_put(np.ones((4, 4), np.float32), split)
    gather = jax.jit(lambda x: x + 1, out_shardings=whole)
    recording = traced(lambda: gather(x).block_until_ready())
    assert any(t.direction == "d2d" for t in recording.transfers)


@pytest.mark.xfail(strict=True, reason="a callback that was made before moored came has no user line")
def test_the_line_of_a_callback_that_was_there_before():
    ship = jax.jit(lambda x: jax.experimental.io_callback(print, None, x) or x + 1)
    ship(array()).block_until_ready()
    jax.effects_barrier()

    def program():
        ship(array()).block_until_ready()
        jax.effects_barrier()

    recording = traced(program)
    sites = {recording.site_of(t).path for t in recording.transfers if t.seam == "callback"}
    assert sites == {__file__}
