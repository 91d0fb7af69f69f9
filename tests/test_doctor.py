"""``moored doctor``: facts, advice in plain words, and a text for both."""

from __future__ import annotations

import json
import sys

import jax
import numpy as np
import pytest

from isolated import run
from moored.cli.doctor import as_text
from moored.diagnose.advice import advise
from moored.diagnose.bandwidth import measure
from moored.diagnose.diagnosis import Advice, Bandwidth, DeviceState, Diagnosis, PlatformState
from moored.diagnose.doctor import examine
from moored.model.recording import SeamState
from moored.placement.devices import Names

CPU = PlatformState("cpu", "cpu", [DeviceState("cpu:0", "cpu", ["device", "pinned_host"])])
TWO_CPUS = PlatformState("cpu", "cpu", [*CPU.devices, DeviceState("cpu:1", "cpu", ["device"])])
GPU = PlatformState("gpu", "cuda 13000", [DeviceState("gpu:0", "NVIDIA H200", ["device"])])
GOOD = {"jax": "0.12.0.1", "jaxlib": "0.12.0.1", "numpy": "2.5.5"}


def healthy(**changes) -> Diagnosis:
    facts = {
        "moored": "0.1.0",
        "python": "3.13.1",
        "system": "Linux x86_64",
        "packages": GOOD,
        "requires_jaxlib": "<=0.12.0.1,>=0.11.2",
        "jax_found": True,
        "platforms": [GPU, CPU],
        "default_device": "gpu:0",
    }
    return Diagnosis(**{**facts, **changes})


def texts(diagnosis: Diagnosis) -> list[str]:
    return [f"{item.level}: {item.text}" for item in advise(diagnosis)]


def test_a_healthy_machine_needs_no_advice():
    assert texts(healthy(nvidia=["/dev/nvidia0"])) == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"packages": {**GOOD, "jax": "0.9.1", "jaxlib": "0.9.1"}, "requires_jaxlib": "<=0.9.1,>=0.9.1"},
            "problem: JAX 0.9.1 is older than 0.10, the oldest that moored is tested with: the tracer may be "
            "blind to some copies; pip install -U jax",
        ),
        (
            {"packages": {**GOOD, "jaxlib": "0.11.1"}},
            "problem: jax 0.12.0.1 needs jaxlib<=0.12.0.1,>=0.11.2, and jaxlib 0.11.1 is installed; "
            "pip install -U jax jaxlib",
        ),
        (
            {"packages": {**GOOD, "jaxlib": "0.11.2 and 0.12.0.1"}},
            "problem: jaxlib is installed more than once (0.11.2 and 0.12.0.1), and which one runs is "
            "chance; pip uninstall jaxlib until none is left, then install it once",
        ),
        (
            {"packages": {**GOOD, "jax-cuda13-plugin": "0.11.2"}},
            "problem: jax-cuda13-plugin 0.11.2 does not belong to jaxlib 0.12.0.1, and JAX may refuse "
            "to load it; pip install -U jax-cuda13-plugin==0.12.0.1",
        ),
        (
            {"platforms": [TWO_CPUS], "nvidia": ["/dev/nvidia0"]},
            "problem: this machine has an NVIDIA GPU (/dev/nvidia0), but the JAX that is installed has no "
            "support for it: all work runs on the CPU; pip install -U 'jax[cuda13]'",
        ),
        (
            {
                "platforms": [TWO_CPUS],
                "nvidia": ["/dev/nvidia0"],
                "packages": {**GOOD, "jax-cuda13-plugin": "0.12.0.1"},
            },
            "problem: this machine has an NVIDIA GPU (/dev/nvidia0), and JAX's plugin for it did not start; "
            "python -c \"import jax; jax.devices('cuda')\" says why (often the driver is too old)",
        ),
        (
            {"platforms": [TWO_CPUS], "nvidia": ["/dev/nvidia0"], "environment": {"JAX_PLATFORMS": "cpu"}},
            "problem: JAX_PLATFORMS=cpu hides this machine's NVIDIA GPU (/dev/nvidia0); unset it",
        ),
        (
            {
                "platforms": [TWO_CPUS],
                "nvidia": ["/dev/nvidia0"],
                "environment": {"CUDA_VISIBLE_DEVICES": "-1"},
            },
            "problem: CUDA_VISIBLE_DEVICES=-1 hides this machine's NVIDIA GPU (/dev/nvidia0); unset it",
        ),
        (
            {"environment": {"XLA_PYTHON_CLIENT_PREALLOCATE": "no"}},
            "problem: XLA_PYTHON_CLIENT_PREALLOCATE=no means true: only 'false', 'False' and '0' turn "
            "preallocation off",
        ),
        (
            {"environment": {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}},
            "note: XLA_PYTHON_CLIENT_PREALLOCATE=false: GPU memory is taken as it is needed, which shows "
            "what a program uses, is slower, and can fail from fragmentation where preallocation would not",
        ),
        (
            {"environment": {"XLA_CLIENT_MEM_FRACTION": "90"}},
            "problem: XLA_CLIENT_MEM_FRACTION=90 is not a fraction above 0 and up to 1, such as 0.75",
        ),
        (
            {"environment": {"XLA_CLIENT_MEM_FRACTION": ".5", "XLA_PYTHON_CLIENT_MEM_FRACTION": ".5"}},
            "problem: XLA_PYTHON_CLIENT_MEM_FRACTION=.5 and XLA_CLIENT_MEM_FRACTION=.5 are both set, which "
            "stops JAX on a GPU; unset the first, it is the old name",
        ),
        (
            {"environment": {"JAX_TRANSFER_GUARD": "disallow"}},
            "note: JAX_TRANSFER_GUARD=disallow is set; it misses the copies of calls that are already warm, "
            "moored trace sees them",
        ),
        (
            {"environment": {"JAX_PLATFORMS": "cuda,cpu"}},
            "note: JAX_PLATFORMS=cuda,cpu: JAX starts no other platform, whatever is installed",
        ),
        (
            {"platforms": [CPU]},
            "note: JAX has one device here, cpu:0, so no array can drift and no trace of one can show: "
            "moored trace --simulate PROGRAM adds a simulated accelerator "
            "(pip install 'moored[sim]'; --simulate=2 works without it)",
        ),
        (
            {"platforms": [TWO_CPUS], "simulated": "2 cpu devices"},
            "note: 2 cpu devices: simulated on the CPU; copies are real, speeds are not a GPU's",
        ),
        (
            {"seams": [SeamState("reads", False, "jaxlib has no ArrayImpl")]},
            "problem: moored is blind at reads: jaxlib has no ArrayImpl",
        ),
        (
            {
                "jax_error": "JAX can start no device: no such thing",
                "platforms": [],
                "environment": {"JAX_PLATFORMS": "npu"},
            },
            "problem: JAX can start no device: no such thing. JAX_PLATFORMS=npu makes JAX start exactly "
            "these platforms or fail; unset it to let JAX choose",
        ),
    ],
)
def test_one_fault_gives_one_advice(changes, expected):
    assert texts(healthy(**changes)) == [expected]


