"""Sentences are scored one by one. Some take a thousand times as long as others."""

import jax
import jax.numpy as jnp
import numpy as np

TIMES = 3  # how many times as fast a solution must be


@jax.jit
def score(table, words):
    vectors = table[words]
    return jnp.tanh(vectors.mean(axis=0)).sum()


def main(seed: int = 0) -> jax.Array:
    rng = np.random.default_rng(seed)
    table = jax.random.normal(jax.random.key(seed), (1000, 32))
    sentences = [rng.integers(0, 1000, length) for length in rng.permutation(range(5, 45))]
    return jnp.stack([score(table, words) for words in sentences])


if __name__ == "__main__":
    print(main().sum())
