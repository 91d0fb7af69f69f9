"""All rules, and what they find in a recording."""

from __future__ import annotations

from moored.model.finding import SEVERITIES, Finding
from moored.model.module import Sources
from moored.model.recording import Recording
from moored.rules.base import Rule
from moored.rules.committed_drags import CommittedDrags
from moored.rules.host_array_per_call import HostArrayPerCall
from moored.rules.host_read_per_step import HostReadPerStep
from moored.rules.repeated_put import RepeatedPut
from moored.rules.thresholds import BYTES_PER_SECOND
from moored.rules.uncommitted_drift import UncommittedDrift

__all__ = ["RULES", "explain"]

RULES: dict[str, Rule] = {
    rule.code: rule
    for rule in (UncommittedDrift(), HostArrayPerCall(), CommittedDrags(), HostReadPerStep(), RepeatedPut())
}
"""Code to rule, in the order of the codes."""


def explain(recording: Recording, sources: Sources | None = None) -> list[Finding]:
    """What all rules find in a recording, worst first.

    Args:
        recording: A run.
        sources: Where to find the program's text; where None, its files as they were when it started.

    >>> explain(Recording())
    []
    """
    sources = sources if sources is not None else Sources.of(recording)
    return sorted((f for rule in RULES.values() for f in rule.explain(recording, sources)), key=_order)


def _order(finding: Finding) -> tuple[int, float, str, int, str]:
    cost = max(finding.seconds or 0.0, finding.nbytes / BYTES_PER_SECOND)
    return SEVERITIES.index(finding.severity), -cost, finding.site.path, finding.site.line, finding.rule
