"""A call before the loop compiles the program, which copies a cache of 16 MB whenever one row is written."""

# + import functools

import jax
import jax.numpy as jnp


@jax.jit  # -
# + @functools.partial(jax.jit, donate_argnums=0)
def write(cache, i, row):
    return jax.lax.dynamic_update_slice(cache, row[None], (i, 0))


def main(steps: int = 40) -> jax.Array:
    cache, row = jnp.zeros((4096, 1024)), jnp.ones(1024)
    write(cache, 0, row).block_until_ready()  # compiles  # -
    # + cache = write(cache, 0, row).block_until_ready()  # compiles
    for i in range(steps):
        cache = write(cache, i, row)  # cause: donation
    return cache.sum()


if __name__ == "__main__":
    print(main())
