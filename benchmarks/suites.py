"""Other projects' test suites, with and without moored watching: same outcomes, and what it costs.

    python benchmarks/suites.py --rounds 3                 all of them
    python benchmarks/suites.py --only chex --rounds 1     one, once

Takes the sdist of the installed release of each project from the package index, and runs a fixed
subset of whole directories in ONE process each (single files hid faults), plainly and with a
collector attached, in alternating rounds. Prints each test whose outcome differs, and the ratio of
CPU seconds. Exit code 1 when an outcome differs. Wants: chex, optax, flax, scikit-learn,
cloudpickle, pytest.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

SUITES = {
    "chex": ["chex/_src/asserts_test.py", "chex/_src/asserts_chexify_test.py", "chex/_src/dataclass_test.py",
             "chex/_src/variants_test.py", "chex/_src/fake_test.py", "chex/_src/restrict_backends_test.py"],
    "optax": ["optax/schedules", "optax/tree_utils", "optax/transforms", "optax/perturbations",
              "optax/_src/update_test.py"],
    "flax": ["tests/nnx", "tests/core"],
}  # fmt: skip

PLUGIN = """
import json, os, time
OUTCOMES = {}
COLLECTOR = None

def pytest_configure(config):
    global COLLECTOR
    if os.environ["SUITES_WATCH"] == "1":
        from moored.trace.collect import Collector
        COLLECTOR = Collector()
        COLLECTOR.attach()

def pytest_runtest_logreport(report):
    if report.when == "call" or report.outcome != "passed":
        OUTCOMES[report.nodeid] = report.outcome

def pytest_unconfigure(config):
    times = os.times()
    result = {"outcomes": OUTCOMES, "cpu_seconds": times.user + times.system}
    if COLLECTOR is not None:
        recording = COLLECTOR.snapshot()
        COLLECTOR.detach()
        result["rows"] = len(recording.transfers)
        result["errors"] = [f"{e.where}: {e.error} ({e.count})" for e in recording.header.moored_errors]
        result["dead"] = [f"{s.name}: {s.reason}" for s in recording.header.seams if not s.live]
    with open(os.environ["SUITES_RESULT"], "w") as file:
        json.dump(result, file)
"""


def fetch(name: str, folder: Path) -> Path:
    """The unpacked sdist of the installed release."""
    version = importlib.metadata.version(name)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:",
               "--dest", str(folder), f"{name}=={version}"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{name} {version}: no sdist: {done.stderr[-1000:]}")
    (archive,) = folder.glob(f"{name}-*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    return folder / f"{name}-{version}"


def run(root: Path, paths: list[str], watch: bool, scratch: Path) -> dict:
    """One process: the suite, watched or not."""
    result = scratch / "result.json"
    result.unlink(missing_ok=True)
    source = Path(__file__).resolve().parent.parent / "src"
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(scratch), str(source)]),
        "SUITES_WATCH": "1" if watch else "0",
        "SUITES_RESULT": str(result),
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "suites_plugin", "-p", "no:cacheprovider", *paths]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    if not result.exists():
        sys.exit(f"{root.name}: pytest gave no result\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return json.loads(result.read_text())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=list(SUITES), action="append")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    differing = 0
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        (scratch / "suites_plugin.py").write_text(PLUGIN)
        for name in options.only or SUITES:
            root = fetch(name, scratch)
            paths = [p for p in SUITES[name] if (root / p).exists()]
            plain, watched = [], []
            for _ in range(options.rounds):
                plain.append(run(root, paths, False, scratch))
                watched.append(run(root, paths, True, scratch))
                pair = [side[-1]["cpu_seconds"] for side in (plain, watched)]
                print(f"  {name}: plain {pair[0]:.0f} s, watched {pair[1]:.0f} s CPU", flush=True)
            differing += report(name, root, plain, watched)
    return 1 if differing else 0


def report(name: str, root: Path, plain: list[dict], watched: list[dict]) -> int:
    """Print what differs, and the ratio; returns the number of tests whose outcome differs."""
    # A test whose outcome changes from round to round without moored tells nothing.
    steady = {
        test: outcome
        for test, outcome in plain[0]["outcomes"].items()
        if all(other["outcomes"].get(test) == outcome for other in plain)
    }
    differing = [
        (test, outcome, other["outcomes"].get(test, "missing"))
        for other in watched
        for test, outcome in steady.items()
        if other["outcomes"].get(test) != outcome
    ]
    counts: dict[str, int] = {}
    for outcome in steady.values():
        counts[outcome] = counts.get(outcome, 0) + 1
    ratios = [w["cpu_seconds"] / p["cpu_seconds"] for p, w in zip(plain, watched, strict=True)]
    outcomes = ", ".join(f"{n} {outcome}" for outcome, n in sorted(counts.items()))
    spread = f"{min(ratios):.2f} .. {max(ratios):.2f}, {len(ratios)} pairs"
    print(f"{root.name}: {outcomes}; {len(differing)} differ under moored; {watched[-1]['rows']} rows")
    print(f"  CPU seconds, watched / plain: {statistics.median(ratios):.2f} ({spread})")
    for test, before, after in differing:
        print(f"  {test}: {before} -> {after}")
    for trouble in {*watched[-1]["errors"], *watched[-1]["dead"]}:
        print(f"  moored: {trouble}")
    return len(differing)


if __name__ == "__main__":
    sys.exit(main())
