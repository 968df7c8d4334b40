"""Checks for mistakes in a network's input: one line for each, which says how to fix it."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from jaxperf.errors import JaxperfError


def check_images(X: jax.Array | np.ndarray, *, channels: int, size: tuple[int, int] | None = None) -> None:
    """Reject images that are not NHWC floats, before a convolution rejects them with a less clear error.

    Args:
      X: the images; shape (n, height, width, channels), a float dtype.
      channels: how many channels the network's first convolution reads.
      size: (height, width) if the network accepts only one; None accepts any.

    Raises:
      JaxperfError: another rank, size or channel count (for NCHW images, the message gives the
        transposition), or integers.
    """
    height, width = size or ("h", "w")
    wanted = f"(n, {height}, {width}, {channels})"
    if not _fits(X.shape, channels, size):
        if len(X.shape) == 4 and _fits([X.shape[i] for i in (0, 2, 3, 1)], channels, size):
            raise JaxperfError(
                f"images of shape {X.shape} are NCHW, the network reads NHWC {wanted}; "
                "pass X.transpose(0, 2, 3, 1)"
            )
        raise JaxperfError(
            f"images of shape {X.shape}, the network reads NHWC {wanted}; reshape or resize them"
        )
    if not jnp.issubdtype(X.dtype, jnp.floating):
        raise JaxperfError(f"images are {X.dtype}, the network reads floats; pass X.astype('float32') / 255")


def _fits(shape: Sequence[int], channels: int, size: tuple[int, int] | None) -> bool:
    return len(shape) == 4 and shape[3] == channels and (size is None or tuple(shape[1:3]) == size)


def check_compute_dtype(dtype: DTypeLike | None) -> None:
    """Reject a compute dtype that has no gradient.

    Raises:
      JaxperfError: `dtype` is neither None nor a real floating type.
    """
    if dtype is not None and not jnp.issubdtype(dtype, jnp.floating):
        name = jnp.dtype(dtype).name
        raise JaxperfError(f"dtype {name} cannot be trained; use float32, bfloat16 or float16")
