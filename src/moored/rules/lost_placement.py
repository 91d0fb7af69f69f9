"""MRD402 lost-placement: an array lands elsewhere than it was, or than the code around it says."""

from __future__ import annotations

from collections.abc import Iterator

from moored.model.events import Arrival
from moored.model.finding import Finding, Severity
from moored.model.module import Sources
from moored.model.recording import Recording
from moored.rules.base import Docs, Observed, Rule, observe
from moored.rules.thresholds import Thresholds
from moored.rules.wording import action, at_line, code, device_code
from moored.units import format_bytes, format_count

__all__ = ["LostPlacement"]

_REASONS = ("dlpack-host", "thread-default", "unpickled")


class LostPlacement(Rule):
    """Pickle, dlpack and threads: each of them loses or changes where an array is to be."""

    code = "MRD402"
    name = "lost-placement"
    kind = "misplaced-array"
    also = ("implicit-h2d",)
    docs = Docs(
        what=(
            "Finds arrays that land elsewhere than the code suggests: host memory that from_dlpack imports, "
            "which is then committed to the CPU; arrays that a thread makes which was started inside a "
            "default_device block, and does not inherit it; arrays that pickle restores, to the default "
            "device and uncommitted."
        ),
        why=(
            "Where an array is decides where all that uses it runs. A batch that was imported with "
            "from_dlpack takes the training step, and the parameters, to the CPU for good."
        ),
        example="""\
import threading
import jax
import jax.numpy as jnp
import numpy as np

made = []

def load():
    made.append(jnp.asarray(np.ones((1000, 1000), np.float32)))

with jax.default_device(jax.devices("cpu")[-1]):
    loader = threading.Thread(target=load)
    loader.start()
    loader.join()
""",
        instead="""\
import threading
import jax
import jax.numpy as jnp
import numpy as np

made = []
home = jax.devices("cpu")[-1]

def load():
    made.append(jax.device_put(np.ones((1000, 1000), np.float32), home))

with jax.default_device(home):
    loader = threading.Thread(target=load)
    loader.start()
    loader.join()
""",
        silent=(
            "For arrays that name their device. What pickle restores is a note where it is not known to "
            "have been elsewhere; so is imported host memory that no computation followed, and arrays of "
            "less than 64 kB."
        ),
    )

    def explain(self, recording: Recording, sources: Sources, limits: Thresholds) -> Iterator[Finding]:
        """One finding for each line, place and reason."""
        rows = [a for a in recording.arrivals if a.reason in _REASONS and _is_elsewhere(a)]
        for evidence in observe(recording, sources, limits, rows, lambda a: (a.reason, a.place, a.expected)):
            row = evidence.first
            is_pickle = row.reason == "unpickled"
            evidence.words = ""  # what the line was given is not the array that arrived
            yield self.finding(
                evidence,
                _severity(evidence),
                _cause(evidence),
                _fix(evidence),
                kind="implicit-h2d" if is_pickle else None,
                route=("host" if is_pickle else row.expected, row.place),
            )


def _is_elsewhere(row: Arrival) -> bool:
    return row.place != row.expected


def _severity(evidence: Observed[Arrival]) -> Severity:
    row = evidence.first
    if evidence.each < evidence.limits.notable_copy or not row.expected:
        return "note"
    if row.reason == "dlpack-host":
        # Imported without a copy and then put where it belongs is good code.
        followed = any(e.origin in {a.site for a in evidence.rows} for e in evidence.recording.executions)
        return "warning" if followed else "note"
    return "warning"


def _cause(evidence: Observed[Arrival]) -> str:
    row, act = evidence.first, action(evidence)
    size = format_bytes(evidence.each)
    arrays = "an array" if evidence.count == 1 else f"{format_count(evidence.count, 'array')}"
    each = "" if evidence.count == 1 else " each"
    if row.reason == "dlpack-host":
        return (
            f"{act} imported {arrays} of {size}{each} from host memory: committed to {row.place}, not on the "
            f"default device {row.expected}. Whatever uses it runs on {row.place}."
        )
    if row.reason == "thread-default":
        origin = evidence.origin
        started = f" at {at_line(origin, evidence.site)}" if origin is not None else ""
        return (
            f"{act} made {arrays} of {size}{each} on {row.place}: its thread was started{started} inside a "
            f"block with default_device {row.expected}, and a thread does not inherit that."
        )
    was = f"it was on {row.expected} when it was pickled" if row.expected else "pickle keeps no placement"
    if evidence.count > 1 and row.expected:
        was = f"they were on {row.expected} when they were pickled"
    return f"{act} restored {arrays} of {size}{each} to the default device {row.place}, uncommitted; {was}."


def _fix(evidence: Observed[Arrival]) -> str:
    row, header, module = evidence.first, evidence.recording.header, evidence.module
    device = device_code(row.expected, header, module) or "device"
    jax = module.spelling("jax") if module is not None else "jax"
    if row.reason == "dlpack-host":
        put = f"{jax}.device_put(array, {device})"
        return f"Pass {code(f'device={device}')} to {code(row.api)}, or use {code(put, 100)} in its place."
    if row.reason == "thread-default":
        return (
            f"Name the device where the array is made, {code(f'{jax}.device_put(value, {device})', 100)}, or "
            f"open {code(f'with {jax}.default_device({device}):', 100)} inside the function that the thread "
            "runs."
        )
    put = f"{jax}.device_put(restored, {device})"
    return (
        f"Nothing if {row.place} is where it is to be. Otherwise put it there yourself, {code(put, 100)}, or "
        "pickle numpy arrays (jax.device_get), which go to no device until you put them."
    )
