"""What ``moored doctor`` found, as inert data."""

from __future__ import annotations

from typing import Literal

import msgspec

from moored.model.recording import SeamState

__all__ = ["SCHEMA", "Advice", "Bandwidth", "DeviceState", "Diagnosis", "PlatformState"]

SCHEMA = "moored.doctor/1"


class Advice(msgspec.Struct, frozen=True):
    """One sentence on the set-up: a ``"problem"`` to solve, or a ``"note"`` worth knowing."""

    level: Literal["problem", "note"]
    text: str


class Bandwidth(msgspec.Struct, frozen=True):
    """One copy, timed several times.

    Attributes:
        source: ``"host"`` or a device.
        target: ``"host"`` or a device.
        nbytes: Bytes of one copy.
        seconds: Median over ``rounds`` copies, each waited for; None where JAX made none, because the
            target took the source's memory over (between two clients on the same CPU).
        gb_per_s: ``nbytes`` / ``seconds`` / 1e9.
        rounds: Number of copies that were timed, after one that was not.
    """

    source: str
    target: str
    nbytes: int
    seconds: float | None
    gb_per_s: float | None
    rounds: int


class DeviceState(msgspec.Struct, frozen=True):
    """One device of this process: its name, model, and memories (the default one first)."""

    name: str
    kind: str
    memories: list[str]


class PlatformState(msgspec.Struct, frozen=True):
    """One platform, under the name that JAX selects it with."""

    name: str
    version: str
    devices: list[DeviceState]


class Diagnosis(msgspec.Struct, kw_only=True):
    """All that ``moored doctor`` knows; ``moored doctor --json`` prints it.

    Attributes:
        schema: ``"moored.doctor/1"``.
        moored: Version of moored.
        python: Version of Python.
        system: Operating system and processor.
        packages: Versions by distribution name: JAX, its plugins, numpy. Several versions of one
            (a damaged installation) are joined by "and".
        requires_jaxlib: What the installed JAX asks of jaxlib, ``"<=0.12.0.1,>=0.11.2"``.
        environment: Those variables that are set and change what JAX does.
        nvidia: What shows an NVIDIA GPU in this machine, ``["/dev/nvidia0"]``.
        simulated: What is simulated, ``"accel"`` or ``"2 cpu devices"``.
        jax_error: Why JAX does not import, or starts no device; None where it does.
        jax_found: JAX could be imported.
        platforms: Platforms and devices, the default platform first.
        default_device: Where uncommitted work runs.
        seams: What the tracer sees here, by self-test.
        bandwidths: Measured copies.
        advice: What is wrong, and what to know, in plain words; problems first.
    """

    schema: str = SCHEMA
    moored: str = ""
    python: str = ""
    system: str = ""
    packages: dict[str, str] = {}
    requires_jaxlib: str = ""
    environment: dict[str, str] = {}
    nvidia: list[str] = []
    simulated: str | None = None
    jax_error: str | None = None
    jax_found: bool = False
    platforms: list[PlatformState] = []
    default_device: str | None = None
    seams: list[SeamState] = []
    bandwidths: list[Bandwidth] = []
    advice: list[Advice] = []

    @property
    def devices(self) -> list[DeviceState]:
        """The devices of all platforms."""
        return [device for state in self.platforms for device in state.devices]
