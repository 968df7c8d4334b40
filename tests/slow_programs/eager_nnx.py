"""A training step of Flax without `nnx.jit`: all of it is dispatched one by one, by Flax and by Optax."""

import jax
import jax.numpy as jnp
import optax
from flax import nnx


class Net(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.a, self.b = nnx.Linear(16, 256, rngs=rngs), nnx.Linear(256, 4, rngs=rngs)

    def __call__(self, x):
        return self.b(nnx.relu(self.a(x)))


# + @nnx.jit
def train_step(model, optimizer, x, y):  # cause: eager
    loss, gradient = nnx.value_and_grad(lambda m: jnp.mean((m(x) - y) ** 2))(model)
    optimizer.update(model, gradient)
    return loss


def main(steps: int = 60) -> jax.Array:
    model, x, y = Net(nnx.Rngs(0)), jnp.ones((2048, 16)), jnp.ones((2048, 4))
    optimizer = nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)
    for _ in range(steps):
        loss = train_step(model, optimizer, x, y)
    return loss


if __name__ == "__main__":
    print(main())
