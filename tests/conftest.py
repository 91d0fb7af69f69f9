"""What all tests share: hypothesis without deadlines, the `gpu` marker, a Python in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import hypothesis
import pytest

# Programs to be run, and helpers of tests: not modules to look for doctests in.
_HELPERS = [path.name for path in Path(__file__).parent.glob("*.py") if not path.name.startswith("test_")]
collect_ignore = ["cases", "programs", *_HELPERS]

SRC = Path(__file__).resolve().parent.parent / "src"

# No test may depend on how fast the machine is; in CI the examples are the same each time.
hypothesis.settings.register_profile(
    "moored", deadline=None, derandomize=bool(os.environ.get("CI")), print_blob=True
)
hypothesis.settings.load_profile("moored")

# A shell's background jobs ignore Ctrl-C, and so would every program that a test starts and interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _two_cpu_devices() -> None:
    """Make this process's JAX client with two CPU devices, and leave the environment as it was.

    Subprocesses that tests start must see a plain environment.
    """
    before = os.environ.get("XLA_FLAGS")
    os.environ["XLA_FLAGS"] = f"{before or ''} --xla_force_host_platform_device_count=2".strip()
    try:
        import jax

        jax.devices("cpu")
    except ImportError:
        pass
    finally:
        if before is None:
            del os.environ["XLA_FLAGS"]
        else:
            os.environ["XLA_FLAGS"] = before


_two_cpu_devices()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not Path("/dev/nvidiactl").exists():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="no NVIDIA GPU on this machine"))


RunPython = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run_python(tmp_path: Path) -> RunPython:
    """Runs ``python ARGUMENTS`` in an empty folder, with this checkout's moored; output captured as text."""

    def run(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": os.fspath(SRC)}
        settings = {"cwd": tmp_path, "env": environment, "capture_output": True, "text": True, "timeout": 120}
        return subprocess.run([sys.executable, *arguments], **{**settings, **options})  # type: ignore[call-overload]

    return run
