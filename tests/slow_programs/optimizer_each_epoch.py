"""Each epoch begins with a new Optax optimizer, whose functions are a static part of what is jitted."""

import jax
import jax.numpy as jnp
import optax
from flax import nnx


@nnx.jit
def train_step(optimizer, model, x):
    loss, gradient = nnx.value_and_grad(lambda model: jnp.mean(model(x) ** 2))(model)
    optimizer.update(model, gradient)
    return loss


def main(epochs: int = 5, steps: int = 12) -> jax.Array:
    model, x = nnx.Linear(256, 256, rngs=nnx.Rngs(0)), jnp.ones((4096, 256))
    # + adam = optax.adam(1e-3)
    for _ in range(epochs):
        optimizer = nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)  # -
        # + optimizer = nnx.Optimizer(model, adam, wrt=nnx.Param)
        for _ in range(steps):
            loss = train_step(optimizer, model, x)  # cause: static part
    return loss


if __name__ == "__main__":
    print(main())
