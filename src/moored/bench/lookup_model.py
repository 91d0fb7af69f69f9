"""The lookup experiment as inert data: what to run, and what came of it.

The result is filled in while the experiment runs, so that what is known when it is interrupted can
still be shown.
"""

from __future__ import annotations

import platform
import statistics
from collections.abc import Sequence

import msgspec

from moored.bench.parent import Shape, nbytes_of

__all__ = ["Listener", "Lookup", "Plan", "Slope", "Step", "SweepPoint", "Variant", "grows"]

SCHEMA = "moored.bench.lookup/1"


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What to run.

    Attributes:
        shape: Of the parent array.
        dtype: Of the parent array.
        items: How many rows each variant looks up, from row 0 on.
        seed: Of the parent's values.
        variants: Which of ``"drifting"``, ``"committed"`` and ``"moored"``.
        plain: Report the lookups on their own.
        put: Put each item on the target after its lookup, timed apart, and report both.
        sweep: Repeat drifting and committed lookups over smaller parents.
        traced: How many more lookups of each variant run under the tracer, untimed.
    """

    shape: Shape
    dtype: str = "uint16"
    items: int = 10
    seed: int = 0
    variants: tuple[str, ...] = ("drifting", "committed", "moored")
    plain: bool = True
    put: bool = True
    sweep: bool = True
    traced: int = 2

    @property
    def nbytes(self) -> int:
        """Bytes of the parent."""
        return nbytes_of(self.shape, self.dtype)


class Variant(msgspec.Struct, kw_only=True):
    """One way to look items up, and what it took.

    Attributes:
        name: ``"drifting"``, ``"committed"`` or ``"moored"``, with ``"+put"`` where items are put.
        seconds: Of each lookup, in order; the first one compiles.
        put_seconds: Of each put; empty where nothing was put.
        device: Where the item is in the end; ``"host"`` for a numpy view.
        committed: Whether the item is committed in the end; None for a numpy view.
        bytes_per_lookup: Bytes of the parent that moved per lookup, as the tracer saw them; None
            where it did not look.
        bytes_per_put: Bytes of the item that moved per put, likewise.
        traced: Number of lookups that the tracer watched.
    """

    name: str
    seconds: list[float] = []
    put_seconds: list[float] = []
    device: str | None = None
    committed: bool | None = None
    bytes_per_lookup: float | None = None
    bytes_per_put: float | None = None
    traced: int = 0


class SweepPoint(msgspec.Struct, kw_only=True):
    """Lookups in a parent of one size: medians, and all samples."""

    parent_nbytes: int
    drifting: float
    committed: float
    drifting_samples: list[float] = []
    committed_samples: list[float] = []


def grows(sweep: Sequence[SweepPoint], name: str) -> bool:
    """Whether the time of a variant grows with the parent: fourfold or more from 1/16 to all of it.

    >>> points = [SweepPoint(parent_nbytes=n, drifting=n / 1e9, committed=1e-4) for n in (10**8, 16 * 10**8)]
    >>> grows(points, "drifting"), grows(points, "committed")
    (True, False)
    """
    small, large = sweep[0], sweep[-1]
    size = large.parent_nbytes / small.parent_nbytes
    growth: float = getattr(large, name) / getattr(small, name)
    return size > 1 and growth >= size**0.5


class Slope(msgspec.Struct, frozen=True):
    """Least-squares slope of time over the parent's size.

    ``gb_per_second`` is its inverse, and None where time does not grow with the parent.
    """

    seconds_per_gb: float
    gb_per_second: float | None


class Lookup(msgspec.Struct, kw_only=True):
    """The result, in the form that ``--json`` prints."""

    schema: str = SCHEMA
    shape: Shape
    dtype: str
    seed: int
    parent_nbytes: int
    item_nbytes: int
    home: str
    target: str
    simulated: str | None
    jax: str = ""
    python: str = platform.python_version()
    zero_copy: bool | None = None
    variants: list[Variant] = []
    ratio: float | None = None
    ratio_committed: float | None = None
    sweep: list[SweepPoint] = []
    slopes: dict[str, Slope] = {}
    tracer: str = ""
    peak_nbytes: int | None = None
    peak_ratio: float | None = None
    seconds: float = 0.0
    complete: bool = False
    notes: list[str] = []

    def variant(self, name: str) -> Variant | None:
        """The variant of that name, or None where it was not run."""
        return next((v for v in self.variants if v.name == name), None)

    def settle(self) -> None:
        """Work out the ratios from the medians of all lookups so far."""
        self.ratio = self._ratio("drifting", "moored")
        self.ratio_committed = self._ratio("drifting", "committed")
        if self.peak_nbytes is not None:
            self.peak_ratio = self.peak_nbytes / self.parent_nbytes

    def _ratio(self, slow: str, fast: str) -> float | None:
        one, other = self.variant(slow), self.variant(fast)
        if one is None or other is None or not one.seconds or not other.seconds:
            return None
        return statistics.median(one.seconds) / statistics.median(other.seconds)


class Step(msgspec.Struct, frozen=True):
    """One timed step, and where its item is then: device (or ``"host"``), committed (None: no JAX array)."""

    seconds: float
    device: str
    committed: bool | None


class Listener:
    """Told what happens while it happens; this one ignores it."""

    def parent_made(self, seconds: float, zero_copy: bool) -> None:
        """The parent is there."""

    def variant_begins(self, name: str, put: bool) -> None:
        """The items of a variant come next."""

    def item_done(self, index: int, looked_up: Step, put: Step | None) -> None:
        """One item was looked up (and put)."""
