"""How the batches of an epoch get to the devices, and how many programs a step takes.

"epoch" and "step" keep all images on each device, 47 MB as bytes, and gather a batch there. Nothing is copied
from the host while they train: "epoch" is one program that scans over the batches, "step" one program per
step. "host" gathers each batch in NumPy and copies it. All three train on the same batches.

On one H200 (JAX 0.11.2, 2026-11-26), a step of LeNet with batch 256 takes 0.28 ms as part of a scan, 0.36 ms
as one program, and took 2.1 ms with batches from the host and sums by hand. On a CPU, LeNet in a scan takes
more than ten times the processor time (JAX 0.10 and 0.12): XLA leaves its fast convolutions out of loops.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jaxperf.data import FashionMNIST, epoch_batches
from jaxperf.errors import JaxperfError
from jaxperf.parallel.data_parallel import Shares, State, Step
from jaxperf.parallel.devices import AXIS, mesh_of
from jaxperf.parallel.multihost import processes_of, rows_of
from jaxperf.parallel.update import Metrics

Feed = Literal["auto", "host", "step", "epoch"]
Call = Callable[[State], tuple[State, Metrics]]  # metrics of one update, or arrays of several


def feed_of(feed: Feed, step: Step, *, saves: bool = False) -> Feed:
    """Return what "auto" stands for: a scan where nothing is saved within an epoch, except on CPUs.

    Raises:
      JaxperfError: an unknown value, or one that the step's way or its several processes exclude.
    """
    if feed not in get_args(Feed):
        raise JaxperfError(f"feed {feed!r} is none of {', '.join(get_args(Feed))}")
    only_host = step.body is None or processes_of(step.devices) > 1
    if feed == "auto":
        if only_host:
            return "host"
        return "step" if saves or step.devices[0].platform == "cpu" else "epoch"
    if only_host and feed != "host":
        raise JaxperfError(
            f"feed {feed!r} needs the way 'jit' or 'shard_map' and a single process; use feed=\"host\""
        )
    return feed


class HostFeed:
    """Each batch is gathered on the host and copied to the devices.

    Args:
      step: from `make_step`.
      data: images and labels.
      batch_size: images of an update, on all devices together.
      updates: how many an epoch has.
    """

    def __init__(self, step: Step, data: FashionMNIST, *, batch_size: int, updates: int) -> None:
        self._step, self._arrays = step, (data.train_images, data.train_labels)
        # By hand, one process has all rows
        self._rows = slice(None) if step.way == "manual" else rows_of(batch_size, step.devices)
        self._shuffle = _shuffle_of(data, batch_size, updates)

    def lower(self, state: State) -> list[Any]:
        """Compile the step; nothing is left to compile for `compile_lowered`."""
        X, y = (a[: self._shuffle["batch_size"]][self._rows] for a in self._arrays)
        self._step.compile(state, self._step.load(X, y))
        return []

    def calls(self, *, seed: int, epoch: int, start: int) -> Iterator[Call]:
        """Yield a call for each update of an epoch from `start` on."""
        order = self._shuffle | {"seed": seed, "epoch": epoch, "start": start, "rows": self._rows}
        for X, y in epoch_batches(*self._arrays, **order):
            yield functools.partial(self._run, self._step.load(X, y))

    def _run(self, shares: Shares, state: State) -> tuple[State, Metrics]:
        return self._step.run(state, shares)


class DeviceFeed:
    """All images and labels are on each device, and an update is (part of) one program.

    Args:
      step: from `make_step`, by `jit` or `shard_map` in one process.
      data: images and labels.
      batch_size: images of an update, on all devices together.
      updates: how many an epoch has.
      scan: an epoch is one program; otherwise an update is one.

    Attributes:
      program: the jitted function.

    Raises:
      JaxperfError: the images do not fit into a device's memory.
    """

    def __init__(self, step: Step, data: FashionMNIST, *, batch_size: int, updates: int, scan: bool) -> None:
        rows_of(batch_size, step.devices)  # refuses what does not divide
        mesh = mesh_of(step.devices)
        self._shuffle = _shuffle_of(data, batch_size, updates)
        self._scan, self._everywhere = scan, NamedSharding(mesh, P())
        self._order_sharding = NamedSharding(mesh, P(None, AXIS))
        arrays = data.train_images, data.train_labels
        try:
            self._data = jax.block_until_ready(jax.device_put(arrays, self._everywhere))
        except FAILURES as e:
            if not no_memory(e):
                raise
            raise JaxperfError(
                f"{len(arrays[0]):,} images, {arrays[0].nbytes:,} bytes, do not fit into a device's memory; "
                'keep them on the host (feed="host")'
            ) from None
        self.program = _program(step.body, step.devices, scan)

    def lower(self, state: State) -> list[Any]:
        """Return the lowered program for such a state, for `compile_lowered`."""
        order = np.zeros((self._shuffle["updates"], self._shuffle["batch_size"]), np.int32)
        return [self.program.lower(state, *self._place(0, order))]

    def _place(self, start: int, order: Any) -> tuple[jax.Array, Any, jax.Array]:
        i = jax.device_put(np.int32(start), self._everywhere)
        return i, self._data, jax.device_put(order, self._order_sharding)

    def calls(self, *, seed: int, epoch: int, start: int) -> Iterator[Call]:
        """Yield a call for what is left of an epoch, or for each of its updates.

        The order of the images, 4 bytes for each, is copied before the first call, and nothing during it.
        """
        numbers = np.arange(len(self._data[1]), dtype=np.int32)
        batches = epoch_batches(numbers, numbers, **self._shuffle, seed=seed, epoch=epoch)
        order = np.stack([rows for rows, _ in batches])
        i, data, rows = self._place(start, order[start:] if self._scan else order)

        def call(state: State) -> tuple[State, Metrics]:
            nonlocal i
            state, i, metrics = self.program(state, i, data, rows)
            return state, metrics

        for _ in range(1 if self._scan else len(order) - start):
            yield call


@functools.lru_cache(8)
def _program(body: Any, devices: tuple[jax.Device, ...], scan: bool) -> Any:
    """Return the jitted epoch, or update, of a step's body; trainings of the same step share it."""
    mesh = mesh_of(devices)
    everywhere, split = NamedSharding(mesh, P()), NamedSharding(mesh, P(AXIS))

    def update(data: Any, state: State, rows: jax.Array) -> tuple[State, Metrics]:
        batch = (jnp.take(a, rows, axis=0, mode="clip") for a in data)
        return body(state, *(lax.with_sharding_constraint(a, split) for a in batch))

    def train_step(state: State, i: jax.Array, data: Any, order: jax.Array) -> Any:
        state, metrics = update(data, state, lax.dynamic_index_in_dim(order, i, keepdims=False))
        return state, i + 1, metrics

    def train_epoch(state: State, i: jax.Array, data: Any, order: jax.Array) -> Any:
        state, metrics = lax.scan(lambda state, rows: update(data, state, rows), state, order)
        return state, i, metrics

    return jax.jit(train_epoch if scan else train_step, donate_argnums=(0, 1), out_shardings=everywhere)


def _shuffle_of(data: FashionMNIST, batch_size: int, updates: int) -> dict[str, Any]:
    """Return the arguments of `epoch_batches` that are the same in all epochs, which it has checked."""
    shuffle: dict[str, Any] = {"batch_size": batch_size, "updates": updates}
    epoch_batches(data.train_labels, data.train_labels, **shuffle, seed=0, epoch=0)
    return shuffle


# A jitted function that was called before raises what its program raised as a ValueError (JAX 0.10 and 0.12).
FAILURES = (jax.errors.JaxRuntimeError, ValueError)


def no_memory(error: Exception) -> bool:
    """Return whether an XLA error says that a device is out of memory."""
    return "RESOURCE_EXHAUSTED" in str(error)
