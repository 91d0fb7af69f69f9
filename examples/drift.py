import time

import jax

cpu = jax.devices("cpu")[0]
with jax.default_device(cpu):  # too large for the GPU: keep it in host memory
    tokens = jax.random.randint(jax.random.key(0), (2000, 6, 1024), 0, 50_000, dtype="uint16")

for i in range(10):
    start = time.perf_counter()
    sample = tokens[i].block_until_ready()
    print(f"{time.perf_counter() - start:.6f} s on {sample.device}")
