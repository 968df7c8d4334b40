"""They are put there once, before the loop."""

import jax
import jax.numpy as jnp
import numpy as np


@jax.jit
def step(w, table):
    return w - 1e-6 * (table @ w)


def main(steps: int = 100) -> jax.Array:
    w, table = jnp.ones(2048), np.ones((2048, 2048), np.float32)
    t = jnp.array(table)
    for _ in range(steps):
        w = step(w, t)
    return w.sum()


if __name__ == "__main__":
    print(main())
