"""What every rule is, and the evidence that it works on.

A rule reads a recording and yields findings; it is a pure function of what was recorded and
of the source text. Its documentation stands beside it, and one test runs the example of
every rule and its repair.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import msgspec

from moored.model.finding import Finding, Severity
from moored.model.module import Module, Sources
from moored.model.operands import split_path
from moored.model.recording import ArraySpec, Recording, Transfer
from moored.model.site import Site
from moored.rules.thresholds import NOISE

__all__ = ["Docs", "Edit", "Evidence", "Rule", "gather"]


@dataclass(frozen=True)
class Docs:
    """The page of a rule. ``example`` is a program that it flags, ``instead`` one that it does not."""

    what: str
    why: str
    example: str
    instead: str
    silent: str


class Edit(NamedTuple):
    """A source line to write, and the line (from 1) that it goes after."""

    text: str
    after: int


@dataclass
class Evidence:
    """Transfers of one thing from one site, which become one finding.

    Attributes:
        recording: What they were recorded in.
        site: The user's line.
        module: Its source, None where it can not be had.
        rows: The transfers, at least one.
        words: The user's own words for what moved, empty where not certain.
    """

    recording: Recording
    site: Site
    module: Module | None
    rows: list[Transfer]
    words: str = ""

    @property
    def first(self) -> Transfer:
        """The row of the largest array: the one that the finding speaks of."""
        return max(self.rows, key=lambda t: t.nbytes / max(t.count, 1))

    @property
    def nbytes(self) -> int:
        """Bytes over all events."""
        return sum(t.nbytes for t in self.rows)

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
    def each(self) -> int:
        """Bytes of one event, rounded down."""
        return self.nbytes // max(self.count, 1)

    @property
    def repeated_nbytes(self) -> int:
        """Bytes that moved although the very same object had moved before."""
        return sum(t.nbytes * t.same_object // max(t.count, 1) for t in self.rows)

    @property
    def call_seconds(self) -> float | None:
        """Time inside the calls that carried it: a lower bound, and None where none was taken."""
        # A call's time stands on the first leaf that it moved, and on that alone.
        return sum(t.call_ns for t in self.rows) / 1e9 or None

    @property
    def read_seconds(self) -> float | None:
        """Time that the host waited for the value, and the copy's own."""
        return sum(t.wait_ns + t.copy_ns for t in self.rows) / 1e9 or None

    @property
    def expression(self) -> str:
        """What the line did, in the user's own words; empty without source."""
        return self.module.expression_at(self.site) if self.module is not None else ""

    @property
    def array(self) -> ArraySpec:
        """The largest array."""
        return self.first.array

    def words_for(self, argument: str) -> str:
        """The user's words for another leaf of the same call."""
        return _words(self.module, self.site, self.first, argument) if argument else ""

    @property
    def origin(self) -> Site | None:
        """The line that made the array, where all rows agree on one."""
        origins = {t.origin for t in self.rows}
        index = origins.pop()
        return None if origins or index is None else self.recording.sites[index]


class Rule(ABC):
    """One named trap: its names, its page, and the code that finds it in a recording."""

    code: ClassVar[str]
    name: ClassVar[str]
    kind: ClassVar[str]
    docs: ClassVar[Docs]

    def finding(
        self,
        evidence: Evidence,
        severity: Severity,
        cause: str,
        fix: str,
        *,
        seconds: float | None,
        seconds_is: str = "at least",
        edit: Edit | None = None,
    ) -> Finding:
        """A finding of this rule, with what every rule fills in alike."""
        row = evidence.first
        return Finding(
            rule=self.code,
            name=self.name,
            kind=self.kind,
            severity=severity,
            site=_narrowed(evidence),
            expression=evidence.words,
            count=evidence.count,
            nbytes=evidence.nbytes,
            seconds=seconds,
            seconds_is=seconds_is if seconds is not None else "",
            cause=cause[:1].upper() + cause[1:],
            fix=fix,
            replacement=edit.text if edit is not None else None,
            replacement_after=edit.after if edit is not None else None,
            array=row.array,
            source=row.source,
            target=row.target,
            origin=evidence.origin,
        )

    @abstractmethod
    def explain(self, recording: Recording, sources: Sources) -> Iterable[Finding]:
        """Findings of this rule in a recording, in no order."""


def _narrowed(evidence: Evidence) -> Site:
    """The site with the span of its expression: some events carry that of a whole statement."""
    span = evidence.module.span_at(evidence.site) if evidence.module is not None else None
    if span is None or span[0] != evidence.site.line:
        return evidence.site
    _, end_line, column, end_column = span
    return msgspec.structs.replace(evidence.site, end_line=end_line, column=column, end_column=end_column)


def gather(
    recording: Recording, sources: Sources, matches: Callable[[Transfer], bool], *, noise: int = NOISE
) -> Iterator[Evidence]:
    """Group the matching transfers by site and by what moved.

    Leaves of one argument (a dict of parameters) belong together, and so do the several
    functions that one expression makes JAX run on the same operand. Where the user's words
    for an operand are not known, a jitted function's arguments are told apart by position,
    and everything else on the line is one group.

    Args:
        recording: Where to look.
        sources: Where to find the user's words.
        matches: Which transfers are meant.
        noise: Bytes an event up to which a transfer is left out.
    """
    groups: dict[tuple[object, ...], Evidence] = {}
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
        evidence = groups.setdefault(key, Evidence(recording, site, module, [], words))
        evidence.rows.append(row)
    for evidence in groups.values():
        if evidence.words and len({row.argument for row in evidence.rows}) == 1:
            row = evidence.rows[0]
            evidence.words = _words(evidence.module, evidence.site, row, row.argument) or evidence.words
        yield evidence


def _words(module: Module | None, site: Site, row: Transfer, argument: str) -> str:
    """The user's words for a leaf; a library in between has an argument list that they never wrote."""
    if module is None or row.library:
        return ""
    from_host = row.direction == "h2d" and row.seam == "call"
    return module.argument_at(site, argument, row.api, row.function, from_host=from_host)
