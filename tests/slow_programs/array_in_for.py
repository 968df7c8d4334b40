"""A loop goes over an array of JAX: a program takes it apart, and its elements are read one by one."""

import jax
import jax.numpy as jnp

# + import numpy as np


@jax.jit
def scores(x):
    return jnp.tanh(x).sum(axis=1)


def main(rounds: int = 5) -> float:
    best, x = 0.0, jnp.ones((800, 64))
    for _ in range(rounds):
        # + for value in np.asarray(scores(x)):
        for value in scores(x):  # - cause: iterated array
            best = max(best, float(value))
    return best


if __name__ == "__main__":
    print(main())
