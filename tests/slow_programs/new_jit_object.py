"""One function, but a new jit object in every turn: nothing is compiled again, and each call is slow."""

import jax
import jax.numpy as jnp


# + @jax.jit
def update(w):
    return w - 0.1 * jnp.tanh(w)


def main(steps: int = 4000) -> jax.Array:
    w = jnp.ones((192, 192))
    for _ in range(steps):
        w = jax.jit(update)(w)  # - cause: new function
        # + w = update(w)
    return w.sum()


if __name__ == "__main__":
    print(main())
