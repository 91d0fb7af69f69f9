"""What a tracer observes, as inert rows: each adds up all events that are alike.

A row names places in the user's source by index into ``Recording.sites``, and leaves of a call by
path: ``"[0]['w']"`` is key "w" of positional argument 0, ``"['x']"`` the keyword x.
"""

from __future__ import annotations

import msgspec

__all__ = [
    "ArraySpec",
    "Arrival",
    "Compile",
    "Conflict",
    "Event",
    "Execution",
    "Operand",
    "Transfer",
]


class ArraySpec(msgspec.Struct, frozen=True, array_like=True):
    """What one event needs to know of the array that moved.

    ``committed`` is None for values that are not JAX arrays (numpy, Python scalars).
    """

    shape: tuple[int, ...]
    dtype: str
    committed: bool | None = None


class Transfer(msgspec.Struct, kw_only=True):
    """All transfers of one kind from one site, added up.

    Attributes:
        site: Index into ``Recording.sites``: the innermost user frame.
        direction: ``"h2d"`` (numpy or Python values to a device), ``"d2d"`` (from one JAX
            device to another, the CPU device included) or ``"d2h"`` (a read into Python or numpy).
        explicit: The user's own frame asked for it (``device_put``, ``device_get``, ``asarray``).
        seam: Which seam saw it: ``"call"``, ``"put"``, ``"read"``, ``"constant"`` or ``"callback"``.
        api: What the user's line called, as JAX names it: ``"device_put"``, ``"float"``,
            ``"__getitem__"``; for a jitted function of the user's, ``"jit"``.
        function: The function that JAX ran: ``"step"``, ``"dynamic_slice"``; empty for puts and reads.
        argument: Which leaf of the call it was: ``"[0]['w']"`` (positional argument 0, key "w"),
            ``"['x']"`` (keyword x); empty for puts and reads.
        beside: For ``"follows-committed"``: the leaf, in the same notation, whose device it followed.
        library: The installed package between the user's line and JAX, if any (``"optax"``).
        array: Shape, dtype and committedness of the array.
        source: Where it was: ``"cpu:0"``, ``"gpu:0"``, ``"host"``, ``"cpu:0,1 P('x',)"``.
        target: Where it went, in the same words.
        reason: Why JAX moved it: ``"uncommitted"`` (an uncommitted array off the default device),
            ``"follows-committed"`` (an uncommitted array beside a committed operand elsewhere),
            ``"resharded"`` (the call wanted another sharding), ``"host-value"`` (numpy or a Python
            value), ``"asked"`` (a put), ``"read"``, ``"constant"`` (baked into an executable),
            ``"callback"``.
        origin: Index into ``sites`` of the line that made the array under ``default_device``;
            None where that is not known.
        count: Number of transfers.
        nbytes: Bytes moved, over all of them.
        same_object: How many of them moved the very same object as the one before.
        compared: How many of them were another host array than the one before, and had their content
            compared with it (a few, not all: content is read for that).
        same_content: How many of those were equal to it, byte for byte as far as a checksum tells.
        call_ns: Time inside the calls that carried them. Dispatch is asynchronous: a lower bound.
        wait_ns: For reads: time the host waited for the value to be computed.
        copy_ns: For reads: time of the copy itself.
        predicted: The call was warm before moored could learn it; the count is exact, the target
            was inferred from where the outputs live.
        first_ns: When the first one happened, from the start of the recording.
        last_ns: When the last one happened.
    """

    site: int
    direction: str
    explicit: bool
    seam: str
    api: str
    function: str = ""
    argument: str = ""
    beside: str = ""
    library: str = ""
    array: ArraySpec
    source: str
    target: str
    reason: str
    origin: int | None = None
    count: int = 0
    nbytes: int = 0
    same_object: int = 0
    compared: int = 0
    same_content: int = 0
    call_ns: int = 0
    wait_ns: int = 0
    copy_ns: int = 0
    predicted: bool = False
    first_ns: int = 0
    last_ns: int = 0


