"""Conversion of weights between MXNet's order of axes and Flax's: four views, no arithmetic.

o, i: output and input channels; h, w: a kernel's height and width; c: channels of the image that a dense
layer reads flattened. MXNet keeps channels before height and width, Flax after.
"""

from __future__ import annotations

from typing import TypeVar

import jax
import numpy as np

A = TypeVar("A", jax.Array, np.ndarray)


def oihw_to_hwio(kernel: A) -> A:
    """Return a convolution's kernel (o, i, h, w) as (h, w, i, o)."""
    return kernel.transpose(2, 3, 1, 0)


def hwio_to_oihw(kernel: A) -> A:
    """Return a convolution's kernel (h, w, i, o) as (o, i, h, w)."""
    return kernel.transpose(3, 2, 0, 1)


def chw_to_hwc_rows(kernel: A, image: tuple[int, int, int]) -> A:
    """Return a dense kernel (c * h * w, o), whose rows follow a channel-first image, as (h * w * c, o).

    Args:
      kernel: the kernel.
      image: (h, w, c) of the image that is flattened.
    """
    h, w, c = image
    return kernel.reshape(c, h, w, -1).transpose(1, 2, 0, 3).reshape(h * w * c, -1)


def hwc_to_chw_rows(kernel: A, image: tuple[int, int, int]) -> A:
    """Return a dense kernel (h * w * c, o) as (c * h * w, o): the inverse, with the same `image`."""
    h, w, c = image
    return kernel.reshape(h, w, c, -1).transpose(2, 0, 1, 3).reshape(c * h * w, -1)
