"""How a kernel moves over images, and convolutions as products or sums of what it meets on its way.

These are faster than oneDNN's kernel, or JAX's own, where images have few pixels or a kernel has few weights
(`convolution`, and `freeze` for networks whose weights are constants).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

# oneDNN changes a kernel's layout at each call. With this many weights and this few pixels, that takes longer
# than a whole product of patches: with 512 channels on 4 x 4 pixels, 1.4 times as long (1.3 to 1.6).
FEW_PIXELS, MANY_WEIGHTS = 64, 1 << 19
MOST_TAPS = 25  # one slice for each; the gradient of a kernel over images of 28 x 28 would take 676
# With at most this many products per output, JAX's own rule is the fastest for one image, 1.4 to 2.5 times as
# fast as oneDNN's kernel. For more images, slices times rows of the kernel are, since XLA fuses them with the
# operations that follow: 1.3 to 3.3 times for 3 x 3 and 5 x 5 kernels over one or two channels, batch 16 and
# 128 (with 25 products for 32 outputs 1.2 and 1.0). Only frozen networks use them: in training, XLA computes
# them again in the derivative; LeNet's step was 0.91 to 1.34 times as fast, by the batch.
FEW_PRODUCTS = 25


class Window(NamedTuple):
    """How a kernel (height, width, in, out) moves over images (n, height, width, in)."""

    strides: Sequence[int]
    padding: Sequence[tuple[int, int]]
    spread: Sequence[int]  # zeros between the pixels plus one: the gradient of a strided convolution
    dilation: Sequence[int]

    def sizes(self, images: Sequence[int], kernel: Sequence[int]) -> list[int]:
        """Height and width of the result; `spread` is 1."""
        return [
            (n + sum(pad) - (k - 1) * d - 1) // s + 1
            for n, pad, k, d, s in zip(images[1:3], self.padding, kernel, self.dilation, self.strides)
        ]

    def few_pixels(self, images: Sequence[int], kernel: Sequence[int]) -> bool:
        """Whether the result has so few pixels, and the kernel so many weights, that a product is faster."""
        pixels, taps = images[0] * math.prod(self.sizes(images, kernel)), math.prod(kernel[:2])
        return pixels <= FEW_PIXELS and math.prod(kernel) >= MANY_WEIGHTS and taps <= MOST_TAPS

    def few_products(self, kernel: Sequence[int]) -> bool:
        """Whether an output is the sum of so few products that slices of the images are faster."""
        return math.prod(kernel[:3]) <= FEW_PRODUCTS


def product_of_patches(x: jax.Array, w: Any, kernel: Sequence[int], window: Window) -> jax.Array:
    """The convolution as one product: each row holds the inputs of one pixel of the result.

    Args:
      x: images (n, height, width, in), whose padding is not negative.
      w: the kernel's weights, (out, height * width * in).
      kernel: its shape, (height, width, in, out).
      window: how the kernel moves; `spread` is 1.
    """
    taps = [tap for row in _taps(x, kernel, window) for tap in row]
    patches = jnp.concatenate(taps, axis=-1).reshape(-1, math.prod(kernel[:3]))
    product = lax.dot_general(patches, w, (((1,), (1,)), ((), ())))
    return product.reshape(len(x), *window.sizes(x.shape, kernel), -1)


def sum_of_products(x: jax.Array, w: jax.Array, window: Window) -> jax.Array:
    """The convolution as products of slices of the images with rows of the weights, added up.

    Args:
      x: images (n, height, width, in), whose padding is not negative.
      w: the kernel, (height, width, in, out).
      window: how the kernel moves; `spread` is 1.
    """
    taps = _taps(x, w.shape, window)
    height, width, channels, _ = w.shape
    return sum(
        (taps[i][j][..., c : c + 1] * w[i, j, c]
        for i in range(height) for j in range(width) for c in range(channels)),
        start=jnp.zeros((), x.dtype),
    )  # fmt: skip


def moved(images: jax.Array, by: Sequence[int], size: Sequence[int]) -> jax.Array:
    """Images moved down and right by some pixels, in so many rows and columns; zeros where none were."""
    ends = (size[axis] - images.shape[1 + axis] - by[axis] for axis in (0, 1))
    spans = [(start, end, 0) for start, end in zip(by, ends)]
    return lax.pad(images, jnp.zeros((), images.dtype), [(0, 0, 0), *spans, (0, 0, 0)])


def _taps(x: jax.Array, kernel: Sequence[int], window: Window) -> list[list[jax.Array]]:
    """For each place of a kernel, the pixels that it meets: (n, height, width, in) of the result's size."""
    (h, v), (s, t), (d, e) = window.sizes(x.shape, kernel), window.strides, window.dilation
    x = jnp.pad(x, ((0, 0), *window.padding, (0, 0)))
    rows, columns = s * (h - 1) + 1, t * (v - 1) + 1
    return [
        [x[:, i * d : i * d + rows : s, j * e : j * e + columns : t] for j in range(kernel[1])]
        for i in range(kernel[0])
    ]