class Execution(msgspec.Struct, kw_only=True):
    """Runs of a function elsewhere than on the default device, which no ``default_device`` block asked for.

    Attributes:
        site: Index into ``Recording.sites``: the innermost user frame.
        api: As in ``Transfer``.
        function: The function that JAX ran.
        library: As in ``Transfer``.
        ran_on: Where it ran.
        default_device: The default device, which stood idle.
        reason: ``"committed"``: a committed argument decided; ``"named-inside"``: a device named inside
            the function was ignored (``ran_on`` is then where it ran, ``wanted`` what was named).
        argument: The committed leaf that decided.
        also: Other arguments that are committed there too, a few of them.
        array: That leaf.
        dragged: Of these runs, how many pulled an uncommitted operand over.
        wanted: The device that was named inside the function.
        named_at: Index into ``sites``: the line that named it.
        origin: Index into ``sites``: the line that committed the leaf, where that is known.
        count: Number of runs.
        nbytes: Bytes of array arguments, over all runs.
        first_ns: When the first one happened, from the start of the recording.
        last_ns: When the last one happened.
    """

    site: int
    api: str
    function: str
    library: str = ""
    ran_on: str
    default_device: str
    reason: str
    argument: str = ""
    also: tuple[str, ...] = ()
    array: ArraySpec | None = None
    wanted: str = ""
    named_at: int | None = None
    origin: int | None = None
    dragged: int = 0
    count: int = 0
    nbytes: int = 0
    first_ns: int = 0
    last_ns: int = 0


class Compile(msgspec.Struct, kw_only=True):
    """Compilations of a function for arguments that differ from earlier ones in placement alone.

    Attributes:
        site: Index into ``Recording.sites``: the innermost user frame of the call that compiled.
        api: As in ``Transfer``.
        function: The function that was compiled.
        library: As in ``Transfer``.
        reason: What changed: ``"commitment"``, ``"sharding"`` (or device), ``"default-device"``,
            ``"context"`` (mesh or another part of JAX's context).
        argument: The leaf that changed (the first one); empty for the last two reasons.
        n_changed: Number of leaves that changed.
        array: That leaf, as it is now.
        before: What it was, in words: ``"cpu:0, uncommitted"``.
        after: What it is now.
        earlier: Index into ``sites``: the line that called the same function before.
        count: Number of such compilations.
        compile_ns: What XLA's compiler took for them.
        first_ns: When the first one happened, from the start of the recording.
        last_ns: When the last one happened.
    """

    site: int
    api: str
    function: str
    library: str = ""
    reason: str
    argument: str = ""
    n_changed: int = 0
    array: ArraySpec | None = None
    before: str = ""
    after: str = ""
    earlier: int | None = None
    count: int = 0
    compile_ns: int = 0
    first_ns: int = 0
    last_ns: int = 0


class Arrival(msgspec.Struct, kw_only=True):
    """Arrays that landed elsewhere than the code suggests.

    Attributes:
        site: Index into ``Recording.sites``: the line that made or placed them.
        api: What that line called: ``"from_dlpack"``, ``"asarray"``, ``"device_put"``.
        library: As in ``Transfer``.
        reason: ``"dlpack-host"``: host memory was imported, and is committed to the CPU while the default
            device is another; ``"thread-default"``: a thread that was started inside a
            ``default_device`` block does not inherit it; ``"unpickled"``: pickle restores to the default
            device, uncommitted; ``"no-op-put"``: device_put without a device left an array where it was.
        array: The array as it arrived.
        place: Where it is.
        expected: Where the code suggests it would be.
        origin: Index into ``sites``: the line that started the thread.
        count: Number of arrays.
        nbytes: Their bytes.
        first_ns: When the first one happened, from the start of the recording.
        last_ns: When the last one happened.
    """

    site: int
    api: str
    library: str = ""
    reason: str
    array: ArraySpec
    place: str
    expected: str = ""
    origin: int | None = None
    count: int = 0
    nbytes: int = 0
    first_ns: int = 0
    last_ns: int = 0


class Operand(msgspec.Struct, frozen=True, array_like=True):
    """One committed leaf of a call that JAX refused; ``origin`` is the line that committed it."""

    argument: str
    array: ArraySpec
    place: str
    origin: int | None = None


class Conflict(msgspec.Struct, kw_only=True):
    """Calls that JAX refused: their arguments are committed to different devices.

    Attributes:
        site: Index into ``Recording.sites``: the innermost user frame.
        api: As in ``Transfer``.
        function: The function that was called.
        library: As in ``Transfer``.
        operands: Its committed leaves, one for each place.
        count: Number of such errors.
        first_ns: When the first one happened, from the start of the recording.
        last_ns: When the last one happened.
    """

    site: int
    api: str
    function: str
    library: str = ""
    operands: tuple[Operand, ...] = ()
    count: int = 0
    first_ns: int = 0
    last_ns: int = 0


Event = Transfer | Execution | Compile | Arrival | Conflict
