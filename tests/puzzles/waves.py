"""The frequency is an argument, and one function serves all waves."""

import jax
import jax.numpy as jnp


@jax.jit
def add(total, t, frequency):
    return total + jnp.sin(frequency * t) / frequency


def main(seed: int = 0) -> jax.Array:
    t = jax.random.uniform(jax.random.key(seed), (512,))
    total = jnp.zeros(512)
    for n in range(40):
        total = add(total, t, 2.0 * n + 1.0)
    return total


if __name__ == "__main__":
    print(main().sum())
