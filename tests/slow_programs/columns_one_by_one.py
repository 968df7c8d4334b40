"""The columns of each batch are put on two devices one by one."""

import os

os.environ.setdefault("JAX_NUM_CPU_DEVICES", "2")

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

MESH = Mesh(jax.devices()[:2], ("data",))
SPLIT = NamedSharding(MESH, PartitionSpec("data"))


@jax.jit
def step(w, batch):
    return w - 1e-3 * w * jnp.stack([column.mean() for column in batch.values()]).mean()


def main(steps: int = 300) -> jax.Array:
    w = jax.device_put(jnp.ones(16), NamedSharding(MESH, PartitionSpec()))
    columns = {f"c{i}": np.full(256, i, np.float32) for i in range(60)}
    for _ in range(steps):
        batch = {k: jax.device_put(x, SPLIT) for k, x in columns.items()}  # - cause: puts one by one
        # + batch = jax.device_put(columns, SPLIT)
        w = step(w, batch)
    return w.sum()


if __name__ == "__main__":
    print(main())
