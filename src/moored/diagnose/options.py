"""What is asked of a traced run, and when its findings are bad enough to fail it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from moored.diagnose.outfile import OutFile
from moored.model.finding import SEVERITIES, Finding, Severity
from moored.rules.thresholds import DEFAULTS, Thresholds

__all__ = ["REFUSED", "TRIPPED", "Options", "trips"]

REFUSED, TRIPPED = 2, 3  # exit codes of ours: it can not be run; --fail-on trips


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the command line asks for.

    Attributes:
        format: Of the report.
        output: Where the report goes; stderr where None.
        record: Where the recording goes.
        fail_on: Exit with code 3 after a program that itself succeeded: where there is a finding at
            least this severe, or where the findings above note moved more than this many bytes.
        simulated: JAX is to run on a simulated accelerator.
        quiet: Nothing on stderr unless there is a finding above note.
        show_library: The report names the package between a line and JAX.
        thresholds: What the rules compare with.
    """

    format: Literal["text", "json"] = "text"
    output: OutFile | None = None
    record: OutFile | None = None
    fail_on: Severity | int | None = None
    simulated: bool = False
    quiet: bool = False
    show_library: bool = False
    thresholds: Thresholds = DEFAULTS


def trips(findings: Sequence[Finding], fail_on: Severity | int | None) -> bool:
    """Whether findings are bad enough for ``--fail-on``.

    Args:
        findings: Of one run.
        fail_on: A severity: any finding at least as severe trips. A number of bytes: findings above
            note that moved more than that together trip. None: nothing does.

    >>> from moored.model.site import Site
    >>> copy = Finding(rule="MRD101", name="uncommitted-drift", kind="implicit-d2d", severity="warning",
    ...                site=Site("a.py", 3), nbytes=4096)
    >>> trips([copy], "note"), trips([copy], "error"), trips([copy], 4095), trips([copy], 4096)
    (True, False, True, False)
    """
    if fail_on is None:
        return False
    if isinstance(fail_on, int):
        return sum(f.nbytes for f in findings if f.severity != "note") > fail_on
    bar = SEVERITIES.index(fail_on)
    return any(SEVERITIES.index(f.severity) <= bar for f in findings)
