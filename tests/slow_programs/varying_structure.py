"""A list of arrays has another length in each call, and each length compiles."""

import jax
import jax.numpy as jnp

MOST = 12


@jax.jit
def energy(x, neighbors):
    total = jnp.sum(x**2)
    for y in neighbors:
        total += jnp.sum(jnp.tanh(y @ x))
    return total


def main() -> float:
    x, ones = jnp.full((32, 32), 1e-2), jnp.ones((32, 32))
    total = 0.0
    for count in range(4, MOST):
        neighbors = [ones] * count
        # + neighbors += [jnp.zeros((32, 32))] * (MOST - count)
        total += float(energy(x, neighbors))  # cause: structure
    return total


if __name__ == "__main__":
    print(main())
