"""A new function is jitted in every turn of the loop, so every turn compiles."""

import jax
import jax.numpy as jnp

# + @jax.jit
# + def update(w):
# +     return w - 0.1 * jnp.tanh(w)


def main() -> jax.Array:
    w = jnp.ones((64, 64))
    for _ in range(10):
        w = jax.jit(lambda w: w - 0.1 * jnp.tanh(w))(w)  # - cause: new function
        # + w = update(w)
    return w.sum()


if __name__ == "__main__":
    print(main())
