"""The lookup experiment as a picture: time of each item, and the sweep over parent sizes."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from moored.bench.lookup_model import Lookup
from moored.errors import InputError, MachineError
from moored.units import format_bytes

__all__ = ["check_plot", "draw"]

_ENDINGS = (".png", ".svg")


def check_plot(path: str) -> None:
    """Refuse what can not be drawn, before anything runs.

    Raises:
        InputError: the ending is not one that is drawn, or the folder does not exist.
        MachineError: matplotlib is missing.

    >>> check_plot("lookup.pdf")
    Traceback (most recent call last):
    moored.errors.InputError: --plot lookup.pdf: a picture ends in .png or .svg
    """
    target = Path(path)
    if target.suffix.lower() not in _ENDINGS:
        raise InputError(f"--plot {path}: a picture ends in {' or '.join(_ENDINGS)}")
    if not target.parent.is_dir():
        raise InputError(f"--plot {path}: there is no folder {target.parent}; make it first")
    if importlib.util.find_spec("matplotlib") is None:
        raise MachineError(f"--plot {path}: matplotlib is not installed: pip install 'moored[plot]'")


def draw(result: Lookup, path: str) -> None:
    """Draw ``result`` into ``path``.

    Raises:
        InputError: the file can not be written.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.6), layout="constrained")
    items, sizes = figure.subplots(1, 2)
    for variant in result.variants:
        if variant.seconds and not variant.put_seconds:
            items.plot(range(len(variant.seconds)), variant.seconds, marker="o", label=variant.name)
        elif variant.put_seconds:
            pairs = zip(variant.seconds, variant.put_seconds, strict=False)
            total = [seconds + put for seconds, put in pairs]
            items.plot(range(len(total)), total, marker="x", linestyle="--", alpha=0.6, label=variant.name)
    items.set(yscale="log", xlabel="item", ylabel="seconds", title="Time to look one item up")
    for name in ("drifting", "committed"):
        points = [(p.parent_nbytes / 1e9, getattr(p, name)) for p in result.sweep]
        if points:
            slope = result.slopes.get(name)
            label = f"{name}, {slope.seconds_per_gb:.3g} s per GB" if slope else name
            sizes.plot(*zip(*points, strict=True), marker="o", label=label)
    sizes.set(xlabel="size of the parent, GB", ylabel="seconds", title="The same, over the parent's size")
    sizes.set_ylim(bottom=0)
    for axes in (items, sizes):
        axes.grid(visible=True, alpha=0.3)
        if axes.lines:
            axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=3, frameon=False)
    simulated = " (simulated: not a GPU's timings)" if result.simulated else ""
    figure.suptitle(
        f"{format_bytes(result.parent_nbytes)} on {result.home}, looked up from {result.target}{simulated}"
    )
    try:
        figure.savefig(path, dpi=120)
    except OSError as error:
        raise InputError(f"--plot {path}: can not be written: {error.strerror}") from None
