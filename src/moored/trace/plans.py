"""What a call of a jitted function moves: worked out once per signature, then looked up.

A plan is found by what decides a move: the function, the default device in force, and for each
leaf its sharding and committedness. Whatever else belongs to JAX's signature (tree structure,
shapes, static values, context) hardly ever changes what moves; it is only looked at for entries
where it was seen to (``Entry.uniform`` is false then), so the usual call does not pay for it.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from moored.trace.hostvalues import host_spec
from moored.trace.places import Places
from moored.trace.seams import Internals

if TYPE_CHECKING:
    from moored.trace.store import Row

__all__ = ["Call", "Entry", "Function", "Move", "Plan", "Planner", "Rows", "unwrap"]

SCALAR_NBYTES = 8  # index scalars and Python numbers: noise, added up apart
_MAX_KEYS = 2048  # per function, before its keys are forgotten
_MAX_FUNCTIONS = 16_384


class Move(NamedTuple):
    """One leaf that a call moves, and why; ``beside`` is the leaf whose device it follows."""

    leaf: int
    wanted: Any
    reason: str
    beside: int | None


class Elsewhere(NamedTuple):
    """A run on another device than the default one, or despite a device named inside the function.

    Attributes:
        ran_on: Where it runs.
        default: The default device.
        leaf: The committed leaf that decided, or None.
        also: Other leaves that are committed there too.
        wanted: The device that was named inside, or None.
        named_at: The code and instruction that named it.
    """

    ran_on: Any
    default: Any
    leaf: int | None
    also: tuple[int, ...]
    wanted: Any
    named_at: tuple[Any, int] | None


class Plan(NamedTuple):
    """What a call of one signature does, seen from outside.

    Attributes:
        moves: Arrays that it moves.
        scalars: Number and bytes of the scalars that it uploads.
        elsewhere: Where it runs, if that is worth telling.
    """

    moves: tuple[Move, ...]
    scalars: tuple[int, int]
    elsewhere: Elsewhere | None = None

    @property
    def dragged(self) -> bool:
        """Whether an uncommitted operand is pulled to a committed one."""
        return any(move.reason == "follows-committed" for move in self.moves)


#: The row to count on, the bytes of one event, and which leaf moved; for an execution one of these:
RUN, DRAGGED = -1, -2
Rows = list[tuple["Row", int, int]]


class Entry:
    """What calls of one placement signature move.

    Attributes:
        plan: None until it was learnt.
        clean: It moves nothing, not even a scalar, whatever the rest of the signature.
        uniform: All signatures that share this entry have the same plan.
        predicted: The plan was inferred, not learnt.
        by_detail: The plan of each signature that was learnt.
        rows: Per place in the user's code and shapes of the moved leaves, the rows to count on.
    """

    __slots__ = ("by_detail", "clean", "plan", "predicted", "rows", "uniform")

    def __init__(self) -> None:
        self.plan: Plan | None = None
        self.clean = False
        self.uniform = True
        self.predicted = False
        self.by_detail: dict[Any, Plan] = {}
        self.rows: dict[Any, Rows] = {}

    def learn(self, plan: Plan, detail: Any) -> None:
        """Keep what JAX's own dispatch has just shown for one signature."""
        if detail is not None:
            if len(self.by_detail) >= _MAX_KEYS:
                self.by_detail.clear()
            self.by_detail[detail] = plan
        self.plan, self.predicted = plan, False
        self.uniform = all(known == plan for known in self.by_detail.values())
        self.clean = self.uniform and not plan.moves and not plan.scalars[0] and plan.elsewhere is None
        self.rows.clear()


