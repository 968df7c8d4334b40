"""The jitted function refers to an array of 32 MB, which becomes a constant of its program."""

import jax
import jax.numpy as jnp
import numpy as np

TABLE = np.random.default_rng(0).standard_normal((4096, 2048), np.float32)


@jax.jit
def step(w):  # -
    return w - 1e-6 * (TABLE @ w).sum()  # -


# + def step(w, table):
# +     return w - 1e-6 * (table @ w).sum()


def main(steps: int = 20) -> jax.Array:
    w = jnp.ones(2048)  # -
    # + w, table = jnp.ones(2048), jax.device_put(TABLE)
    for _ in range(steps):
        w = step(w)  # - cause: constant
        # + w = step(w, table)
    return w.sum()


if __name__ == "__main__":
    print(main())
