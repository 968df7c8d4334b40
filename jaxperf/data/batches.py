"""Batches of one fixed shape: for a compiled step, a new shape means a new compilation.

Training drops what does not fill a batch; evaluation pads it and marks which rows are real. Images stay uint8
until they are on the device, which is a quarter of the bytes to gather and to copy; `to_float` also works
there.

Letters: N examples, B batch size.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from jaxperf.errors import JaxperfError

if TYPE_CHECKING:
    import jax

ArrayT = TypeVar("ArrayT", npt.NDArray[Any], "jax.Array")
Array = npt.NDArray[Any]


def to_float(images: ArrayT) -> ArrayT:
    """Scale uint8 0..255 to float32 0..1, as the book's `ToTensor` does; channels stay last.

    NumPy in gives NumPy out, JAX in gives JAX out, also inside `jax.jit`.
    """
    return images.astype(np.float32) / np.float32(255)


def updates_per_epoch(n_train: int, batch_size: int) -> int:
    """Return the number of full batches in one pass: 60,000 images in batches of 256 are 234 updates.

    Raises:
      JaxperfError: there is no full batch.
    """
    _check_batch_size(batch_size)
    if batch_size > n_train:
        raise JaxperfError(
            f"batch size {batch_size} is larger than the data, {n_train} examples; use {n_train} or fewer"
        )
    return n_train // batch_size


def epoch_batches(
    images: Array, labels: Array, *, batch_size: int, seed: int, epoch: int,
    updates: int | None = None, start: int = 0, rows: slice = slice(None),
) -> Iterator[tuple[Array, Array]]:  # fmt: skip
    """Yield shuffled full batches of one epoch; the same (seed, epoch) gives the same batches.

    Args:
      images: (N, ...).
      labels: (N,).
      batch_size: B.
      seed: chooses the order together with `epoch`; 0 or more.
      epoch: 0 or more.
      updates: number of batches; default one pass, N // B. With more than that the data is used again, in a
        new order each time, so that the subset of 6,000 makes the book's 234 updates.
      start: how many batches to skip at the beginning, when a training resumes within an epoch.
      rows: which rows of each batch to read; with several processes, each has its own.

    Yields:
      images (B, ...) and labels (B,), or those of `rows`, copies in the dtypes given.

    Raises:
      JaxperfError: when called, not at the first batch: lengths differ, a batch is larger than the data, or a
        number is out of range.
    """
    _check_lengths(images, labels)
    full = updates_per_epoch(len(images), batch_size)
    for name, value, least in (
        ("seed", seed, 0),
        ("epoch", epoch, 0),
        ("updates", updates, 1),
        ("start", start, 0),
    ):
        if value is not None and value < least:
            raise JaxperfError(f"{name} {value} is too small; use {least} or more")
    rng = np.random.default_rng((seed, epoch))
    return _shuffled(images, labels, batch_size, rng, start, updates or full, rows)


def _shuffled(
    images: Array,
    labels: Array,
    batch_size: int,
    rng: np.random.Generator,
    start: int,
    updates: int,
    rows: slice,
) -> Iterator[tuple[Array, Array]]:
    full = len(images) // batch_size
    for update in range(updates):
        place = update % full
        if place == 0:
            order = rng.permutation(len(images))
        if update < start:
            continue
        chosen = order[place * batch_size : (place + 1) * batch_size][rows]
        yield images[chosen], labels[chosen]


def padded_batches(
    images: Array, labels: Array, *, batch_size: int
) -> Iterator[tuple[Array, Array, npt.NDArray[np.bool_]]]:
    """Yield every example once, in order, in batches of one shape; for evaluation.

    Args:
      images: (N, ...).
      labels: (N,).
      batch_size: B; may exceed N.

    Yields:
      images (B, ...), labels (B,) and a mask bool (B,) that is False on the zeros that fill the last batch.

    Raises:
      JaxperfError: when called: lengths differ or `batch_size` is not positive.
    """
    _check_lengths(images, labels)
    _check_batch_size(batch_size)
    return _padded(images, labels, batch_size)


def _padded(
    images: Array, labels: Array, batch_size: int
) -> Iterator[tuple[Array, Array, npt.NDArray[np.bool_]]]:
    for start in range(0, len(images), batch_size):
        x, y = images[start : start + batch_size], labels[start : start + batch_size]
        missing, rest = batch_size - len(x), [(0, 0)] * (x.ndim - 1)
        yield np.pad(x, [(0, missing), *rest]), np.pad(y, (0, missing)), np.arange(batch_size) < len(x)


def _check_batch_size(batch_size: int) -> None:
    if batch_size < 1:
        raise JaxperfError(f"batch size {batch_size} is not positive; use 1 or more")


def _check_lengths(images: Array, labels: Array) -> None:
    if len(images) != len(labels):
        raise JaxperfError(f"{len(images)} images but {len(labels)} labels; give one label per image")
    if not len(images):
        raise JaxperfError("0 images; give at least one")
