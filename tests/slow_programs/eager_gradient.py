"""A gradient outside of jit: what is in the loss and what `grad` makes of it are dispatched one by one."""

import jax
import jax.numpy as jnp


def loss(w, x, y):
    return jnp.mean((jnp.tanh(x @ w) - y) ** 2)


# + @jax.jit
# + def update(w, x, y):
# +     return w - 0.1 * jax.grad(loss)(w, x, y)


def main(steps: int = 60) -> jax.Array:
    w, x, y = jnp.zeros((16, 4)), jnp.ones((32, 16)), jnp.ones((32, 4))
    for _ in range(steps):
        w = w - 0.1 * jax.grad(loss)(w, x, y)  # - cause: eager
        # + w = update(w, x, y)
    return w.sum()


if __name__ == "__main__":
    print(main())
