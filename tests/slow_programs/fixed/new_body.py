"""The loop is in a jitted function, and what varies is an argument."""

import jax
import jax.numpy as jnp


@jax.jit
def update(x, turn):
    return jax.lax.fori_loop(0, 10, lambda i, x: jnp.tanh(x + turn), x)


def main(turns: int = 12) -> jax.Array:
    x = jnp.ones((64, 64))
    for turn in range(turns):
        x = update(x, turn)
    return x.sum()


if __name__ == "__main__":
    print(main())
