"""Run every operation of tests/placement_operations.py; print as JSON what JAX did and what moored says.

Usage: observe_placement.py [CODE]

What JAX did is observed without moored. A client that PJRT loads as a plug-in logs every buffer that
comes from elsewhere in the profiler (``BufferFromHostBuffer``, with type and shape). Each row runs
twice under the profiler: with home on the real CPU client, where only what comes to the simulated
accelerator is logged, and with home on a second plug-in client, where both directions are. What
comes in the second and not in the first went home. Copies within a client leave no such trace and
are told by the device and address of the results.
"""

from __future__ import annotations

import ast
import collections
import contextlib
import copy
import glob
import importlib.util
import json
import os
import pickle
import re
import shutil
import sys
import tempfile
import warnings
from concurrent import futures
from pathlib import Path
from typing import NamedTuple

from moored.trace import simulate

simulate.prepare()
os.environ["PJRT_NAMES_AND_LIBRARY_PATHS"] += f",second:{simulate.plugin_library()}"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
warnings.simplefilter("ignore")
sys.path.insert(0, str(Path(__file__).parent.parent))

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax.profiler import ProfileData  # noqa: E402
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding  # noqa: E402

from moored.trace.collect import Collector  # noqa: E402
from placement_operations import FUNCTIONS, NOT_INSTALLED, SETUP, Operation, operations  # noqa: E402

_XLA_NAMES = {"float": "f", "int": "s", "uint": "u", "bool": "pred", "bfloat": "bf"}
_PUT = "DevicePutWithSharding"
_ITEMSIZE = {"pred": 1}
_NOISE_NBYTES = 8  # index scalars: JAX sends them with many calls
_TRACED_RUNS = 2  # the first passes through JAX's own dispatch, the second is served by its fast path
#: Where each operand is: on the accelerator's client, at home, or in numpy.
_CLIENT_OF = {
    "u": "home", "c": "home", "mask": "home", "keys": "home", "raw_keys": "home",
    "d": "accel", "e": "accel", "h": "",
}  # fmt: skip
_folder = tempfile.mkdtemp()


class World:
    """The devices that a row runs on, its functions, and fresh operands for each run."""

    def __init__(self, home) -> None:
        self.home, (self.default, self.other) = home, jax.devices()[:2]
        self.names = {
            "jax": jax, "jnp": jnp, "np": np, "pickle": pickle, "copy": copy, "futures": futures,
            "NamedSharding": NamedSharding, "PartitionSpec": PartitionSpec,
            "SingleDeviceSharding": SingleDeviceSharding,
            "aligned": aligned, "home": self.home, "default": self.default, "other": self.other,
        }  # fmt: skip
        exec(FUNCTIONS, self.names)
        self.names |= _libraries()

    def operands(self) -> dict:
        names = dict(self.names)
        exec(SETUP, names)
        jax.block_until_ready([x for x in names.values() if isinstance(x, jax.Array)])
        return names

    def place(self, sharding) -> str:
        """Where an array is, in the words of the page."""
        known = {self.home: "home", self.default: "default", self.other: "other"}
        name = " + ".join(known[d] for d in sorted(sharding.device_set, key=lambda d: d.id))
        kind = sharding.memory_kind
        return name if kind in (None, "device", "unpinned_host") else f"{name} ({kind})"


def aligned(shape) -> np.ndarray:
    """Ones in memory that a CPU device can use in place."""
    nbytes = 4 * int(np.prod(shape))
    memory = np.empty(nbytes + 64, np.uint8)
    start = -memory.ctypes.data % 64
    array = memory[start : start + nbytes].view(np.float32).reshape(shape)
    array[:] = 1
    return array


