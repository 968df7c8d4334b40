"""Python unrolls the loop while it is traced: 100 copies of its body are compiled."""

import jax
import jax.numpy as jnp


@jax.jit
def iterate(x, w):
    for _ in range(100):  # - cause: unrolled
        x = jnp.tanh(x @ w)  # -
    return x  # -
    # + return jax.lax.fori_loop(0, 100, lambda _, x: jnp.tanh(x @ w), x)


def main() -> jax.Array:
    return iterate(jnp.ones((8, 8)), jnp.eye(8)).sum()


if __name__ == "__main__":
    print(main())
