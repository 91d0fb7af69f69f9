"""The JSON report, schema ``moored.report/1``: one object, plain ASCII, the same for the same recording."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from moored.model.finding import SEVERITIES, Finding
from moored.model.recording import Header, Recording, Transfer
from moored.report.totals import DIRECTIONS

__all__ = ["SCHEMA", "render"]

SCHEMA = "moored.report/1"


def render(recording: Recording, findings: Sequence[Finding]) -> str:
    """The report as JSON text, ending in a newline.

    Args:
        recording: What was observed.
        findings: What the rules made of it, worst first.

    >>> json.loads(render(Recording(), []))["totals"]["d2d"]
    {'count': 0, 'nbytes': 0}
    """
    report = {
        "schema": SCHEMA,
        "header": _header(recording.header),
        "findings": [_finding(finding) for finding in findings],
        "totals": _totals(recording, findings),
    }
    return json.dumps(report, indent=2, allow_nan=False) + "\n"


def _header(header: Header) -> dict[str, Any]:
    return {
        "argv": header.argv,
        "exit": header.exit,
        "seconds": _finite(header.seconds),
        "python": header.python,
        "jax": header.jax,
        "devices": header.devices,
        "default_device": header.default_device,
        "seams": [{"name": s.name, "live": s.live, "reason": s.reason} for s in header.seams],
        "moored_errors": [
            {"where": e.where, "error": e.error, "count": e.count} for e in header.moored_errors
        ],
    }


def _finding(finding: Finding) -> dict[str, Any]:
    site, array = finding.site, finding.array
    return {
        "rule": finding.rule,
        "name": finding.name,
        "kind": finding.kind,
        "severity": finding.severity,
        "path": site.path,
        "line": site.line,
        "end_line": site.end_line or site.line,
        "function": site.function,
        "count": finding.count,
        "nbytes": finding.nbytes,
        "seconds": _finite(finding.seconds),
        "seconds_is": finding.seconds_is,
        "cause": finding.cause,
        "fix": finding.fix,
        "fixable": finding.fixable,
        "array": None
        if array is None
        else {"shape": list(array.shape), "dtype": array.dtype, "committed": array.committed},
        "source": finding.source,
        "target": finding.target,
    }


def _totals(recording: Recording, findings: Sequence[Finding]) -> dict[str, Any]:
    totals: dict[str, Any] = {
        f"{severity}s": sum(f.severity == severity for f in findings) for severity in SEVERITIES
    }
    for direction in DIRECTIONS:
        rows = [t for t in recording.transfers if t.direction == direction]
        totals[direction] = _moved(rows)
    totals["callbacks"] = _moved([t for t in recording.transfers if t.seam == "callback"])
    totals["recompiles"] = {
        "count": sum(c.count for c in recording.compiles),
        "seconds": sum(c.compile_ns for c in recording.compiles) / 1e9,
    }
    return totals


def _moved(rows: Sequence[Transfer]) -> dict[str, int]:
    return {"count": sum(t.count for t in rows), "nbytes": sum(t.nbytes for t in rows)}


def _finite(seconds: float | None) -> float | None:
    """JSON has no infinity and no NaN."""
    return seconds if seconds is not None and math.isfinite(seconds) else None
