"""What every benchmark needs: a clock, interleaved rounds, medians and spread, a fitted line, a bar.

This machine or any other is noisy, so a figure is a median of rounds that visit every
case once, and its spread stands beside it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TypeVar

import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

__all__ = ["Bar", "Clock", "Line", "Spread", "fit_line", "interleave", "spread", "timed"]

T = TypeVar("T")
Clock = Callable[[], int]
_PATIENCE_NS = 500_000_000  # a bar for less than this would only flicker
_REDRAW_NS = 100_000_000


def timed(call: Callable[[], T], clock: Clock = time.perf_counter_ns) -> tuple[T, float]:
    """What ``call`` returns, and the seconds it took (the clock's own tens of nanoseconds included).

    >>> ticks = iter([1_000, 251_000])
    >>> timed(lambda: "item", clock=lambda: next(ticks))
    ('item', 0.00025)
    """
    start = clock()
    result = call()
    return result, (clock() - start) / 1e9


def interleave(
    cases: Mapping[str, Callable[[], float]], rounds: int, *, warm_up: int = 1
) -> dict[str, list[float]]:
    """Run every case once a round, in turning order, so that what slows the machine hits all alike.

    Args:
        cases: Each case runs once and returns its own figure (seconds, mostly).
        rounds: How many figures to keep of each.
        warm_up: Rounds before those, not kept.

    >>> order = []
    >>> def case(name):
    ...     return lambda: float(len(order) if order.append(name) is None else 0)
    >>> interleave({"a": case("a"), "b": case("b")}, rounds=2)
    {'a': [4.0, 5.0], 'b': [3.0, 6.0]}
    >>> "".join(order)
    'abbaab'
    """
    samples: dict[str, list[float]] = {name: [] for name in cases}
    for number in range(warm_up + rounds):
        names = list(cases)[:: 1 if number % 2 == 0 else -1]
        for name in names:
            figure = cases[name]()
            if number >= warm_up:
                samples[name].append(figure)
    return samples


class Spread(msgspec.Struct, frozen=True):
    """Median, smallest and largest of some samples."""

    median: float
    least: float
    most: float


def spread(samples: Sequence[float]) -> Spread:
    """Sum up samples; at least one is needed.

    >>> spread([3.0, 1.0, 2.0, 10.0])
    Spread(median=2.5, least=1.0, most=10.0)
    """
    return Spread(statistics.median(samples), min(samples), max(samples))


class Line(msgspec.Struct, frozen=True):
    """The straight line that fits points best: ``y = slope * x + at_zero``."""

    slope: float
    at_zero: float


def fit_line(xs: Sequence[float], ys: Sequence[float]) -> Line | None:
    """The least-squares line through points, or None where all have the same ``x``.

    >>> fit_line([1.0, 2.0, 4.0], [3.0, 5.0, 9.0])
    Line(slope=2.0, at_zero=1.0)
    """
    if len(set(xs)) < 2:
        return None
    slope, at_zero = statistics.linear_regression(xs, ys)
    return Line(slope, at_zero)


class Bar:
    """A progress bar on stderr, for terminals only, that appears when something takes a while.

    It is drawn by the calls below and by no thread of its own, which would disturb what is timed.

    Args:
        total: How much there is to do, in any unit.
        console: Where it is drawn; stderr by default.
        clock: Nanoseconds.

    >>> import io
    >>> with Bar(2, Console(file=io.StringIO())) as bar:  # not a terminal: nothing is drawn
    ...     bar.say("looking up")
    ...     bar.advance(1)
    """

    def __init__(
        self, total: float, console: Console | None = None, clock: Clock = time.perf_counter_ns
    ) -> None:
        self._console = console or Console(stderr=True)
        self._clock = clock
        self._due_ns = clock() + _PATIENCE_NS
        self._shown = False
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.percentage:>3.0f}%"),
            TimeElapsedColumn(),
            console=self._console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,  # stdout may be a file; rich would send it to stderr
            redirect_stderr=False,
        )
        self._task = self._progress.add_task("", total=total)

    def __enter__(self) -> Bar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hide()

    def say(self, text: str) -> None:
        """What is being done now."""
        self._progress.update(self._task, description=text)
        self._draw()

    def advance(self, amount: float) -> None:
        """So much more is done."""
        self._progress.advance(self._task, amount)
        self._draw()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Out of the way while something is printed, and until there is more to show."""
        self._hide()
        yield

    def _draw(self) -> None:
        now = self._clock()
        if now < self._due_ns or not self._console.is_terminal:
            return
        self._due_ns = now + _REDRAW_NS
        if not self._shown:
            self._progress.start()
            self._shown = True
        self._progress.refresh()

    def _hide(self) -> None:
        if self._shown:
            self._progress.stop()
            self._shown = False
            self._due_ns = min(self._due_ns, self._clock())
