"""``moored doctor``: what is installed, which devices JAX has, how fast they are fed, what is wrong.

``examine()`` gathers the facts, ``advise()`` puts what they mean into plain words. A diagnosis
is a report: it does not fail because of what it finds.
"""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Callable, Mapping
from glob import glob
from importlib import metadata
from time import perf_counter_ns
from typing import Any

from moored import __version__
from moored.diagnose.advice import advise
from moored.diagnose.bandwidth import measure
from moored.diagnose.diagnosis import DeviceState, Diagnosis, PlatformState
from moored.errors import MachineError
from moored.placement.devices import Names, default_memory, device_named, first_line, platforms, require_jax
from moored.trace import simulate
from moored.trace.collect import Collector

__all__ = ["examine"]

_PROBE_NBYTES = 64_000_000
_PACKAGES = ("jax", "jaxlib", "numpy", "libtpu", "lammps-jax-pjrt-cpu")
_PLUGIN_PREFIXES = ("jax-cuda", "jax-rocm", "jax-metal")
_VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "JAX_ENABLE_X64",
    "JAX_NUM_CPU_DEVICES",
    "JAX_PLATFORMS",
    "JAX_PLATFORM_NAME",
    "JAX_TRANSFER_GUARD",
    "PJRT_NAMES_AND_LIBRARY_PATHS",
    "XLA_CLIENT_MEM_FRACTION",
    "XLA_FLAGS",
    "XLA_PYTHON_CLIENT_ALLOCATOR",
    "XLA_PYTHON_CLIENT_MEM_FRACTION",
    "XLA_PYTHON_CLIENT_PREALLOCATE",
)


def examine(
    *,
    probe_nbytes: int = _PROBE_NBYTES,
    environ: Mapping[str, str] | None = None,
    clock: Callable[[], int] = perf_counter_ns,
) -> Diagnosis:
    """Examine this machine's JAX; imports JAX and starts its devices.

    Args:
        probe_nbytes: Bytes of each copy that is timed; 0 times none.
        environ: The environment to report; ``os.environ`` where None.
        clock: A clock in nanoseconds.

    Returns:
        The diagnosis. A missing or broken JAX is a finding in it, not an error.

    Raises:
        MemoryError: the machine has no room for the probe.

    >>> diagnosis = examine(probe_nbytes=1_000_000)
    >>> diagnosis.jax_error is None, "cpu" in [state.name for state in diagnosis.platforms]
    (True, True)
    """
    environ = os.environ if environ is None else environ
    diagnosis = Diagnosis(
        moored=__version__,
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
        packages=_packages(),
        requires_jaxlib=_required_jaxlib(),
        environment={name: environ[name] for name in _VARIABLES if environ.get(name)},
        nvidia=_nvidia(),
        simulated=simulate.active(),
    )
    try:
        _examine_jax(diagnosis, probe_nbytes, clock)
    except MachineError as error:
        diagnosis.jax_error = str(error)
    diagnosis.advice = advise(diagnosis)
    return diagnosis


def _examine_jax(diagnosis: Diagnosis, probe_nbytes: int, clock: Callable[[], int]) -> None:
    jax = require_jax("moored doctor")
    diagnosis.jax_found = True
    simulate.finish()
    found = platforms()
    names = Names(jax)
    diagnosis.platforms = [
        PlatformState(name, _version(devices[0]), [_device(names, device) for device in devices])
        for name, devices in found.items()
    ]
    default = _default_device(jax, found)
    diagnosis.default_device = names.device(default)
    diagnosis.seams = Collector.self_test()
    if probe_nbytes:
        others = [device for devices in found.values() for device in devices if device != default]
        host = next((device for device in others if device in found.get("cpu", [])), None)
        try:
            diagnosis.bandwidths = measure(
                jax, default, host or next(iter(others), None), probe_nbytes, names=names, clock=clock
            )
        except RuntimeError as error:  # no room on the device: the rest of the diagnosis still holds
            raise MachineError(f"the copies could not be timed: {first_line(error)}") from None


def _default_device(jax: Any, found: dict[str, list[Any]]) -> Any:
    """Where uncommitted work runs: jax_default_device (a device or a name), else the first device."""
    configured = jax.config.jax_default_device
    if configured is None:
        return next(iter(found.values()))[0]
    return device_named(configured) if isinstance(configured, str) else configured


def _device(names: Names, device: Any) -> DeviceState:
    default = default_memory(device)
    try:
        kinds = sorted(memory.kind for memory in device.addressable_memories())
    except Exception:  # some PJRT plugins implement no memories: each raises its own error
        kinds = []
    kinds.sort(key=lambda kind: kind != default)
    return DeviceState(names.device(device), str(device.device_kind), kinds)


def _version(device: Any) -> str:
    """The client's own words on its version, on one line (``"cuda 12090"``); often just its name."""
    return " ".join(str(device.client.platform_version).split())


def _packages() -> dict[str, str]:
    found: dict[str, set[str]] = {}
    for distribution in metadata.distributions():
        name = str(distribution.metadata["Name"] or "").lower().replace("_", "-")
        if name in _PACKAGES or name.startswith(_PLUGIN_PREFIXES):
            found.setdefault(name, set()).add(distribution.version)
    return {name: " and ".join(sorted(found[name])) for name in sorted(found)}


def _required_jaxlib() -> str:
    try:
        requirements = metadata.requires("jax") or []
    except metadata.PackageNotFoundError:
        return ""
    plain = (text for text in requirements if text.startswith("jaxlib") and ";" not in text)
    return next((text.removeprefix("jaxlib").strip(" ()") for text in plain), "")


def _nvidia() -> list[str]:
    """Traces of an NVIDIA GPU: its device files, and its driver's tool."""
    files = sorted(glob("/dev/nvidia[0-9]*"))
    tool = shutil.which("nvidia-smi")
    return [*files, *([tool] if tool else [])]