def test_problems_come_first():
    found = advise(healthy(platforms=[CPU], packages={**GOOD, "jaxlib": "0.1"}))
    assert [item.level for item in found] == ["problem", "note"]


def test_the_facts_of_this_machine(monkeypatch):
    monkeypatch.setenv("JAX_ENABLE_X64", "0")
    diagnosis = examine(probe_nbytes=100_000)
    assert diagnosis.jax_error is None
    assert diagnosis.packages["jax"] == jax.__version__
    assert diagnosis.packages["numpy"] == np.__version__
    assert diagnosis.environment["JAX_ENABLE_X64"] == "0"
    assert [device.name for device in diagnosis.devices] == [f"cpu:{d.id}" for d in jax.devices("cpu")]
    assert diagnosis.devices[0].memories[0] == "device"
    assert diagnosis.default_device == "cpu:0"
    assert [seam.name for seam in diagnosis.seams if not seam.live] == []
    expected = [("host", "cpu:0"), ("cpu:0", "host"), ("cpu:1", "cpu:0")][: 1 + len(diagnosis.devices)]
    assert [(b.source, b.target) for b in diagnosis.bandwidths] == expected


def test_the_default_device_is_the_one_in_force():
    second = jax.devices("cpu")[-1]
    with jax.default_device(second):
        assert examine(probe_nbytes=0).default_device == f"cpu:{second.id}"


def test_bandwidth_is_bytes_over_the_median_of_real_copies():
    readings = iter([0, 4000, 0, 1000, 0, 2000, 0, 9000, 0, 3000] * 2)
    device = jax.devices("cpu")[0]
    up, down = measure(jax, device, None, 1_000_000, names=Names(jax), clock=lambda: next(readings))
    assert up == Bandwidth("host", "cpu:0", 1_000_000, 3e-6, pytest.approx(1_000_000 / 3e-6 / 1e9), 5)
    assert (down.source, down.target) == ("cpu:0", "host")
    assert next(readings, None) is None