def _libraries() -> dict:
    """What rows of libraries call; those that are missing are not there."""
    found = {}
    with contextlib.suppress(ImportError):
        from safetensors.flax import load_file
        from safetensors.numpy import save_file

        def file_of(shape):
            save_file({"w": np.ones(shape, np.float32)}, f"{_folder}/w.safetensors")
            return f"{_folder}/w.safetensors"

        found |= {"load_file": load_file, "file_of": file_of}
    with contextlib.suppress(ImportError):
        import orbax.checkpoint as ocp

        def orbax_restored(array):
            path = tempfile.mkdtemp(dir=_folder) + "/c"
            with ocp.StandardCheckpointer() as checkpointer:
                checkpointer.save(path, {"w": array})
                checkpointer.wait_until_finished()
                return checkpointer.restore(path)["w"]

        found |= {"orbax_restored": orbax_restored}
    with contextlib.suppress(ImportError):
        from flax import nnx
        from flax.serialization import from_bytes, to_bytes

        def linear():
            return nnx.Linear(64, 32, rngs=nnx.Rngs(0))

        found |= {"nnx": nnx, "linear": linear, "from_bytes": from_bytes, "to_bytes": to_bytes}
    with contextlib.suppress(ImportError):
        import optax

        found |= {"optax": optax}
    return found


def program(code: str):
    """The row as a function of its names; the value of its last expression is the result."""
    tree = ast.parse(code)
    last = tree.body[-1]
    if isinstance(last, ast.Expr):
        tree.body[-1] = ast.Assign([ast.Name("x", ast.Store())], last.value)
    compiled = compile(ast.fix_missing_locations(tree), "placement_row.py", "exec")

    def run(names: dict):
        exec(compiled, names)
        return jax.block_until_ready(names["x"])

    return run


def spec(dtype, shape) -> str:
    """Type and shape as XLA writes them: ``f32[302,64]``."""
    letters, digits = re.fullmatch(r"([a-z]+)(\d*)", str(dtype)).groups()
    return f"{_XLA_NAMES[letters]}{digits}[{','.join(map(str, shape))}]"


