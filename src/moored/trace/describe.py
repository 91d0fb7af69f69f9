"""From a call and its plan to the rows to count on: in whose words, and what is told of each leaf.

Made once per place in the user's code and kept with the plan: nothing here is on the hot path.
"""

from __future__ import annotations

import sys
from typing import Any

from moored.model.recording import ArraySpec
from moored.trace.frames import Caller
from moored.trace.hostvalues import host_spec
from moored.trace.places import Places
from moored.trace.plans import DRAGGED, RUN, Call, Move, Plan, Rows, unwrap
from moored.trace.seams import Internals
from moored.trace.store import Row, Store

__all__ = ["Describer"]

_MAX_OTHERS = 6
_CONVERSIONS = frozenset({"asarray", "array"})
_PUTS = frozenset({"device_put"})  # jitted functions of JAX that users call to place an array


class Describer:
    """Makes rows for calls."""

    def __init__(self, store: Store, jax_: Internals) -> None:
        self.store, self.jax = store, jax_

    def rows(self, call: Call, plan: Plan, predicted: bool) -> Rows:
        """The rows that a call from here counts on, one for each moved leaf."""
        store, name = self.store, call.function.name
        caller = store.frames.caller(sys._getframe(2))
        own = caller.api == "" and not str(getattr(call.jitted, "__module__", "")).startswith("jax.")
        api = "jit" if own else caller.api or name
        explicit = store.is_explicit(caller) or (not caller.library and not caller.api and api in _PUTS)
        paths = call.paths(self.jax)
        rows = []
        for move in plan.moves:
            fields, nbytes = self.moved(unwrap(call.leaves[move.leaf]), move)
            fields |= {
                "explicit": explicit,
                "seam": "call",
                "api": api,
                "library": caller.library,
                "function": name,
                "argument": _at(paths, move.leaf),
                "beside": _at(paths, move.beside),
                "reason": "asked" if explicit else move.reason,
                "target": store.places.sharding(move.wanted),
                "predicted": predicted,
            }
            rows.append((store.row(caller, fields), nbytes, move.leaf))
            if api in _CONVERSIONS and fields["direction"] == "h2d":
                rows += self.arrival(caller, api, fields, nbytes)
        if plan.elsewhere is not None:
            rows.append(self.execution(call, plan, caller, api, paths))
        return rows

    def arrival(self, caller: Caller, api: str, fields: dict[str, Any], nbytes: int) -> Rows:
        """``asarray`` in a thread that did not inherit the ``default_device`` of its starter."""
        started = self.store.thread_default()
        expected = self.store.device_words(started[0]) if started is not None else ""
        if started is None or expected == fields["target"]:
            return []
        arrived = {
            "api": api,
            "library": caller.library,
            "reason": "thread-default",
            "array": fields["array"],
            "place": fields["target"],
            "expected": expected,
            "origin": self.store.site(started[1]),
        }
        return [(self.store.row(caller, arrived, "arrivals"), nbytes, RUN)]

    def execution(self, call: Call, plan: Plan, caller: Caller, api: str, paths: list[str]
                  ) -> tuple[Row, int, int]:  # fmt: skip
        """The row of a run elsewhere than on the default device."""
        run, store = plan.elsewhere, self.store
        assert run is not None
        decided = unwrap(call.leaves[run.leaf]) if run.leaf is not None else None
        spec = None
        if decided is not None:
            spec = ArraySpec(tuple(decided.shape), str(decided.dtype), bool(decided._committed))
        named = Caller(*run.named_at, "", "", ()) if run.named_at is not None else None
        fields = {
            "api": api,
            "function": call.function.name,
            "library": caller.library,
            "ran_on": store.places.device(run.ran_on),
            "default_device": store.places.device(run.default),
            "reason": "named-inside" if run.wanted is not None else "committed",
            "argument": _at(paths, run.leaf),
            "also": _others(_at(paths, run.leaf), [_at(paths, leaf) for leaf in run.also]),
            "array": spec,
            "wanted": store.places.device(run.wanted) if run.wanted is not None else "",
            "named_at": store.site(named) if named is not None else None,
            "origin": store.committed_at(decided) if decided is not None else None,
        }
        nbytes = sum(int(getattr(unwrap(leaf), "nbytes", 0)) for leaf in call.leaves)
        return store.row(caller, fields, "executions"), nbytes, DRAGGED if plan.dragged else RUN

    def moved(self, value: Any, move: Move) -> tuple[dict[str, Any], int]:
        """Direction, array, source and origin of a moved leaf; its bytes."""
        places = self.store.places
        if type(value) is self.jax.ArrayImpl:
            committed = bool(value._committed)
            origin = None if committed else self.store.origin_of(value)
            fields = {
                "direction": "d2d",
                "array": ArraySpec(tuple(value.shape), str(value.dtype), committed),
                "source": places.sharding(value.sharding),
                "origin": self.store.site(origin) if origin is not None else None,
            }
            return fields, places.moved(value, move.wanted)
        shape, dtype = host_spec(value, self.jax.jax.config.jax_enable_x64)
        spec = ArraySpec(shape, str(getattr(value, "dtype", dtype)), None)
        nbytes = Places.uploaded(shape, dtype.itemsize, move.wanted)
        return {"direction": "h2d", "array": spec, "source": "host", "origin": None}, nbytes


def _at(paths: list[str], leaf: int | None) -> str:
    """The path of a leaf, where it has one."""
    return paths[leaf] if leaf is not None and leaf < len(paths) else ""


def _others(path: str, paths: list[str]) -> tuple[str, ...]:
    """The arguments of other paths: ``"[1]"`` of ``"[1]['w']"``, each once, a few of them."""
    heads = dict.fromkeys(other[: other.index("]") + 1] for other in paths if other)
    own = path[: path.index("]") + 1] if path else ""
    return tuple(head for head in heads if head != own)[:_MAX_OTHERS]
