"""The parameters are NumPy arrays in the first call only; a small batch is one in each call."""

import jax
import jax.numpy as jnp
import numpy as np


@jax.jit
def step(w, x):
    return w - 1e-3 * jnp.outer(jnp.tanh(x @ w), x)


def main(steps: int = 200) -> jax.Array:
    w, batch = np.full((1024, 1024), 1e-3, np.float32), np.ones(1024, np.float32)
    for _ in range(steps):
        w = step(w, batch)
    return w.sum()


if __name__ == "__main__":
    print(main())
