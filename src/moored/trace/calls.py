"""The call seam: implicit copies into jitted, eager and AOT-compiled calls.

Every call of a jitted function passes through ``call`` below with its concrete arguments,
while JAX still serves it from its C++ fast path. What a call moves is not guessed:

* The first call of a signature runs JAX's Python dispatch. There the executable tells which
  arguments it keeps and in which sharding it wants each; the difference to where they are is
  what moves. This is *learnt* as a plan.
* A later call of the same signature is served by C++, which moves exactly the same; the plan is
  *replayed*.

A plan is found by what decides a move: the function, the default device in force, and for each
leaf its sharding and committedness. Whatever else belongs to JAX's signature (tree structure,
shapes, static values, context) hardly ever changes what moves; it is only looked at for
functions where it was seen to ("uniform" is false then), so the usual call does not pay for it.
"""

from __future__ import annotations

import sys
import time
import weakref
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from moored.model.recording import ArraySpec
from moored.trace.hostvalues import host_spec
from moored.trace.places import Places
from moored.trace.seams import Internals

if TYPE_CHECKING:
    from moored.trace.collect import Collector, Row
    from moored.trace.frames import Caller

__all__ = ["makers"]

_SCALAR_NBYTES = 8  # index scalars and Python numbers: noise, added up apart
_ORIGIN_NBYTES = 1024  # smaller arrays are not worth remembering where they were made
_MAX_KEYS = 2048  # per function, before its keys are forgotten and learnt again
_MAX_FUNCTIONS = 16_384
_now = time.perf_counter_ns
_Rows = list[tuple["Row", int, int]]  # the row, bytes of one event, and which leaf it is


class _Move(NamedTuple):
    """One leaf that a call moves."""

    leaf: int
    wanted: Any
    reason: str
    beside: int | None  # leaf whose device an uncommitted one follows


class _Entry:
    """What calls of one placement signature move.

    ``moves`` is None until it was learnt. ``rows`` caches, per place in the user's code and shapes
    of the moved leaves, the rows to count on.
    """

    __slots__ = ("by_detail", "clean", "moves", "predicted", "rows", "scalars", "uniform")

    def __init__(self) -> None:
        self.clean = False  # moves nothing, not even a scalar, whatever the rest of the signature
        self.moves: tuple[_Move, ...] | None = None
        self.scalars: tuple[int, int] = (0, 0)  # uploads and bytes of each call
        self.uniform = True
        self.predicted = False
        self.by_detail: dict[Any, tuple[tuple[_Move, ...], tuple[int, int]]] = {}
        self.rows: dict[Any, _Rows] = {}


