"""Python unrolls 60 steps of a recurrent network; each has so much in it that compiling takes long."""

import jax
import jax.numpy as jnp


@jax.jit
def run(h, xs, w):
    for t in range(60):  # - cause: unrolled
        h = jnp.sort(jnp.tanh(h @ w + xs[t]), axis=1)  # -
    return h  # -
    # + return jax.lax.scan(lambda h, x: (jnp.sort(jnp.tanh(h @ w + x), axis=1), None), h, xs)[0]


def main() -> jax.Array:
    return run(jnp.ones((32, 64)), jnp.ones((60, 32, 64)), jnp.full((64, 64), 1e-2)).sum()


if __name__ == "__main__":
    print(main())
