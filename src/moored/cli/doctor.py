"""``moored doctor``: devices, bandwidths, what moored can see here, and what is wrong."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import click
import msgspec

from moored.diagnose.diagnosis import Advice, Bandwidth, Diagnosis, PlatformState
from moored.diagnose.doctor import examine
from moored.errors import InputError
from moored.model.recording import SeamState
from moored.trace import simulate as simulation
from moored.units import format_bytes

__all__ = ["command"]

_ACCELERATOR = "accel"
_FIRST_PACKAGES = ("jax", "jaxlib", "numpy")
_EXAMPLES = """\b
Examples:
  moored doctor
  moored doctor --simulate            what tracing with --simulate would see
  moored doctor --json | jq .advice
"""


@click.command("doctor", epilog=_EXAMPLES)
@click.option(
    "--simulate",
    is_flag=False,
    flag_value=_ACCELERATOR,
    metavar="[=N]",
    help="Examine JAX with a simulated accelerator; with =N, with N CPU devices.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the facts as JSON.")
def command(simulate: str | None, as_json: bool) -> None:
    """Show JAX's devices, how fast they are fed, what moored can see, and what is wrong.

    The exit code is 0 whatever is found: a missing JAX is a finding too. It is 2 where the devices that
    --simulate asks for can not be had.
    """
    if simulate is not None:
        simulation.prepare(_devices(simulate))
    diagnosis = examine()
    click.echo(as_text(diagnosis) if not as_json else _as_json(diagnosis))


def _devices(text: str) -> int | None:
    if text == _ACCELERATOR:
        return None
    if not text.isdecimal():
        raise InputError(f"--simulate={text}: write --simulate, or --simulate=N with a number of CPU devices")
    return int(text)


def _as_json(diagnosis: Diagnosis) -> str:
    return msgspec.json.format(msgspec.json.encode(diagnosis), indent=2).decode()


def as_text(diagnosis: Diagnosis) -> str:
    """The diagnosis as plain text, a section for each thing that it knows.

    >>> print(as_text(Diagnosis(moored="0.1.0", python="3.13.1", system="Linux x86_64")))
    moored 0.1.0, Python 3.13.1, Linux x86_64
    <BLANKLINE>
    Set-up
      nothing wrong found
    """
    return "\n".join(line for section in _sections(diagnosis) for line in ("", *section))[1:]


def _sections(d: Diagnosis) -> Iterator[Iterable[str]]:
    first = [name for name in _FIRST_PACKAGES if name in d.packages]
    packages = [f"{name} {d.packages[name]}" for name in dict.fromkeys((*first, *d.packages))]
    yield [
        f"moored {d.moored}, Python {d.python}, {d.system}",
        *([", ".join(packages)] if packages else []),
        *(f"{name}={value}" for name, value in d.environment.items()),
    ]
    if d.platforms:
        yield ["Devices", *_devices_table(d.platforms), f"  default device: {d.default_device}"]
    if d.bandwidths:
        yield [_bandwidth_title(d), *_bandwidth_table(d.bandwidths)]
    if d.seams:
        yield ["What moored sees here, by a self-test of each seam", *_seam_table(d.seams)]
    yield ["Set-up", *(_advice(d.advice) or ["  nothing wrong found"])]


def _columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  " + "  ".join(f"{c:<{w}}" for c, w in zip(row, widths, strict=True)).rstrip() for row in rows]


def _devices_table(platforms: list[PlatformState]) -> list[str]:
    rows = [
        (device.name, device.kind, f"memories: {', '.join(device.memories) or 'not named'}")
        for platform in platforms
        for device in platform.devices
    ]
    return _columns(rows)


def _bandwidth_title(d: Diagnosis) -> str:
    one = d.bandwidths[0]
    title = f"Copies, measured here: {format_bytes(one.nbytes)} each, median of {one.rounds}"
    return f"{title}; simulated, not a GPU's" if d.simulated else title


def _bandwidth_table(bandwidths: list[Bandwidth]) -> list[str]:
    return _columns([(f"{b.source} -> {b.target}", _speed(b)) for b in bandwidths])


def _speed(bandwidth: Bandwidth) -> str:
    if bandwidth.gb_per_s is None:
        return "device_put copies nothing: both are this machine's memory"
    return f"{bandwidth.gb_per_s:.3g} GB/s"


def _seam_table(seams: list[SeamState]) -> list[str]:
    rows = []
    for seam in seams:
        blind = f"blind to: {seam.blind_to}" if seam.blind_to else ""
        rows.append((seam.name, "live" if seam.live else "DEAD", blind if seam.live else seam.reason))
    return _columns(rows)


def _advice(advice: list[Advice]) -> list[str]:
    return [f"  {item.level}: {item.text}" for item in advice]
