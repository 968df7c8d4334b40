"""Forty waves are added up, each by a jitted function. Each wave takes as long as the first."""

import jax
import jax.numpy as jnp

TIMES = 4  # how many times as fast a solution must be


def wave(frequency: float):
    @jax.jit
    def add(total, t):
        return total + jnp.sin(frequency * t) / frequency

    return add


def main(seed: int = 0) -> jax.Array:
    t = jax.random.uniform(jax.random.key(seed), (512,))
    total = jnp.zeros(512)
    for n in range(40):
        total = wave(2.0 * n + 1.0)(total, t)
    return total


if __name__ == "__main__":
    print(main().sum())
