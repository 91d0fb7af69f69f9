"""Compilations that differ from earlier ones in placement alone.

JAX tells how long a compilation took, not why it came. Of each jitted function the signatures
that were compiled are kept: when a new one equals an earlier one in structure, shapes and
static values, what is left is placement, and the first leaf that differs is the cause.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from moored.model.recording import ArraySpec
from moored.trace.plans import Call, unwrap
from moored.trace.seams import Internals, Maker
from moored.trace.store import Store

__all__ = ["Compiles", "makers"]

_MAX_SIGNATURES = 64  # per function: the oldest are forgotten
_COMPILED = "/jax/core/compile/backend_compile_duration"


def makers(store: Store, jax_: Internals) -> dict[str, Maker]:
    """The listener for the compile seam: adds up what the compiler took, per thread."""
    state = store.state

    def make_listener(_: Any) -> Callable[..., None]:
        def listen(event: str, seconds: float, **__: Any) -> None:
            if event == _COMPILED:
                state.compile_ns += int(seconds * 1e9)

        return listen

    return {"compiled": make_listener}


class _Signature(NamedTuple):
    """What one compilation was for."""

    shape: Any  # structure, shapes, dtypes, static values: not placement
    in_force: Any
    context: Any
    leaves: tuple[Any, ...]  # (sharding, committed) of an array, the type of anything else
    site: int


class Compiles:
    """Remembers what was compiled, and explains what is compiled again."""

    def __init__(self, store: Store, jax_: Internals) -> None:
        self.store, self.jax = store, jax_

    def learnt(self, call: Call, detail: Any, depth: int) -> None:
        """After JAX's Python dispatch ran for a call: if it compiled, was it for placement alone?

        ``depth`` is the number of moored's own frames between here and the call.
        """
        state = self.store.state
        compile_ns, state.compile_ns = state.compile_ns, 0
        if detail is None or getattr(call.jitted, "_jit_info", None) is None or self._is_jaxs(call.jitted):
            return
        caller = self.store.frames.caller(sys._getframe(depth + 1))
        structure, shapes, statics, context = detail
        leaves = tuple(self._placed(leaf) for leaf in call.leaves)
        now = _Signature((structure, shapes, statics), call.key[0], context, leaves, self.store.site(caller))
        known = call.function.signatures
        if compile_ns:
            alike = [s for s in known if s.shape == now.shape and s != now]
            for then in reversed(alike):
                fields = self._difference(call, then, now)
                if fields is not None:
                    fields |= {
                        "api": caller.api or "jit",
                        "function": call.function.name,
                        "library": caller.library,
                        "earlier": then.site,
                    }
                    self.store.saw(caller, fields, "compiles").compile_ns += compile_ns
                    break
        known.append(now)
        del known[:-_MAX_SIGNATURES]

    @staticmethod
    def _is_jaxs(jitted: Any) -> bool:
        """JAX's own functions compile again for every placement, cheaply and as a matter of course."""
        return str(getattr(jitted, "__module__", "")).startswith(("jax.", "jax_"))

    def _placed(self, leaf: Any) -> Any:
        value = unwrap(leaf)
        return (value._sharding, bool(value._committed)) if type(value) is self.jax.ArrayImpl else type(value)

    def _difference(self, call: Call, then: _Signature, now: _Signature) -> dict[str, Any] | None:
        """What differs in placement, as fields of a Compile; None when nothing does."""
        changed = [i for i, (a, b) in enumerate(zip(then.leaves, now.leaves, strict=True)) if a != b]
        changed = [i for i in changed if self._matters(then.leaves[i], now.leaves[i])]
        if changed:
            first = changed[0]
            before, after = then.leaves[first], now.leaves[first]
            same_place = isinstance(before, tuple) and isinstance(after, tuple) and before[0] == after[0]
            value = unwrap(call.leaves[first])
            paths = call.paths(self.jax)
            return {
                "reason": "commitment" if same_place else "sharding",
                "argument": paths[first] if first < len(paths) else "",
                "n_changed": len(changed),
                "array": ArraySpec(tuple(value.shape), str(value.dtype), bool(value._committed))
                if type(value) is self.jax.ArrayImpl
                else None,
                "before": self._words(before),
                "after": self._words(after),
            }
        if then.in_force is not now.in_force and then.in_force != now.in_force:
            before, after = self._device(then.in_force), self._device(now.in_force)
            return {"reason": "default-device", "before": before, "after": after}
        if then.context != now.context:
            return {"reason": "context"}
        return None

    def _matters(self, before: Any, after: Any) -> bool:
        """JAX treats host values and uncommitted arrays alike."""
        return any(isinstance(x, tuple) and x[1] for x in (before, after)) or (
            isinstance(before, tuple) and isinstance(after, tuple)
        )

    def _words(self, placed: Any) -> str:
        if isinstance(placed, tuple):
            where = self.store.places.sharding(placed[0])
            return f"{where}, {'committed' if placed[1] else 'uncommitted'}"
        return f"a host value ({placed.__name__})"

    def _device(self, in_force: Any) -> str:
        if in_force is None:
            return "no default_device"
        return (
            in_force if isinstance(in_force, str) else f"default_device {self.store.places.device(in_force)}"
        )
