"""``moored bench lookup``: the published experiment, in the size that fits, with its proof.

Made, timed, proved: the parent is generated (``parent.py``), items are looked up and timed
(``lookup_timing.py``), and the verdict is proved (``lookup_evidence.py``). Here they are put together.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from moored.bench import lookup_evidence
from moored.bench.devices import Pair
from moored.bench.harness import Bar
from moored.bench.lookup_model import Listener, Lookup, Plan
from moored.bench.lookup_size import Limit, settle_shape
from moored.bench.lookup_timing import look_up, make_parent
from moored.bench.memory import Peak
from moored.bench.parent import shape_text
from moored.errors import InputError, MachineError
from moored.units import format_bytes, format_count

__all__ = ["begin", "fit", "run", "work"]


def fit(plan: Plan, limits: Sequence[Limit], *, asked: bool) -> tuple[Plan, list[str]]:
    """The plan with a parent that fits in memory, and a note where it had to be made smaller.

    Raises:
        MachineError: the shape was asked for and does not fit, or nothing does.
        InputError: more items are wanted than there are rows.
    """
    shape, note = settle_shape(plan.shape, plan.dtype, limits, asked=asked)
    if plan.items > shape[0]:
        raise InputError(
            f"--items {plan.items}: the parent has only {format_count(shape[0], 'row')} "
            f"(shape {shape_text(shape)})"
        )
    return msgspec.structs.replace(plan, shape=shape), [note] if note else []


def begin(plan: Plan, pair: Pair, notes: list[str]) -> Lookup:
    """The result before anything was measured."""
    import jax

    return Lookup(
        shape=plan.shape,
        dtype=plan.dtype,
        seed=plan.seed,
        parent_nbytes=plan.nbytes,
        item_nbytes=plan.nbytes // plan.shape[0],
        home=pair.home_name,
        target=pair.target_name,
        simulated=pair.simulated,
        jax=jax.__version__,
        notes=notes,
    )


def run(plan: Plan, pair: Pair, result: Lookup, listener: Listener, bar: Bar) -> None:
    """Run the experiment; ``result`` holds what is known at every moment, also when this raises.

    Raises:
        MachineError: memory ran out all the same.
        MooredError: an item differs from its row of the parent.
    """
    peak = Peak()
    peak.reset()
    start = time.perf_counter()
    try:
        with _default_device(pair.target), _memory_errors(plan):
            _run(plan, pair, result, listener, bar)
        result.complete = True
    finally:
        result.seconds = time.perf_counter() - start
        result.peak_nbytes = peak.nbytes()
        result.settle()


def _run(plan: Plan, pair: Pair, result: Lookup, listener: Listener, bar: Bar) -> None:
    start = time.perf_counter()
    parent, result.zero_copy = make_parent(plan, pair, bar)
    listener.parent_made(time.perf_counter() - start, result.zero_copy)
    look_up(plan, pair, parent, result, listener, bar)
    if plan.sweep:
        lookup_evidence.sweep(plan, parent, result, bar)
    lookup_evidence.count_bytes(plan, pair, parent, result, bar)


def work(plan: Plan) -> float:
    """How much there is to do, in bytes made or copied: the total of the progress bar."""
    drifting = "drifting" in plan.variants
    copies = 1.0 + (plan.items + plan.traced if drifting else 0)
    if plan.sweep:
        smaller = {max(1, plan.shape[0] // part) for part in lookup_evidence.FRACTIONS} - {plan.shape[0]}
        copies += (1 + lookup_evidence.sweep_rounds(plan)) * sum(smaller) / plan.shape[0]
    return copies * plan.nbytes


@contextlib.contextmanager
def _default_device(target: Any) -> Iterator[None]:
    """Make ``target`` the default device, and touch nothing where it is already."""
    import jax

    if target is jax.devices()[0] and jax.config.jax_default_device is None:
        yield
    else:
        with jax.default_device(target):
            yield


@contextlib.contextmanager
def _memory_errors(plan: Plan) -> Iterator[None]:
    """Running out of memory on the way, in words."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "RESOURCE_EXHAUSTED" not in str(error):
            raise
        raise MachineError(
            f"out of memory with a parent of {format_bytes(plan.nbytes)} (shape {shape_text(plan.shape)} of "
            f"{plan.dtype}): {str(error).splitlines()[0] if str(error) else 'MemoryError'}; "
            "choose a smaller --shape"
        ) from None
