"""Section 8.5.1: one array with a copy on each of several devices, read where a copy is and where none is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxperf.script import Story


def copy_on(array: jax.Array, device: jax.Device) -> jax.Array:
    """The copy of `array` that is on `device`; KeyError where there is none."""
    return {shard.device: shard.data for shard in array.addressable_shards}[device]


def to_all(tree: Any, devices: Sequence[jax.Device]) -> Any:
    """Copies of the arrays of `tree` on each device: no axis of their sharding is split."""
    return jax.device_put(tree, NamedSharding(Mesh(np.array(devices), ("devices",)), P()))


def reading_copies(story: Story, weight: jax.Array, devices: Sequence[jax.Device]) -> None:
    """Read a parameter where its copies are, and where there is none."""
    found = [np.asarray(copy_on(weight, d)) for d in devices]
    for copy, device in zip(found, devices):
        story.say(f"first filter on {device}: {copy[..., 0, 0].ravel()[:3]} ...")
    equal = all((copy == found[0]).all() for copy in found)
    story.claim(
        book="The same parameter has the same values on every device",
        holds=equal,
        predicted="equal copies",
        right=equal,
        observed=f"{len(found)} copies, {'equal' if equal else 'different'}",
        cannot="" if len(devices) > 1 else "only one device here",
    )
    cpu = jax.devices("cpu")[0]
    holders, other = (devices, cpu) if cpu not in devices else (devices[:-1], devices[-1])
    said = "a copy is there"
    if holders:
        try:
            copy_on(to_all(weight, holders), other)
        except KeyError:
            said = f"not initialized on {other}"
        story.say(f"copies on {', '.join(map(str, holders))}; read on {other}: {said}")
    story.claim(
        book="A parameter cannot be read on a device that it was not copied to",
        holds=said.startswith("not"),
        predicted="no copy, and an error",
        right=said.startswith("not"),
        observed=said,
        cannot="" if holders else "only one device here",
    )
