"""MRD101 uncommitted-drift: an uncommitted array is copied whole to where each operation runs."""

from __future__ import annotations

from collections.abc import Iterator

from moored.model.finding import Finding, Severity
from moored.model.module import Sources
from moored.model.recording import Recording, Transfer
from moored.rules.base import Docs, Edit, Evidence, Rule, gather
from moored.rules.repair import keep_home
from moored.rules.thresholds import Thresholds
from moored.rules.wording import (
    action,
    at_line,
    code,
    device_code,
    how_much,
    is_lookup,
    put_on,
    put_once,
    subject,
)

__all__ = ["UncommittedDrift", "copy_severity"]


def copy_severity(evidence: Evidence) -> Severity:
    """How bad a copy between devices is, by whether it repeats and how much it moves."""
    limits = evidence.limits
    if evidence.count < 2:
        return "warning" if evidence.nbytes >= limits.large_copy else "note"
    is_costly = evidence.each >= limits.notable_copy or evidence.nbytes >= limits.large_total
    return "error" if is_costly else "warning"


class UncommittedDrift(Rule):
    """An uncommitted array off the default device: JAX copies it there for every operation."""

    code = "MRD101"
    name = "uncommitted-drift"
    kind = "implicit-d2d"
    docs = Docs(
        what=(
            "Finds operations on an array that sits on one device without being committed to it, while the "
            "operation runs on the default device. JAX then copies the whole array there first, even to "
            "take one row of it, keeps the copy for that one operation, and says nothing."
        ),
        why=(
            "The copy has the size of the array, not of what is taken from it, and is made again each time. "
            "`moored bench lookup` measures it: a lookup of 12.3 kB in a 6.52 GB array moves 6.52 GB."
        ),
        example="""\
import jax
import jax.numpy as jnp

home = jax.devices("cpu")[-1]
with jax.default_device(home):
    table = jnp.ones((1000, 1000))

rows = []
for i in range(3):
    rows.append(table[i])
""",
        instead="""\
import jax
import jax.numpy as jnp

home = jax.devices("cpu")[-1]
with jax.default_device(home):
    table = jnp.ones((1000, 1000))
table = jax.device_put(table, home)

rows = []
for i in range(3):
    rows.append(jax.device_put(table[i], jax.devices()[0]))
""",
        silent=(
            "For arrays of 8 bytes or less, for arrays that are committed or already on the default device, "
            "and for copies that the program asks for. A single copy of less than 1 MB is a note."
        ),
    )

    def explain(self, recording: Recording, sources: Sources, limits: Thresholds) -> Iterator[Finding]:
        """One finding for each array that drifts at a line."""
        for evidence in gather(recording, sources, limits, lambda t: (
            t.direction == "d2d" and not t.explicit and t.reason == "uncommitted"
        )):  # fmt: skip
            is_lookup = any(_is_lookup(t) for t in evidence.rows)
            edit = keep_home(evidence, sources, at_home=is_lookup)
            yield self.finding(
                evidence,
                copy_severity(evidence),
                _cause(evidence, sources),
                _fix(evidence, edit, is_lookup),
                seconds=evidence.call_seconds,
                edit=edit,
            )


def _is_lookup(row: Transfer) -> bool:
    """Whether the row is the array that something was looked up in."""
    return row.api != "jit" and is_lookup(row.function) and row.argument == "[0]"


def _cause(evidence: Evidence, sources: Sources) -> str:
    row, origin = evidence.first, evidence.origin
    what, act = subject(evidence), action(evidence)
    if origin is None:
        sits = f"{what} sits on {row.source} without being committed to it"
    else:
        module = sources.module(origin.path)
        device = module.default_device_at(origin.line) if module is not None else None
        under = f"jax.default_device({device})" if device else "jax.default_device"
        made = at_line(origin, evidence.site)
        sits = f"{what} was made under {under} at {made}, so it sits on {row.source}"
        sits += " without being committed to it"
    much = how_much(evidence)
    if evidence.count == 1:
        return f"{sits}; {act} ran on the default device {row.target} and first copied {much} there."
    return f"{sits}; each {act} runs on the default device {row.target} and first copies {much} there."


def _fix(evidence: Evidence, edit: Edit | None, is_lookup: bool) -> str:
    row, header = evidence.first, evidence.recording.header
    place = row.source if is_lookup else row.target
    verb = "Commit" if is_lookup else "Put"
    what = code(evidence.words) if evidence.words else "the array"
    to = f"to {place}" if is_lookup else f"on {place}"
    if edit is not None:
        said = f"{verb} it {to} once: write {code(edit.text.strip(), 100)} after line {edit.after}."
    else:
        device = device_code(place, header, evidence.module) or "sharding"
        line = put_once(evidence.words, device, evidence.module)
        origin = evidence.origin
        where = f" ({at_line(origin, evidence.site)})" if origin is not None else ""
        said = f"{verb} {what} {to} once, where it is made{where}: {code(line, 100)}."
    if is_lookup:
        there = device_code(row.target, header, evidence.module)
        moved = code(put_on(evidence.expression or "row", there, evidence.module), 100)
        return (
            f"{said} With that, {action(evidence)} runs on {row.source} and {what} stays there. What it "
            f"returns stays there too: put it on {row.target} before computing with it, {moved}."
        )
    return said
