"""A helper puts the same two arrays on the device in every step, one after the other."""

import jax
import jax.numpy as jnp
import numpy as np


def to_device(a):
    return jnp.array(a)  # cause: put again


@jax.jit
def step(w, table, mask):
    return w - 1e-6 * mask[0] * (table @ w)


def main(steps: int = 100) -> jax.Array:
    w, table = jnp.ones(2048), np.ones((2048, 2048), np.float32)
    mask = np.ones((1024, 2048), np.float32)
    # + table, mask = to_device(table), to_device(mask)
    for _ in range(steps):
        w = step(w, to_device(table), to_device(mask))  # -
        # + w = step(w, table, mask)
    return w.sum()


if __name__ == "__main__":
    print(main())
