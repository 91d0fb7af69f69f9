"""MRD103 committed-drags: operands are pulled to the device of another, committed, operand."""

from __future__ import annotations

from collections.abc import Iterator

from moored.model.finding import Finding, Severity
from moored.model.module import Sources
from moored.model.operands import split_path
from moored.model.recording import Recording
from moored.rules.base import Docs, Evidence, Rule, gather
from moored.rules.misplaced_compute import misplaced_calls
from moored.rules.thresholds import Thresholds
from moored.rules.uncommitted_drift import copy_severity
from moored.rules.wording import action, code, device_code, how_much, is_one_device, put_once, subject

__all__ = ["CommittedDrags"]


class CommittedDrags(Rule):
    """A committed operand decides where a call runs, and the uncommitted ones are copied there."""

    code = "MRD103"
    name = "committed-drags"
    kind = "implicit-d2d"
    docs = Docs(
        what=(
            "Finds calls in which one operand is committed to a device and another, uncommitted, one sits "
            "elsewhere. The call runs where the committed one is, however small it is, and JAX copies the "
            "others there at every call."
        ),
        why=(
            "A committed scalar of 4 bytes is enough to copy 16.8 MB of weights to another device at each "
            "step, and to run the step there: on the CPU, where the scalar came from there."
        ),
        example="""\
import jax
import jax.numpy as jnp

scale = jax.device_put(jnp.float32(0.5), jax.devices("cpu")[-1])
weights = jnp.ones((1000, 1000))
step = jax.jit(lambda w, s: (w * s).sum())

out = []
for i in range(3):
    out.append(step(weights, scale))
""",
        instead="""\
import jax
import jax.numpy as jnp

scale = jax.device_put(jnp.float32(0.5), jax.devices()[0])
weights = jnp.ones((1000, 1000))
step = jax.jit(lambda w, s: (w * s).sum())

out = []
for i in range(3):
    out.append(step(weights, scale))
""",
        silent="For operands of 8 bytes or less. A single copy of less than 1 MB is a note.",
        companions=("MRD401",),
    )

    def explain(self, recording: Recording, sources: Sources, limits: Thresholds) -> Iterator[Finding]:
        """One finding for each operand that is pulled at a line."""
        misplaced = misplaced_calls(recording, limits)
        for evidence in gather(recording, sources, limits, lambda t: (
            t.direction == "d2d" and not t.explicit and t.reason == "follows-committed"
        )):  # fmt: skip
            told = (evidence.first.site, evidence.first.function) in misplaced
            yield self.finding(
                evidence,
                _severity(evidence),
                _brief(evidence) if told else _cause(evidence),
                _COMPANION if told else _fix(evidence),
                seconds=evidence.call_seconds,
            )


def _puller(evidence: Evidence) -> str:
    """The committed operand: the user's words, its place in the call, or "another operand"."""
    beside = evidence.first.beside
    words = evidence.words_for(beside)
    if words:
        return code(words)
    steps, _ = split_path(beside)
    is_own = evidence.first.api == "jit" and not evidence.first.library and evidence.first.function
    if steps and is_own:
        step = steps[0][1:-1]
        return f"argument {step if step.isdigit() else code(step[1:-1])} of {code(evidence.first.function)}"
    return "another operand"


def _severity(evidence: Evidence) -> Severity:
    """As bad as any copy; but a small index that follows a committed table is how a lookup at home works."""
    if not _is_first(evidence) and evidence.each < evidence.limits.notable_copy:
        return "note"
    return copy_severity(evidence)


def _is_first(evidence: Evidence) -> bool:
    """Whether a call of the user's own, or the operand that one of JAX's functions works on, was pulled."""
    return evidence.first.api == "jit" or evidence.first.argument.startswith("[0]")


def _operand(evidence: Evidence) -> str:
    """What is pulled. JAX's own functions turn a host value into an array first: an index, say."""
    if _is_first(evidence) or not evidence.words:
        return subject(evidence)
    return f"{subject(evidence)}, or what JAX made of it,"


_COMPANION = "What MRD401 says of this line ends this copy too."


def _brief(evidence: Evidence) -> str:
    """The cause beside a finding of MRD401, which tells where the call ran and who decided that."""
    row, act = evidence.first, action(evidence)
    said = f"{_operand(evidence)} sits on {row.source} uncommitted, and follows {_puller(evidence)}"
    said += f" to {row.target}"
    if evidence.count == 1:
        return f"{said}: {act} first copied {how_much(evidence)} there."
    return f"{said}: each {act} first copies {how_much(evidence)} there."


def _cause(evidence: Evidence) -> str:
    row, act = evidence.first, action(evidence)
    there = row.target.split(" ")[0]  # the devices: how each operand is laid out over them is its own
    sits = f"{_operand(evidence)} sits on {row.source} uncommitted"
    sits += f", and {_puller(evidence)} is committed to {there}"
    much = how_much(evidence)
    if evidence.count == 1:
        return f"{sits}: {act} ran there, and first copied {much} there."
    return f"{sits}: each {act} runs there, and first copies {much} there."


def _fix(evidence: Evidence) -> str:
    row, header, module = evidence.first, evidence.recording.header, evidence.module
    name = code(evidence.words) if evidence.words else "the array"
    if not is_one_device(row.target):
        line = code(put_once(evidence.words, "sharding", module), 100)
        return f"Lay {name} out as the call wants it once, before the first call, and keep it so: {line}."
    line = code(put_once(evidence.words, device_code(row.target, header, module), module), 100)
    if row.target == header.default_device or not is_one_device(row.source):
        return f"Put {name} on {row.target} once: {line}."
    home = device_code(row.source, header, module)
    back = code(put_once(evidence.words_for(row.beside) or "y", home, module), 100)
    return (
        f"If this is to run on {row.source}, put {_puller(evidence)} there: {back}. If it is to run on "
        f"{row.target}, put {name} on {row.target} once: {line}."
    )