class _Function:
    """One jitted function: its static arguments and what was learnt of it."""

    __slots__ = ("__weakref__", "by_id", "entries", "has_statics", "keep", "name", "owner", "static_names",
                 "static_numbers")  # fmt: skip

    def __init__(self, name: str, statics: tuple[frozenset[int], frozenset[str]]) -> None:
        self.name = name
        self.static_numbers, self.static_names = statics
        self.has_statics = bool(statics[0] or statics[1])
        self.entries: dict[Any, _Entry] = {}  # by value
        self.by_id: dict[Any, _Entry] = {}  # by identity of shardings, all of them held in ``keep``
        self.keep: list[Any] = []
        self.owner: Any = None

    def dynamic(self, args: Any, kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments without the static ones."""
        numbers, names = self.static_numbers, self.static_names
        if not self.has_statics:
            return args, kwargs
        return (
            tuple(a for i, a in enumerate(args) if i not in numbers),
            {k: v for k, v in kwargs.items() if k not in names},
        )

    def static_values(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """The static arguments, which JAX requires to be hashable."""
        return (
            *(a for i, a in enumerate(args) if i in self.static_numbers),
            *(kwargs[k] for k in sorted(self.static_names) if k in kwargs),
        )


def _unwrap(leaf: Any) -> Any:
    """The array inside typed key arrays and refs; anything else as it is."""
    inner = getattr(leaf, "_base_array", None)
    if inner is not None:
        return inner
    refs = getattr(leaf, "_refs", None)
    return getattr(refs, "_buf", leaf) if refs is not None else leaf


def makers(collector: Collector, jax_: Internals) -> dict[str, Callable[[Any], Any]]:
    """Replacements for the patches of the call seam."""
    calls = _Calls(collector, jax_)
    return {
        "call": calls.make_call,
        "execute": calls.make_execute,
        "place_inputs": calls.make_place_inputs,
        "jaxpr_as_fun": calls.make_jaxpr_as_fun,
    }


class _Calls:
    def __init__(self, collector: Collector, jax_: Internals) -> None:
        self.collector, self.jax = collector, jax_
        self.functions: dict[int, _Function] = {}
        self.runs = [0]  # Python-dispatched executions so far, in any thread: a cheap "nothing new"

    # -- JAX's Python dispatch: what ran, and with what -------------------------------------

    def make_execute(self, original: Any) -> Any:
        state, runs = self.collector.state, self.runs

        def __call__(executable: Any, *args: Any) -> Any:
            try:
                return original(executable, *args)
            finally:
                # After the run: a callback on this thread has had its own calls by now.
                state.ran = (executable, args)
                runs[0] += 1

        return __call__

    def make_place_inputs(self, original: Any) -> Any:
        state = self.collector.state

        def __call__(handler: Any, input_buffers: Any) -> Any:
            outer, state.nested = state.nested, True  # the call accounts for these, not the put seam
            try:
                return original(handler, input_buffers)
            finally:
                state.nested = outer

        return __call__

    def make_jaxpr_as_fun(self, original: Any) -> Any:
        state = self.collector.state

        def _get_jaxpr_as_fun(*args: Any, **kwargs: Any) -> Any:
            # Under grad and vmap JAX wraps the same cached callable in a new jitted object for every
            # call: the callable is the identity.
            function = state.jaxpr_fun = original(*args, **kwargs)
            return function

        return _get_jaxpr_as_fun

    # -- the call ---------------------------------------------------------------------------

    def make_call(self, original: Any) -> Any:
        state, functions = self.collector.state, self.functions
        array_type, default = self.jax.ArrayImpl, self.jax.default_device
        flatten, scalars = self.jax.flatten, self.collector.scalars
        shardings_of, committed_of = attrgetter("_sharding"), attrgetter("_committed")
        failed, slow, replay, new_function = self.collector.failed, self.slow, self.replay, self.new_function
        runs, only_arrays = self.runs, {array_type}

        def key_of(leaves: Sequence[Any], in_force: Any) -> tuple[Any, ...]:
            # C loops cost less than Python's from about five leaves on.
            if len(leaves) > 4 and set(map(type, leaves)) == only_arrays:
                return (in_force, *map(id, map(shardings_of, leaves)), *map(committed_of, leaves))
            parts = [in_force]
            for leaf in leaves:
                if type(leaf) is not array_type:
                    inner = _unwrap(leaf)
                    if type(inner) is not array_type:
                        parts.append(type(leaf))
                        continue
                    leaf = inner
                parts.append(id(leaf._sharding))
                parts.append(leaf._committed)
            return tuple(parts)

        def __call__(self: Any, /, *args: Any, **kwargs: Any) -> Any:
            leaves: Sequence[Any] = args
            try:
                function = functions.get(id(self))
                if function is None:
                    function = new_function(self)
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
            except Exception as error:
                failed("calls", error)
                return original(self, *args, **kwargs)
            if entry is None or in_force is not None or not entry.clean:
                if entry is None or in_force is not None or entry.moves is None or not entry.uniform:
                    return slow(original, self, args, kwargs, function, leaves, key, in_force)
                if entry.moves:
                    return replay(original, self, args, kwargs, function, leaves, key, entry)
                scalars[0] += entry.scalars[0]
                scalars[1] += entry.scalars[1]
            before = runs[0]
            try:
                out = original(self, *args, **kwargs) if kwargs else original(self, *args)
            except BaseException:
                state.ran = None
                raise
            if runs[0] != before and state.ran is not None:
                if entry.scalars[0]:  # counted above, and again by what is learnt now
                    scalars[0] -= entry.scalars[0]
                    scalars[1] -= entry.scalars[1]
                return slow_after(out, self, args, kwargs, function, leaves, key)
            return out

        slow_after = self.slow_after
        return __call__

    def replay(self, original: Any, jitted: Any, args: Any, kwargs: Any, function: _Function,
               leaves: Sequence[Any], key: Any, entry: _Entry) -> Any:  # fmt: skip
        """A call that is known to move something, and where every lookup is cached."""
        state, rows = self.collector.state, None
        try:
            frame = self.collector.frames.user_frame(sys._getframe(2))
            place: list[Any] = [frame and id(frame.f_code), frame and frame.f_lasti]
            for move in entry.moves or ():
                leaf = leaves[move.leaf]
                place.append(getattr(leaf, "shape", None))
                place.append(getattr(leaf, "dtype", None))
            place_key = tuple(place)
            rows = entry.rows.get(place_key)
        except Exception as error:
            self.collector.failed("calls", error)
        start = _now()
        try:
            out = original(jitted, *args, **kwargs)
        except BaseException:
            state.ran = None
            raise
        end = _now()
        if state.ran is not None:
            return self.slow_after(out, jitted, args, kwargs, function, leaves, key)
        try:
            if self.traced(out):
                return out
            if rows is None:
                rows = self.rows_for(function, jitted, args, kwargs, leaves, entry)
                entry.rows[place_key] = rows
            self.count(rows, leaves, end - start, end)
            if entry.scalars[0]:
                self.collector.scalars[0] += entry.scalars[0]
                self.collector.scalars[1] += entry.scalars[1]
        except Exception as error:
            self.collector.failed("calls", error)
        return out

    def count(self, rows: _Rows, leaves: Sequence[Any], elapsed: int, end: int) -> None:
        """Add one call to its rows; the time of the call goes to the first of them."""
        at = end - self.collector.epoch_ns
        for row, nbytes, leaf in rows:
            row.count += 1
            row.nbytes += nbytes
            row.call_ns += elapsed
            row.last_ns = at
            row.seen(leaves[leaf])
            elapsed = 0

    # -- the slow way: nothing is known yet, or more has to be looked at ---------------------

    def slow(self, original: Any, jitted: Any, args: Any, kwargs: Any, function: _Function,
             leaves: Sequence[Any], key: Any, in_force: Any) -> Any:  # fmt: skip
        state = self.collector.state
        start = _now()
        try:
            out = original(jitted, *args, **kwargs)
        except BaseException:
            state.ran = None
            raise
        elapsed = _now() - start if state.ran is None else 0  # a first call is mostly tracing and compiling
        out = self.slow_after(out, jitted, args, kwargs, function, leaves, key, elapsed)
        if in_force is not None:
            try:
                self.remember_origin(out)
            except Exception as error:
                self.collector.failed("calls", error)
        return out

    def slow_after(self, out: Any, jitted: Any, args: Any, kwargs: Any, function: _Function,
                   leaves: Sequence[Any], key: Any, elapsed: int = 0) -> Any:  # fmt: skip
        """After a call whose plan is not known for certain: learn it or look it up, then count."""
        state = self.collector.state
        ran, state.ran = state.ran, None
        try:
            entry = self.entry(function, key, leaves)
            if ran is None and self.traced(out):
                return out
            if ran is None and entry.uniform and entry.moves is not None:
                detail = None
            else:
                detail = self.detail(function, args, kwargs, leaves)
            if ran is not None:
                moves, scalars = self.learn(ran, leaves)
                plan = (moves, scalars)
                if detail is not None:
                    if len(entry.by_detail) >= _MAX_KEYS:
                        entry.by_detail.clear()
                    entry.by_detail[detail] = plan
                entry.uniform = all(known == plan for known in entry.by_detail.values())
                entry.moves, entry.scalars, entry.predicted = moves, scalars, False
                entry.clean = entry.uniform and not moves and not scalars[0]
                entry.rows.clear()
            elif not entry.uniform and detail in entry.by_detail:
                plan = entry.by_detail[detail]
            elif entry.moves is not None and entry.uniform:
                plan = (entry.moves, entry.scalars)
            else:
                return self.predict(out, jitted, args, kwargs, function, leaves, entry, elapsed)
            if plan[0]:
                rows = self.rows_for(function, jitted, args, kwargs, leaves, entry, plan[0])
                self.count(rows, leaves, elapsed, _now())
            self.collector.scalars[0] += plan[1][0]
            self.collector.scalars[1] += plan[1][1]
        except Exception as error:
            self.collector.failed("calls", error)
        return out

    def predict(self, out: Any, jitted: Any, args: Any, kwargs: Any, function: _Function,
                leaves: Sequence[Any], entry: _Entry, elapsed: int) -> Any:  # fmt: skip
        """A call that was warm before moored came: infer from where its outputs live.

        Only AOT executables and functions under grad and vmap can be warm after the dispatch caches
        were emptied; for all others "nothing ran" means that JAX had nothing to run.
        """
        if self.collector.late and getattr(jitted, "_jit_info", None) is None:
            outputs = [x for x in self.jax.flatten(out)[0] if type(x) is self.jax.ArrayImpl]
            if outputs:
                wanted = [(i, outputs[0].sharding) for i in range(len(leaves))]
                entry.moves, entry.scalars = self.moves(wanted, leaves, leaves)
                entry.predicted = True
                if entry.moves:
                    rows = self.rows_for(function, jitted, args, kwargs, leaves, entry)
                    self.count(rows, leaves, elapsed, _now())
        return out

    def new_function(self, jitted: Any) -> _Function:
        state = self.collector.state
        jaxpr_fun, state.jaxpr_fun = state.jaxpr_fun, None
        owner = jitted if jaxpr_fun is None or hasattr(jitted, "_jit_info") else jaxpr_fun
        known = self.functions.get(id(owner))
        if known is None:
            if len(self.functions) >= _MAX_FUNCTIONS:
                self.functions.clear()
            name = getattr(jitted, "__name__", "") or getattr(owner, "__name__", "")
            known = _Function(str(name), self.jax.statics(jitted))
            key, functions = id(owner), self.functions
            known.owner = weakref.ref(owner, lambda _: functions.pop(key, None))
            self.functions[key] = known
        return known

    def entry(self, function: _Function, key: Any, leaves: Sequence[Any]) -> _Entry:
        """The entry of a signature; shardings that are equal but not identical share one."""
        entry = function.by_id.get(key)
        if entry is None:
            inner = [_unwrap(leaf) for leaf in leaves]
            arrays = [x for x in inner if type(x) is self.jax.ArrayImpl]
            by_value = (
                key[0],
                *((x._sharding, x._committed) if type(x) is self.jax.ArrayImpl else type(x) for x in inner),
            )
            entry = function.entries.setdefault(by_value, _Entry())
            if len(function.by_id) >= _MAX_KEYS:
                function.by_id.clear()
                function.entries.clear()
                function.keep.clear()
            function.keep.append([x._sharding for x in arrays])
            function.by_id[key] = entry
        return entry

    def detail(self, function: _Function, args: Any, kwargs: Any, leaves: Sequence[Any]) -> Any:
        """The rest of JAX's signature: structure, shapes, dtypes, static values, context."""
        detail = (
            self.jax.flatten(function.dynamic(args, kwargs))[1],
            tuple((getattr(x, "shape", ()), getattr(x, "dtype", type(x))) for x in leaves),
            function.static_values(args, kwargs),
            self.jax.trace_context(),
        )
        try:
            hash(detail)
        except TypeError:
            return None
        return detail

    def learn(self, ran: Any, leaves: Sequence[Any]) -> tuple[tuple[_Move, ...], tuple[int, int]]:
        """What JAX's own dispatch just moved, from the shardings that the executable wanted."""
        executable, args = ran
        lifted = len(args) - len(leaves)  # constants that JAX lifted out of the function come first
        if lifted < 0:
            raise LookupError(f"{executable.name}: {len(args)} arguments ran for {len(leaves)} leaves")
        wanted = [(i - lifted, s) for i, s in self.jax.wanted(executable, len(args)) if i >= lifted]
        return self.moves(wanted, leaves, args[lifted:])

    def moves(self, wanted: list[tuple[int, Any]], leaves: Sequence[Any], ran: Sequence[Any]
              ) -> tuple[tuple[_Move, ...], tuple[int, int]]:  # fmt: skip
        array_type = self.jax.ArrayImpl
        inner = [_unwrap(x) for x in ran]
        committed = {
            i: x._sharding.device_set for i, x in enumerate(inner) if type(x) is array_type and x._committed
        }
        found: list[_Move] = []
        uploads = upload_nbytes = 0
        for leaf, sharding in wanted:
            value = inner[leaf]
            if type(value) is not array_type:
                nbytes = self.upload_nbytes(value, sharding)
                if nbytes <= _SCALAR_NBYTES:
                    uploads, upload_nbytes = uploads + 1, upload_nbytes + nbytes
                else:
                    found.append(_Move(leaf, sharding, "host-value", None))
                continue
            if not self.collector.places.moved(value, sharding):
                continue
            beside = None
            if value._committed:
                reason = "resharded"
            else:
                there = sharding.device_set
                beside = next((i for i, devices in committed.items() if devices == there), None)
                if beside is not None:
                    reason = "follows-committed"
                elif there == {self.jax.pxla.get_default_device()}:
                    reason = "uncommitted"
                else:
                    reason = "resharded"
            found.append(_Move(leaf, sharding, reason, beside))
        return tuple(found), (uploads, upload_nbytes)

    def upload_nbytes(self, value: Any, sharding: Any) -> int:
        shape, dtype = host_spec(value, self.jax.jax.config.jax_enable_x64)
        return Places.uploaded(shape, dtype.itemsize, sharding)

    def traced(self, out: Any) -> bool:
        """Whether the call was only traced into an outer one: nothing ran, nothing moved."""
        if type(out) is self.jax.ArrayImpl:
            return False
        return any(isinstance(x, self.jax.Tracer) for x in self.jax.flatten(out)[0])

    # -- rows -------------------------------------------------------------------------------

    def rows_for(self, function: _Function, jitted: Any, args: Any, kwargs: Any, leaves: Sequence[Any],
                 entry: _Entry, moves: tuple[_Move, ...] | None = None) -> _Rows:  # fmt: skip
        """The rows that a call from here counts on, one for each moved leaf."""
        collector = self.collector
        caller = collector.frames.caller(sys._getframe(2))
        own = caller.api == "" and not str(getattr(jitted, "__module__", "")).startswith("jax.")
        api = "jit" if own else caller.api or function.name
        paths = self.leaf_paths(function, args, kwargs)
        explicit = collector.is_explicit(caller) or (not caller.library and not caller.api and api in _PUTS)
        rows = []
        for move in moves if moves is not None else entry.moves or ():
            value = _unwrap(leaves[move.leaf])
            fields, nbytes, origin = self.describe(value, move)
            fields |= {
                "explicit": explicit,
                "seam": "call",
                "api": api,
                "library": caller.library,
                "function": function.name,
                "argument": paths[move.leaf] if move.leaf < len(paths) else "",
                "beside": paths[move.beside] if move.beside is not None and move.beside < len(paths) else "",
                "reason": "asked" if explicit else move.reason,
                "target": collector.places.sharding(move.wanted),
                "predicted": entry.predicted,
            }
            rows.append((collector.row(caller, fields, origin), nbytes, move.leaf))
        return rows

    def describe(self, value: Any, move: _Move) -> tuple[dict[str, Any], int, Caller | None]:
        places = self.collector.places
        if type(value) is self.jax.ArrayImpl:
            committed = bool(value._committed)
            spec = ArraySpec(tuple(value.shape), str(value.dtype), committed)
            source = places.sharding(value.sharding)
            origin = None if committed else self.collector.origin_of(value)
            nbytes = places.moved(value, move.wanted)
            return {"direction": "d2d", "array": spec, "source": source}, nbytes, origin
        shape, dtype = host_spec(value, self.jax.jax.config.jax_enable_x64)
        nbytes = Places.uploaded(shape, dtype.itemsize, move.wanted)
        spec = ArraySpec(shape, str(getattr(value, "dtype", dtype)), None)
        return {"direction": "h2d", "array": spec, "source": "host"}, nbytes, None

    def leaf_paths(self, function: _Function, args: Any, kwargs: Any) -> list[str]:
        """The path of each dynamic leaf, by the position that the argument has in the user's call."""
        tree = self.jax.jax.tree_util
        paths: list[str] = []
        for number, arg in enumerate(args):
            if number not in function.static_numbers:
                leaves = tree.tree_flatten_with_path(arg)[0]
                paths += [f"[{number}]{tree.keystr(path)}" for path, _ in leaves]
        for name in sorted(kwargs):
            if name not in function.static_names:
                leaves = tree.tree_flatten_with_path(kwargs[name])[0]
                paths += [f"[{name!r}]{tree.keystr(path)}" for path, _ in leaves]
        return paths

    def remember_origin(self, out: Any) -> None:
        """Under ``default_device``: note the line that makes uncommitted arrays."""
        array_type = self.jax.ArrayImpl
        made = [out] if type(out) is array_type else self.jax.flatten(out)[0]
        made = [x for x in made if type(x) is array_type and not x._committed and x.nbytes >= _ORIGIN_NBYTES]
        if made:
            caller: Caller = self.collector.frames.caller(sys._getframe(2))
            for array in made:
                self.collector.made_under_default_device(array, caller)


_PUTS = frozenset({"device_put"})
