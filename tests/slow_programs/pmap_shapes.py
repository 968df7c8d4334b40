"""Batches of many sizes go into a function under pmap, and each size compiles."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

# + LARGEST = 28


@partial(jax.pmap, axis_name="devices")
def step(w, x):
    return w - 0.1 * jax.lax.pmean(jnp.tanh(x @ w).sum() * w, "devices")


def main() -> jax.Array:
    w = jnp.ones((1, 16, 4))
    for n in range(20, 28):
        w = step(w, np.ones((1, n, 16), np.float32))  # - cause: shape
        # + w = step(w, np.pad(np.ones((1, n, 16), np.float32), [(0, 0), (0, LARGEST - n), (0, 0)]))
    return w.sum()


if __name__ == "__main__":
    print(main())
