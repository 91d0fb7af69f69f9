"""Names of devices and shardings, and devices by name; public JAX API only."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from moored.errors import MachineError, PlacementError

__all__ = ["Names", "device_named", "first_line", "platforms", "require_jax"]

_COMMON = ("cpu", "gpu", "tpu")
_PLUGINS = "PJRT_NAMES_AND_LIBRARY_PATHS"


def require_jax(what: str) -> Any:
    """The module jax, imported now.

    Args:
        what: The feature that needs it, which starts the message: ``"moored.where"``.

    Raises:
        MachineError: JAX is not installed, or can not be imported.
    """
    try:
        import jax
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("jax", "jaxlib"):
            raise MachineError(f"{what} needs JAX, which does not import: {first_line(error)}") from None
        raise MachineError(
            f"{what} needs JAX, and {error.name} is not installed: pip install jax "
            "(for an NVIDIA GPU: pip install 'jax[cuda13]')"
        ) from None
    except Exception as error:  # a broken installation raises anything: one line, whatever it is
        raise MachineError(f"{what} needs JAX, which does not import: {first_line(error)}") from None
    return jax


def first_line(error: BaseException) -> str:
    """The first line that an exception says, or its type where it says nothing."""
    lines = str(error).strip().splitlines()
    return lines[0].strip() if lines else type(error).__name__


def _plugin_names() -> list[str]:
    """Platforms that the environment registers by name, the simulated accelerator among them."""
    entries = os.environ.get(_PLUGINS, "").split(",")
    return [name for name, separator, _ in (entry.partition(os.pathsep) for entry in entries) if separator]


def _devices(jax: Any, platform: str) -> list[Any]:
    """The local devices of a platform; none where JAX does not know it."""
    try:
        return list(jax.local_devices(backend=platform))
    except RuntimeError:
        return []


def platforms() -> dict[str, list[Any]]:
    """This process's devices by platform, the default platform first; initialises JAX's backends.

    JAX offers no list of its platforms, so the names that exist are tried: those that the
    environment registers, the default one, cpu, gpu and tpu. One client counts once.

    Raises:
        MachineError: JAX is missing, or can start no backend.

    >>> "cpu" in platforms()
    True
    """
    jax = require_jax("naming devices")
    try:
        default = jax.local_devices()[0]
    except RuntimeError as error:
        raise MachineError(f"JAX can start no device: {first_line(error)}") from None
    found: dict[str, list[Any]] = {}
    for name in dict.fromkeys((*_plugin_names(), default.platform, *_COMMON)):
        devices = _devices(jax, name)
        if devices and all(devices[0].client is not known[0].client for known in found.values()):
            found[name] = devices
    return dict(sorted(found.items(), key=lambda item: item[1][0].client is not default.client))


def device_named(name: str) -> Any:
    """The local device of a name such as ``"cpu"`` (the first one), ``"gpu"`` or ``"cpu:1"`` (that id).

    Raises:
        PlacementError: there is no such platform or index; the message lists what there is.

    >>> device_named("cpu:0").id
    0
    """
    platform, colon, index = name.partition(":")
    if not platform or (colon and not index.isdecimal()):
        raise PlacementError(f"{name!r} is no device name; write a platform or a device: 'cpu', 'gpu:1'")
    jax = require_jax("naming devices")
    devices = _devices(jax, platform)
    if not devices:
        raise PlacementError(f"there is no platform {platform!r} here; {_what_exists()}")
    matching = [d for d in devices if not colon or d.id == int(index)]
    if not matching:
        raise PlacementError(f"there is no device {name!r} here; {_what_exists()}")
    return matching[0]


def _what_exists() -> str:
    try:
        names = [f"{name}:{ids([d.id for d in devices])}" for name, devices in platforms().items()]
    except MachineError as error:
        return str(error)
    return f"JAX has {', '.join(names)}"


def ids(numbers: Iterable[int]) -> str:
    """Device ids, short: runs of three or more as a range.

    >>> ids([0]), ids([1, 0]), ids([0, 1, 2, 3, 6])
    ('0', '0,1', '0-3,6')
    """
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ",".join(map(str, run)) for run in runs)


class Names:
    """Devices and shardings in words, cached for the length of one call.

    A device is named by the platform that JAX selects it with, and its id. Two clients can
    both call themselves "cpu" (the simulated accelerator does), so a platform that the
    environment registered is told apart by its client object. Nothing that is kept outlives
    the call: JAX tears its clients down in its own order.
    """

    def __init__(self, jax: Any) -> None:
        self._jax = jax
        self._plugins: list[tuple[str, Any]] | None = None
        self._cached: dict[Any, str] = {}

    def device(self, device: Any) -> str:
        """``"cpu:0"``, ``"gpu:3"``, ``"accel:1"``."""
        name = self._cached.get(device)
        if name is None:
            name = self._cached[device] = f"{self._platform(device)}:{device.id}"
        return name

    def _platform(self, device: Any) -> str:
        if self._plugins is None:
            found = ((name, _devices(self._jax, name)) for name in _plugin_names())
            self._plugins = [(name, devices[0].client) for name, devices in found if devices]
        for name, client in self._plugins:
            if client is device.client:
                return name
        return str(device.platform)

    def sharding(self, sharding: Any) -> str:
        """``"cpu:0"``, ``"gpu:0-3 P('data', None)"``, ``"gpu:0,1 replicated"``."""
        by_platform: dict[str, list[int]] = {}
        for device in sharding.device_set:
            platform, _, number = self.device(device).rpartition(":")
            by_platform.setdefault(platform, []).append(int(number))
        text = " ".join(f"{name}:{ids(numbers)}" for name, numbers in sorted(by_platform.items()))
        if len(sharding.device_set) == 1:
            return text
        if sharding.is_fully_replicated:
            return f"{text} replicated"
        spec = getattr(sharding, "spec", None)
        return f"{text} {type(sharding).__name__}" if spec is None else f"{text} P{tuple(spec)!r}"

    def memory(self, device: Any, kind: str | None) -> str:
        """The device, with the memory kind where it is not the device's own default."""
        name = self.device(device)
        return name if kind in (None, default_memory(device)) else f"{name} {kind}"


def default_memory(device: Any) -> str | None:
    """Kind of a device's default memory; None where its client names none."""
    try:
        return str(device.default_memory().kind)
    except Exception:  # some PJRT plugins implement no memories: each raises its own error
        return None
