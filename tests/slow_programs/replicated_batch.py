"""Two devices apply a network, and each has the weights and the whole batch: both compute the same."""

import os

os.environ.setdefault("JAX_NUM_CPU_DEVICES", "2")

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

MESH = Mesh(jax.devices()[:2], ("data",))


@jax.jit
def settle(w, x):
    for _ in range(4):
        x = jnp.tanh(x @ w)
    return x


def main(steps: int = 40) -> float:
    w = jax.device_put(jnp.eye(512), NamedSharding(MESH, PartitionSpec()))
    x = jax.device_put(jnp.ones((1024, 512)), NamedSharding(MESH, PartitionSpec()))  # -
    # + x = jax.device_put(jnp.ones((1024, 512)), NamedSharding(MESH, PartitionSpec("data")))
    for _ in range(steps):
        x = settle(w, x)  # cause: replicated
    return float(x.sum())


if __name__ == "__main__":
    print(main())