def nbytes_of(text: str) -> int:
    """Bytes of a buffer so written."""
    kind, digits, dims = re.fullmatch(r"([a-z]+)(\d*)\[([\d,]*)\]", text).groups()
    return _ITEMSIZE.get(kind, int(digits or 8) // 8) * int(np.prod([int(n) for n in dims.split(",") if n]))


def operands_by_spec(names: dict) -> tuple[dict[str, str], dict[str, int]]:
    """Which operand a buffer is, by type and shape (its whole, or one of two shards); bytes of each."""
    found, sizes = {}, {}
    for name in _CLIENT_OF:
        array = jax.random.key_data(names[name]) if name == "keys" else names[name]
        found[spec(array.dtype, array.shape)] = name
        found[spec(array.dtype, (array.shape[0] // 2, *array.shape[1:]))] = name
        sizes[name] = array.nbytes
    return found, sizes


class Profile(NamedTuple):
    """What the profiler logged.

    Attributes:
        buffers: Buffers that came to plug-in clients, by type and shape.
        literals: Arrays of the CPU client that were copied out of it to become such buffers.
        staged: Copies through numpy that a put from one client to another made.
        reads: Other arrays that were copied into numpy.
    """

    buffers: collections.Counter
    literals: int
    staged: int
    reads: int


def profiled(run) -> tuple[object, Profile]:
    """The result of ``run``, and its profile."""
    folder = tempfile.mkdtemp(dir=_folder)
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    with jax.profiler.trace(folder, profiler_options=options):
        result = run()
    (path,) = glob.glob(f"{folder}/**/*.xplane.pb", recursive=True)
    buffers, literals, staged, reads = collections.Counter(), 0, 0, 0
    for plane in ProfileData.from_file(path).planes:
        for line in plane.lines:
            events = list(line.events)
            puts = [(e.start_ns, e.start_ns + e.duration_ns) for e in events if e.name == _PUT]
            for event in events:
                found = re.match(r".*BufferFromHostBuffer\((\w+\[[\d,]*\])", event.name)
                if found and nbytes_of(found.group(1)) > _NOISE_NBYTES:
                    buffers[found.group(1)] += 1
                literals += event.name == "CommonPjRtBuffer::ToLiteral"
                if event.name == "np.asarray(jax.Array)":
                    within = any(start <= event.start_ns < end for start, end in puts)
                    staged, reads = staged + within, reads + (not within)
    return result, Profile(buffers, literals, staged, reads)


def address(array):
    try:
        return array.unsafe_buffer_pointer() if isinstance(array, jax.Array) else array.ctypes.data
    except Exception:  # several shards, or a key
        return None


def described(world: World, names: dict, result) -> dict:
    """Committedness and place of the result, and which operand's memory it is."""
    committed, lands, shares = [], [], []
    arrays = {n: names[n] for n in ("u", "c", "h")}  # a plug-in client may use another's memory in place
    for leaf in jax.tree.leaves(result):
        leaf = getattr(leaf, "_base_array", leaf)
        if isinstance(leaf, jax.Array):
            committed.append("yes" if leaf.committed else "no")
            lands.append(world.place(leaf.sharding))
        else:
            committed.append("-")
            lands.append("numpy" if isinstance(leaf, np.ndarray | np.generic) else "Python")
        own = address(leaf) if isinstance(leaf, jax.Array | np.ndarray) else None
        shares += [n for n, a in arrays.items() if own is not None and own == address(a) and n not in shares]
    kinds = list(dict.fromkeys(zip(committed, lands, strict=True)))
    return {"committed": [k[0] for k in kinds], "lands": [k[1] for k in kinds], "shares": shares}


def within_client(world: World, names: dict, result) -> collections.Counter:
    """Bytes of operands that lie in a result on another device of the client that they were on."""
    moved: collections.Counter = collections.Counter()
    for leaf in jax.tree.leaves(result):
        for name in ("d", "e"):
            if isinstance(leaf, jax.Array) and leaf.shape == names[name].shape:
                for shard in leaf.addressable_shards:
                    away = shard.device != world.default or leaf.sharding.memory_kind != "device"
                    if away and shard.device.client is world.default.client:
                        moved[name] += shard.data.nbytes
    return moved


def observe(operation: Operation, cpu: World, second: World) -> dict:
    """One row: the cells of the page, what the witnesses expect of moored, and what it says."""
    if operation.needs and importlib.util.find_spec(operation.needs) is None:
        return {"code": operation.code, "missing": NOT_INSTALLED}
    run = program(operation.code)
    try:
        run(cpu.operands()), run(second.operands())
    except Exception as error:
        cells = ["-", f"raises {type(error).__name__}", "nothing"]
        refused = {"calls refused": _TRACED_RUNS} if "incompatible devices" in str(error) else {}
        said = traced(run, cpu, {}, Reads("", 0, 0), (type(error),))
        return {"code": operation.code, "cells": cells, "expected": refused, **said}
    names, others = cpu.operands(), second.operands()
    known, sizes = operands_by_spec(names)
    result, at_cpu = profiled(lambda: run(names))
    _, at_second = profiled(lambda: run(others))
    seen = described(cpu, names, result)
    went_home = at_second.buffers - at_cpu.buffers
    moves = moved(known, at_cpu.buffers, went_home, within_client(cpu, names, result))
    read = Reads(operation.reads, sizes.get(operation.reads, operation.reads), at_cpu.reads)
    cells = [" / ".join(seen["committed"]), " / ".join(seen["lands"]), in_words(seen, moves, sizes, read)]
    wanted = expected(moves, read, at_cpu)
    return {"code": operation.code, "cells": cells, "expected": wanted, **traced(run, cpu, known, read)}


def moved(known, to_accel, to_home, within) -> dict[tuple[str, str], list[int]]:
    """(operand, client that it went to) -> [number of buffers, bytes]."""
    moves: dict[tuple[str, str], list[int]] = collections.defaultdict(lambda: [0, 0])
    for target, buffers in (("accel", to_accel), ("home", to_home)):
        for text, count in buffers.items():
            move = moves[known.get(text, text), target]
            move[0] += count
            move[1] += count * nbytes_of(text)
    for name, nbytes in within.items():
        if (name, "accel") not in moves:
            moves[name, "accel"] = [1, nbytes]
    return dict(sorted(moves.items()))


class Reads(NamedTuple):
    """What a row says that it reads (an operand, or so many bytes), its size, and how often it copied."""

    name: str | int
    nbytes: int | str
    copies: int


def expected(moves, read: Reads, profile: Profile) -> dict[str, int]:
    """What moored should say of all traced runs: bytes by array and target, and how many were JAX arrays."""
    once = {f"{name} to {target}": nbytes for (name, target), (_, nbytes) in moves.items()}
    arrays = profile.literals
    if not any(target == "home" for _, target in moves):  # else the staged ones went there
        arrays += profile.staged > 0
    if arrays:
        once["JAX arrays from home to accel"] = arrays
    if read.name:
        once[f"bytes of {read.name} read"] = int(read.nbytes) * max(read.copies, 1)
    said = {what: amount * _TRACED_RUNS for what, amount in sorted(once.items())}
    # How often JAX reads a scalar of its own again is not the same on all devices: some keep what was read.
    return said | ({"reads": 1} if read.copies and not read.name else {})


def in_words(seen: dict, moves, sizes: dict[str, int], read: Reads) -> str:
    """The last cell: what moved, whole unless it says otherwise."""
    away = next((p for p in seen["lands"] if p not in ("home", "default", "numpy", "Python")), "default")
    cells = []
    for (name, target), (count, nbytes) in moves.items():
        whole = sizes.get(name, nbytes // count)
        times = max(1, nbytes // whole)
        part = f"`{name}`" if nbytes >= whole else f"{nbytes / whole:.0%} of `{name}`"
        if name not in _CLIENT_OF:
            part = f"a new `{name}`"
        elif name == read.name or (_CLIENT_OF[name] == target and (target == "home" or away == "default")):
            part = f"a new array of `{name}`'s shape"
        cells.append(f"{f'{times} x ' if times > 1 else ''}{part} to {away if target == 'accel' else 'home'}")
    if read.name:
        what = f"`{read.name}`" if isinstance(read.name, str) else f"{read.name} bytes"
        cells.append(f"{what} to the host" + ("" if read.copies else ", read in place"))
    elif read.copies:
        cells.append("scalars to the host")
    if not cells:
        return f"nothing: it is `{seen['shares'][0]}`'s buffer" if seen["shares"] else "nothing"
    aliased = "h" in seen["shares"] and seen["lands"] == ["home"]
    return "; ".join(cells) + (", in place" if aliased else "")


def traced(run, world: World, known: dict[str, str], read: Reads, raises: tuple = ()) -> dict:
    """The same of moored's tracer."""
    sets = [world.operands() for _ in range(_TRACED_RUNS)]
    collector = Collector()
    collector.attach()
    try:
        for names in sets:
            with contextlib.suppress(*raises):
                run(names)
        recording = collector.snapshot()
    finally:
        collector.detach()
    said: collections.Counter = collections.Counter()
    for t in recording.transfers:
        name = known.get(spec(t.array.dtype, t.array.shape), "")
        if t.direction == "d2h" and read.name:
            said[f"bytes of {name or t.nbytes // t.count} read"] += t.nbytes
        elif t.direction == "d2h":
            said["reads"] = 1
        else:
            target = "home" if t.target.startswith("cpu") else "accel"
            if t.nbytes > _NOISE_NBYTES * t.count:
                said[f"{name or spec(t.array.dtype, t.array.shape)} to {target}"] += t.nbytes
            if t.direction == "d2d" and target == "accel" and t.source.startswith("cpu"):
                said["JAX arrays from home to accel"] += t.count
    if refused := sum(c.count for c in recording.conflicts):
        said["calls refused"] = refused
    errors = [f"{e.where}: {e.error}" for e in recording.header.moored_errors]
    return {"moored": dict(sorted(said.items())), "errors": errors}


def main() -> None:
    cpu, second = World(jax.devices("cpu")[0]), World(jax.devices("second")[0])
    wanted = sys.argv[1:]
    rows = [observe(o, cpu, second) for o in operations() if not wanted or o.code in wanted]
    shutil.rmtree(_folder)
    print(json.dumps({"jax": jax.__version__, "rows": rows}))


if __name__ == "__main__":
    main()
