"""Training images that are kept on the devices: a batch is a list of image numbers, gathered there.

From the host, each step gathers a batch in NumPy and copies it to the devices, 200 kB for 256 images of
Fashion-MNIST. With the images on the devices, it sends 2 kB of numbers. All 60,000 images take 47 MB as
bytes. On a CPU that gains nothing: the front end takes 589 us for such a batch, and 511 us from the host.
"""

from __future__ import annotations

import functools
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from jaxperf.errors import JaxperfError
from jaxperf.parallel.data_parallel import Shares, Step
from jaxperf.train.fitting import FAILURES, no_memory

DataOn = Literal["auto", "host", "devices"]


def lie_on_devices(data_on: DataOn, step: Step) -> bool:
    """Return whether images are kept on the devices; "auto" leaves them on the host if memory is shared.

    Raises:
      JaxperfError: an unknown value.
    """
    if data_on not in get_args(DataOn):
        raise JaxperfError(f"data_on {data_on!r} is none of {', '.join(get_args(DataOn))}")
    return data_on == "devices" or (data_on == "auto" and step.devices[0].platform != "cpu")


class OnDevices:
    """All images and labels on each of a step's devices; `load(rows)` is then the step's `load`.

    Args:
      step: from `make_step`; it determines where, and how a batch is divided.
      images: (N, ...).
      labels: (N,).

    Raises:
      JaxperfError: they do not fit into a device's memory.
    """

    def __init__(self, step: Step, images: npt.NDArray[Any], labels: npt.NDArray[Any]) -> None:
        self._step = step
        try:
            self._all = jax.block_until_ready(step.place((images, labels)))
        except FAILURES as e:
            if not no_memory(e):
                raise
            raise JaxperfError(
                f"{len(images):,} images, {images.nbytes:,} bytes, do not fit into a device's memory; keep "
                f'them on the host (data_on="host")'
            ) from None

    def load(self, rows: npt.NDArray[np.integer], _: Any = None) -> Shares:
        """Start gathering the images and labels whose numbers are `rows` (B,), divided as the step wants."""
        chosen = self._step.load(rows, rows)[0]
        if self._step.way != "manual":
            return _take(chosen.sharding)(self._all, chosen)
        parts = [_take(numbers.sharding)(data, numbers) for data, numbers in zip(self._all, chosen)]
        return tuple(map(list, zip(*parts)))


@functools.cache
def _take(sharding: jax.sharding.Sharding) -> Any:
    """The program that gathers; its outputs are placed like a batch from the host: no step is recompiled."""

    @functools.partial(jax.jit, out_shardings=sharding)
    def take(data: tuple[jax.Array, jax.Array], rows: jax.Array) -> Shares:
        return tuple(jnp.take(a, rows, axis=0, mode="clip") for a in data)

    return take
