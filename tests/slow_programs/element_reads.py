"""Scores are read one by one: each read slices the array on its device, and waits."""

import jax
import jax.numpy as jnp

# + import numpy as np


@jax.jit
def scores(x):
    return jnp.tanh(x @ x.T).sum(1)


def main(rounds: int = 10) -> float:
    best, x = 0.0, jnp.ones((500, 64))
    for _ in range(rounds):
        values = scores(x)  # -
        # + values = np.asarray(scores(x))
        for i in range(500):
            best = max(best, float(values[i]))  # cause: element reads
    return best


if __name__ == "__main__":
    print(main())
