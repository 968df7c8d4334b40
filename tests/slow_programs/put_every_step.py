"""The same 16 MB of NumPy are put on the device in every step."""

import jax
import jax.numpy as jnp
import numpy as np


@jax.jit
def step(w, table):
    return w - 1e-6 * (table @ w)


def main(steps: int = 100) -> jax.Array:
    w, table = jnp.ones(2048), np.ones((2048, 2048), np.float32)
    # + t = jnp.array(table)
    for _ in range(steps):
        t = jnp.array(table)  # - cause: put again
        w = step(w, t)
    return w.sum()


if __name__ == "__main__":
    print(main())
