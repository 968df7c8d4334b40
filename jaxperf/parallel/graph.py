"""Random graphs of operations over several devices, and the same in NumPy: are dependencies respected?

The second exercise of section 8.3. Every operation waits only for its inputs, wherever they are computed, and
the order is otherwise free. Integers wrap around in the same way everywhere, so results are bitwise equal,
whatever the order of additions in a product.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from jaxperf.measure.timing import block

LEAVES = 4
OPS = {"add": 2, "subtract": 2, "maximum": 2, "dot": 2, "transpose": 1, "flip": 1}  # NumPy's and JAX's names
RECENT = 30  # most inputs are among the latest values, which makes chains long
ANYWHERE = 0.2  # share of operations whose inputs may be any value


@dataclass(frozen=True)
class Node:
    """An operation of a graph: `op` of earlier values, given by number, on the device with this number."""

    op: str
    inputs: tuple[int, ...]
    device: int


def random_graph(seed: int, *, nodes: int, devices: int) -> tuple[Node, ...]:
    """Return a graph of `nodes` operations, each on one of `devices`, over `LEAVES` inputs.

    Two inputs of an operation are never the same value: x - x would make zeros, which are equal by chance.
    """
    rng = random.Random(seed)
    graph = []
    for known in range(LEAVES, LEAVES + nodes):
        op = rng.choice(list(OPS))
        first = 0 if rng.random() < ANYWHERE else max(0, known - RECENT)
        inputs = tuple(rng.sample(range(first, known), OPS[op]))
        graph.append(Node(op, inputs, rng.randrange(devices)))
    return tuple(graph)


def run_graph(
    graph: Sequence[Node], leaves: Sequence[jax.Array], devices: Sequence[jax.Device], *, wait: bool = False
) -> list[jax.Array]:
    """Compute every value of a graph, each on its node's device.

    Args:
      graph: operations, each after those that it depends on.
      leaves: `LEAVES` arrays, int32 (n, n), on any devices.
      devices: as many as the graph was made for.
      wait: whether every operation must finish before the next is called.

    Returns:
      One array per operation, int32 (n, n).
    """
    values = list(leaves)
    for node in graph:
        device = devices[node.device]
        value = getattr(jnp, node.op)(*(jax.device_put(values[i], device) for i in node.inputs))
        values.append(block(value) if wait else value)
    return values[len(leaves) :]


def oracle(graph: Sequence[Node], leaves: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Compute in NumPy what `run_graph` does."""
    values = list(leaves)
    for node in graph:
        values.append(getattr(np, node.op)(*(values[i] for i in node.inputs)))
    return values[len(leaves) :]


def depth(graph: Sequence[Node]) -> int:
    """Return how many operations are on the longest dependency chain."""
    found = [0] * LEAVES
    for node in graph:
        found.append(1 + max(found[i] for i in node.inputs))
    return max(found)


def graph_leaves(seed: int, n: int) -> list[np.ndarray]:
    """Return `LEAVES` random inputs, int32 (n, n), uniform over all integers."""
    rng = np.random.default_rng(seed)
    return [rng.integers(-(2**31), 2**31, (n, n), dtype=np.int32) for _ in range(LEAVES)]
