"""A table of weights is computed in each call, although no argument of the function affects it."""

import jax
import jax.numpy as jnp


@jax.jit
def weighted(x):  # -
    weights = jnp.sort(jnp.arange(400_000) * 7919 % 99_991)  # - cause: constant work
    return x * weights[:1000] / 1000  # -


# + def table():
# +     return jnp.sort(jnp.arange(400_000) * 7919 % 99_991)[:1000] / 1000
# +
# +
# + @jax.jit
# + def weighted(x, weights):
# +     return x * weights


def main(steps: int = 40) -> jax.Array:
    x = jnp.ones(1000)  # -
    # + x, weights = jnp.ones(1000), table()
    for _ in range(steps):
        x = weighted(x) / 2  # -
        # + x = weighted(x, weights) / 2
    return x.sum()


if __name__ == "__main__":
    print(main())
