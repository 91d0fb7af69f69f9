"""Importing moored imports nothing but the standard library, reads no environment and changes nothing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from conftest import SRC, RunPython

# Runs in an interpreter of its own. Prints one line for each
# thing that `import moored` did besides defining moored.
CHECK = """
import builtins, os, signal, sys, threading

sys.path.insert(0, sys.argv[1])
read = []

class Watched(type(os.environ)):
    def __getitem__(self, key):
        read.append(key)
        return super().__getitem__(key)

os.environ.__class__ = Watched

def state():
    return {
        "sys.meta_path": list(map(id, sys.meta_path)),
        "sys.excepthook": id(sys.excepthook),
        "sys.settrace": sys.gettrace(),
        "builtins": {name: id(value) for name, value in vars(builtins).items() if name != "_"},
        "os.environ": dict(os.environ._data),
        "signal handlers": [signal.getsignal(s) for s in signal.valid_signals()],
        "threads": threading.active_count(),
    }

before, modules, read[:] = state(), set(sys.modules), []
import moored
after = state()
for name in sorted({name.partition(".")[0] for name in set(sys.modules) - modules}):
    if name != "moored" and name not in sys.stdlib_module_names:
        print("imported", name)
for name in sorted(name for name in set(sys.modules) - modules if name.startswith("moored.")):
    print("imported", name)
for what in before:
    if before[what] != after[what]:
        print("changed", what)
for key in read:
    print("read the environment variable", key)
"""


def effects(run_python: RunPython, source: Path) -> list[str]:
    done = run_python("-c", CHECK, str(source))
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_importing_moored_does_nothing_else(run_python: RunPython) -> None:
    assert effects(run_python, SRC) == []


@pytest.mark.parametrize(
    ("line", "effect"),
    [
        ("import numpy", "imported numpy"),
        ("import moored.units", "imported moored.units"),
        ("import sys; sys.excepthook = print", "changed sys.excepthook"),
        ("import builtins; builtins.aloud = print", "changed builtins"),
        ("import os; os.environ['MOORED'] = '1'", "changed os.environ"),
        ("import os; os.environ.get('JAX_PLATFORMS')", "read the environment variable JAX_PLATFORMS"),
        (
            "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()",
            "changed threads",
        ),
    ],
)
def test_the_check_can_fail(run_python: RunPython, tmp_path: Path, line: str, effect: str) -> None:
    shutil.copytree(SRC / "moored", tmp_path / "moored", ignore=shutil.ignore_patterns("__pycache__"))
    init = tmp_path / "moored" / "__init__.py"
    init.write_text(f"{init.read_text()}\n{line}\n")
    assert effect in effects(run_python, tmp_path)


@pytest.mark.parametrize("what", ["moored.model.recording", "moored.rules", "moored.report", "moored.cli"])
def test_these_work_without_jax(run_python: RunPython, what: str) -> None:
    """Importing them does not import JAX, as on a machine that has none."""
    done = run_python("-c", f"import sys; sys.modules['jax'] = sys.modules['jaxlib'] = None; import {what}")
    assert done.returncode == 0, done.stderr


def test_no_public_name_imports_jax(run_python: RunPython) -> None:
    done = run_python(
        "-c",
        "import sys, moored; [getattr(moored, name) for name in moored.__all__]; print('jax' in sys.modules)",
    )
    assert (done.stdout, done.stderr) == ("False\n", "")
