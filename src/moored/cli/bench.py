"""``moored bench``: experiments that measure what drifting costs, on this machine."""

from __future__ import annotations

import sys

import click
import msgspec
from rich.console import Console

from moored.bench.devices import Pair, choose
from moored.bench.harness import Bar
from moored.bench.lookup import begin, fit, run, work
from moored.bench.lookup_model import Listener, Lookup, Plan
from moored.bench.lookup_plot import check_plot, draw
from moored.bench.lookup_report import TextReport
from moored.bench.lookup_size import device_limit, host_limit
from moored.bench.memory import available
from moored.bench.parent import DTYPES, FULL_SHAPE, QUICK_SHAPE, parse_shape
from moored.errors import InputError

__all__ = ["command"]

_INTERRUPTED = 130
_EXAMPLES = """\b
Examples:
  moored bench lookup                      all variants, in full size where memory allows
  moored bench lookup --quick              the same with a small parent
  moored bench lookup --commit             one variant, as the published script
  moored bench lookup --json --plot a.svg  for other programs, and a picture
"""


@click.group()
def command() -> None:
    """Measure what drifting costs, on this machine."""


@command.command(epilog=_EXAMPLES)
@click.option("--commit", is_flag=True, help="Commit the array to its home first.")
@click.option(
    "--put-items-to-gpu",
    "--put_items_to_gpu",
    "put_items",
    is_flag=True,
    help="Put each item on the target after its lookup, and time that too.",
)
@click.option("--quick", is_flag=True, help="A small parent: seconds instead of minutes.")
@click.option("--shape", metavar="N,...", help="Shape of the parent; the first is the number of rows.")
@click.option("--dtype", type=click.Choice(DTYPES), default="uint16", show_default=True)
@click.option("--items", type=click.IntRange(min=1), default=10, show_default=True, help="Rows to look up.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the values.")
@click.option("--home", metavar="DEVICE", help="Where the parent is made: cpu:0, cpu:1, ...")
@click.option("--target", metavar="DEVICE", help="Where lookups run: gpu:0, accel:0, cpu:1, ...")
@click.option(
    "--simulate",
    metavar="[=N]",
    is_flag=False,
    flag_value="accel",
    help="Run on a simulated accelerator, whatever there is; with =N on N CPU devices.",
)
@click.option("--json", "as_json", is_flag=True, help="The result as JSON on stdout, and nothing else there.")
@click.option("--plot", metavar="FILE", help="Draw the result into FILE (.png or .svg).")
def lookup(
    commit: bool,
    put_items: bool,
    quick: bool,
    shape: str | None,
    dtype: str,
    items: int,
    seed: int,
    home: str | None,
    target: str | None,
    simulate: str | None,
    as_json: bool,
    plot: str | None,
) -> int:
    """The published experiment: look up ten rows of a 6.52 GB array.

    Without --commit and --put-items-to-gpu, all variants run and are compared: drifting, committed,
    and a host array of moored's, each with and without putting the item on the target. The bytes
    that moved are counted by the tracer, and a sweep shows how time grows with the parent.
    """
    if plot is not None:
        check_plot(plot)
    if quick and shape is not None:
        raise InputError("--quick and --shape both say how large the parent is; use one of them")
    published = commit or put_items
    one = "committed" if commit else "drifting"
    plan = Plan(
        shape=parse_shape(shape) if shape is not None else QUICK_SHAPE if quick else FULL_SHAPE,
        dtype=dtype,
        items=items,
        seed=seed,
        variants=(one,) if published else ("drifting", "committed", "moored"),
        plain=not put_items,
        put=put_items or not published,
        sweep=not published,
    )
    asked = shape is not None
    plan, notes = fit(plan, host_limit(available()), asked=asked)
    pair = choose(home, target, _simulation(simulate))
    plan, more = fit(plan, [*device_limit(pair.target), *device_limit(pair.home)], asked=asked)
    result = begin(plan, pair, [*notes, *more])
    with Bar(work(plan)) as bar:
        report = TextReport(plan, result, Console(highlight=False, file=sys.stderr if as_json else None), bar)
        return _show(plan, pair, result, report, bar, as_json, plot)


def _simulation(text: str | None) -> str | None:
    if text is None or text == "accel" or (text.isdecimal() and int(text) > 1):
        return text
    raise InputError(f"--simulate={text}: write --simulate, or --simulate=N with 2 or more CPU devices")


def _show(
    plan: Plan, pair: Pair, result: Lookup, report: TextReport, bar: Bar, as_json: bool, plot: str | None
) -> int:
    """Run, and show what came of it: all of it, or what was known when Ctrl-C came."""
    interrupted = False
    if as_json:
        report.notes(pair.banner)
    else:
        report.opening(pair.banner)
    try:
        run(plan, pair, result, Listener() if as_json else report, bar)
    except KeyboardInterrupt:
        interrupted = True
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(result), indent=2))
    else:
        report.closing()
    if plot is not None:
        draw(result, plot)
        click.echo(f"The picture is in {plot}", err=True)
    return _INTERRUPTED if interrupted else 0
