"""A network of 24 layers, each with weights of its own: equal operations, but not one body."""

import jax
import jax.numpy as jnp


def loss(params, x):
    for w, b in params:
        x = x + jnp.tanh(x @ w + b)
    return jnp.mean(x**2)


@jax.jit
def step(params, x):
    return jax.tree.map(lambda p, g: p - 1e-3 * g, params, jax.grad(loss)(params, x))


def main(steps: int = 50) -> jax.Array:
    w, b = jnp.eye(128), jnp.zeros(128)
    params = [(w, b)] * 24
    x = jnp.ones((256, 128))
    for _ in range(steps):
        params = step(params, x)
    return params[0][0].sum()


if __name__ == "__main__":
    print(main())
