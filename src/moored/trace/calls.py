"""The call seam: implicit copies into jitted, eager and AOT-compiled calls.

Every call of a jitted function passes through ``__call__`` below with its concrete arguments,
while JAX still serves it from its C++ fast path. What a call moves is not guessed:

* The first call of a signature runs JAX's Python dispatch. There the executable tells which
  arguments it keeps and in which sharding it wants each; the difference to where they are is
  what moves. This is *learnt* as a plan (``plans``).
* A later call of the same signature is served by C++, which moves exactly the same; the plan is
  *replayed*.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from moored.trace.compiles import Compiles
from moored.trace.describe import Describer
from moored.trace.plans import DRAGGED, Call, Entry, Plan, Planner, Rows, unwrap
from moored.trace.refusals import refused
from moored.trace.seams import Internals

if TYPE_CHECKING:
    from moored.trace.store import Store

__all__ = ["makers"]

_ORIGIN_NBYTES = 1024  # smaller arrays are not worth remembering where they were made
_now = time.perf_counter_ns


def makers(store: Store, jax_: Internals) -> dict[str, Callable[[Any], Any]]:
    """Replacements for the patches of the call seam."""
    calls = _Calls(store, jax_)
    return {
        "call": calls.make_call,
        "execute": calls.make_execute,
        "place_inputs": calls.make_place_inputs,
        "jaxpr_as_fun": calls.make_jaxpr_as_fun,
        "python_call": calls.make_python_call,
    }


class _Calls:
    def __init__(self, store: Store, jax_: Internals) -> None:
        self.store, self.jax = store, jax_
        self.planner = Planner(jax_, store.places)
        self.compiles = Compiles(store, jax_)
        self.describer = Describer(store, jax_)
        self.runs = [0]  # Python-dispatched executions so far, in any thread: a cheap "nothing new"

    # -- JAX's Python dispatch: what ran, and with what -------------------------------------

    def make_execute(self, original: Any) -> Any:
        state, runs = self.store.state, self.runs

        def __call__(executable: Any, *args: Any) -> Any:
            try:
                return original(executable, *args)
            finally:
                # After the run: a callback on this thread has had its own calls by now.
                state.ran = (executable, args, state.jaxpr)
                runs[0] += 1

        return __call__

    def make_python_call(self, original: Any) -> Any:
        state = self.store.state

        def _pjit_call_impl_python(*args: Any, **named: Any) -> Any:
            outer, state.jaxpr = state.jaxpr, named.get("jaxpr")
            try:
                return original(*args, **named)
            finally:
                state.jaxpr = outer

        return _pjit_call_impl_python

    def make_place_inputs(self, original: Any) -> Any:
        state = self.store.state

        def __call__(handler: Any, input_buffers: Any) -> Any:
            outer, state.nested = state.nested, True  # the call accounts for these, not the put seam
            try:
                return original(handler, input_buffers)
            finally:
                state.nested = outer

        return __call__

    def make_jaxpr_as_fun(self, original: Any) -> Any:
        state = self.store.state

        def _get_jaxpr_as_fun(*args: Any, **kwargs: Any) -> Any:
            function = state.jaxpr_fun = original(*args, **kwargs)
            return function

        return _get_jaxpr_as_fun

    # -- the call ---------------------------------------------------------------------------

    def make_call(self, original: Any) -> Any:
        state, functions, runs = self.store.state, self.planner.functions, self.runs
        array_type, default, flatten = self.jax.ArrayImpl, self.jax.default_device, self.jax.flatten
        failed, slow, learn, replay, add = (
            self.store.failed, self.slow, self.account, self.replay, self.add,
        )  # fmt: skip
        scalars, give_up = self.store.scalars, self.give_up
        key_of = _key_maker(array_type)

        def __call__(self: Any, /, *args: Any, **kwargs: Any) -> Any:
            leaves: Sequence[Any] = args
            try:
                function = functions.get(id(self))
                if function is None:
                    function = add(self)
                in_force = default.value
                if kwargs or function.has_statics:
                    leaves = flatten(function.dynamic(args, kwargs))[0]
                    key = key_of(leaves, in_force)
                else:
                    parts = [in_force]
                    for arg in args:
                        if type(arg) is not array_type:
                            leaves = flatten(args)[0]
                            key = key_of(leaves, in_force)
                            break
                        parts.append(id(arg._sharding))
                        parts.append(arg._committed)
                    else:
                        key = tuple(parts)
                entry = function.by_id.get(key)
                if entry is None or in_force is not None or not entry.clean:
                    call = Call(self, args, kwargs, function, leaves, key)
                    if entry is None or entry.plan is None or not entry.uniform or in_force is not None:
                        enter: Any = slow
                    elif entry.plan.moves or entry.plan.elsewhere is not None:
                        enter = replay
                    else:
                        enter = None
                        plan = entry.plan
                else:
                    enter = plan = None
            except Exception as error:
                failed("calls", error)
                return original(self, *args, **kwargs)
            if enter is not None:
                return enter(original, call, entry)
            before = runs[0]
            try:
                out = original(self, *args, **kwargs) if kwargs else original(self, *args)
            except BaseException as error:
                give_up(error, Call(self, args, kwargs, function, leaves, key))
                raise
            if runs[0] != before and state.ran is not None:
                return learn(out, Call(self, args, kwargs, function, leaves, key), 0)
            if plan is not None:
                scalars[0] += plan.scalars[0]
                scalars[1] += plan.scalars[1]
            return out

        return __call__

    def add(self, jitted: Any) -> Any:
        state = self.store.state
        cached, state.jaxpr_fun = state.jaxpr_fun, None
        return self.planner.add(jitted, cached)

    def give_up(self, error: BaseException, call: Call) -> None:
        """The call has raised: nothing is learnt; devices that did not agree are explained."""
        state = self.store.state
        state.ran, state.compile_ns = None, 0
        try:
            refused(self.store, self.jax, error, call)
        except Exception as failure:
            self.store.failed("calls", failure)

    def replay(self, original: Any, call: Call, entry: Entry) -> Any:
        """A call that is known to move something; every lookup is cached per place in the program."""
        store, rows, place = self.store, None, None
        store.state.ran = None  # an executable that was run past this seam may have left something
        try:
            frame = store.frames.user_frame(sys._getframe(2))
            parts: list[Any] = [frame and id(frame.f_code), frame and frame.f_lasti]
            for move in entry.plan.moves if entry.plan else ():
                leaf = call.leaves[move.leaf]
                parts.append(getattr(leaf, "shape", None))
                parts.append(getattr(leaf, "dtype", None))
                if type(leaf) is not self.jax.ArrayImpl:
                    parts.append(self.jax.jax.config.jax_enable_x64)  # what a host value becomes there
            if store.started:
                parts.append(store.thread_default() is not None)
            place = tuple(parts)
            rows = entry.rows.get(place)
        except Exception as error:
            store.failed("calls", error)
        start = _now()
        try:
            out = original(call.jitted, *call.args, **call.kwargs)
        except BaseException as error:
            self.give_up(error, call)
            raise
        end = _now()
        if store.state.ran is not None:
            return self.account(out, call, 0)
        try:
            if store.state.nested or self.traced(out) or entry.plan is None:
                return out
            if rows is None:
                rows = entry.rows[place] = self.describer.rows(call, entry.plan, entry.predicted)
            self.count(rows, call.leaves, end - start, end)
            self.count_scalars(entry.plan)
        except Exception as error:
            store.failed("calls", error)
        return out

    def slow(self, original: Any, call: Call, entry: Entry | None) -> Any:
        """A call of which nothing is known for certain yet, or one under ``default_device``."""
        state = self.store.state
        state.ran = None
        start = _now()
        try:
            out = original(call.jitted, *call.args, **call.kwargs)
        except BaseException as error:
            self.give_up(error, call)
            raise
        elapsed = _now() - start if state.ran is None else 0  # a first call is mostly tracing and compiling
        out = self.account(out, call, elapsed)
        if call.key[0] is not None:
            try:
                self.remember_origin(out)
            except Exception as error:
                self.store.failed("calls", error)
        return out

    def account(self, out: Any, call: Call, elapsed: int) -> Any:
        """After a call: learn its plan if JAX's Python dispatch ran, else look it up; then count."""
        state = self.store.state
        ran, state.ran = state.ran, None
        try:
            entry = self.planner.entry(call)
            if ran is not None:
                plan, detail = self.planner.learnt(ran, call.leaves, call.key[0]), self.planner.detail(call)
                entry.learn(plan, detail)
                self.compiles.learnt(call, detail, 2)
            elif self.traced(out):
                return out
            elif entry.plan is not None and entry.uniform:
                plan = entry.plan
            else:
                known = entry.by_detail.get(self.planner.detail(call)) or self.predict(out, call, entry)
                if known is None:
                    return out
                plan = known
            if state.nested:  # a slice that JAX takes to lay an array out over devices, counted as a whole
                return out
            if plan.moves or plan.elsewhere is not None:
                rows = self.describer.rows(call, plan, entry.predicted)
                self.count(rows, call.leaves, elapsed, _now())
            self.count_scalars(plan)
        except Exception as error:
            self.store.failed("calls", error)
        return out

    def predict(self, out: Any, call: Call, entry: Entry) -> Plan | None:
        """The plan of a call that was warm before moored came, inferred from where its outputs live.

        Only AOT executables and functions under grad and vmap can be warm after the dispatch caches
        were emptied; for all others "nothing ran" means that JAX had nothing to run.
        """
        if not self.store.late or getattr(call.jitted, "_jit_info", None) is not None:
            return None
        outputs = [x for x in self.jax.flatten(out)[0] if type(x) is self.jax.ArrayImpl]
        if not outputs:
            return None
        wanted = [(i, outputs[0].sharding) for i in range(len(call.leaves))]
        entry.plan, entry.predicted = self.planner.plan(wanted, call.leaves), True
        return entry.plan

    def traced(self, out: Any) -> bool:
        """Whether the call was only traced into an outer one: nothing ran, nothing moved."""
        if type(out) is self.jax.ArrayImpl:
            return False
        return any(isinstance(x, self.jax.Tracer) for x in self.jax.flatten(out)[0])

    # -- counting ---------------------------------------------------------------------------

    def count(self, rows: Rows, leaves: Sequence[Any], elapsed: int, end: int) -> None:
        """Add one call to its rows; the time of the call goes to the first of them."""
        at = end - self.store.epoch_ns
        for row, nbytes, leaf in rows:
            row.count += 1
            row.nbytes += nbytes
            row.last_ns = at
            if leaf >= 0:
                row.call_ns += elapsed
                row.seen(leaves[leaf])
                elapsed = 0
            elif leaf == DRAGGED:
                row.dragged += 1

    def count_scalars(self, plan: Plan) -> None:
        scalars = self.store.scalars
        scalars[0] += plan.scalars[0]
        scalars[1] += plan.scalars[1]

    def remember_origin(self, out: Any) -> None:
        """Under ``default_device``: note the line that makes uncommitted arrays."""
        array_type = self.jax.ArrayImpl
        made = [out] if type(out) is array_type else self.jax.flatten(out)[0]
        made = [x for x in made if type(x) is array_type and not x._committed and x.nbytes >= _ORIGIN_NBYTES]
        if made:
            caller = self.store.frames.caller(sys._getframe(2))
            for array in made:
                self.store.made_under_default_device(array, caller)


def _key_maker(array_type: Any) -> Callable[[Sequence[Any], Any], tuple[Any, ...]]:
    """Makes keys by identity: the default device in force, then each leaf's sharding and committedness.

    For a few plain arrays ``__call__`` makes the same key by itself.
    """
    shardings_of, committed_of = attrgetter("_sharding"), attrgetter("_committed")
    only_arrays = {array_type}

    def key_of(leaves: Sequence[Any], in_force: Any) -> tuple[Any, ...]:
        # C loops cost less than Python's from about five leaves on.
        if len(leaves) > 4 and set(map(type, leaves)) == only_arrays:
            return (in_force, *map(id, map(shardings_of, leaves)), *map(committed_of, leaves))
        parts = [in_force]
        for leaf in leaves:
            if type(leaf) is not array_type:
                inner = unwrap(leaf)
                if type(inner) is not array_type:
                    parts.append(type(leaf))
                    continue
                leaf = inner
            parts.append(id(leaf._sharding))
            parts.append(leaf._committed)
        return tuple(parts)

    return key_of
