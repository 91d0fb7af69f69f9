"""Which two devices a benchmark runs between: a real accelerator, else a simulated one, else two CPUs.

JAX makes its devices once, when it is first asked, so the choice falls before that: installed
plug-ins say whether there may be an accelerator. Where a plug-in then finds no hardware, the
process is replaced by itself, with the simulation in its environment.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import pkgutil
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from moored.errors import InputError, MachineError
from moored.trace import seams, simulate
from moored.units import format_count

__all__ = ["Pair", "choose", "device_name"]

_MARK = "MOORED_BENCH_SIMULATE"  # set for the process that replaces one whose plug-in found nothing
_TWO = 2


class Pair:
    """The two devices of an experiment.

    Attributes:
        home: Where the parent array lives.
        target: Where operations run: the default device.
        simulated: What is simulated, in words, or None on real hardware.
    """

    def __init__(self, home: Any, target: Any, simulated: str | None) -> None:
        self.home, self.target, self.simulated = home, target, simulated
        self.home_name, self.target_name = device_name(home), device_name(target)

    @property
    def banner(self) -> str:
        """What to know of these devices before reading any figure."""
        if self.simulated == "accel":
            return (
                "Simulated accelerator: the copies between accel and cpu are real, "
                "but the timings are NOT a GPU's."
            )
        if self.simulated:
            return (
                f"No accelerator: {self.home_name} and {self.target_name} are CPU devices of one machine. "
                "The copies between them are real, but the timings are NOT a GPU's."
            )
        kinds = {device.device_kind for device in (self.home, self.target) if device.platform != "cpu"}
        return f"Real hardware: {', '.join(sorted(kinds))}."


def device_name(device: Any) -> str:
    """``"cpu:0"``, ``"accel:0"``: the platform under which the client was registered, and the id."""
    return f"{seams.client_platform(device)}:{device.id}"


def choose(home: str | None, target: str | None, simulated: str | None) -> Pair:
    """Make JAX's devices and pick two; may replace the process (see the module's docstring).

    Args:
        home: Name of the home device; a CPU device by default.
        target: Name of the target; JAX's first device by default.
        simulated: ``"accel"`` or a number of CPU devices to simulate at any rate; None decides.

    Raises:
        InputError: no such device, or both names mean one device.
        MachineError: JAX is missing or can not start.
    """
    if importlib.util.find_spec("jax") is None:
        raise MachineError(
            "JAX is not installed; install it for this machine, for example: pip install 'moored[jax]'"
        )
    before = dict(os.environ)
    tried = _prepare(simulated, (home, target))
    import jax

    simulate.finish()
    try:
        devices = jax.devices()
    except RuntimeError as error:
        if tried == "accel" and simulated is None:
            _start_again(before, str(_TWO))  # the plug-in does not go with this JAX
        raise MachineError(f"JAX can not start its devices: {error}") from None
    if tried is None and _only_one_cpu(devices) and _MARK not in os.environ:
        _start_again(before, "accel" if simulate.plugin_library() else str(_TWO))
    return _pick(devices, home, target)


def _prepare(simulated: str | None, names: Sequence[str | None]) -> str | None:
    """Set up a simulation where one is due; returns which, or None where JAX starts as it would."""
    wanted = simulated or os.environ.get(_MARK)
    if wanted is None:
        if "jax" in sys.modules or simulate.active() or _may_have_devices():
            return None
        wanted = _implied(names)
    if wanted is None:
        try:
            simulate.prepare()
        except MachineError:  # no plug-in, or JAX_PLATFORMS hides it
            wanted = str(_TWO)
        else:
            return "accel"
    simulate.prepare(None if wanted == "accel" else int(wanted))
    return wanted


def _implied(names: Sequence[str | None]) -> str | None:
    """As many CPU devices as names such as ``cpu:1`` speak of."""
    numbers = [re.fullmatch(r"cpu:(\d{1,3})", name) for name in names if name]
    most = max((int(found.group(1)) for found in numbers if found), default=0)
    return str(most + 1) if most else None


def _may_have_devices() -> bool:
    """Whether something installed, or the environment, could give JAX more than one device."""
    environ = os.environ
    if "xla_force_host_platform_device_count" in environ.get("XLA_FLAGS", "") or (
        "JAX_NUM_CPU_DEVICES" in environ
    ):
        return True
    asked = environ.get("JAX_PLATFORMS", "")
    if asked:
        return set(asked.split(",")) != {"cpu"}
    if environ.get("PJRT_NAMES_AND_LIBRARY_PATHS") or importlib.util.find_spec("libtpu") is not None:
        return True
    if tuple(importlib.metadata.entry_points(group="jax_plugins")):
        return True
    plugins = importlib.util.find_spec("jax_plugins")
    places = plugins.submodule_search_locations if plugins is not None else None
    return places is not None and any(pkgutil.iter_modules(list(places)))


def _only_one_cpu(devices: Sequence[Any]) -> bool:
    return len(devices) == 1 and devices[0].platform == "cpu"


def _start_again(environ: Mapping[str, str], simulated: str) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**environ, _MARK: simulated})


def _pick(devices: Sequence[Any], home: str | None, target: str | None) -> Pair:
    import jax

    cpus = list(jax.devices("cpu"))
    every = [*devices, *(d for d in cpus if not any(d is known for known in devices))]
    here = _named(home, every, "--home") if home is not None else None
    if target is not None:
        there = _named(target, every, "--target")
    else:
        there = next((d for d in every if d is not here), here)
    if here is None:
        here = next((d for d in reversed(cpus) if d is not there), there)
    if here is there:
        raise InputError(
            f"home and target are both {device_name(here)}: nothing can drift; "
            f"choose two of {_names(every)}, or add --simulate=2 for two CPU devices"
        )
    return Pair(here, there, _simulated(here, there, len(cpus)))


def _simulated(here: Any, there: Any, n_cpus: int) -> str | None:
    """What is simulated in this pair; the environment may have set it up before moored came."""
    if "accel" in (seams.client_platform(here), seams.client_platform(there)):
        return "accel"
    return format_count(n_cpus, "cpu device") if here.platform == there.platform == "cpu" else None


def _named(name: str, devices: Sequence[Any], option: str) -> Any:
    """The device of that name; a platform alone means its first, and JAX's aliases ("gpu") count."""
    import jax

    platform, _, number = name.partition(":")
    for device in devices:
        if device_name(device) == name:
            return device
    try:
        matching = list(jax.devices(platform))
    except RuntimeError:
        matching = []
    for device in matching:
        if not number or str(device.id) == number:
            return device
    raise InputError(
        f"{option} {name}: no such device; JAX has {_names(devices)} here "
        "(--simulate gives a simulated accelerator, --simulate=2 two CPU devices)"
    )


def _names(devices: Sequence[Any]) -> str:
    return ", ".join(device_name(device) for device in devices)
