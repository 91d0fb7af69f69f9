"""What every rule is, and the evidence that it works on.

A rule reads a recording and yields findings; it is a pure function of what was recorded, of the
source text and of the project's thresholds. Its documentation stands beside it, and one test runs
the example of every rule and its repair.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import msgspec

from moored.model.finding import Finding, Severity
from moored.model.module import Sources
from moored.model.recording import ArraySpec, Recording, Transfer
from moored.model.site import Site
from moored.rules.evidence import Evidence, Observed, gather, observe
from moored.rules.thresholds import Thresholds

__all__ = ["Docs", "Edit", "Evidence", "Observed", "Rule", "gather", "observe"]


@dataclass(frozen=True)
class Docs:
    """The page of a rule. ``example`` is a program that it flags, ``instead`` one that it does not.

    ``companions`` are the codes of rules that flag the example as well: other sides of the same trap.
    """

    what: str
    why: str
    example: str
    instead: str
    silent: str
    companions: tuple[str, ...] = ()


class Edit(NamedTuple):
    """A source line to write, and the line (from 1) that it goes after."""

    text: str
    after: int


class Rule(ABC):
    """One named trap: its names, its page, and the code that finds it in a recording.

    ``kind`` is the stable word of its findings; one whose trap shows in several ways names the
    other words in ``also``.
    """

    code: ClassVar[str]
    name: ClassVar[str]
    kind: ClassVar[str]
    also: ClassVar[tuple[str, ...]] = ()
    docs: ClassVar[Docs]

    def finding(
        self,
        evidence: Observed[Any],
        severity: Severity,
        cause: str,
        fix: str,
        *,
        kind: str | None = None,
        seconds: float | None = None,
        seconds_is: str = "at least",
        edit: Edit | None = None,
        array: ArraySpec | None = None,
        route: tuple[str, str] | None = None,
    ) -> Finding:
        """A finding of this rule, with what every rule fills in alike.

        Args:
            evidence: What it is made of.
            severity: How bad it is.
            cause: Why it happened; its first letter is made a capital.
            fix: What to write instead.
            kind: One of ``also``, where it is not ``kind``.
            seconds: What it cost, None where that is not known.
            seconds_is: How to read ``seconds``.
            edit: The exact line to write.
            array: The array that it speaks of, where that is not the evidence's largest.
            route: Source and target; those of a transfer where None.
        """
        kind = kind or self.kind
        assert kind in (self.kind, *self.also), f"{self.code} does not announce the kind {kind!r}"
        row = evidence.first
        if route is None:
            route = (row.source, row.target) if isinstance(row, Transfer) else ("", "")
        return Finding(
            rule=self.code,
            name=self.name,
            kind=kind,
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
            array=array if array is not None else evidence.array,
            source=route[0],
            target=route[1],
            origin=evidence.origin,
            library=row.library,
        )

    @abstractmethod
    def explain(self, recording: Recording, sources: Sources, limits: Thresholds) -> Iterable[Finding]:
        """Findings of this rule in a recording, in no order."""


def _narrowed(evidence: Observed[Any]) -> Site:
    """The site with the span of its expression: some events carry that of a whole statement."""
    span = evidence.module.span_at(evidence.site) if evidence.module is not None else None
    if span is None or span[0] != evidence.site.line:
        return evidence.site
    _, end_line, column, end_column = span
    return msgspec.structs.replace(evidence.site, end_line=end_line, column=column, end_column=end_column)
