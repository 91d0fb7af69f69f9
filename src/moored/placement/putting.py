"""``put``: commit a whole pytree to devices or shardings, and verify it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from moored.errors import PlacementError
from moored.placement.devices import Names, device_named, first_line, require_jax
from moored.units import format_bytes, format_count

__all__ = ["put"]

_LISTED = 5
_ALIGNMENT = 64  # bytes: where the CPU client takes numpy memory over instead of copying it
_NUMBERS = (bool, int, float, complex)
_CAN_NOT_READ = (TypeError, ValueError, OverflowError)  # what JAX raises for a value that is no array


class _Leaf(NamedTuple):
    """One leaf on its way: its path, its value, and the sharding it goes to."""

    path: str
    value: Any
    target: Any


def put(tree: Any, where: Any, *, may_alias: bool | None = None) -> Any:
    """Commit every leaf of a pytree to where it should live, and verify it.

    ``jax.device_put(x)`` without a device commits nothing, and an array made under
    ``jax.default_device`` is uncommitted too: JAX may copy both to wherever an operation runs.
    After ``put``, every leaf is a committed array on exactly the devices asked for.

    A leaf that is there already is committed in place without a copy, and then shares its
    buffer with the array it came from: donating or deleting one of them deletes both.

    **Aliasing of numpy sources.** The CPU client (and a plugin built from it, as the simulated
    accelerator is) does not copy a numpy array whose data is 64-byte aligned: the JAX array *is*
    that memory, and a later write through numpy changes it. Other clients read the host memory
    after the call has returned. By default ``put`` protects what can still change and copies
    nothing else: a writeable numpy array is copied once (for a device with its own memory,
    ``put`` instead waits until it was read), and a read-only one, such as a read-only
    ``numpy.memmap``, is taken over without a copy where the client can. That is what a JAX array
    promises, immutability, and it keeps large files free of copies. Mark an array read-only
    (``x.flags.writeable = False``) to have it taken over. ``jax.device_put(may_alias=False)`` is
    no protection: JAX (0.10 to 0.12) ignores it for numpy arrays.

    Args:
        tree: Any pytree of JAX arrays, typed keys, numpy arrays and scalars, Python numbers.
        where: One place, or a pytree of places that is a prefix of ``tree``. A place is a
            ``jax.Device``, a ``jax.sharding.Sharding``, or a name: ``"gpu"`` (its first device in
            this process) or ``"gpu:1"`` (the device with that id).
        may_alias: May a numpy array's memory become the JAX array's? None: only if the array is
            read-only. True: whenever the client can, and you promise not to write to it. False: never.

    Returns:
        A tree of the same structure, whose leaves are committed ``jax.Array``.

    Raises:
        PlacementError: a leaf can not go (strings, object arrays, deleted or donated arrays,
            tracers, a shape that the sharding does not divide): up to five are named, each with
            its path and reason. Also: ``where`` is no place, names an unknown device, or does not
            match the tree. Nothing is returned by halves.
        MachineError: JAX is not installed.

    >>> import jax, numpy as np
    >>> params = put({"w": np.ones((256, 64), np.float32), "step": 3}, "cpu")
    >>> params["w"].committed, params["step"].committed
    (True, True)
    >>> put({"w": np.ones(4), "name": "resnet"}, "cpu")
    Traceback (most recent call last):
    moored.errors.PlacementError: moored.put: 1 of 2 leaves can not be placed:
      ['name']: a value of type str, neither a number nor an array
    Nothing was placed.
    """
    jax = require_jax("moored.put")
    names = Names(jax)
    entries, treedef = jax.tree_util.tree_flatten_with_path(tree)
    targets = _targets(jax, tree, where)
    leaves = [
        _Leaf(jax.tree_util.keystr(path) or "(root)", value, target)
        for (path, value), target in zip(entries, targets, strict=True)
    ]
    refused = [(leaf, reason) for leaf in leaves if (reason := _refusal(jax, names, leaf))]
    if refused:
        raise _error(refused, len(leaves))
    placed = _place(jax, names, leaves, may_alias)
    strayed = [
        (leaf, f"JAX left it on {names.sharding(array.sharding)}, committed: {array.committed}")
        for leaf, array in zip(leaves, placed, strict=True)
        if not (array.committed and array.sharding.is_equivalent_to(leaf.target, array.ndim))
    ]
    if strayed:
        raise _error(strayed, len(leaves))
    return jax.tree_util.tree_unflatten(treedef, placed)


def _error(refused: list[tuple[_Leaf, str]], leaves: int) -> PlacementError:
    lines = [f"moored.put: {len(refused):,} of {format_count(leaves, 'leaf', 'leaves')} can not be placed:"]
    lines += [f"  {leaf.path}: {reason}" for leaf, reason in refused[:_LISTED]]
    if len(refused) > _LISTED:
        lines.append(f"  and {len(refused) - _LISTED:,} more")
    return PlacementError("\n".join([*lines, "Nothing was placed."]))


def _targets(jax: Any, tree: Any, where: Any) -> list[Any]:
    """The sharding of each leaf of ``tree``, from a place or a prefix tree of places."""
    places, treedef = jax.tree_util.tree_flatten(where)
    shardings = [_sharding(jax, place) for place in places]
    try:
        subtrees = treedef.flatten_up_to(tree)
    except ValueError as error:
        hint = "; one device is jax.devices(...)[0]" if isinstance(where, list | tuple) else ""
        raise PlacementError(
            f"moored.put: where is no place and no prefix of the tree: {first_line(error)}{hint}"
        ) from None
    pairs = zip(shardings, subtrees, strict=True)
    return [sharding for sharding, subtree in pairs for _ in jax.tree_util.tree_leaves(subtree)]


def _sharding(jax: Any, place: Any) -> Any:
    if isinstance(place, jax.sharding.Sharding):
        return place
    if isinstance(place, str):
        try:
            place = device_named(place)
        except PlacementError as error:
            raise PlacementError(f"moored.put: {error}") from None
    if isinstance(place, jax.Device):
        # Not the bare device: JAX 0.10 to 0.12 fail to bring pinned_host memory back to one.
        return jax.sharding.SingleDeviceSharding(place)
    if isinstance(place, jax.sharding.PartitionSpec):
        raise PlacementError(
            f"moored.put: {place!r} is a PartitionSpec and names no devices; "
            "write jax.sharding.NamedSharding(mesh, spec)"
        )
    raise PlacementError(
        f"moored.put: a value of type {type(place).__name__} is no place; "
        "write a jax.Device, a jax.sharding.Sharding, or a name such as 'cpu' or 'gpu:1'"
    )


def _refusal(jax: Any, names: Names, leaf: _Leaf) -> str | None:
    """Why a leaf can not go, or None where it can; moves nothing."""
    value = leaf.value
    if isinstance(value, jax.core.Tracer):
        return (
            "is traced (inside jit, grad or vmap), and has no place yet; put it outside, "
            "or use jax.lax.with_sharding_constraint"
        )
    if isinstance(value, jax.Array):
        if value.is_deleted():
            return f"{value.dtype}{list(value.shape)} was deleted or donated; its values are gone"
    elif isinstance(value, np.ndarray | np.generic):
        if value.dtype.kind in "OSUMmV" and not _jax_reads(jax, value):
            return f"numpy dtype {value.dtype} holds no numbers that JAX knows"
    elif not isinstance(value, _NUMBERS):
        return f"a value of type {type(value).__name__}, neither a number nor an array"
    try:
        shape = jax.typeof(value).shape
    except _CAN_NOT_READ as error:
        return first_line(error)
    return _indivisible(names, shape, leaf.target)


def _jax_reads(jax: Any, value: Any) -> bool:
    """Whether JAX takes a numpy value of an unusual dtype (its own bfloat16 and float8 are of kind V)."""
    try:
        jax.typeof(value)
    except _CAN_NOT_READ:
        return False
    return True


def _indivisible(names: Names, shape: tuple[int, ...], target: Any) -> str | None:
    try:
        target.shard_shape(shape)
    except (ValueError, IndexError):
        mesh = getattr(target, "mesh", None)
        axes = ", ".join(f"{axis}={size}" for axis, size in mesh.shape.items()) if mesh is not None else ""
        return (
            f"shape {list(shape)} does not divide over {names.sharding(target)}"
            f"{f' (mesh {axes})' if axes else ''}"
        )
    return None


def _place(jax: Any, names: Names, leaves: list[_Leaf], may_alias: bool | None) -> list[Any]:
    sources = [_source(jax, leaf, may_alias) for leaf in leaves]
    targets = [leaf.target for leaf in leaves]
    try:
        placed = list(jax.device_put(sources, targets))
        jax.block_until_ready(
            [array for leaf, array in zip(leaves, placed, strict=True) if _may_change(leaf.value, may_alias)]
        )
    except (RuntimeError, *_CAN_NOT_READ) as error:
        nbytes = sum(getattr(leaf.value, "nbytes", 0) for leaf in leaves)
        devices = sorted({names.sharding(target) for target in targets})
        raise PlacementError(
            f"moored.put: JAX could not place {format_count(len(leaves), 'leaf', 'leaves')} "
            f"({format_bytes(nbytes)}) on {', '.join(devices)}: {first_line(error)}"
        ) from error
    return placed


def _may_change(value: Any, may_alias: bool | None) -> bool:
    """Whether a numpy source must be guarded against later writes."""
    if may_alias or not isinstance(value, np.ndarray):
        return False
    return may_alias is False or value.flags.writeable


def _source(jax: Any, leaf: _Leaf, may_alias: bool | None) -> Any:
    """What to hand to JAX: the value itself, or a private copy that a CPU client takes over."""
    value = leaf.value
    if not _may_change(value, may_alias) or all(d.platform != "cpu" for d in leaf.target.device_set):
        return value
    if jax.typeof(value).dtype != value.dtype:  # JAX converts it (float64 without x64), into new memory
        return value
    return _aligned_copy(value)


def _aligned_copy(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A copy that starts 64-byte aligned, so that the CPU client does not copy it again.

    >>> _aligned_copy(np.arange(3)).ctypes.data % 64
    0
    """
    raw = np.empty(array.nbytes + _ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    copy: np.ndarray[Any, Any] = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    np.copyto(copy, array)
    copy.flags.writeable = False
    return copy
