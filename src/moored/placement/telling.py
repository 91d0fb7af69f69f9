"""``where``: a table of where the leaves of a pytree are."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from moored.placement.devices import Names, require_jax
from moored.placement.table import Placement, Row

__all__ = ["where"]

_NUMBERS = (bool, int, float, complex)


def where(tree: Any) -> Placement:
    """Where each leaf of a pytree is, and whether JAX may move it.

    Looks, and does nothing else: no value is read, nothing moves, nothing waits for a
    computation, and backends that are not running stay so. Deleted (donated) arrays and
    tracers are rows like others. None is no leaf in JAX and has no row.

    Args:
        tree: Any pytree: one array, a dict of parameters, a flax.nnx module, an optimiser's state.

    Returns:
        ``rows``, one per leaf; ``totals``, bytes per device with replicas counted; prints as a table.

    Raises:
        MachineError: JAX is not installed.

    >>> import jax, numpy as np
    >>> tree = {"w": jax.device_put(np.ones((256, 64), np.float32), jax.devices("cpu")[0]), "step": 3}
    >>> print(where(tree))
    path      array            bytes    device  memory  committed  kind
    ['step']  int[]                  -  host    -       -          scalar
    ['w']     float32[256,64]  65.5 kB  cpu:0   device  yes        jax array
    <BLANKLINE>
    total: cpu:0 65.5 kB
    2 leaves, 0 uncommitted
    """
    jax = require_jax("moored.where")
    names = Names(jax)
    rows: list[Row] = []
    totals: dict[str, int] = {}
    seen: set[int] = set()
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        row = _row(jax, names, jax.tree_util.keystr(path), leaf)
        rows.append(row)
        if id(leaf) not in seen:
            seen.add(id(leaf))
            for device, nbytes in row.shares.items():
                totals[device] = totals.get(device, 0) + nbytes
    return Placement(tuple(rows), _sorted(totals))


def _sorted(nbytes: dict[str, int]) -> dict[str, int]:
    """Bytes by device name, with "gpu:10" behind "gpu:9"."""

    def by_number(name: str) -> tuple[str, int, str]:
        device, _, memory = name.partition(" ")
        platform, _, number = device.partition(":")
        return platform, int(number or 0), memory

    return {name: nbytes[name] for name in sorted(nbytes, key=by_number)}


def _row(jax: Any, names: Names, path: str, leaf: Any) -> Row:
    if isinstance(leaf, jax.core.Tracer):  # first: a tracer passes for a jax.Array
        return _bare(path, "tracer", leaf.shape, str(leaf.dtype), device="traced")
    if isinstance(leaf, jax.Array):
        if leaf.is_deleted():
            return _bare(path, "deleted", leaf.shape, str(leaf.dtype), device="gone")
        is_key = jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        return _placed(names, path, "key array" if is_key else "jax array", leaf)
    if isinstance(leaf, np.ndarray | np.generic):
        kind = "numpy" if isinstance(leaf, np.ndarray) else "scalar"
        return _bare(path, kind, leaf.shape, str(leaf.dtype), "host", leaf.nbytes)
    if isinstance(leaf, _NUMBERS):
        return _bare(path, "scalar", (), type(leaf).__name__, device="host")
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return _bare(path, "other", leaf.shape, str(leaf.dtype))
    return _bare(path, "other", None, type(leaf).__name__)


def _bare(
    path: str, kind: str, shape: tuple[int, ...] | None, dtype: str, device: str = "-", nbytes: int = 0
) -> Row:
    shares = {device: nbytes} if nbytes else {}
    return Row(path=path, kind=kind, shape=shape, dtype=dtype, nbytes=nbytes, device=device, shares=shares)


def _placed(names: Names, path: str, kind: str, leaf: Any) -> Row:
    sharding = leaf.sharding
    itemsize = leaf.dtype.itemsize  # a key's dtype knows the bytes of the counters inside
    share = math.prod(sharding.shard_shape(leaf.shape)) * itemsize
    memory = sharding.memory_kind
    return Row(
        path=path,
        kind=kind,
        shape=tuple(leaf.shape),
        dtype=str(leaf.dtype),
        nbytes=math.prod(leaf.shape) * itemsize,
        device=names.sharding(sharding),
        memory_kind=memory,
        committed=bool(leaf.committed),
        shares=_sorted({names.memory(device, memory): share for device in sharding.device_set}),
    )
