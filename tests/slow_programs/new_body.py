"""A loop outside of jit gets a new function as its body in each turn, so every turn compiles."""

import jax
import jax.numpy as jnp

# + @jax.jit
# + def update(x, turn):
# +     return jax.lax.fori_loop(0, 10, lambda i, x: jnp.tanh(x + turn), x)


def main(turns: int = 12) -> jax.Array:
    x = jnp.ones((64, 64))
    for turn in range(turns):
        x = jax.lax.fori_loop(0, 10, lambda i, x: jnp.tanh(x + turn), x)  # noqa: B023  # - cause: new body
        # + x = update(x, turn)
    return x.sum()


if __name__ == "__main__":
    print(main())
