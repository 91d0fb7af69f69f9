"""Under simulation numpy's reads of arrays on CPU devices are seen, as they are on an accelerator."""

import numpy as np
import pytest

PROGRAM = """\
import jax, jax.numpy as jnp, numpy as np

step = jax.jit(lambda x: x + 1)
x = jnp.zeros((300, 10))
for i in range(6):
    x = step(x)
    np.asarray(x)
    (x * 2)[0, 0].item()
    np.percentile(x * 3, 50)
    np.stack([x * 4, x * 5])
try:
    memoryview(x)
except TypeError as error:
    print("TypeError")
print(np.asarray(x).sum(), float(np.ones(3)[jnp.int32(1)]))
"""
LINES = {7: ((300, 10), 6), 8: ((), 6), 9: ((300, 10), 6), 10: ((300, 10), 12)}


@pytest.fixture
def reads(run_python, tmp_path):
    def run(*options):
        (tmp_path / "program.py").write_text(PROGRAM)
        done = run_python(
            "-m", "moored", "trace", "--record", "run.moored", "--quiet", *options, "program.py"
        )
        from moored.model.recording import Recording

        recording = Recording.load(tmp_path / "run.moored")
        found = {}
        for t in recording.transfers:
            if t.direction == "d2h":
                line = recording.sites[t.site].line
                found[line] = (t.array.shape, found.get(line, (None, 0))[1] + t.count)
        return done, found, recording

    return run


def test_with_two_simulated_devices(reads):
    done, found, recording = reads("--simulate=2")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "TypeError\n18000.0 1.0\n"
    assert {line: found[line] for line in LINES} == LINES
    assert recording.header.moored_errors == []


def test_on_the_simulated_accelerator(reads):
    pytest.importorskip("lammps_jax_pjrt_cpu")
    done, found, _ = reads("--simulate")
    assert done.stdout == "TypeError\n18000.0 1.0\n"
    assert {line: found[line] for line in LINES} == LINES


def test_without_simulation_the_report_says_that_it_is_blind(reads):
    done, found, recording = reads()
    assert done.stdout == "18000.0 1.0\n"
    assert 7 not in found
    (seam,) = [s for s in recording.header.seams if s.name == "reads"]
    assert seam.blind_to.startswith(
        "np.asarray, .item() and numpy functions on arrays that sit on a CPU device"
    )


def test_the_slot_is_filled_again():
    import jax.numpy as jnp

    from moored.trace.patches import BufferSlot

    array = jnp.arange(3)
    slot = BufferSlot(type(array))
    slot.install(lambda original: original)
    with pytest.raises(TypeError):
        memoryview(array)
    assert slot.restore() == ""
    assert memoryview(array).nbytes == 12
    assert memoryview(array).tobytes() == np.arange(3, dtype=np.int32).tobytes()
