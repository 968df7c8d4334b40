"""The step number is an argument like any other."""

import jax
import jax.numpy as jnp


@jax.jit
def update(w, step):
    return w - 0.1 / (1 + step) * jnp.tanh(w)


def main() -> jax.Array:
    w = jnp.ones((64, 64))
    for step in range(10):
        w = update(w, step)
    return w.sum()


if __name__ == "__main__":
    print(main())
