"""The cache's memory is donated, to the call before the loop too."""

import functools

import jax
import jax.numpy as jnp


@functools.partial(jax.jit, donate_argnums=0)
def write(cache, i, row):
    return jax.lax.dynamic_update_slice(cache, row[None], (i, 0))


def main(steps: int = 40) -> jax.Array:
    cache, row = jnp.zeros((4096, 1024)), jnp.ones(1024)
    cache = write(cache, 0, row).block_until_ready()  # compiles
    for i in range(steps):
        cache = write(cache, i, row)
    return cache.sum()


if __name__ == "__main__":
    print(main())
