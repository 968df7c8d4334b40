"""The first call of a recurrent network takes seconds, the next ones a few milliseconds."""

import jax
import jax.numpy as jnp

TIMES = 3  # how many times as fast a solution must be


@jax.jit
def run(h, xs, w):
    for t in range(70):
        h = jnp.sort(jnp.tanh(h @ w + xs[t]), axis=1)
    return h


def main(seed: int = 0) -> jax.Array:
    xs = jax.random.normal(jax.random.key(seed), (70, 8, 32))
    return run(jnp.ones((8, 32)), xs, 0.1 * jnp.eye(32))


if __name__ == "__main__":
    print(main().sum())
