"""All rules, and what they find in a recording."""

from __future__ import annotations

from moored.model.finding import SEVERITIES, Finding
from moored.model.module import Sources
from moored.model.recording import Recording
from moored.rules.base import Rule
from moored.rules.callback_traffic import CallbackTraffic
from moored.rules.captured_constant import CapturedConstant
from moored.rules.committed_drags import CommittedDrags
from moored.rules.device_conflict import DeviceConflict
from moored.rules.elementwise_host_loop import ElementwiseHostLoop
from moored.rules.host_array_per_call import HostArrayPerCall
from moored.rules.host_read_per_step import HostReadPerStep
from moored.rules.lost_placement import LostPlacement
from moored.rules.misplaced_compute import MisplacedCompute
from moored.rules.placement_recompile import PlacementRecompile
from moored.rules.put_without_device import PutWithoutDevice
from moored.rules.repeated_put import RepeatedPut
from moored.rules.reshard_per_call import ReshardPerCall
from moored.rules.thresholds import BYTES_PER_SECOND, DEFAULTS, Thresholds
from moored.rules.uncommitted_drift import UncommittedDrift

__all__ = ["RULES", "explain"]

RULES: dict[str, Rule] = {
    rule.code: rule
    for rule in (
        UncommittedDrift(),
        HostArrayPerCall(),
        CommittedDrags(),
        ReshardPerCall(),
        HostReadPerStep(),
        ElementwiseHostLoop(),
        RepeatedPut(),
        PutWithoutDevice(),
        MisplacedCompute(),
        LostPlacement(),
        PlacementRecompile(),
        CapturedConstant(),
        CallbackTraffic(),
        DeviceConflict(),
    )
}
"""Code to rule, in the order of the codes."""

_ENDS_THE_PROGRAM = "device-conflict-error"


def explain(
    recording: Recording, sources: Sources | None = None, limits: Thresholds = DEFAULTS
) -> list[Finding]:
    """What all rules find in a recording, worst first.

    Args:
        recording: A run.
        sources: Where to find the program's text; where None, its files as they were when it started.
        limits: What costs are compared with; see ``settings.find_thresholds``.

    >>> explain(Recording())
    []
    """
    sources = sources if sources is not None else Sources.of(recording)
    return sorted(
        (f for rule in RULES.values() for f in rule.explain(recording, sources, limits)), key=_order
    )


def _order(finding: Finding) -> tuple[int, bool, float, str, int, str]:
    cost = max(finding.seconds or 0.0, finding.nbytes / BYTES_PER_SECOND)
    of_severity = SEVERITIES.index(finding.severity), finding.kind != _ENDS_THE_PROGRAM
    return *of_severity, -cost, finding.site.path, finding.site.line, finding.rule
