"""Each batch is a list of lists of Python's numbers, from which every step makes an array."""

import jax
import jax.numpy as jnp

# + import numpy as np


@jax.jit
def step(w, x):
    for _ in range(4):
        w = w - 1e-4 * x.T @ jnp.tanh(x @ w)
    return w


def main(steps: int = 40) -> jax.Array:
    rows = [[1e-3 * (i * j % 7) for j in range(256)] for i in range(16)]
    w = jnp.ones((256, 256))  # -
    # + w, x = jnp.ones((256, 256)), jnp.asarray(np.array(rows, np.float32))
    for _ in range(steps):
        w = step(w, jnp.array(rows))  # - cause: list
        # + w = step(w, x)
    return w.sum()


if __name__ == "__main__":
    print(main())
