"""A finding: one rule, at one place, with what it cost and what to write instead."""

from __future__ import annotations

from typing import Literal

import msgspec

from moored.model.recording import ArraySpec
from moored.model.site import Site

__all__ = ["SEVERITIES", "Finding", "Severity"]

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")  # worst first


class Finding(msgspec.Struct, kw_only=True):
    """A rule applied to a recording (measured) or to source text (static), at one site.

    Attributes:
        rule: Code of the rule, ``"MRD101"``.
        name: Name of the rule, ``"uncommitted-drift"``.
        kind: The stable word of DESIGN section 6, ``"implicit-d2d"``.
        severity: ``"error"``, ``"warning"`` or ``"note"``.
        site: The user's line.
        expression: The user's own words for what moved (``"tokens"``); empty where unknown.
        count: Number of events.
        nbytes: Total bytes over ``count`` events.
        seconds: What it cost; None where it was not measured.
        seconds_is: How to read ``seconds``: ``"at least"`` (asynchronous dispatch),
            ``"measured"`` (a read: wait and copy), ``"estimate"`` (bytes over a measured bandwidth).
        cause: Why it happened, in words that name the user's expression.
        fix: What to write instead.
        replacement: The exact source line to write, or None.
        replacement_after: The 1-based line after which ``replacement`` goes, or None where it
            replaces the site's own line.
        fixable: The static side can rewrite the line.
        array: The array that moved (the largest one where several did).
        source: Where it was.
        target: Where it went.
        origin: The line that made the array, where known.
        library: The installed package between the user's line and JAX, if any.
    """

    rule: str
    name: str
    kind: str
    severity: Severity
    site: Site
    expression: str = ""
    count: int = 1
    nbytes: int = 0
    seconds: float | None = None
    seconds_is: str = ""
    cause: str = ""
    fix: str = ""
    replacement: str | None = None
    replacement_after: int | None = None
    fixable: bool = False
    array: ArraySpec | None = None
    source: str = ""
    target: str = ""
    origin: Site | None = None
    library: str = ""
