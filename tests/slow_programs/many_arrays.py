"""A simulation keeps a state per step in a list, and stacks the list outside of jit."""

import jax
import jax.numpy as jnp
import numpy as np


@jax.jit
def step(x, v):
    v = v - 0.01 * jnp.sin(x)
    return x + 0.01 * v, v


def main(steps: int = 1500) -> np.ndarray:
    x, v = jnp.linspace(0.1, 1, 8), jnp.zeros(8)
    path = []
    for _ in range(steps):
        x, v = step(x, v)
        path.append(x)
    return np.asarray(jnp.stack(path))  # - cause: many arrays
    # + return np.stack(jax.device_get(path))


if __name__ == "__main__":
    print(main().sum())
