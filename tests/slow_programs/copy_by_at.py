"""Outside of jit, a log of 16 MB is copied whenever a row of it is set."""

import jax
import jax.numpy as jnp


def main(steps: int = 200) -> jax.Array:
    log, row = jnp.zeros((2048, 2048)), jnp.ones(2048)
    for i in range(steps):
        log = log.at[i].set(row)  # cause: eager copy
    return log.sum()


if __name__ == "__main__":
    print(main())
