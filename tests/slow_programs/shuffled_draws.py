"""Each step draws a batch without replacement: it sorts the indices of all rows at random."""

import jax
import jax.numpy as jnp


@jax.jit
def step(w, turn, x, y):
    key = jax.random.fold_in(jax.random.key(0), turn)
    rows = jax.random.choice(key, len(x), (64,), replace=False)  # - cause: shuffled draws
    # + rows = jax.random.randint(key, (64,), 0, len(x))
    return w - 0.1 * x[rows].T @ (x[rows] @ w - y[rows]) / 64


def main(steps: int = 60) -> jax.Array:
    x = jnp.sin(jnp.arange(100_000 * 8.0)).reshape(100_000, 8)
    w, y = jnp.zeros(8), x.sum(1)
    for turn in range(steps):
        w = step(w, turn, x, y)
    return w


if __name__ == "__main__":
    print(main())
