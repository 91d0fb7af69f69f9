"""moored's counts against an independent witness: the profiler's own transfer events."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("lammps_jax_pjrt_cpu")

PROGRAM = Path(__file__).parent / "programs" / "random_program.py"


@pytest.mark.parametrize("seed", range(4))
def test_counts_equal_the_profilers(seed):
    run = subprocess.run(
        [sys.executable, str(PROGRAM), str(seed), "250"],
        capture_output=True, text=True, timeout=300, env=dict(os.environ), check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-2000:]
    counts = json.loads(run.stdout.splitlines()[-1])
    assert sum(counts["profiler"].values()) > 100
    assert counts["moored"] == counts["profiler"]
    assert counts["errors"] == []
