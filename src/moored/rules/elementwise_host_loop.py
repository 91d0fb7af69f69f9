"""MRD202 elementwise-host-loop: a collection of device scalars is read one scalar at a time."""

from __future__ import annotations

from collections.abc import Iterator

from moored.model.finding import Finding, Severity
from moored.model.module import Sources
from moored.model.recording import Recording
from moored.rules.base import Docs, Evidence, Rule
from moored.rules.reading import collection, is_elementwise, is_kept_on_host, reads, share_of_run
from moored.rules.thresholds import Thresholds
from moored.rules.wording import action, code, percent
from moored.units import format_count, format_seconds

__all__ = ["ElementwiseHostLoop"]


class ElementwiseHostLoop(Rule):
    """Device scalars that Python or numpy reads one after the other, where one read would do."""

    code = "MRD202"
    name = "elementwise-host-loop"
    kind = "implicit-d2h"
    docs = Docs(
        what=(
            "Finds lines that read the scalars of one collection each by itself: iterating over a device "
            "array, numpy or Python functions over a list of device scalars, float(v) for each v."
        ),
        why=(
            "Every read is a round trip to the device of its own, a few bytes at a time, and the values "
            "could have come together in one. It is also the usual cause of a slow end of an epoch."
        ),
        example="""\
import jax
import jax.numpy as jnp
import numpy as np

step = jax.jit(lambda w: (w * 0.9, (w * w).sum()))
w = jnp.ones((100, 100))
losses = []
for i in range(20):
    w, loss = step(w)
    losses.append(loss)
mean = np.mean(losses)
""",
        instead="""\
import jax
import jax.numpy as jnp
import numpy as np

step = jax.jit(lambda w: (w * 0.9, (w * w).sum()))
w = jnp.ones((100, 100))
losses = []
for i in range(20):
    w, loss = step(w)
    losses.append(loss)
mean = np.mean(jax.device_get(losses))
""",
        silent=(
            "For jax.device_get, for one or two reads, and for reads of more than a scalar. Fewer than 16 "
            "reads and reads of arrays that were committed to the host are notes. A value that is read at "
            "each step of a loop is MRD201's."
        ),
    )

    def explain(self, recording: Recording, sources: Sources, limits: Thresholds) -> Iterator[Finding]:
        """One finding for each line and collection that is read."""
        for evidence in reads(recording, sources, limits):
            if is_elementwise(evidence):
                yield self.finding(
                    evidence,
                    _severity(evidence),
                    _cause(evidence),
                    _fix(evidence),
                    seconds=evidence.read_seconds,
                    seconds_is="measured",
                )


def _severity(evidence: Evidence) -> Severity:
    if is_kept_on_host(evidence) or evidence.count < evidence.limits.same_line_reads:
        return "note"
    module = evidence.module
    if module is not None and module.throttled_at(evidence.site.line):
        return "note"
    return "error" if share_of_run(evidence) is not None else "warning"


def _cause(evidence: Evidence) -> str:
    row = evidence.first
    reader = row.library or action(evidence)
    said = f"{reader} reads {format_count(evidence.count, 'scalar')} from {row.source} one at a time"
    said += ", and waits for each of them"
    waited, share = evidence.read_seconds, share_of_run(evidence)
    if waited is not None:
        said += f": {format_seconds(waited)} in all"
        if share is not None:
            said += f", {percent(share)} of the run"
    return f"{said}."


def _fix(evidence: Evidence) -> str:
    if is_kept_on_host(evidence):
        return "Nothing if they are meant to live on the host; a numpy array reads faster still."
    module, line = evidence.module, evidence.site.line
    loop = module.enclosing_loop(line) if module is not None else None
    reads = format_count(evidence.count, "read")
    what = collection(evidence) or "..."
    get = code(f"jax.device_get({what})")
    if loop is not None:
        where = f", before the loop at line {loop}" if loop != line else ""
        return f"Read them all at once{where}, {get}: one wait in place of {reads}."
    return (
        f"Read them together, {get}: one wait in place of {reads}; or stack them on the device "
        "(jax.numpy.stack) and read only the result."
    )
