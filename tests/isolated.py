"""Runs a piece of Python in a fresh interpreter, with the devices that a test asks for."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

# What would choose devices for the child: a test says all of it itself.
_CHOOSING = (
    "JAX_PLATFORMS",
    "JAX_PLATFORM_NAME",
    "JAX_NUM_CPU_DEVICES",
    "XLA_FLAGS",
    "PJRT_NAMES_AND_LIBRARY_PATHS",
)

ON_ACCELERATOR = """
from moored.trace import simulate
simulate.prepare()
"""
ON_FOUR_CPUS = """
from moored.trace import simulate
simulate.prepare(4)
"""


def run(code: str, *args: str, simulate: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
    """Run ``code`` after ``simulate`` (one of the pieces above); ``environ`` is added to the environment."""
    kept = {name: value for name, value in os.environ.items() if name not in _CHOOSING}
    return subprocess.run(
        [sys.executable, "-c", simulate + textwrap.dedent(code), *args],
        env=kept | environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def output(code: str, *args: str, simulate: str = "", **environ: str) -> str:
    """What ``code`` prints; its failure is the test's."""
    done = run(code, *args, simulate=simulate, **environ)
    assert done.returncode == 0, done.stderr
    return done.stdout
