"""The drift and its cure on a real GPU. Run with: pytest tests/gpu (skipped where there is none)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import moored
from moored.trace.collect import Collector

pytestmark = pytest.mark.gpu
SHAPE = (2000, 6, 1024)


@pytest.fixture
def gpu():
    return jax.devices("gpu")[0]


@pytest.fixture
def home():
    return jax.devices("cpu")[0]


@pytest.fixture
def tokens(home):
    with jax.default_device(home):
        return (jnp.zeros(SHAPE, jnp.uint16) + 1).block_until_ready()


def moved(report, direction):
    return [
        (t.count, t.nbytes, t.source, t.target)
        for t in report.recording.transfers
        if t.direction == direction
    ]


def test_each_lookup_in_an_uncommitted_array_copies_the_parent(tokens, gpu):
    with moored.watch() as report:
        rows = [tokens[i] for i in range(10)]
    assert all(row.device == gpu for row in rows)
    assert moved(report, "d2d") == [(10, 10 * tokens.nbytes, "cpu:0", f"gpu:{gpu.id}")]
    assert [f.rule for f in report.findings] == ["MRD101"]


def test_a_committed_array_stays_at_home(tokens, home):
    committed = moored.put(tokens, home)
    with moored.watch() as report:
        rows = [committed[i] for i in range(10)]
    assert all(row.device == home for row in rows)
    assert moved(report, "d2d") == []
    assert report.findings == []


def test_numpy_reads_come_through_the_read_seam(gpu):
    x = jax.device_put(np.ones((1000,), np.float32), gpu)
    with moored.watch() as report:
        np.asarray(x)
        (x * 2)[0].item()
        np.percentile(x * 3, 50)
    shapes = sorted(t.array.shape for t in report.recording.transfers if t.direction == "d2h")
    assert shapes == [(), (1000,), (1000,)]


def test_a_whole_tree_is_put_and_told(gpu):
    tree = moored.put({"w": np.ones((8, 8), np.float32), "b": 0.0}, gpu)
    rows = moored.where(tree).rows
    assert {row.device for row in rows} == {f"gpu:{gpu.id}"}
    assert all(row.committed for row in rows)


def test_every_seam_sees_its_known_event():
    assert all(state.live for state in Collector.self_test())
