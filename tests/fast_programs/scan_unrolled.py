"""The loop is a scan that is unrolled on purpose."""

import jax
import jax.numpy as jnp


def turn(x, w):
    return jnp.tanh(x @ w), None


@jax.jit
def iterate(x, ws):
    return jax.lax.scan(turn, x, ws, unroll=True)[0]


def main() -> jax.Array:
    return iterate(jnp.ones((8, 8)), jnp.broadcast_to(jnp.eye(8), (100, 8, 8))).sum()


if __name__ == "__main__":
    print(main())
