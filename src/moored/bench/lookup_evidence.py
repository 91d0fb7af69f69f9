"""What proves the verdict: the bytes that the tracer saw, and how time grows with the parent's size."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from moored.bench.devices import Pair
from moored.bench.harness import Bar, Clock, fit_line, interleave
from moored.bench.lookup_model import Lookup, Plan, Slope, SweepPoint, grows
from moored.bench.lookup_timing import Parent, Source
from moored.model.recording import Recording
from moored.trace.collect import Collector

__all__ = ["FRACTIONS", "count_bytes", "sweep", "sweep_rounds"]

FRACTIONS = (16, 8, 4, 2, 1)  # one over these
_COMMITTED_A_VISIT = 5  # they take microseconds: the median of a few is a steadier sample
_LARGE = 1_000_000_000


def count_bytes(plan: Plan, pair: Pair, parent: Parent, result: Lookup, bar: Bar) -> None:
    """Repeat some lookups of every variant under the tracer, and note the bytes that moved.

    Lookups: bytes of arrays of the parent's shape that went from one device to another. Puts:
    bytes of arrays of an item's shape that went to a device.
    """
    import jax

    for name in plan.variants:
        bar.say(f"tracing {name} lookups")
        source = Source(name, parent)
        items: list[Any] = []

        def look_up(source: Source = source, name: str = name, items: list[Any] = items) -> None:
            for index in range(plan.traced):
                items.append(source.look_up(index % plan.shape[0]))
                if name == "drifting":
                    bar.advance(plan.nbytes)

        def put(items: list[Any] = items) -> None:
            for item in items:
                jax.device_put(item, pair.target).block_until_ready()

        recording = _watch(look_up)
        result.tracer = _blindness(recording)
        if result.tracer:
            return
        moved = _moved(recording, plan.shape, ("d2d",)) / plan.traced
        put_bytes = _moved(_watch(put), plan.shape[1:], ("d2d", "h2d")) / plan.traced if plan.put else None
        for record in (result.variant(name), result.variant(f"{name}+put")):
            if record is not None:
                record.bytes_per_lookup = _whole(moved)
                record.traced = plan.traced
                if record.name.endswith("+put") and put_bytes is not None:
                    record.bytes_per_put = _whole(put_bytes)


def _watch(run: Callable[[], None]) -> Recording:
    collector = Collector()
    collector.attach()
    try:
        run()
        return collector.snapshot()
    finally:
        collector.detach()
        collector.close()


def _blindness(recording: Recording) -> str:
    """Why the bytes are not known, or an empty string."""
    for seam in recording.header.seams:
        if not seam.live:
            return f"the tracer's seam {seam.name!r} is not live on this JAX: {seam.reason}"
    for error in recording.header.moored_errors:
        return f"the tracer itself failed in {error.where}: {error.error}"
    return ""


def _moved(recording: Recording, shape: tuple[int, ...], directions: tuple[str, ...]) -> int:
    return sum(
        t.nbytes for t in recording.transfers if t.direction in directions and tuple(t.array.shape) == shape
    )


def _whole(nbytes: float) -> float:
    return int(nbytes) if nbytes == int(nbytes) else nbytes


def sweep_rounds(plan: Plan) -> int:
    """Timed rounds of the sweep; a warm-up round comes before them."""
    return 2 if plan.nbytes >= _LARGE else 5


def sweep(plan: Plan, parent: Parent, result: Lookup, bar: Bar, clock: Clock = time.perf_counter_ns) -> None:
    """Time lookups in the first 1/16, 1/8, 1/4, 1/2 and all of the parent, in interleaved rounds.

    The full-size drifting lookups are those already timed, without the first.
    """
    sizes = sorted({max(1, plan.shape[0] // part) for part in FRACTIONS})
    row_nbytes = plan.nbytes // plan.shape[0]
    cases: dict[str, Callable[[], float]] = {}
    for rows in sizes:
        part = parent if rows == plan.shape[0] else parent.first(rows)
        cases[f"committed/{rows}"] = _case(Source("committed", part), rows, _COMMITTED_A_VISIT, clock)
        if rows != plan.shape[0]:
            done = partial(bar.advance, rows * row_nbytes)
            cases[f"drifting/{rows}"] = _case(Source("drifting", part), rows, 1, clock, done)
    bar.say("sweep over parent sizes")
    samples = interleave(cases, sweep_rounds(plan))
    known = result.variant("drifting")
    seconds = known.seconds if known is not None else []
    samples[f"drifting/{plan.shape[0]}"] = list(seconds[1:] or seconds)
    for rows in sizes:
        drifting, committed = samples[f"drifting/{rows}"], samples[f"committed/{rows}"]
        result.sweep.append(
            SweepPoint(
                parent_nbytes=rows * row_nbytes,
                drifting=statistics.median(drifting),
                committed=statistics.median(committed),
                drifting_samples=drifting,
                committed_samples=committed,
            )
        )
    gigabytes = [point.parent_nbytes / 1e9 for point in result.sweep]
    for name in ("drifting", "committed"):
        line = fit_line(gigabytes, [getattr(point, name) for point in result.sweep])
        if line is not None:
            growing = grows(result.sweep, name) and line.slope > 0
            result.slopes[name] = Slope(line.slope, 1 / line.slope if growing else None)


def _case(
    source: Source, rows: int, times: int, clock: Clock, done: Callable[[], object] = lambda: None
) -> Callable[[], float]:
    """A sample: the median time of some lookups, of rows that are not the same one again and again."""
    turn = 0

    def sample() -> float:
        nonlocal turn
        seconds = []
        for _ in range(times):
            turn += 1
            start = clock()
            source.look_up(turn % rows)
            seconds.append((clock() - start) / 1e9)
        done()
        return statistics.median(seconds)

    return sample
