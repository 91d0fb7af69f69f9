"""``moored bench lookup``: what it prints, proves and refuses; small parents, no timing asserted."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from conftest import SRC, RunPython
from moored.bench.devices import choose
from moored.bench.harness import Bar, fit_line, interleave
from moored.bench.lookup import begin, fit, work
from moored.bench.lookup_model import Listener, Lookup, Plan, Slope, SweepPoint, Variant
from moored.bench.lookup_plot import check_plot
from moored.bench.lookup_report import verdict
from moored.bench.lookup_size import Limit, host_limit, settle_shape
from moored.bench.lookup_timing import Parent, look_up
from moored.bench.memory import Available, Peak, available
from moored.bench.parent import DTYPES, allocate, fill, hand_over, parse_shape
from moored.errors import InputError, MachineError, MooredError
from moored.trace import simulate

needs_plugin = pytest.mark.skipif(simulate.plugin_library() is None, reason="no simulated accelerator here")
SMALL = ("-m", "moored", "bench", "lookup", "--shape", "2048,6,256")
SMALL_NBYTES = 2048 * 6 * 256 * 2
FULL = (530640, 6, 1024)


def run_json(run_python: RunPython, *arguments: str, **options: object) -> dict[str, Any]:
    done = run_python(*SMALL, "--json", *arguments, **options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


# -- the whole command ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "home", "target", "simulated"),
    [
        pytest.param((), "cpu:0", "accel:0", "accel", marks=needs_plugin, id="simulated accelerator"),
        pytest.param(("--simulate=2",), "cpu:1", "cpu:0", "2 cpu devices", id="two CPU devices"),
        pytest.param(
            ("--home", "cpu:0", "--target", "cpu:1"), "cpu:0", "cpu:1", "2 cpu devices", id="named devices"
        ),
        pytest.param(
            ("--simulate", "--target", "gpu:1"), "cpu:0", "accel:1", "accel", marks=needs_plugin, id="alias"
        ),
    ],
)
def test_all_variants_are_compared_and_the_bytes_are_proved(
    run_python: RunPython, arguments: tuple[str, ...], home: str, target: str, simulated: str
) -> None:
    result = run_json(run_python, "--items", "4", *arguments)
    assert (result["home"], result["target"], result["simulated"]) == (home, target, simulated)
    assert result["parent_nbytes"] == SMALL_NBYTES
    assert result["zero_copy"] is True
    assert result["complete"] is True
    found = {
        v["name"]: (v["device"], v["committed"], v["bytes_per_lookup"], v["bytes_per_put"])
        for v in result["variants"]
    }
    item = SMALL_NBYTES // 2048
    assert found == {
        "drifting": (target, False, SMALL_NBYTES, None),
        "drifting+put": (target, True, SMALL_NBYTES, 0),  # it is there already
        "committed": (home, True, 0, None),
        "committed+put": (target, True, 0, item),
        "moored": ("host", None, 0, None),
        "moored+put": (target, True, 0, item),
    }
    for variant in result["variants"]:
        assert len(variant["seconds"]) == 4
        assert len(variant["put_seconds"]) == (4 if variant["name"].endswith("+put") else 0)
    seconds = {v["name"]: statistics.median(v["seconds"]) for v in result["variants"]}
    assert result["ratio"] == pytest.approx(seconds["drifting"] / seconds["moored"])
    assert result["ratio_committed"] == pytest.approx(seconds["drifting"] / seconds["committed"])
    assert [p["parent_nbytes"] for p in result["sweep"]] == [SMALL_NBYTES // n for n in (16, 8, 4, 2, 1)]
    assert set(result["slopes"]) == {"drifting", "committed"}
    assert result["peak_nbytes"] > 2 * SMALL_NBYTES


def test_the_text_has_a_line_an_item_and_fits_in_80_columns(run_python: RunPython) -> None:
    done = run_python(*SMALL, "--simulate=2")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0] == "moored bench lookup"
    assert lines[1] == "  parent  2048 x 6 x 256 uint16, 6.29 MB; an item is 3.07 kB"
    number = r" +\d+\.\d{7}"
    for name, place in (
        ("drifting", "cpu:0     False"),
        ("committed", "cpu:1     True "),
        ("moored", "host      -"),
    ):
        at = next(i for i, line in enumerate(lines) if line.startswith(f"{name}  ")) + 2
        for index in range(10):
            assert re.fullmatch(rf" +{index}{number}  {place} +{number}  cpu:0     True", lines[at + index])
    text = " ".join(done.stdout.split())
    assert (
        "No accelerator: cpu:1 and cpu:0 are CPU devices of one machine. The copies between them are real, "
        "but the timings are NOT a GPU's." in text
    )
    assert "JAX uses that memory as it is, no copy was made." in text
    assert (
        "Drifting: every lookup moved the whole parent, 6.29 MB from cpu:1 to cpu:0, to take an item of "
        "3.07 kB (2 lookups traced). Committed: no byte of the parent moved (2 lookups traced). Moored: no "
        "byte of the parent moved (2 lookups traced)." in text
    )
    assert "Run: 10 timed lookups of each variant, each item checked against its source row." in text
    assert "Bytes: 2 more lookups of each variant under the tracer, not timed." in text


@needs_plugin
def test_the_banner_says_that_the_accelerator_is_simulated(run_python: RunPython) -> None:
    done = run_python(*SMALL, "--items", "1", "--commit")
    assert (
        "Simulated accelerator: the copies between accel and cpu are real, but the timings are NOT a GPU's."
        in " ".join(done.stdout.split())
    )


@pytest.mark.parametrize(
    ("switches", "name", "device", "committed", "nbytes"),
    [
        (("--commit",), "committed", "cpu:1", True, 0),
        (("--put-items-to-gpu",), "drifting+put", "cpu:0", True, SMALL_NBYTES),
        (("--put_items_to_gpu", "--commit"), "committed+put", "cpu:0", True, 0),
    ],
)
def test_a_switch_of_the_published_script_runs_that_variant_alone(
    run_python: RunPython, switches: tuple[str, ...], name: str, device: str, committed: bool, nbytes: int
) -> None:
    result = run_json(run_python, "--simulate=2", "--items", "3", *switches)
    (variant,) = result["variants"]
    assert (variant["name"], variant["device"], variant["committed"]) == (name, device, committed)
    assert variant["bytes_per_lookup"] == nbytes
    assert len(variant["put_seconds"]) == (3 if name.endswith("+put") else 0)
    assert result["ratio"] is None
    assert result["sweep"] == []


@pytest.mark.parametrize("shape", ["1,4", "3,5,7", "17,1"])
def test_the_smallest_parents_run_too(run_python: RunPython, shape: str) -> None:
    done = run_python(
        "-m",
        "moored",
        "bench",
        "lookup",
        "--simulate=2",
        "--shape",
        shape,
        "--items",
        "1",
        "--dtype",
        "float32",
    )
    assert done.returncode == 0, done.stderr
    assert "Verdict" in done.stdout


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_plot(run_python: RunPython, tmp_path: Path, ending: str) -> None:
    pytest.importorskip("matplotlib")
    run_json(run_python, "--simulate=2", "--plot", f"lookup.{ending}")
    picture = (tmp_path / f"lookup.{ending}").read_bytes()
    if ending == "png":
        assert picture.startswith(b"\x89PNG")
    else:
        assert b"Time to look one item up" in picture or b"<svg" in picture


def test_ctrl_c_prints_what_is_known(tmp_path: Path) -> None:
    program = subprocess.Popen(
        [sys.executable, *SMALL, "--simulate=2", "--items", "2048"],
        env={**os.environ, "PYTHONPATH": os.fspath(SRC)},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert program.stdout is not None
    for line in program.stdout:
        if re.match(r" +1 +\d", line):  # two drifting items are known
            program.send_signal(signal.SIGINT)
            break
    rest, errors = program.communicate(timeout=120)
    assert program.returncode == 130
    assert errors == ""
    assert "Interrupted; known so far" in rest
    assert re.search(r"^drifting .* \?$", rest, re.MULTILINE)  # its times, and no bytes yet
    assert "Verdict" not in rest


def test_ctrl_c_leaves_valid_json(tmp_path: Path) -> None:
    code = (
        "import signal, sys\n"
        "from moored.bench import lookup_evidence\n"
        "lookup_evidence.sweep = lambda *a: signal.raise_signal(signal.SIGINT)\n"
        "from moored.cli import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *SMALL[2:], "--simulate=2", "--json"],
        env={**os.environ, "PYTHONPATH": os.fspath(SRC)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 130, done.stderr
    result = json.loads(done.stdout)
    assert result["complete"] is False
    assert len(result["variants"]) == 6
    assert result["ratio"] > 0
    assert result["sweep"] == []


# -- which devices -------------------------------------------------------------------------


@needs_plugin
def test_a_plugin_without_hardware_leads_to_the_simulated_accelerator(
    run_python: RunPython, tmp_path: Path
) -> None:
    plugin = tmp_path / "path" / "jax_plugins" / "nothing"
    plugin.mkdir(parents=True)
    (plugin / "__init__.py").write_text("def initialize():\n    print('asked the plug-in')\n")
    path = os.pathsep.join([os.fspath(tmp_path / "path"), os.fspath(SRC)])
    done = run_python(*SMALL, "--items", "1", env={**os.environ, "PYTHONPATH": path})
    assert done.returncode == 0, done.stderr
    assert "asked the plug-in" in done.stdout
    assert "target  accel:0" in done.stdout
    assert done.stdout.count("moored bench lookup\n") == 1


def test_without_the_package_two_cpu_devices_do(run_python: RunPython, tmp_path: Path) -> None:
    (tmp_path / "lammps_jax_pjrt_cpu.py").write_text("raise ImportError('not here')\n")
    path = os.pathsep.join([os.fspath(tmp_path), os.fspath(SRC)])
    result = run_json(run_python, "--commit", "--items", "1", env={**os.environ, "PYTHONPATH": path})
    assert (result["home"], result["target"], result["simulated"]) == ("cpu:1", "cpu:0", "2 cpu devices")


def test_jax_platforms_cpu_means_two_cpu_devices(run_python: RunPython) -> None:
    environment = {**os.environ, "PYTHONPATH": os.fspath(SRC), "JAX_PLATFORMS": "cpu"}
    result = run_json(run_python, "--commit", "--items", "1", env=environment)
    assert result["simulated"] == "2 cpu devices"


# -- refusals ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--shape", "12"), "--shape 12: not a shape of two or more whole numbers of at least 1; write for "
         "example --shape 530640,6,1024 (the first is the number of rows)"),
        (("--shape", "8,0"), "--shape 8,0: not a shape of two or more whole numbers of at least 1; write for "
         "example --shape 530640,6,1024 (the first is the number of rows)"),
        (("--shape", "4,8"), "--items 10: the parent has only 4 rows (shape 4,8)"),
        (("--quick", "--shape", "64,8"),
         "--quick and --shape both say how large the parent is; use one of them"),
        (("--simulate=1",), "--simulate=1: write --simulate, or --simulate=N with 2 or more CPU devices"),
        (("--quick", "--plot", "lookup.pdf"), "--plot lookup.pdf: a picture ends in .png or .svg"),
        (("--quick", "--plot", "no/a.png"), "--plot no/a.png: there is no folder no; make it first"),
        (("--quick", "--simulate=2", "--home", "cpu:0", "--target", "cpu:0"),
         "home and target are both cpu:0: nothing can drift; choose two of cpu:0, cpu:1, "
         "or add --simulate=2 for two CPU devices"),
        (("--quick", "--simulate=2", "--target", "gpu:9"),
         "--target gpu:9: no such device; JAX has cpu:0, cpu:1 here "
         "(--simulate gives a simulated accelerator, --simulate=2 two CPU devices)"),
    ],
)  # fmt: skip
def test_refused_in_one_sentence(run_python: RunPython, arguments: tuple[str, ...], message: str) -> None:
    done = run_python("-m", "moored", "bench", "lookup", *arguments)
    assert done.returncode == 2
    assert done.stderr == f"moored: error: {message}\n"
    assert done.stdout == ""


def test_a_shape_that_does_not_fit_is_refused_before_jax_starts(run_python: RunPython) -> None:
    code = (
        "import sys\nfrom moored.cli import main\n"
        "code = main(['bench', 'lookup', '--shape', '200000000,6,1024'])\n"
        "print('jax' in sys.modules)\nsys.exit(code)\n"
    )
    done = run_python("-c", code)
    assert done.returncode == 2
    assert done.stdout == "False\n"
    assert re.fullmatch(
        r"moored: error: --shape 200000000,6,1024 of uint16 is 2\.46 TB and needs 4\.92 TB at the peak "
        r"\(the parent, one copy of it, 600 MB for JAX\); [\d.]+ [GM]B is available \(.+\); "
        r"the largest that fits: --shape \d+,6,1024\n",
        done.stderr,
    )


def test_matplotlib_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moored.bench.lookup_plot.importlib.util.find_spec", lambda name: None)
    with pytest.raises(MachineError) as refused:
        check_plot("lookup.svg")
    assert str(refused.value) == "--plot lookup.svg: matplotlib is not installed: pip install 'moored[plot]'"


# -- memory --------------------------------------------------------------------------------


def machine(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


MEMINFO = "MemTotal: 24684084 kB\nMemAvailable: 10000000 kB\n"


@pytest.mark.parametrize(
    ("files", "nbytes", "source"),
    [
        pytest.param({"proc/meminfo": MEMINFO}, 10_240_000_000, "/proc/meminfo", id="no groups"),
        pytest.param(
            {
                "proc/meminfo": MEMINFO,
                "proc/self/cgroup": "0::/user/job\n",
                "sys/fs/cgroup/user/job/memory.max": "max\n",
                "sys/fs/cgroup/user/job/memory.current": "1000\n",
                "sys/fs/cgroup/user/memory.max": "5000000000\n",
                "sys/fs/cgroup/user/memory.current": "3000000000\n",
                "sys/fs/cgroup/user/memory.stat": "anon 5\ninactive_file 1000000000\n",
            },
            3_000_000_000,
            "memory.max of control group /user",
            id="version 2, the parent's limit, cache given back",
        ),
        pytest.param(
            {
                "proc/meminfo": MEMINFO,
                "proc/self/cgroup": "9:cpu:/x\n4:memory:/job\n0::/\n",
                "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "4000000000\n",
                "sys/fs/cgroup/memory/job/memory.usage_in_bytes": "500000000\n",
                "sys/fs/cgroup/memory/job/memory.stat": "total_inactive_file 0\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
                "sys/fs/cgroup/memory/memory.usage_in_bytes": "500000000\n",
            },
            3_500_000_000,
            "memory.limit_in_bytes of control group /job",
            id="version 1",
        ),
        pytest.param(
            {
                "proc/meminfo": MEMINFO,
                "proc/self/cgroup": "4:memory:/docker/abc\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "2000000000\n",
                "sys/fs/cgroup/memory/memory.usage_in_bytes": "3000000000\n",
            },
            0,
            "memory.limit_in_bytes of control group /",
            id="a container that sees its own group as the root, and is over it",
        ),
    ],
)
def test_available_is_the_strictest_word(
    tmp_path: Path, files: dict[str, str], nbytes: int, source: str
) -> None:
    assert available(machine(tmp_path, files)) == Available(nbytes, source)


TEN_GB = host_limit(Available(10_000_000_000, "/proc/meminfo"))


def test_a_full_size_that_does_not_fit_gets_smaller_and_says_so() -> None:
    plan, notes = fit(Plan(shape=FULL), TEN_GB, asked=False)
    assert plan.shape == (380000, 6, 1024)
    assert notes == [
        "530640,6,1024 of uint16 is 6.52 GB and needs 13.6 GB at the peak (the parent, one copy of it, "
        "600 MB for JAX); 10 GB is available (/proc/meminfo). Used instead, because it fits: "
        "380000,6,1024, 4.67 GB."
    ]
    assert fit(plan, TEN_GB, asked=False) == (plan, [])


def test_a_shape_that_was_asked_for_is_refused() -> None:
    with pytest.raises(MachineError) as refused:
        settle_shape(FULL, "uint16", TEN_GB, asked=True)
    assert str(refused.value) == (
        "--shape 530640,6,1024 of uint16 is 6.52 GB and needs 13.6 GB at the peak (the parent, one copy of "
        "it, 600 MB for JAX); 10 GB is available (/proc/meminfo); the largest that fits: "
        "--shape 380000,6,1024"
    )


def test_the_device_counts_too() -> None:
    limits = [
        *TEN_GB,
        Limit(Available(4_000_000_000, "memory of gpu:0"), 1, 0, "one copy of the parent on gpu:0"),
    ]
    with pytest.raises(
        MachineError, match=r"needs 6\.52 GB at the peak \(one copy of the parent on gpu:0\); 4 GB"
    ):
        settle_shape(FULL, "uint16", limits, asked=True)


def test_not_even_a_row() -> None:
    with pytest.raises(MachineError) as refused:
        settle_shape((2, 10**9), "uint16", host_limit(Available(10**9, "/proc/meminfo")), asked=False)
    assert str(refused.value) == (
        "--shape 2,1000000000 of uint16 is 4 GB and needs 8.6 GB at the peak (the parent, one copy of it, "
        "600 MB for JAX); 1 GB is available (/proc/meminfo): not even one row of 2 GB fits"
    )


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_the_peak_counts_from_the_reset() -> None:
    np.ones(200_000_000, np.uint8)  # freed at once
    peak = Peak()
    peak.reset()
    before = peak.nbytes()
    np.ones(100_000_000, np.uint8)
    after = peak.nbytes()
    assert before is not None
    assert after is not None
    assert 95_000_000 < after - before < 190_000_000 or peak.since == "the process started"


# -- the parent ----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_values_are_whole_and_below_50000(dtype: str) -> None:
    tokens = allocate((611, 3, 1001), dtype)  # several blocks, the last one cut short
    done: list[int] = []
    fill(tokens, 7, done.append)
    assert sum(done) == tokens.nbytes
    top = {"int8": 128, "uint8": 256, "int16": 32768, "float16": 2048}.get(dtype, 50_000)
    assert tokens.min() >= 0
    assert top * 0.95 < tokens.max() < top
    assert np.array_equal(tokens, np.floor(tokens))
    assert abs(tokens.mean(dtype=np.float64) / (top / 2) - 1) < 0.02
    again = allocate(tokens.shape, dtype)
    fill(again, 7)
    assert np.array_equal(tokens, again)
    fill(again, 8)
    assert (tokens != again).mean() > 0.9


def test_jax_gets_the_parent_uncommitted_and_without_a_copy() -> None:
    import jax

    tokens = allocate((64, 6, 16), "uint16")
    fill(tokens, 0)
    tokens.flags.writeable = False
    home = jax.devices("cpu")[1]
    array, zero_copy = hand_over(tokens, home)
    assert zero_copy
    assert array.unsafe_buffer_pointer() == tokens.ctypes.data
    assert array.committed is False
    assert array.devices() == {home}
    assert np.array_equal(np.asarray(array), tokens)
    assert Parent(tokens, home, array).committed().committed is True


def test_memory_that_is_not_aligned_is_copied_and_said_so() -> None:
    import jax

    whole = allocate((4096,), "uint16")
    assert hand_over(whole[3:], jax.devices("cpu")[1])[1] is False


def test_a_wrong_item_stops_the_experiment() -> None:
    pair = choose("cpu:1", "cpu:0", None)
    plan = Plan(shape=(16, 2, 64), items=4, sweep=False)
    tokens, other = allocate(plan.shape, "uint16"), allocate(plan.shape, "uint16")
    fill(tokens, 0)
    other[:] = tokens
    other[2, 1, 5] += 1
    parent = Parent(tokens, pair.home, hand_over(other, pair.home)[0])
    result = begin(plan, pair, [])
    with Bar(work(plan)) as bar, pytest.raises(MooredError) as wrong:
        look_up(plan, pair, parent, result, Listener(), bar)
    assert str(wrong.value) == (
        "drifting: item 2 differs from row 2 of the parent; JAX returned wrong values on this machine"
    )


@pytest.mark.parametrize("text", ["", "5", "a,b", "1,-2", "1.5,2", "1,,2"])
def test_bad_shapes(text: str) -> None:
    with pytest.raises(InputError):
        parse_shape(text)


# -- the verdict ---------------------------------------------------------------------------


def finished(**changes: Any) -> Lookup:
    parent = 6_520_504_320
    result = Lookup(
        shape=FULL,
        dtype="uint16",
        seed=0,
        parent_nbytes=parent,
        item_nbytes=12_288,
        home="cpu:0",
        target="gpu:0",
        simulated=None,
        variants=[
            Variant(name="drifting", seconds=[5.2, 1.2, 1.25, 1.15], bytes_per_lookup=parent, traced=2),
            Variant(name="committed", seconds=[0.05, 1e-4, 1e-4, 1e-4], bytes_per_lookup=0, traced=2),
            Variant(name="moored", seconds=[1e-6, 1e-6, 1e-6, 1e-6], bytes_per_lookup=0, traced=2),
        ],
        sweep=[
            SweepPoint(parent_nbytes=407_531_520, drifting=0.075, committed=0.0001),
            SweepPoint(parent_nbytes=parent, drifting=1.2, committed=0.000099),
        ],
        slopes={"drifting": Slope(0.184, 5.43), "committed": Slope(-1.6e-7, None)},
    )
    for name, value in changes.items():
        setattr(result, name, value)
    result.settle()
    return result


def test_the_verdict_in_words() -> None:
    assert verdict(finished()) == [
        "The first drifting lookup took 5.2 s, 4 s more than the later ones (1.2 s): it also compiles.",
        "Drifting: every lookup moved the whole parent, 6.52 GB from cpu:0 to gpu:0, to take an item of "
        "12.3 kB (2 lookups traced).",
        "Committed: no byte of the parent moved (2 lookups traced).",
        "Moored: no byte of the parent moved (2 lookups traced).",
        "Drifting: the time grows with the parent: 75 ms at 408 MB, 1.2 s at 6.52 GB; slope 184 ms per GB, "
        "that is 5.43 GB/s.",
        "Committed: the time stays flat: 100 us at 408 MB, 99 us at 6.52 GB; slope -160 ns per GB.",
        "drifting / committed: 12,250 x  (medians of all lookups)",
        "drifting / moored:    1,225,000 x  (medians of all lookups)",
    ]


def test_the_verdict_claims_nothing_that_the_tracer_did_not_see() -> None:
    variants = [Variant(name="drifting", seconds=[1.0])]
    assert verdict(finished(variants=variants, sweep=[])) == ["Nothing was measured."]
    half = [Variant(name="drifting", seconds=[1.0], bytes_per_lookup=100, traced=1)]
    assert verdict(finished(variants=half, sweep=[])) == [
        "Drifting: every lookup moved 100 B from cpu:0 to gpu:0, to take an item of 12.3 kB "
        "(1 lookup traced)."
    ]
    blind = "the tracer's seam 'calls' is not live on this JAX: AttributeError: gone"
    assert verdict(finished(variants=half, sweep=[], tracer=blind)) == [
        f"The bytes that moved are not known: {blind}."
    ]


# -- the harness ---------------------------------------------------------------------------


def test_interleaved_rounds_visit_every_case_and_keep_no_warm_up() -> None:
    visits: list[str] = []

    def case(name: str) -> float:
        visits.append(name)
        return float(len(visits))

    samples = interleave({"a": lambda: case("a"), "b": lambda: case("b")}, rounds=3, warm_up=2)
    assert visits == ["a", "b", "b", "a", "a", "b", "b", "a", "a", "b"]
    assert samples == {"a": [5.0, 8.0, 9.0], "b": [6.0, 7.0, 10.0]}


def test_a_line_needs_two_places() -> None:
    assert fit_line([2.0, 2.0], [1.0, 3.0]) is None


def test_the_bar_appears_on_a_terminal_once_something_takes_a_while() -> None:
    now = [0]
    screen = io.StringIO()
    with Bar(10, Console(file=screen, force_terminal=True, width=60), clock=lambda: now[0]) as bar:
        bar.say("looking up")
        assert screen.getvalue() == ""
        now[0] = 2_000_000_000
        bar.advance(5)
        assert "looking up" in screen.getvalue()
        assert "50%" in screen.getvalue()
        with bar.aside():
            hidden = len(screen.getvalue())
        assert len(screen.getvalue()) == hidden
        bar.advance(2)  # more to show: it is back
        assert "70%" in screen.getvalue()[hidden:]
        drawn = len(screen.getvalue())
        bar.advance(1)  # within a tenth of a second: not drawn again
        assert len(screen.getvalue()) == drawn


def test_the_bar_is_silent_where_there_is_no_terminal() -> None:
    now = [0]
    screen = io.StringIO()
    with Bar(10, Console(file=screen), clock=lambda: now[0]) as bar:
        now[0] = 5_000_000_000
        bar.advance(5)
    assert screen.getvalue() == ""


# -- beside it -----------------------------------------------------------------------------

EXAMPLE = SRC.parent / "examples" / "commitment_issues.py"
OVERHEAD = SRC.parent / "benchmarks" / "overhead.py"
TWO_CPUS = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}


@pytest.mark.parametrize(
    ("switches", "place"),
    [((), "cpu:1, committed: False"), (("--commit",), "cpu:0, committed: True")],
)
def test_the_example_is_the_published_experiment(
    run_python: RunPython, switches: tuple[str, ...], place: str
) -> None:
    done = run_python(
        os.fspath(EXAMPLE),
        "--shape",
        "64,6,1024",
        "--put-items-to-gpu",
        *switches,
        env={**os.environ, **TWO_CPUS},
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == f"array (64, 6, 1024) uint16, 0.00 GB, committed: {bool(switches)}"
    number = r"\d+\.\d{6} s on"
    for index in range(10):
        assert re.fullmatch(rf"item {index}: {number} {place}", lines[1 + 2 * index])
        assert re.fullmatch(rf"   put: {number} cpu:1, committed: True", lines[2 + 2 * index])


def test_the_example_is_short_and_knows_nothing_of_moored() -> None:
    text = EXAMPLE.read_text()
    assert "moored" not in text
    assert len(text.splitlines()) < 60


def test_the_overhead_benchmark_reports_every_round(run_python: RunPython) -> None:
    done = run_python(os.fspath(OVERHEAD), "--rounds", "2", "--only", "tiny", "--only", "numpy", "--json")
    assert done.returncode == 0, done.stderr
    cases = json.loads(done.stdout)["cases"]
    assert list(cases) == ["tiny", "numpy"]
    for case in cases.values():
        traced, untraced = case["traced_seconds"], case["untraced_seconds"]
        assert len(traced) == len(untraced) == 2
        assert case["ratio_of_least"] == pytest.approx(min(traced) / min(untraced))
        assert case["ratio_of_medians"] == pytest.approx(
            statistics.median(traced) / statistics.median(untraced)
        )


def test_the_makefile_traces_on_the_devices_of_the_benchmark(run_python):
    pytest.importorskip("lammps_jax_pjrt_cpu")
    assert run_python("-m", "moored.bench.makefile", "trace").stdout == "--simulate\n"
    two = {**os.environ, "PYTHONPATH": os.fspath(SRC), "JAX_PLATFORMS": "cpu"}
    assert run_python("-m", "moored.bench.makefile", "trace", env=two).stdout == "--simulate=2\n"
    quick = run_python("-m", "moored.bench.makefile", "program", "--quick", "--plot", "a.png")
    assert quick.stdout == "--shape 16384,6,1024\n"
