"""A table of weights is computed in each call, although no argument of the function affects it."""

import jax
import jax.numpy as jnp


@jax.jit
def weighted(x):
    weights = jnp.sort(jnp.arange(400_000) * 7919 % 99_991)  # cause: constant work
    return x * weights[:1000] / 1000


def main(steps: int = 40) -> jax.Array:
    x = jnp.ones(1000)
    for _ in range(steps):
        x = weighted(x) / 2
    return x.sum()


if __name__ == "__main__":
    print(main())
