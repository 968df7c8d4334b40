"""Stochastic gradient descent on one row of NumPy at a time: dispatching takes longer than computing."""

import jax
import jax.numpy as jnp
import numpy as np


@jax.jit
def step(w, x, y):
    return w - 0.01 * (x @ w - y) * x


def main(rows: int = 20_000) -> jax.Array:
    rng = np.random.default_rng(0)
    xs, ys = rng.standard_normal((rows, 8), np.float32), rng.standard_normal(rows, np.float32)
    w = jnp.zeros(8)
    for i in range(rows):
        w = step(w, xs[i], ys[i])  # cause: dispatch
    return w.sum()


if __name__ == "__main__":
    print(main())
