"""Batches are split over two devices, but the weights lie on one: each call copies 16 MB to the other."""

import os

os.environ.setdefault("JAX_NUM_CPU_DEVICES", "2")

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

MESH = Mesh(jax.devices()[:2], ("data",))


@jax.jit
def predict(weights, x):
    for w in weights:
        x = jnp.tanh(x @ w)
    return x.sum()


def main(steps: int = 60) -> float:
    weights = [jnp.full((1024, 1024), 1e-3 * i) for i in range(1, 5)]
    # + weights = jax.device_put(weights, NamedSharding(MESH, PartitionSpec()))
    x = jax.device_put(jnp.ones((2, 1024)), NamedSharding(MESH, PartitionSpec("data")))
    total = 0.0
    for _ in range(steps):
        total = float(predict(weights, x))  # cause: moved
    return total


if __name__ == "__main__":
    print(main())
