"""A Linen module is a static argument; its new lambda makes it another one in each step."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from flax import linen as nn


class Net(nn.Module):
    activation: Callable[[jax.Array], jax.Array]

    @nn.compact
    def __call__(self, x):
        return self.activation(nn.Dense(64)(x))


@partial(jax.jit, static_argnums=0)
def forward(net, parameters, x):
    return net.apply(parameters, x)


def main() -> jax.Array:
    x = jnp.ones((4, 64))
    parameters = Net(jnp.tanh).init(jax.random.key(0), x)
    for _ in range(10):
        x = forward(Net(lambda y: jnp.tanh(y)), parameters, x)  # - cause: static object
        # + x = forward(Net(jnp.tanh), parameters, x)
    return x.sum()


if __name__ == "__main__":
    print(main())
