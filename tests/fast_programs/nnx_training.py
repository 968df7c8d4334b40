"""A small network of Flax trains under nnx.jit; what donating it would save is nothing to speak of."""

import jax
import jax.numpy as jnp
import optax
from flax import nnx


@nnx.jit
def step(net, optimizer, x):
    loss, gradients = nnx.value_and_grad(lambda net: jnp.mean(net(x) ** 2))(net)
    optimizer.update(net, gradients)
    return loss


@nnx.jit
def gradients(net, x):
    return nnx.grad(lambda net: jnp.mean(net(x) ** 2))(net)


def main(steps: int = 60) -> jax.Array:
    net = nnx.Linear(64, 64, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(net, optax.sgd(1e-3), wrt=nnx.Param)
    x = jnp.ones((4096, 64))
    for _ in range(steps):
        loss = step(net, optimizer, x)
    grads = gradients(net, x)
    return loss + grads["kernel"][0, 0]


if __name__ == "__main__":
    print(main())
