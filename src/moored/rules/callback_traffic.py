"""MRD601 host-callback-traffic: a callback ships arrays between the device and the host at every step."""

from __future__ import annotations

from collections.abc import Iterator

from moored.model.events import Transfer
from moored.model.finding import Finding, Severity
from moored.model.module import Sources
from moored.model.recording import Recording
from moored.rules.base import Docs, Evidence, Rule
from moored.rules.thresholds import Thresholds
from moored.rules.wording import action, code
from moored.units import format_bytes, format_count, format_seconds

__all__ = ["CallbackTraffic"]


class CallbackTraffic(Rule):
    """pure_callback, io_callback and debug callbacks: each run takes its operands to the host."""

    code = "MRD601"
    name = "host-callback-traffic"
    kind = "host-callback"
    docs = Docs(
        what=(
            "Finds host callbacks inside jitted functions (pure_callback, io_callback, jax.debug.print and "
            "jax.debug.callback) that ship arrays to the host, and their results back, run after run."
        ),
        why=(
            "The device waits for the host at each of them. The bytes cross twice, and nothing of it shows "
            "where the function is called."
        ),
        example="""\
import jax
import jax.numpy as jnp
from jax.experimental import io_callback

seen = []

@jax.jit
def step(w):
    io_callback(seen.append, None, w, ordered=True)
    return w * 0.9

w = jnp.ones((600, 600))
for i in range(4):
    w = step(w)
jax.effects_barrier()
""",
        instead="""\
import jax
import jax.numpy as jnp
from jax.experimental import io_callback

seen = []

@jax.jit
def step(w):
    io_callback(seen.append, None, w.mean(), ordered=True)
    return w * 0.9

w = jnp.ones((600, 600))
for i in range(4):
    w = step(w)
jax.effects_barrier()
""",
        silent=(
            "For callbacks without operands and results. One or two runs, and runs of less than 1 kB (a "
            "jax.debug.print of scalars), are notes."
        ),
    )

    def explain(self, recording: Recording, sources: Sources, limits: Thresholds) -> Iterator[Finding]:
        """One finding for each line that makes a callback."""
        groups: dict[object, list[Transfer]] = {}
        for row in recording.transfers:
            if row.seam == "callback" and row.count:
                groups.setdefault((recording.site_of(row), row.api), []).append(row)
        for rows in groups.values():
            site = recording.site_of(rows[0])
            evidence = _Callback(recording, site, sources.module(site.path), limits, rows)
            waited = sum(t.wait_ns for t in rows) / 1e9
            yield self.finding(
                evidence,
                _severity(evidence),
                _cause(evidence, waited),
                _fix(evidence),
                seconds=waited or None,
                seconds_is="measured",
            )


class _Callback(Evidence):
    """What goes there and what comes back belong to one run of the callback."""

    @property
    def count(self) -> int:
        runs: dict[str, int] = {}
        for row in self.rows:
            runs[row.direction] = runs.get(row.direction, 0) + row.count
        return max(runs.values())


def _severity(evidence: Evidence) -> Severity:
    limits = evidence.limits
    if evidence.count < limits.repeated_reads or evidence.each < limits.small_repeat:
        return "note"
    is_costly = evidence.each >= limits.large_copy or evidence.nbytes >= limits.large_total
    return "error" if is_costly else "warning"


def _cause(evidence: Evidence, waited: float) -> str:
    there = sum(t.nbytes for t in evidence.rows if t.direction == "d2h")
    back = sum(t.nbytes for t in evidence.rows if t.direction == "h2d")
    ways = [f"{format_bytes(there)} to the host"] if there else []
    ways += [f"{format_bytes(back)} back to the device"] if back else []
    said = (
        f"{action(evidence)} ran {format_count(evidence.count, 'time')} as a callback on the host, and moved "
    )
    said += " and ".join(ways)
    return f"{said}; the callback itself took {format_seconds(waited)}." if waited else f"{said}."


def _fix(evidence: Evidence) -> str:
    if evidence.each < evidence.limits.small_repeat:
        return "Nothing while it is there to look at values; leave it out of runs that are to be fast."
    if evidence.first.api.startswith("debug"):
        return "Reduce on the device first, and hand over the few numbers that are looked at, every N steps."
    back = any(t.direction == "h2d" for t in evidence.rows)
    if back:
        return (
            "Compute it with jax.numpy inside the function, or outside of it, before the call, on the host."
        )
    return f"Return the values from the function and fetch them every N steps, with {code('jax.device_get')}."
