"""What a finding is made of: rows of one kind, of one thing, at one line."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from moored.model.events import ArraySpec, Event, Transfer
from moored.model.module import Module, Sources
from moored.model.operands import split_path
from moored.model.recording import Recording
from moored.model.site import Site
from moored.rules.thresholds import Thresholds

__all__ = ["Evidence", "Observed", "gather", "observe"]

_Row = TypeVar("_Row", bound=Event)


@dataclass
class Observed(Generic[_Row]):
    """Rows of one kind of event from one site, which become one finding.

    Attributes:
        recording: What they were recorded in.
        site: The user's line.
        module: Its source, None where it can not be had.
        limits: What they are compared with.
        rows: At least one.
        words: The user's own words for the array, empty where not certain.
    """

    recording: Recording
    site: Site
    module: Module | None
    limits: Thresholds
    rows: list[_Row]
    words: str = ""

    @property
    def first(self) -> _Row:
        """The row of the largest array: the one that the finding speaks of."""
        return max(self.rows, key=lambda row: getattr(row, "nbytes", 0) / max(row.count, 1))

    @property
    def nbytes(self) -> int:
        """Bytes over all events."""
        return sum(getattr(row, "nbytes", 0) for row in self.rows)

    @property
    def count(self) -> int:
        """Number of events."""
        return sum(row.count for row in self.rows)

    @property
    def each(self) -> int:
        """Bytes of one event, rounded down."""
        return self.nbytes // max(self.count, 1)

    @property
    def expression(self) -> str:
        """What the line did, in the user's own words; empty without source."""
        return self.module.expression_at(self.site) if self.module is not None else ""

    @property
    def array(self) -> ArraySpec | None:
        """The largest array."""
        return getattr(self.first, "array", None)

    def words_for(self, argument: str) -> str:
        """The user's words for another leaf of the same call."""
        return _words(self.module, self.site, self.first, argument) if argument else ""

    def named(self, index: int | None) -> Site | None:
        """A site that a row names by its index."""
        return None if index is None else self.recording.sites[index]

    @property
    def origin(self) -> Site | None:
        """The line that made, committed or started it, where all rows agree on one."""
        origins = {getattr(row, "origin", None) for row in self.rows}
        return self.named(origins.pop()) if len(origins) == 1 else None


@dataclass
class Evidence(Observed[Transfer]):
    """Transfers of one thing from one site."""

    @property
    def count(self) -> int:
        """Calls that moved it: leaves of one call are one event."""
        return self._calls(lambda t: t.count)

    @property
    def repeats(self) -> int:
        """Calls that moved the very same objects as the call before."""
        return self._calls(lambda t: t.same_object)

    def _calls(self, number: Callable[[Transfer], int]) -> int:
        leaves: dict[str, dict[str, int]] = {}
        for row in self.rows:
            per_leaf = leaves.setdefault(row.function, {})
            per_leaf[row.argument] = per_leaf.get(row.argument, 0) + number(row)
        return sum(max(per_leaf.values()) for per_leaf in leaves.values())

    @property
    def repeated_nbytes(self) -> int:
        """Bytes that moved although the very same object had moved before."""
        return sum(t.nbytes * t.same_object // max(t.count, 1) for t in self.rows)

    @property
    def is_equal_each_time(self) -> bool:
        """Whether the objects were others each time, but of equal content wherever that was looked at."""
        compared = sum(t.compared for t in self.rows)
        return compared >= 2 and compared == sum(t.same_content for t in self.rows)

    @property
    def call_seconds(self) -> float | None:
        """Time inside the calls that carried it: a lower bound, and None where none was taken."""
        # A call's time stands on the first leaf that it moved, and on that alone.
        return sum(t.call_ns for t in self.rows) / 1e9 or None

    @property
    def read_seconds(self) -> float | None:
        """Time that the host waited for the value, and the copy's own."""
        return sum(t.wait_ns + t.copy_ns for t in self.rows) / 1e9 or None


def gather(
    recording: Recording,
    sources: Sources,
    limits: Thresholds,
    matches: Callable[[Transfer], bool],
    *,
    noise: int | None = None,
) -> Iterator[Evidence]:
    """Group the matching transfers by site and by what moved.

    Leaves of one argument (a dict of parameters) belong together, and so do the several
    functions that one expression makes JAX run on the same operand. Where the user's words
    for an operand are not known, a jitted function's arguments are told apart by position,
    and everything else on the line is one group.

    Args:
        recording: Where to look.
        sources: Where to find the user's words.
        limits: What to compare with.
        matches: Which transfers are meant.
        noise: Bytes an event up to which a transfer is left out; those of ``limits`` where None.
    """
    groups: dict[tuple[object, ...], Evidence] = {}
    noise = limits.noise if noise is None else noise
    for row in recording.transfers:
        if not row.count or row.nbytes <= noise * row.count or not matches(row):
            continue
        site = recording.site_of(row)
        module = sources.module(site.path)
        steps, _ = split_path(row.argument)
        head = steps[0] if steps else ""
        words = _words(module, site, row, head)
        moved = words or ((row.function, head) if row.api == "jit" and not row.library else row.library)
        key = (site, row.direction, row.source, row.target, moved)
        evidence = groups.setdefault(key, Evidence(recording, site, module, limits, [], words))
        evidence.rows.append(row)
    for evidence in groups.values():
        if evidence.words and len({row.argument for row in evidence.rows}) == 1:
            row = evidence.rows[0]
            evidence.words = _words(evidence.module, evidence.site, row, row.argument) or evidence.words
        yield evidence


def observe(
    recording: Recording,
    sources: Sources,
    limits: Thresholds,
    rows: Iterable[_Row],
    key: Callable[[_Row], Hashable],
) -> Iterator[Observed[_Row]]:
    """Group rows of one kind by site, and by a key of the rule's own."""
    groups: dict[Hashable, Observed[_Row]] = {}
    for row in rows:
        if not row.count:
            continue
        site = recording.site_of(row)
        module = sources.module(site.path)
        made = Observed(recording, site, module, limits, list[_Row]())
        groups.setdefault((site, key(row)), made).rows.append(row)
    for observed in groups.values():
        first = observed.first
        argument = getattr(first, "argument", None)
        if argument != "":  # a call of which no leaf is meant
            observed.words = _words(observed.module, observed.site, first, argument or "")
        yield observed


def _words(module: Module | None, site: Site, row: Event, argument: str) -> str:
    """The user's words for a leaf; a library in between has an argument list that they never wrote."""
    if module is None or row.library:
        return ""
    from_host = isinstance(row, Transfer) and row.direction == "h2d" and row.seam == "call"
    function = getattr(row, "function", "")
    return module.argument_at(site, argument, row.api, function, from_host=from_host)