class Function:
    """One jitted function: its static arguments, and an entry for each placement signature."""

    __slots__ = (
        "__weakref__", "by_id", "entries", "has_statics", "keep", "name", "owner", "signatures",
        "static_names", "static_numbers",
    )  # fmt: skip

    def __init__(self, name: str, statics: tuple[frozenset[int], frozenset[str]]) -> None:
        self.name = name
        self.static_numbers, self.static_names = statics
        self.has_statics = bool(statics[0] or statics[1])
        self.entries: dict[Any, Entry] = {}  # by value
        self.by_id: dict[Any, Entry] = {}  # by identity of shardings, all of them held in ``keep``
        self.keep: list[Any] = []
        self.owner: Any = None
        self.signatures: list[Any] = []  # what it was compiled for; see ``compiles``

    def dynamic(self, args: Any, kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments without the static ones."""
        if not self.has_statics:
            return args, kwargs
        return (
            tuple(a for i, a in enumerate(args) if i not in self.static_numbers),
            {k: v for k, v in kwargs.items() if k not in self.static_names},
        )

    def static_values(self, args: Any, kwargs: Any) -> tuple[Any, ...]:
        """The static arguments, which JAX requires to be hashable."""
        return (
            *(a for i, a in enumerate(args) if i in self.static_numbers),
            *(kwargs[k] for k in sorted(self.static_names) if k in kwargs),
        )


class Call(NamedTuple):
    """One call, as the slow paths pass it around."""

    jitted: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    function: Function
    leaves: Sequence[Any]
    key: tuple[Any, ...]

    def paths(self, jax_: Internals) -> list[str]:
        """The path of each leaf, by the position that the argument has in the user's call.

        The object of a jitted method stands before the dot: it is ``"['self']"``, and the first
        argument in the parentheses ``"[0]"``.
        """
        tree, function = jax_.jax.tree_util, self.function
        heads = [f"[{n}]" for n in range(len(self.args))]
        if _is_method(self.jitted):
            heads = ["['self']", *heads]
        named = [(heads[n], arg) for n, arg in enumerate(self.args) if n not in function.static_numbers]
        named += [
            (f"[{name!r}]", self.kwargs[name])
            for name in sorted(self.kwargs)
            if name not in function.static_names
        ]
        return [
            head + tree.keystr(path) for head, arg in named for path, _ in tree.tree_flatten_with_path(arg)[0]
        ]


def _is_method(jitted: Any) -> bool:
    """Whether a jitted function was written as a method."""
    function = getattr(jitted, "__wrapped__", None)
    code = getattr(function, "__code__", None)
    if hasattr(function, "__self__"):  # jax.jit(self.step): bound already, and called without it
        return False
    if code is None or not code.co_argcount or code.co_varnames[0] != "self":
        return False
    return "." in getattr(function, "__qualname__", "")


def unwrap(leaf: Any) -> Any:
    """The array inside typed key arrays and refs; anything else as it is."""
    inner = getattr(leaf, "_base_array", None)
    if inner is not None:
        return inner
    refs = getattr(leaf, "_refs", None)
    return getattr(refs, "_buf", leaf) if refs is not None else leaf


class Planner:
    """Knows all functions that were called, and works out plans."""

    def __init__(self, jax_: Internals, places: Places) -> None:
        self.jax, self.places = jax_, places
        self.functions: dict[int, Function] = {}

    def add(self, jitted: Any, cached: Any) -> Function:
        """The function behind a jitted object that is not known yet.

        ``cached`` is the callable for which JAX has made this very object, if it did: under grad
        and vmap there is a new object for every call, and the callable is the identity.
        """
        owner = jitted if cached is None or hasattr(jitted, "_jit_info") else cached
        known = self.functions.get(id(owner))
        if known is None:
            if len(self.functions) >= _MAX_FUNCTIONS:
                self.functions.clear()
                self.jax.forget_dispatch()  # else JAX would serve them from C++ and show nothing
            name = getattr(jitted, "__name__", "") or getattr(owner, "__name__", "")
            known = Function(str(name), self.jax.statics(jitted))
            key, functions = id(owner), self.functions
            known.owner = weakref.ref(owner, lambda _: functions.pop(key, None))
            functions[key] = known
        return known

    def entry(self, call: Call) -> Entry:
        """The entry of a call; shardings that are equal but not identical share one."""
        function = call.function
        entry = function.by_id.get(call.key)
        if entry is None:
            if len(function.by_id) >= _MAX_KEYS:
                # Programs make a new, equal sharding for each batch. What was learnt stays: JAX serves
                # these calls from C++ and would not show it again.
                function.by_id.clear()
                function.keep.clear()
                if len(function.entries) >= _MAX_KEYS:
                    function.entries.clear()
                    self.jax.forget_dispatch()
            array_type = self.jax.ArrayImpl
            inner = [unwrap(leaf) for leaf in call.leaves]
            placed = ((x._sharding, x._committed) if type(x) is array_type else type(x) for x in inner)
            entry = function.entries.setdefault((call.key[0], *placed), Entry())
            function.keep.append([x._sharding for x in inner if type(x) is array_type])
            function.by_id[call.key] = entry
        return entry

    def detail(self, call: Call) -> Any:
        """The rest of JAX's signature: structure, shapes, dtypes, static values, context."""
        detail = (
            self.jax.flatten(call.function.dynamic(call.args, call.kwargs))[1],
            tuple((getattr(x, "shape", ()), getattr(x, "dtype", type(x))) for x in call.leaves),
            call.function.static_values(call.args, call.kwargs),
            self.jax.trace_context(),
        )
        try:
            hash(detail)
        except TypeError:
            return None
        return detail

    def learnt(self, ran: Any, leaves: Sequence[Any], in_force: Any = None) -> Plan:
        """What JAX's own dispatch just did, from what the executable wanted and where it ran."""
        executable, args, jaxpr = ran
        lifted = len(args) - len(leaves)  # constants that JAX lifted out of the function come first
        if lifted < 0:
            raise LookupError(f"{executable.name}: {len(args)} arguments ran for {len(leaves)} leaves")
        wanted = [(i - lifted, s) for i, s in self.jax.wanted(executable, len(args)) if i >= lifted]
        plan = self.plan(wanted, args[lifted:])
        if in_force is not None:
            return plan  # a block chose the device
        return plan._replace(elsewhere=self.elsewhere(self.jax.ran_on(executable), args[lifted:], jaxpr))

    def elsewhere(self, devices: set[Any], args: Sequence[Any], jaxpr: Any) -> Elsewhere | None:
        """Whether a run on these devices is one that the program may not have meant."""
        if len(devices) != 1:
            return None
        ran_on, default = next(iter(devices)), self.jax.pxla.get_default_device()
        wanted, named_at = self.jax.named_inside(jaxpr, devices)
        deciding: list[int] = []
        if ran_on != default:
            inner = [unwrap(x) for x in args]
            deciding = [
                i
                for i, x in enumerate(inner)
                if type(x) is self.jax.ArrayImpl and x._committed and x._sharding.device_set == devices
            ]
        if not deciding and wanted is None:
            return None
        leaf = deciding[0] if deciding else None
        return Elsewhere(ran_on, default, leaf, tuple(deciding[1:]), wanted, named_at)

    def plan(self, wanted: Sequence[tuple[int, Any]], args: Sequence[Any]) -> Plan:
        """The plan for arguments of which some, by position, are wanted in a sharding."""
        array_type = self.jax.ArrayImpl
        inner = [unwrap(x) for x in args]
        committed = {
            i: x._sharding.device_set for i, x in enumerate(inner) if type(x) is array_type and x._committed
        }
        moves: list[Move] = []
        uploads = upload_nbytes = 0
        for leaf, sharding in wanted:
            value = inner[leaf]
            is_array = type(value) is array_type
            nbytes = self.places.moved(value, sharding) if is_array else self.upload_nbytes(value, sharding)
            if nbytes > SCALAR_NBYTES:
                why = self.reason(value, sharding, committed) if is_array else ("host-value", None)
                moves.append(Move(leaf, sharding, *why))
            elif nbytes:
                uploads, upload_nbytes = uploads + 1, upload_nbytes + nbytes
        return Plan(tuple(moves), (uploads, upload_nbytes))

    def reason(self, value: Any, sharding: Any, committed: dict[int, Any]) -> tuple[str, int | None]:
        """Why JAX moves an array to ``sharding``, and beside which committed leaf."""
        if value._committed:
            return "resharded", None
        there = sharding.device_set
        beside = next((i for i, devices in committed.items() if devices == there), None)
        if beside is not None:
            return "follows-committed", beside
        return ("uncommitted" if there == {self.jax.pxla.get_default_device()} else "resharded"), None

    def upload_nbytes(self, value: Any, sharding: Any) -> int:
        """Bytes that a host value sends to the devices of ``sharding``."""
        shape, dtype = host_spec(value, self.jax.jax.config.jax_enable_x64)
        return Places.uploaded(shape, dtype.itemsize, sharding)
