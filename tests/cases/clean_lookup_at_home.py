import os
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=2")
import jax
import jax.numpy as jnp
import numpy as np

main, home = jax.devices()
table = jax.device_put(np.ones((4096, 64), np.float32), home)
weights = jnp.ones((64, 8))
step = jax.jit(lambda w, x: w - 0.01 * (x.T @ (x @ w)))
rng = np.random.default_rng(0)
for i in range(6):
    rows = table[rng.integers(0, 4096, 512)]
    weights = step(weights, jax.device_put(rows, main))
print(weights.devices())
