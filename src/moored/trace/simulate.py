"""A second device for machines that have only one, so that drift can show.

``prepare()`` sets the environment for the next import of JAX: a simulated accelerator (a
second PJRT client, built from XLA's CPU client, which becomes JAX's default platform
``accel``), or N CPU devices. ``finish()``, called when JAX was imported and before it
starts a device, lets programs that ask for "gpu", "cuda" or "tpu" by name have it.

Both are real to JAX: copies to them happen. Neither says anything about a GPU's speed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping
from pathlib import Path

from moored.errors import InputError, MachineError

__all__ = ["MAX_DEVICES", "PLATFORM", "active", "finish", "plugin_library", "prepare"]

PLATFORM = "accel"
MAX_DEVICES = 256  # each has its own threads
_ALIASES = ("gpu", "cuda", "tpu")  # names by which programs ask for an accelerator
_PLUGINS = "PJRT_NAMES_AND_LIBRARY_PATHS"
_COUNT_FLAG = "--xla_force_host_platform_device_count"

_simulated: tuple[str, int] | None = None  # platform and number of devices (0: as many as the plugin has)


def prepare(devices: int | None = None, *, environ: MutableMapping[str, str] | None = None) -> None:
    """Set the environment so that the next import of JAX gets simulated devices.

    What the environment holds already is kept: other PJRT plugins, and other XLA flags. A
    device count that is there already gives way to ``devices``.

    Args:
        devices: None for the simulated accelerator; a number for so many CPU devices.
        environ: The environment to change; ``os.environ`` where None.

    Raises:
        InputError: ``devices`` is not between 2 and 256.
        MachineError: JAX was imported already, the plugin is not installed, or JAX_PLATFORMS
            (or JAX_PLATFORM_NAME) keeps JAX from making the simulated device its default.

    >>> prepare(1)
    Traceback (most recent call last):
    moored.errors.InputError: --simulate=1: between 2 and 256 devices can be simulated; with 2, drift can show
    """
    global _simulated
    environ = os.environ if environ is None else environ
    option = "--simulate" if devices is None else f"--simulate={devices}"
    if devices is not None and not 2 <= devices <= MAX_DEVICES:
        raise InputError(
            f"{option}: between 2 and {MAX_DEVICES} devices can be simulated; with 2, drift can show"
        )
    if "jax" in sys.modules:
        raise MachineError(
            f"{option}: JAX was imported before the devices could be simulated; "
            "start with `moored trace --simulate PROGRAM`, or simulate before anything imports JAX"
        )
    platform = PLATFORM if devices is None else "cpu"
    _check_platforms(option, platform, environ)
    if devices is None:
        _register_plugin(option, environ)
    else:
        _set_device_count(devices, environ)
    _simulated = (platform, devices or 0)


def finish() -> None:
    """Let the names "gpu", "cuda" and "tpu" mean the simulated device; nothing where none is simulated.

    Call it when JAX was imported and has not started its devices yet.

    Raises:
        MachineError: this JAX is not one that moored knows.

    >>> finish()
    """
    if _simulated is not None:
        from moored.trace.seams import alias_platforms

        alias_platforms(_ALIASES, _simulated[0])


def active() -> str | None:
    """What this process simulates, for headers and banners: ``"accel"``, ``"2 cpu devices"`` or None."""
    if _simulated is None:
        return None
    platform, devices = _simulated
    return f"{devices} cpu devices" if devices else platform


def plugin_library() -> Path | None:
    """The library of the simulated accelerator; None where its package is not installed.

    >>> plugin_library() is None or plugin_library().suffix == ".so"
    True
    """
    try:
        from lammps_jax_pjrt_cpu import PLUGIN_PATH
    except ImportError:
        return None
    library = Path(PLUGIN_PATH)
    return library if library.is_file() else None


def _check_platforms(option: str, platform: str, environ: MutableMapping[str, str]) -> None:
    """JAX starts only the platforms that JAX_PLATFORMS lists, and makes the first one its default."""
    for variable in ("JAX_PLATFORMS", "JAX_PLATFORM_NAME"):
        value = environ.get(variable, "").strip()
        names = [name.strip().lower() for name in value.split(",")]
        # Once finish() ran, the usual names of accelerators mean the simulated one here too; a
        # platform that is listed twice would start twice, as two clients that share nothing.
        meant = list(dict.fromkeys(platform if name in _ALIASES else name for name in names))
        if not value or meant[0] == platform:
            if value:
                environ[variable] = ",".join(meant)
            continue
        fault = f"makes {names[0]} JAX's default instead of" if platform in meant else "hides"
        raise MachineError(
            f"{option}: {variable}={value} is set, which {fault} the simulated device ({platform}); "
            f"unset {variable}"
        )


def _register_plugin(option: str, environ: MutableMapping[str, str]) -> None:
    entries = [entry for entry in environ.get(_PLUGINS, "").split(",") if entry.strip()]
    if any(entry.partition(os.pathsep)[0].strip() == PLATFORM for entry in entries):
        return
    library = plugin_library()
    if library is None:
        raise MachineError(
            f"{option}: the simulated accelerator is not installed: pip install 'moored[sim]' "
            "(beside JAX 0.12: pip install --no-deps lammps-jax-pjrt-cpu); "
            "--simulate=2 needs no package and gives two CPU devices instead"
        )
    if any(character in str(library) for character in (",", os.pathsep)):
        raise MachineError(
            f"{option}: JAX can not load a plugin from {library}: "
            f"the path holds a comma or a {os.pathsep!r}; install into another folder, or use --simulate=2"
        )
    environ[_PLUGINS] = ",".join([*entries, f"{PLATFORM}{os.pathsep}{library}"])


def _set_device_count(devices: int, environ: MutableMapping[str, str]) -> None:
    flags = [flag for flag in environ.get("XLA_FLAGS", "").split() if flag.split("=")[0] != _COUNT_FLAG]
    environ["XLA_FLAGS"] = " ".join([*flags, f"{_COUNT_FLAG}={devices}"])
    if "JAX_NUM_CPU_DEVICES" in environ:  # JAX would let it win over the flag
        environ["JAX_NUM_CPU_DEVICES"] = str(devices)
    # With a GPU in the machine its platform would stay the default: the CPU devices are wanted alone.
    environ["JAX_PLATFORMS"] = environ.get("JAX_PLATFORMS", "").strip() or "cpu"
