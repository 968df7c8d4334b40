"""Section 8.5.1: an array with a copy on each of several devices, read on devices with and without a copy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxperf.script import Story


def copy_on(array: jax.Array, device: jax.Device) -> jax.Array:
    """The copy of `array` that is on `device`; KeyError if there is none."""
    return {shard.device: shard.data for shard in array.addressable_shards}[device]


def to_all(tree: Any, devices: Sequence[jax.Device]) -> Any:
    """Copies of the arrays of `tree` on each device: their sharding splits no axis."""
    return jax.device_put(tree, NamedSharding(Mesh(np.array(devices), ("devices",)), P()))


def reading_copies(story: Story, weight: jax.Array, devices: Sequence[jax.Device]) -> None:
    """Read a parameter on devices that have a copy, and on one that does not."""
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
