"""MRD502 captured-constant: a large array that a function closes over is baked into its executable."""

from __future__ import annotations

from collections.abc import Iterator

from moored.model.events import Transfer
from moored.model.finding import Finding, Severity
from moored.model.module import Sources
from moored.model.recording import Recording
from moored.rules.base import Docs, Evidence, Rule
from moored.rules.thresholds import Thresholds
from moored.rules.wording import action
from moored.units import format_bytes

__all__ = ["CapturedConstant"]


class CapturedConstant(Rule):
    """A closed-over array goes into the executable as a constant, again at each compilation."""

    code = "MRD502"
    name = "captured-constant"
    kind = "captured-constant"
    docs = Docs(
        what=(
            "Finds arrays that a jitted function uses without taking them as arguments: JAX copies them to "
            "where the function runs, as constants of its executable, at each compilation."
        ),
        why=(
            "The copy is held beside the array itself, and a function that is made anew (a lambda in a "
            "loop, a method of a new object) is compiled anew, and copies it again."
        ),
        example="""\
import jax
import jax.numpy as jnp

with jax.default_device(jax.devices("cpu")[-1]):
    table = jnp.ones((1000, 1000))

total = jnp.zeros(())
for i in range(3):
    lookup = jax.jit(lambda t: t + (table * i).sum())
    total = lookup(total)
""",
        instead="""\
import jax
import jax.numpy as jnp

with jax.default_device(jax.devices("cpu")[-1]):
    table = jnp.ones((1000, 1000))
table = jax.device_put(table, jax.devices()[0])

lookup = jax.jit(lambda t, table, i: t + (table * i).sum())
total = jnp.zeros(())
for i in range(3):
    total = lookup(total, table, i)
""",
        silent=(
            "For constants of less than 64 kB, and for arrays of less than 1 MB that are baked in once. One "
            "of 1 to 10 MB that is baked in once is a note."
        ),
    )

    def explain(self, recording: Recording, sources: Sources, limits: Thresholds) -> Iterator[Finding]:
        """One finding for each line and array that is baked in."""
        for evidence in _constants(recording, sources, limits):
            severity = _severity(evidence)
            if severity is not None:
                yield self.finding(
                    evidence, severity, _cause(evidence), _fix(evidence), seconds=evidence.call_seconds
                )


def _constants(recording: Recording, sources: Sources, limits: Thresholds) -> Iterator[Evidence]:
    """Constants by line and array; of an array that goes by way of the host only one leg counts."""
    groups: dict[tuple[object, ...], dict[str, list[Transfer]]] = {}
    for row in recording.transfers:
        if row.seam == "constant" and row.count and row.nbytes >= limits.notable_copy * row.count:
            key = (recording.site_of(row), row.array.shape, row.array.dtype)
            groups.setdefault(key, {}).setdefault(row.direction, []).append(row)
    for legs in groups.values():
        rows = max(legs.values(), key=_weight)
        site = recording.site_of(rows[0])
        yield Evidence(recording, site, sources.module(site.path), limits, rows)


def _weight(leg: list[Transfer]) -> tuple[int, int, str]:
    return sum(t.count for t in leg), sum(t.same_object for t in leg), leg[0].direction


def _severity(evidence: Evidence) -> Severity | None:
    limits = evidence.limits
    if evidence.repeats:
        is_costly = evidence.each >= limits.large_copy or evidence.nbytes >= limits.large_total
        return "error" if is_costly else "warning"
    if evidence.nbytes >= limits.large_constant:
        return "warning"
    return "note" if evidence.nbytes >= limits.large_copy else None


def _cause(evidence: Evidence) -> str:
    row, act = evidence.first, action(evidence)
    shape = f"{row.array.dtype}[{', '.join(map(str, row.array.shape))}]"
    array = f"an array of {format_bytes(evidence.each)}, {shape}"
    if evidence.count > 1 and not evidence.repeats:
        array = f"{evidence.count:,} arrays of {format_bytes(evidence.each)}, {shape}"
    said = f"{act} compiled a function that closes over {array}: JAX copied"
    where = f"from {row.source} to {row.target}"
    if evidence.repeats:
        return f"{said} it {where} {evidence.count:,} times, once for each compilation."
    them = "it" if evidence.count == 1 else "them"
    return f"{said} {them} {where}, for the executable to hold as its own."


def _fix(evidence: Evidence) -> str:
    if not evidence.repeats:
        return "Pass it as an argument: the executable then works on the array itself, and holds no copy."
    return (
        "Define the function once, outside the loop, and pass the array as an argument, committed to where "
        "the function runs: it is then compiled once, and copies nothing."
    )
