"""Why is taking one row out of a large array so slow? Ten lookups in 6.52 GB of tokens, each one timed.

python examples/commitment_issues.py                    an array made on the CPU, looked up from the GPU
python examples/commitment_issues.py --commit           the same array, committed to the CPU first
python examples/commitment_issues.py --put-items-to-gpu and each row put on the GPU afterwards
"""

import argparse
import mmap
import time

import jax
import numpy as np

parser = argparse.ArgumentParser()
parser.add_argument("--commit", action="store_true", help="commit the array to the CPU")
parser.add_argument("--put-items-to-gpu", action="store_true", help="put each row on the default device")
parser.add_argument("--shape", default="530640,6,1024", help="shape of the array (6.52 GB)")
args = parser.parse_args()
shape = tuple(int(n) for n in args.shape.split(","))

cpu0 = jax.devices("cpu")[0]
gpu = jax.devices()[0]
if gpu == cpu0 and len(jax.devices()) > 1:  # no GPU, but several CPU devices: the last one plays its part
    gpu = jax.devices()[-1]
    jax.config.update("jax_default_device", gpu)

# Random tokens below 50,000, made in blocks: jax.random.randint would want ten times the memory.
# The memory of a mmap begins on a page, which lets JAX use it as it is instead of copying it.
n = int(np.prod(shape))
memory = mmap.mmap(-1, 2 * n)
if hasattr(mmap, "MADV_HUGEPAGE"):  # large pages, which the kernel hands out faster
    memory.madvise(mmap.MADV_HUGEPAGE)
tokens = np.frombuffer(memory, dtype=np.uint16)
rng = np.random.SFC64(0)
for start in range(0, n, 2**20):
    block = tokens[start : start + 2**20]
    bits = rng.random_raw(-(-block.size // 4)).view(np.uint16)[: block.size]
    np.remainder(bits, 50_000, out=block)

with jax.default_device(cpu0):
    array = jax.device_put(tokens.reshape(shape))
if args.commit:
    array = jax.device_put(array, cpu0)
print(f"array {array.shape} {array.dtype}, {array.nbytes / 1e9:.2f} GB, committed: {array.committed}")

for i in range(10):
    start = time.perf_counter()
    item = array[i].block_until_ready()
    seconds = time.perf_counter() - start
    print(f"item {i}: {seconds:.6f} s on {item.device}, committed: {item.committed}", flush=True)
    if args.put_items_to_gpu:
        start = time.perf_counter()
        item = jax.device_put(item, gpu).block_until_ready()
        print(f"   put: {time.perf_counter() - start:.6f} s on {item.device}, committed: {item.committed}")
