"""The lookup experiment on a terminal: each item as it comes, then the comparison, then the verdict."""

from __future__ import annotations

import statistics
import textwrap
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from moored.bench.harness import Bar, spread
from moored.bench.lookup_evidence import sweep_rounds
from moored.bench.lookup_model import Listener, Lookup, Plan, Step, Variant, grows
from moored.units import format_bytes, format_count, format_seconds

__all__ = ["TextReport", "verdict"]

_HOW = {
    "drifting": "made under default_device({home}), not committed: array[i]",
    "committed": "array = jax.device_put(array, {home}): array[i]",
    "moored": "the same memory as a read-only host array: host[i], a numpy view",
}
_BAR_WIDTH = 24


class TextReport(Listener):
    """Prints the experiment while it runs, and what came of it.

    Args:
        plan: What runs.
        result: Filled in by the experiment.
        console: Where to print.
        bar: Out of the way while a line is printed.
    """

    def __init__(self, plan: Plan, result: Lookup, console: Console, bar: Bar) -> None:
        self._plan, self._result, self._console, self._bar = plan, result, console, bar

    def _print(self, *what: Any, indent: int = 0) -> None:
        with self._bar.aside():
            for one in what or ("",):
                if isinstance(one, str) and len(one) + indent > self._console.width:
                    edge = " " * indent
                    one = textwrap.fill(one, self._console.width, initial_indent=edge, subsequent_indent=edge)
                elif isinstance(one, str):
                    one = " " * indent + one
                self._console.print(one, markup=False, soft_wrap=True)

    def opening(self, banner: str) -> None:
        """What runs, and on what."""
        plan, result = self._plan, self._result
        size = " x ".join(str(n) for n in plan.shape)
        self._print(
            Text("moored bench lookup", style="bold"),
            f"  parent  {size} {plan.dtype}, {format_bytes(plan.nbytes)}; "
            f"an item is {format_bytes(result.item_nbytes)}",
            f"  home    {result.home}, where the parent is made, uncommitted",
            f"  target  {result.target}, the default device, where lookups of uncommitted arrays run",
            f"  jax     {result.jax}, Python {result.python}",
        )
        self.notes(banner)

    def notes(self, banner: str) -> None:
        """What to know before reading figures."""
        self._print(banner, *self._result.notes)

    def parent_made(self, seconds: float, zero_copy: bool) -> None:
        """How long that took, and whether JAX copied."""
        how = (
            "JAX uses that memory as it is, no copy was made"
            if zero_copy
            else f"JAX had to copy it to {self._result.home}"
        )
        self._print("", f"Parent made in {format_seconds(seconds)}; {how}.")

    def variant_begins(self, name: str, put: bool) -> None:
        """A heading for the lines that follow."""
        heading = Text(f"{name}", style="bold")
        heading.append(f"  {_HOW[name].format(home=self._result.home)}", style="not bold")
        columns = f"{'item':>4}  {'seconds':>12}  {'device':<8}  {'committed':<9}"
        columns += f"  {'put, seconds':>12}  {'device':<8}  committed" if put else ""
        self._print("", heading, Text(columns, style="dim"))

    def item_done(self, index: int, looked_up: Step, put: Step | None) -> None:
        """One line, with what the published script prints."""
        steps = [looked_up] if put is None else [looked_up, put]
        self._print("  ".join([f"{index:>4}", *(_step_text(step) for step in steps)]).rstrip())

    def closing(self) -> None:
        """The comparison, the sweep, the verdict, and what was run to get there."""
        result = self._result
        if any(v.seconds for v in result.variants):
            self._print("", self._comparison())
        if result.sweep:
            self._print("", self._sweep())
        self._print("", Text("Verdict" if result.complete else "Interrupted; known so far", style="bold"))
        for sentence in verdict(result):
            self._print(sentence, indent=2)
        self._print("", *self._how_it_was_run())

    def _comparison(self) -> Table:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        table.add_column("variant")
        for title in ("first", "later", "least .. most", "put", "parent moved"):
            table.add_column(title, justify="right", no_wrap=True)
        for variant in self._result.variants:
            if not variant.seconds:
                continue
            first, later = variant.seconds[0], variant.seconds[1:]
            some = spread(later) if later else None
            moved = variant.bytes_per_lookup
            table.add_row(
                variant.name,
                format_seconds(first),
                format_seconds(some.median) if some else "-",
                f"{format_seconds(some.least)} .. {format_seconds(some.most)}" if some else "-",
                format_seconds(statistics.median(variant.put_seconds)) if variant.put_seconds else "-",
                "?" if moved is None else format_bytes(moved),
            )
        return table

    def _sweep(self) -> Table:
        block = "█" if self._console.encoding.lower().startswith("utf") else "#"
        longest = max(point.drifting for point in self._result.sweep)
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        for title in ("parent", "drifting", "committed"):
            table.add_column(title, justify="right", no_wrap=True)
        table.add_column("drifting")
        for point in self._result.sweep:
            table.add_row(
                format_bytes(point.parent_nbytes),
                format_seconds(point.drifting),
                format_seconds(point.committed),
                block * max(1, round(_BAR_WIDTH * point.drifting / longest)),
            )
        return table

    def _how_it_was_run(self) -> list[str]:
        plan, result = self._plan, self._result
        count = format_count(plan.items, "timed lookup")
        run = [f"Run: {count} of each variant, each item checked against its source row."]
        if plan.put and plan.plain:
            run.append("+put: the same lookups; each item is then put on the target, timed apart.")
        elif plan.put:
            run.append("Each item is then put on the target, timed apart.")
        if plan.put and "moored" in plan.variants and result.simulated:
            run.append("A put of host memory on a CPU client may alias it; on a GPU it copies the item.")
        if result.sweep:
            run.append(
                f"Sweep: medians of {sweep_rounds(plan)} interleaved rounds after one to warm up; "
                "the full-size drifting figure is from the lookups above."
            )
        run.append(f"Bytes: {plan.traced} more lookups of each variant under the tracer, not timed.")
        if result.peak_nbytes is not None and result.peak_ratio is not None:
            run.append(
                f"Peak memory {format_bytes(result.peak_nbytes)}, {result.peak_ratio:.2f} times the parent, "
                f"Python and JAX included; {format_seconds(result.seconds)} in all."
            )
        return run


