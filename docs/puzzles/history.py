"""A simulation collects its states. The longer it runs, the more each step seems to cost."""

import jax
import jax.numpy as jnp

TIMES = 3  # how many times as fast a solution must be


@jax.jit
def step(x):
    return x + 0.1 * jnp.sin(jnp.roll(x, 1) - x)


def main(seed: int = 0) -> jax.Array:
    x = jax.random.normal(jax.random.key(seed), (1, 64))
    states = x
    for _ in range(150):
        x = step(x)
        states = jnp.concatenate([states, x])
    return states


if __name__ == "__main__":
    print(main().sum())
