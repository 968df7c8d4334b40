"""Measure the bytes of a compiled program's collectives, and the bytes that each device holds."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import jax

from jaxperf.measure.stages import COLLECTIVES, instructions

_SHAPE = re.compile(r"\b([a-z][a-z0-9]*)\[([\d,]*)\]")
_BITS = re.compile(r"\d+")


def collective_bytes(hlo: str) -> dict[str, int]:
    """Return the bytes of the results of each kind of collective in an optimized program, on one device.

    For example, an all-reduce counts the array that every device has afterwards. The bytes sent over links
    depend on the algorithm: for the usual ring of k devices, they are 2 (k - 1) / k of that.

    Args:
      hlo: text of an optimized program, from `compiled.as_text()`.
    """
    totals: Counter[str] = Counter()
    for opcode, result, _ in instructions(hlo):
        kind = opcode.removesuffix("-done")
        if kind in COLLECTIVES:
            totals[kind] += sum(_bytes(dtype, dims) for dtype, dims in _SHAPE.findall(result))
    return dict(totals)


def _bytes(dtype: str, dims: str) -> int:
    """Return an array's bytes: digits in an HLO type such as "bf16" are bits, and "pred" is a byte."""
    bits = _BITS.search(dtype)
    count = 1
    for dim in filter(None, dims.split(",")):
        count *= int(dim)
    return count * (int(bits.group()) if bits else 8) // 8


def device_bytes(tree: Any) -> dict[jax.Device, int]:
    """Return the bytes of the arrays of `tree` on each device, where a shard counts with its own size."""
    nbytes: Counter[jax.Device] = Counter()
    for leaf in jax.tree.leaves(tree):
        for shard in leaf.addressable_shards:
            nbytes[shard.device] += shard.data.nbytes
    return dict(nbytes)
