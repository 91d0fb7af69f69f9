"""Simulated devices: what they do to the environment, and that JAX then has them."""

from __future__ import annotations

import os
import sys

import pytest

from isolated import ON_ACCELERATOR, ON_FOUR_CPUS, output, run
from moored.errors import InputError, MachineError
from moored.trace import simulate

PLUGIN = f"accel{os.pathsep}{simulate.plugin_library()}"
needs_plugin = pytest.mark.skipif(simulate.plugin_library() is None, reason="moored[sim] is not installed")


@pytest.fixture(autouse=True)
def before_jax(monkeypatch):
    """As if JAX had not been imported, and nothing were simulated."""
    monkeypatch.delitem(sys.modules, "jax")
    monkeypatch.setattr(simulate, "_simulated", None)


def prepared(devices=None, **environ):
    simulate.prepare(devices, environ=environ)
    return environ


def refusal(devices=None, **environ):
    before = dict(environ)
    with pytest.raises((InputError, MachineError)) as caught:
        simulate.prepare(devices, environ=environ)
    assert environ == before  # a refusal changes nothing
    assert simulate.active() is None
    return str(caught.value)


@needs_plugin
def test_the_accelerator_is_registered_beside_what_is_there():
    assert prepared() == {"PJRT_NAMES_AND_LIBRARY_PATHS": PLUGIN}
    assert simulate.active() == "accel"
    other = f"npu{os.pathsep}/opt/npu.so"
    assert prepared(PJRT_NAMES_AND_LIBRARY_PATHS=other)["PJRT_NAMES_AND_LIBRARY_PATHS"] == f"{other},{PLUGIN}"


def test_an_accelerator_that_is_registered_already_is_left_alone():
    mine = f"accel{os.pathsep}/my/own.so"
    assert prepared(PJRT_NAMES_AND_LIBRARY_PATHS=mine) == {"PJRT_NAMES_AND_LIBRARY_PATHS": mine}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", "--xla_force_host_platform_device_count=3"),
        ("--xla_dump_to=/x", "--xla_dump_to=/x --xla_force_host_platform_device_count=3"),
        (
            "--xla_force_host_platform_device_count=8 --xla_dump_to=/x",
            "--xla_dump_to=/x --xla_force_host_platform_device_count=3",
        ),
    ],
)
def test_the_number_asked_for_wins_and_other_flags_stay(before, after):
    assert prepared(3, XLA_FLAGS=before) == {"XLA_FLAGS": after, "JAX_PLATFORMS": "cpu"}
    assert simulate.active() == "3 cpu devices"


def test_a_device_count_in_jax_num_cpu_devices_gives_way_too():
    assert prepared(3, JAX_NUM_CPU_DEVICES="8")["JAX_NUM_CPU_DEVICES"] == "3"


@needs_plugin
@pytest.mark.parametrize(
    ("devices", "chosen", "becomes"),
    [
        (None, "cuda,cpu", "accel,cpu"),
        (None, "accel,gpu,cpu", "accel,cpu"),
        (2, "gpu, cpu", "cpu"),
        (2, "CPU", "cpu"),
    ],
)
def test_names_of_accelerators_in_jax_platforms_mean_the_simulated_one(devices, chosen, becomes):
    assert prepared(devices, JAX_PLATFORMS=chosen)["JAX_PLATFORMS"] == becomes


@pytest.mark.parametrize(
    ("environ", "fault"),
    [
        ({"JAX_PLATFORMS": "cpu"}, "JAX_PLATFORMS=cpu is set, which hides"),
        (
            {"JAX_PLATFORMS": "cpu,accel"},
            "JAX_PLATFORMS=cpu,accel is set, which makes cpu JAX's default instead of",
        ),
        ({"JAX_PLATFORM_NAME": "cpu"}, "JAX_PLATFORM_NAME=cpu is set, which hides"),
    ],
)
def test_what_hides_the_simulated_device_is_said_with_its_value(environ, fault):
    (variable,) = environ
    assert refusal(**environ) == f"--simulate: {fault} the simulated device (accel); unset {variable}"


def test_jax_that_is_imported_already_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "jax", object())
    assert refusal(2) == (
        "--simulate=2: JAX was imported before the devices could be simulated; "
        "start with `moored trace --simulate PROGRAM`, or simulate before anything imports JAX"
    )


@pytest.mark.parametrize("devices", [-1, 0, 1, 257])
def test_numbers_out_of_range(devices):
    assert refusal(devices) == (
        f"--simulate={devices}: between 2 and 256 devices can be simulated; with 2, drift can show"
    )


def test_without_the_plugin_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "lammps_jax_pjrt_cpu", None)
    assert simulate.plugin_library() is None
    assert refusal() == (
        "--simulate: the simulated accelerator is not installed: pip install 'moored[sim]' "
        "(beside JAX 0.12: pip install --no-deps lammps-jax-pjrt-cpu); "
        "--simulate=2 needs no package and gives two CPU devices instead"
    )


@needs_plugin
def test_a_library_whose_path_jax_would_split_is_refused(monkeypatch, tmp_path):
    library = tmp_path / "a,b" / "plugin.so"
    library.parent.mkdir()
    library.touch()
    monkeypatch.setattr("lammps_jax_pjrt_cpu.PLUGIN_PATH", library)
    assert refusal() == (
        f"--simulate: JAX can not load a plugin from {library}: "
        "the path holds a comma or a ':'; install into another folder, or use --simulate=2"
    )


def test_nothing_is_simulated_unless_asked_for():
    assert simulate.active() is None
    simulate.finish()


# --- in a JAX of its own ---

SHOW = """
import jax
simulate.finish()
accelerator, cpu = jax.devices()[0], jax.devices("cpu")[0]
print(len(jax.devices()), accelerator is cpu, accelerator.client is cpu.client)
print(*(jax.devices(name)[0] is accelerator for name in ("gpu", "cuda", "tpu")))
"""


@needs_plugin
def test_the_simulated_accelerator_is_a_client_of_its_own_and_the_default():
    assert output(SHOW, simulate=ON_ACCELERATOR) == "4 False False\nTrue True True\n"


def test_cpu_devices_are_as_many_as_asked_for():
    assert output(SHOW, simulate=ON_FOUR_CPUS, XLA_FLAGS="--xla_force_host_platform_device_count=7") == (
        "4 True True\nTrue True True\n"
    )
    assert output(SHOW, simulate=ON_FOUR_CPUS, JAX_NUM_CPU_DEVICES="7").startswith("4 True True\n")


@needs_plugin
def test_a_jax_platforms_that_names_cuda_starts_the_simulated_one():
    assert (
        output(SHOW, simulate=ON_ACCELERATOR, JAX_PLATFORMS="cuda,cpu") == "4 False False\nTrue True True\n"
    )


@needs_plugin
def test_the_drift_of_a_whole_array_is_a_real_copy_there():
    assert (
        output(
            """
        import jax, jax.numpy as jnp
        with jax.default_device(jax.devices("cpu")[0]):
            parent = jnp.arange(4096.0)
        whole = jax.jit(lambda x: x)(parent)
        print(parent.devices() == whole.devices(), whole.devices() == {jax.devices()[0]})
        print(parent.unsafe_buffer_pointer() == whole.unsafe_buffer_pointer())
        """,
            simulate=ON_ACCELERATOR,
        )
        == "False True\nFalse\n"
    )


def test_importing_it_imports_no_jax():
    assert (
        run("import sys; from moored.trace import simulate; assert 'jax' not in sys.modules").returncode == 0
    )