def _step_text(step: Step) -> str:
    committed = "-" if step.committed is None else str(step.committed)
    return f"{step.seconds:12.7f}  {step.device:<8}  {committed:<9}"


def verdict(result: Lookup) -> list[str]:
    """What the measurements say, in sentences; nothing that was not measured."""
    sentences = [s for s in (_first_call(result), *_moved(result), *_growth(result), *_ratios(result)) if s]
    return sentences or ["Nothing was measured."]


def _base(result: Lookup, name: str) -> Variant | None:
    return result.variant(name) or result.variant(f"{name}+put")


def _first_call(result: Lookup) -> str:
    for name in ("drifting", "committed"):
        variant = _base(result, name)
        if variant is not None and len(variant.seconds) > 1:
            later = statistics.median(variant.seconds[1:])
            more = variant.seconds[0] - later
            if more <= 0:
                return ""
            return (
                f"The first {name} lookup took {format_seconds(variant.seconds[0])}, {format_seconds(more)} "
                f"more than the later ones ({format_seconds(later)}): it also compiles."
            )
    return ""


def _moved(result: Lookup) -> list[str]:
    if result.tracer:
        return [f"The bytes that moved are not known: {result.tracer}."]
    sentences = []
    for name in ("drifting", "committed", "moored"):
        variant = _base(result, name)
        if variant is None or variant.bytes_per_lookup is None:
            continue
        moved, watched = variant.bytes_per_lookup, format_count(variant.traced, "lookup")
        if moved == 0:
            sentences.append(f"{name.capitalize()}: no byte of the parent moved ({watched} traced).")
            continue
        whole = "the whole parent, " if moved == result.parent_nbytes else ""
        sentences.append(
            f"{name.capitalize()}: every lookup moved {whole}{format_bytes(moved)} from {result.home} to "
            f"{result.target}, to take an item of {format_bytes(result.item_nbytes)} ({watched} traced)."
        )
    return sentences


def _growth(result: Lookup) -> list[str]:
    if len(result.sweep) < 2:
        return []
    small, large = result.sweep[0], result.sweep[-1]
    sentences = []
    for name in ("drifting", "committed"):
        before, after = getattr(small, name), getattr(large, name)
        growing = grows(result.sweep, name)
        word = "grows with the parent" if growing else "stays flat" if after <= 2 * before else "changes"
        slope = result.slopes[name]
        rate = f", that is {slope.gb_per_second:.3g} GB/s" if growing and slope.gb_per_second else ""
        sentences.append(
            f"{name.capitalize()}: the time {word}: {format_seconds(before)} at "
            f"{format_bytes(small.parent_nbytes)}, {format_seconds(after)} at "
            f"{format_bytes(large.parent_nbytes)}; slope {_signed(slope.seconds_per_gb)} per GB{rate}."
        )
    return sentences


def _signed(seconds: float) -> str:
    return f"-{format_seconds(-seconds)}" if seconds < 0 else format_seconds(seconds)


def _ratios(result: Lookup) -> list[str]:
    sentences = []
    if result.ratio_committed is not None:
        sentences.append(f"drifting / committed: {_times(result.ratio_committed)}  (medians of all lookups)")
    if result.ratio is not None:
        sentences.append(f"drifting / moored:    {_times(result.ratio)}  (medians of all lookups)")
    drifting, moored = result.variant("drifting+put"), result.variant("moored+put")
    if drifting is not None and moored is not None and drifting.put_seconds and moored.put_seconds:
        ratio = _total(drifting) / _total(moored)
        sentences.append(f"drifting / moored, lookup and put together: {_times(ratio)}")
    return sentences


def _total(variant: Variant) -> float:
    pairs = zip(variant.seconds, variant.put_seconds, strict=False)
    return statistics.median(seconds + put for seconds, put in pairs)


def _times(ratio: float) -> str:
    return f"{ratio:,.0f} x" if ratio >= 100 else f"{ratio:.3g} x"
