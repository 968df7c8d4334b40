"""A step takes much longer than the product in it."""

import jax
import jax.numpy as jnp
import numpy as np

TIMES = 3  # how many times as fast a solution must be


@jax.jit
def step(w, table):
    return 0.5 * w + table @ w


def main(seed: int = 0) -> jax.Array:
    columns = np.random.default_rng(seed).integers(0, 2, (3072, 3073), np.int8)
    table = (1e-4 * columns.astype(np.float32))[:, 1:]  # the first column holds the labels
    w = jnp.ones(3072)
    for _ in range(120):
        w = step(w, table)
    return w


if __name__ == "__main__":
    print(main().sum())
