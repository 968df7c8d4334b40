"""A function under pmap gets 16 MB of NumPy in each call."""

import jax
import jax.numpy as jnp
import numpy as np


@jax.pmap
def step(w, x):
    return w - 1e-6 * jnp.tanh(x @ w)


def main(steps: int = 150) -> jax.Array:
    w, x = jnp.ones((1, 2048, 8)), np.ones((1, 2048, 2048), np.float32)
    for _ in range(steps):
        w = step(w, x)  # cause: transfer
    return w.sum()


if __name__ == "__main__":
    print(main())
