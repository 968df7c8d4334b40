"""How a kernel moves over images, and a convolution as one product of what it meets on its way."""

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
# fast as oneDNN's kernel.
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
        """Return whether a product is faster, since the result has few pixels and the kernel many weights."""
        pixels, taps = images[0] * math.prod(self.sizes(images, kernel)), math.prod(kernel[:2])
        return pixels <= FEW_PIXELS and math.prod(kernel) >= MANY_WEIGHTS and taps <= MOST_TAPS


def product_of_patches(x: jax.Array, w: Any, kernel: Sequence[int], window: Window) -> jax.Array:
    """Return the convolution as one product: each row holds the inputs of one pixel of the result.

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
