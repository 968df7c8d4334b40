"""A call before the loop compiles the tiny step; then dispatching it takes longer than computing it."""

import jax
import jax.numpy as jnp


@jax.jit
def step(x, v):
    a = -x + 0.1 * jnp.sin(x)
    return x + 0.001 * v, v + 0.001 * a


# + @jax.jit
# + def several(x, v, count):
# +     return jax.lax.fori_loop(0, count, lambda _, carry: step(*carry), (x, v))


def main(steps: int = 20_000) -> jax.Array:
    x, v = jnp.ones(8), jnp.zeros(8)
    jax.block_until_ready(step(x, v))  # compiles  # -
    for _ in range(steps):  # -
        x, v = step(x, v)  # - cause: dispatch
    # + jax.block_until_ready(several(x, v, 1))  # compiles
    # + x, v = several(x, v, steps)
    return x.sum()


if __name__ == "__main__":
    print(main())
