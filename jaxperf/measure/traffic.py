"""Measure the bytes of a compiled program's collectives, and the bytes that each device holds."""

from collections import Counter
from typing import Any

import jax

from jaxperf.hlo import COLLECTIVES, parse


def collective_bytes(hlo: str) -> dict[str, int]:
    """Return the bytes of the results of each kind of collective in an optimized program, on one device.

    For example, an all-reduce counts the array that every device has afterwards. The bytes sent over links
    depend on the algorithm: for the usual ring of k devices, they are 2 (k - 1) / k of that.
    """
    totals: Counter[str] = Counter()
    for instruction in parse(hlo).instructions:
        opcode = instruction.opcode.removesuffix("-done")  # has the result; a "-start" may name both sides
        if opcode in COLLECTIVES:
            totals[opcode] += instruction.bytes
    return dict(totals)


def device_bytes(tree: Any) -> dict[jax.Device, int]:
    """Return the bytes of the arrays of `tree` on each device, where a shard counts with its own size."""
    nbytes: Counter[jax.Device] = Counter()
    for leaf in jax.tree.leaves(tree):
        for shard in leaf.addressable_shards:
            nbytes[shard.device] += shard.data.nbytes
    return dict(nbytes)
