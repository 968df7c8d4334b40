"""A module holds 16 MB, and nnx.jit returns them from each call in new memory."""

import jax
import jax.numpy as jnp
from flax import nnx


class Cache(nnx.Module):
    def __init__(self):
        self.rows = nnx.Variable(jnp.zeros((4096, 1024)))


@nnx.jit  # -
# + @nnx.jit(donate_argnums=0)
def write(cache, i, row):
    cache.rows[...] = jax.lax.dynamic_update_slice(cache.rows[...], row[None], (i, 0))
    return row.sum()


def main(steps: int = 60) -> jax.Array:
    cache, row = Cache(), jnp.ones(1024)
    for i in range(steps):
        total = write(cache, i, row)  # cause: module state
    return total


if __name__ == "__main__":
    print(main())
