"""Stochastic gradient descent on one row of NumPy at a time: dispatching takes longer than computing."""

import jax
import jax.numpy as jnp
import numpy as np


@jax.jit
def step(w, x, y):  # -
    return w - 0.01 * (x @ w - y) * x  # -


# + def fit(w, xs, ys):
# +     def step(w, row):
# +         x, y = row
# +         return w - 0.01 * (x @ w - y) * x, None
# +
# +     return jax.lax.scan(step, w, (xs, ys))[0]


def main(rows: int = 20_000) -> jax.Array:
    rng = np.random.default_rng(0)
    xs, ys = rng.standard_normal((rows, 8), np.float32), rng.standard_normal(rows, np.float32)
    w = jnp.zeros(8)  # -
    for i in range(rows):  # -
        w = step(w, xs[i], ys[i])  # - cause: dispatch
    return w.sum()  # -
    # + return fit(jnp.zeros(8), xs, ys).sum()


if __name__ == "__main__":
    print(main())