def test_the_text_verbatim():
    diagnosis = healthy(
        environment={"JAX_PLATFORMS": "cuda,cpu"},
        seams=[
            SeamState("calls", True, "", "traffic inside an executable"),
            SeamState("reads", False, "no such type"),
        ],
        bandwidths=[
            Bandwidth("host", "gpu:0", 64_000_000, 0.0032, 20.0, 5),
            Bandwidth("cpu:0", "gpu:0", 64_000_000, None, None, 5),
        ],
        advice=[Advice("problem", "something is wrong")],
    )
    assert as_text(diagnosis) == (
        "moored 0.1.0, Python 3.13.1, Linux x86_64\n"
        "jax 0.12.0.1, jaxlib 0.12.0.1, numpy 2.5.5\n"
        "JAX_PLATFORMS=cuda,cpu\n"
        "\n"
        "Devices\n"
        "  gpu:0  NVIDIA H200  memories: device\n"
        "  cpu:0  cpu          memories: device, pinned_host\n"
        "  default device: gpu:0\n"
        "\n"
        "Copies, measured here: 64 MB each, median of 5\n"
        "  host -> gpu:0   20 GB/s\n"
        "  cpu:0 -> gpu:0  device_put copies nothing: both are this machine's memory\n"
        "\n"
        "What moored sees here, by a self-test of each seam\n"
        "  calls  live  blind to: traffic inside an executable\n"
        "  reads  DEAD  no such type\n"
        "\n"
        "Set-up\n"
        "  problem: something is wrong"
    )


# --- the command, in a process of its own ---

DOCTOR = "import sys; from moored.__main__ import main; sys.exit(main())"
WITHOUT_JAX = "import sys; sys.modules['jax'] = None; sys.modules['jaxlib'] = None; sys.argv[0] = 'moored'\n"


def test_json_has_everything_and_a_simulated_accelerator():
    done = run(DOCTOR, "doctor", "--simulate", "--json")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["schema"] == "moored.doctor/1"
    assert facts["simulated"] == "accel"
    assert facts["default_device"] == "accel:0"
    assert [platform["name"] for platform in facts["platforms"]] == ["accel", "cpu"]
    shared = facts["bandwidths"][2]
    assert (shared["source"], shared["target"], shared["gb_per_s"]) == ("cpu:0", "accel:0", None)


def test_two_simulated_cpu_devices():
    done = run(DOCTOR, "doctor", "--simulate=2")
    assert done.returncode == 0, done.stderr
    assert "  default device: cpu:0\n" in done.stdout
    assert "simulated, not a GPU's\n" in done.stdout
    assert "  cpu:1 -> cpu:0  " in done.stdout


def test_without_jax_it_reports_what_to_install_and_exits_with_0():
    done = run(WITHOUT_JAX + DOCTOR, "doctor")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith(
        "Set-up\n  problem: moored doctor needs JAX, and jax is not installed: pip install jax "
        "(for an NVIDIA GPU: pip install 'jax[cuda13]')\n"
    )


def test_a_jax_that_does_not_import_is_one_clear_line(tmp_path):
    (tmp_path / "jax").mkdir()
    (tmp_path / "jax" / "__init__.py").write_text(
        "raise AttributeError('numpy has no attribute foo\\nat all')\n"
    )
    path = f"{tmp_path}:{':'.join(sys.path)}"
    done = run(DOCTOR, "doctor", PYTHONPATH=path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith(
        "Set-up\n  problem: moored doctor needs JAX, which does not import: numpy has no attribute foo\n"
    )


def test_a_platform_that_does_not_start_is_one_clear_line():
    done = run(DOCTOR, "doctor", JAX_PLATFORMS="bogus")
    assert done.returncode == 0
    assert "  problem: JAX can start no device: " in done.stdout
    assert "JAX_PLATFORMS=bogus makes JAX start exactly these platforms or fail; unset it" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("option", "environ", "message"),
    [
        (
            "--simulate=many",
            {},
            "moored: error: --simulate=many: write --simulate, or --simulate=N with a number of CPU "
            "devices\n",
        ),
        (
            "--simulate",
            {"JAX_PLATFORMS": "cpu"},
            "moored: error: --simulate: JAX_PLATFORMS=cpu is set, which hides the simulated device (accel); "
            "unset JAX_PLATFORMS\n",
        ),
    ],
)
def test_devices_that_can_not_be_had_are_refused_with_2(option, environ, message):
    done = run(DOCTOR, "doctor", option, **environ)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", message)
