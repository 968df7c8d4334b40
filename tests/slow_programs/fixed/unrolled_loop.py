"""The loop is part of the program: its body is compiled once."""

import jax
import jax.numpy as jnp


@jax.jit
def iterate(x, w):
    return jax.lax.fori_loop(0, 100, lambda _, x: jnp.tanh(x @ w), x)


def main() -> jax.Array:
    return iterate(jnp.ones((8, 8)), jnp.eye(8)).sum()


if __name__ == "__main__":
    print(main())
