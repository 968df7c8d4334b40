"""What moves and what stays: bytes of a compiled program's collectives, bytes that each device holds."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import jax

from jaxperf.measure.stages import COLLECTIVES, instructions

_SHAPE = re.compile(r"\b([a-z][a-z0-9]*)\[([\d,]*)\]")
_BITS = re.compile(r"\d+")


def collective_bytes(hlo: str) -> dict[str, int]:
    """Add up the bytes of the results of each kind of collective in an optimized program, on one device.

    The text of a program that runs on every device shows one device's shapes, so an all-reduce counts the
    array that every device has afterwards. What is sent over the links depends on the algorithm: for the
    usual ring of k devices, 2 (k - 1) / k of that. Of an asynchronous pair, the finishing half is counted.

    Args:
      hlo: text of an optimized program, as `compiled.as_text()` gives it.
    """
    totals: Counter[str] = Counter()
    for opcode, result, _ in instructions(hlo):
        kind = opcode.removesuffix("-done")
        if kind in COLLECTIVES:
            totals[kind] += sum(_bytes(dtype, dims) for dtype, dims in _SHAPE.findall(result))
    return dict(totals)


def _bytes(dtype: str, dims: str) -> int:
    """Return an array's bytes from its HLO type: the digits of "f32" or "bf16" are bits; "pred" is a byte."""
    bits = _BITS.search(dtype)
    count = 1
    for dim in filter(None, dims.split(",")):
        count *= int(dim)
    return count * (int(bits.group()) if bits else 8) // 8


def device_bytes(tree: Any) -> dict[jax.Device, int]:
    """Add up the bytes of the arrays of `tree` on each device: full copies and shards at their own size."""
    nbytes: Counter[jax.Device] = Counter()
    for leaf in jax.tree.leaves(tree):
        for shard in leaf.addressable_shards:
            nbytes[shard.device] += shard.data.nbytes
    return dict(nbytes)
