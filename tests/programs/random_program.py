"""Run a random JAX program under the tracer and the profiler at once; print both counts as JSON.

Usage: random_program.py SEED OPERATIONS

The simulated accelerator is a client of its own, so each copy onto it is one
``BufferFromHostBuffer`` event of the profiler: an independent count of what moored says.
"""

import collections
import functools
import glob
import json
import os
import random
import re
import sys
import tempfile
import warnings

import lammps_jax_pjrt_cpu

os.environ["PJRT_NAMES_AND_LIBRARY_PATHS"] = f"accel:{lammps_jax_pjrt_cpu.PLUGIN_PATH}"
warnings.simplefilter("ignore")

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax.profiler import ProfileData  # noqa: E402

from moored.trace.collect import Collector  # noqa: E402

seed, operations = int(sys.argv[1]), int(sys.argv[2])
rng = random.Random(seed)
cpu, accel = jax.devices("cpu")[0], jax.devices()[0]
SIZES = (1000, 2000, 4000)  # no two kinds of operand share a shape with a scalar
with jax.default_device(cpu):
    drifting = [(jnp.arange(4.0 * n).reshape(4, n) + 0).block_until_ready() for n in SIZES]
committed = [jax.device_put(x, cpu) for x in drifting]
device = [jax.device_put(np.ones((4, n), np.float32), accel) for n in SIZES]
host = [np.ones((4, n), np.float32) for n in SIZES]


@functools.partial(jax.jit, static_argnums=2)
def static_prunes(x, y, use):
    return x + y if use == "both" else x * 1.0


@functools.partial(jax.jit, static_argnames="mode")
def static_by_name(x, *, y, mode=0):
    return x - y if mode else x


add = jax.jit(lambda x, y: x + y)
doubled = jax.jit(lambda d: {k: v * 2 for k, v in d.items()})
second_unused = jax.jit(lambda x, y: x * 1.0)
one_key = jax.jit(lambda d, x: x + d["a"] if "a" in d else x)
by_shape = jax.jit(lambda x, y: x + y if x.shape[1] == SIZES[0] else x)
aot = [add.lower(h, d).compile() for h, d in zip(host, device, strict=True)]


@jax.custom_jvp
def with_rule(x):
    return jnp.sin(x)


with_rule.defjvp(lambda primals, tangents: (with_rule(primals[0]), tangents[0]))


def operation():
    kind, i = rng.randrange(24), rng.randrange(3)
    u, c, d, n = drifting[i], committed[i], device[i], host[i]
    if kind == 0:
        return u[rng.randrange(4)]
    if kind == 1:
        return c[1]
    if kind == 2:
        return add(n, d)
    if kind == 3:
        return add(u, d)
    if kind == 4:
        return doubled({"a": n, "b": d})
    if kind == 5:
        return jnp.sin(u)
    if kind == 6:
        return jax.device_put(u, accel)
    if kind == 7:
        return jnp.asarray(n)
    if kind == 8:
        return second_unused(d, u)
    if kind == 9:
        return jax.grad(lambda w: (w * n).sum())(d)
    if kind == 10:
        return d + 2.5
    if kind == 11:
        return jax.vmap(lambda a, b: a @ b)(u, d)
    if kind == 12:
        return static_prunes(d, u, rng.choice(["both", "first"]))
    if kind == 13:
        return static_by_name(d, y=n, mode=rng.randrange(2))
    if kind == 14:
        return one_key({rng.choice("ab"): u}, d)
    if kind == 15:
        return by_shape(d, u)
    if kind == 16:
        return aot[i](n, d)
    if kind == 17:
        return jax.lax.scan(lambda carry, x: (carry + x.sum(), None), 0.0, u)[0]
    if kind == 18:
        return jax.jit(lambda x: x + 1)(n)
    if kind == 19:
        return jax.grad(lambda w: with_rule(w).sum())(u)
    if kind == 20:
        return jnp.where(d > 0, u, 0.0)
    if kind == 21:
        return list(u)[0]  # noqa: RUF015 - iterate over all of it
    if kind == 22:
        return jax.jit(lambda x: add(x, n))(d)
    return jax.random.normal(jax.random.key(i), (4,)).sum() + u.mean()


for _ in range(3 * 24):  # warm most of it: what counts is the steady state and the attaching
    operation()
folder = tempfile.mkdtemp()
options = jax.profiler.ProfileOptions()
options.python_tracer_level = 0
collector = Collector()
collector.attach()
with jax.profiler.trace(folder, profiler_options=options):
    for _ in range(operations):
        jax.block_until_ready(operation())
recording = collector.snapshot()
collector.detach()

(profile,) = glob.glob(f"{folder}/**/*.xplane.pb", recursive=True)
profiled = collections.Counter()
for plane in ProfileData.from_file(profile).planes:
    for line in plane.lines:
        for event in line.events:
            found = re.match(r".*BufferFromHostBuffer\((\w+)\[([\d,]*)\]", event.name)
            if found and found.group(2).startswith("4,"):
                profiled[found.group(2)] += 1
seen = collections.Counter()
for t in recording.transfers:
    if t.target.startswith("accel") and t.direction in ("h2d", "d2d") and len(t.array.shape) == 2:
        seen[",".join(map(str, t.array.shape))] += t.count
print(
    json.dumps(
        {
            "profiler": dict(sorted(profiled.items())),
            "moored": dict(sorted(seen.items())),
            "errors": [e.error for e in recording.header.moored_errors],
            "predicted": sum(t.count for t in recording.transfers if t.predicted),
        }
    )
)
