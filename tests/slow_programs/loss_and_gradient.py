"""The loss and its gradient come from two programs, and both compute the network."""

import jax
import jax.numpy as jnp


def loss(w, x):
    return jnp.mean(jnp.tanh(jnp.tanh(x @ w) @ w) ** 2)


value = jax.jit(loss)  # -
update = jax.jit(lambda w, x: w - 0.01 * jax.grad(loss)(w, x))  # -


# + @jax.jit
# + def update(w, x):
# +     value, gradient = jax.value_and_grad(loss)(w, x)
# +     return w - 0.01 * gradient, value


def main(steps: int = 40) -> jax.Array:
    w, x, total = jnp.eye(512), jnp.ones((1024, 512)), 0.0
    for _ in range(steps):
        total += value(w, x)  # - cause: forward twice
        w = update(w, x)  # -
        # + w, now = update(w, x)
        # + total += now
    return total


if __name__ == "__main__":
    print(main())
