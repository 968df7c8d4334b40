"""`nnx.jit` takes a network of many small layers and its optimizer apart, in Python, in each step."""

import jax
import jax.numpy as jnp
import optax
from flax import nnx


class Net(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.layers = nnx.List([nnx.Linear(16, 16, rngs=rngs) for _ in range(30)])

    def __call__(self, x):
        for layer in self.layers:
            x = x + jnp.tanh(layer(x))
        return x


@nnx.jit
def train_step(model, optimizer, x):
    loss, gradient = nnx.value_and_grad(lambda model: jnp.mean(model(x) ** 2))(model)
    optimizer.update(model, gradient)
    return loss


def main(steps: int = 400) -> jax.Array:
    model, x = Net(nnx.Rngs(0)), jnp.ones((8, 16))
    optimizer = nnx.Optimizer(model, optax.sgd(1e-3), wrt=nnx.Param)
    # + step = nnx.cached_partial(train_step, model, optimizer)
    for _ in range(steps):
        loss = train_step(model, optimizer, x)  # - cause: module dispatch
        # + loss = step(x)
    return loss


if __name__ == "__main__":
    print(main())
