"""The timed part of the lookup experiment: one item of a large array, drifting, committed, or on the host."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from moored.bench.devices import Pair, device_name
from moored.bench.harness import Bar, Clock
from moored.bench.lookup_model import Listener, Lookup, Plan, Step, Variant
from moored.bench.parent import HostArray, allocate, fill, hand_over
from moored.errors import MooredError

__all__ = ["Parent", "Source", "look_up", "make_parent"]


class Parent:
    """The parent array: its host memory, and the JAX arrays that share it."""

    def __init__(self, host: HostArray, home: Any, array: Any) -> None:
        self.host, self.home = host, home
        self.drifting = array

    def committed(self) -> Any:
        """The same memory as a committed array."""
        import jax

        array = jax.device_put(self.drifting, self.home)
        if not array.committed:
            raise MooredError(f"device_put(array, {device_name(self.home)}) gave an uncommitted array")
        return array.block_until_ready()

    def first(self, rows: int) -> Parent:
        """The first rows as a parent of their own, in the same memory."""
        host = self.host[:rows]
        return Parent(host, self.home, hand_over(host, self.home)[0])


class Source:
    """One variant's lookup: ``look_up(i)`` is what is timed."""

    def __init__(self, name: str, parent: Parent) -> None:
        self.name = name
        self.look_up: Callable[[int], Any]
        if name == "moored":
            self.look_up = parent.host.__getitem__
        else:
            array = parent.committed() if name == "committed" else parent.drifting
            self.look_up = lambda i: array[i].block_until_ready()


def make_parent(plan: Plan, pair: Pair, bar: Bar) -> tuple[Parent, bool]:
    """Draw the values and hand them to JAX, uncommitted, on the home device."""
    bar.say("making the parent")
    host = allocate(plan.shape, plan.dtype)
    fill(host, plan.seed, bar.advance)
    host.flags.writeable = False
    array, zero_copy = hand_over(host, pair.home)
    return Parent(host, pair.home, array), zero_copy


def look_up(
    plan: Plan,
    pair: Pair,
    parent: Parent,
    result: Lookup,
    listener: Listener,
    bar: Bar,
    clock: Clock = time.perf_counter_ns,
) -> None:
    """Time the lookups of every variant in the plan, back to back, as the published script does.

    Raises:
        MooredError: an item differs from its row of the parent.
    """
    for name in plan.variants:
        source = Source(name, parent)
        records = []
        if plan.plain:
            records.append(Variant(name=name))
        if plan.put:
            records.append(Variant(name=f"{name}+put"))
        result.variants.extend(records)
        listener.variant_begins(name, plan.put)
        for index in range(plan.items):
            if name == "drifting":  # the others take no time
                bar.say(f"{name}: item {index + 1} of {plan.items}")
            _one_item(source, index, records, pair, parent.host, listener, clock)
            if name == "drifting":
                bar.advance(plan.nbytes)


def _one_item(
    source: Source,
    index: int,
    records: list[Variant],
    pair: Pair,
    host: HostArray,
    listener: Listener,
    clock: Clock,
) -> None:
    start = clock()
    item = source.look_up(index)
    looked_up = _step(clock() - start, item)
    put = None
    for record in records:
        record.seconds.append(looked_up.seconds)
        now = looked_up
        if record.name.endswith("+put"):
            item, now = put = _put(item, pair.target, clock)
            record.put_seconds.append(now.seconds)
        record.device, record.committed = now.device, now.committed
    if not np.array_equal(np.asarray(item), host[index]):
        raise MooredError(
            f"{source.name}: item {index} differs from row {index} of the parent; "
            "JAX returned wrong values on this machine"
        )
    listener.item_done(index, looked_up, put[1] if put is not None else None)


def _put(item: Any, target: Any, clock: Clock) -> tuple[Any, Step]:
    import jax

    start = clock()
    placed = jax.device_put(item, target).block_until_ready()
    return placed, _step(clock() - start, placed)


def _step(elapsed_ns: int, item: Any) -> Step:
    if isinstance(item, np.ndarray):
        return Step(elapsed_ns / 1e9, "host", None)
    return Step(elapsed_ns / 1e9, device_name(item.device), bool(item.committed))
