"""The gradient of a 3 x 3 kernel from 16 products for each tile of 2 x 2 outputs, instead of 36.

Winograd's minimal filtering (Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", 2015):
three sums of two products each, such as g0 x0 + g1 x1, g0 x1 + g1 x2 and g0 x2 + g1 x3, follow from four
products of sums, as
    p = g0 (x0 - x2),  q = (g0 + g1) (x1 + x2) / 2,  r = (g0 - g1) (x2 - x1) / 2,  s = g1 (x3 - x1)
are p + q + r, q - r and q + r + s. Here x is four neighboring pixels of an image, g two of the output's
gradient, and the three sums are gradients of three taps. In both directions of an image, that is 4 x 4
products instead of 6 x 6. All tiles, channels and outputs together are 16 products of matrices.

Nothing but sums and halves is multiplied in, so rounding is as usual: of the largest gradient, 4e-7 to
1.3e-6 with float32, and 3e-7 to 1.1e-6 with nine products. With tiles of 4 x 4, a quarter of the products
would be left, but errors of 3e-6 to 1.1e-5. Where an image is infinite, the gradient is NaN.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

from jaxperf.models.onednn_calls import product

KERNEL = (3, 3)
TILE = 2  # rows and columns of the output's gradient; of the images, two more
# What the sums cost, in multiplications: per tile and channel or output, and per pair of them. Of 69 layers,
# with 8 to 256 channels on 3 x 3 to 56 x 56 pixels and 2 to 128 images, the 29 that the rule admits are 1.02
# to 1.85 times as fast as with nine products, with a median of 1.38 (an EPYC of family 25 with AVX-512).
PER_TILE, ONCE = 400, 400


def is_faster(kernel: Sequence[int], outputs: Sequence[int]) -> bool:
    """Whether `kernel_gradient` is faster than nine products of all pixels.

    Args:
      kernel: shape of the kernel, (height, width, in, out).
      outputs: of the convolution, (n, height, width).
    """
    height, width, channels, gradients = kernel
    if (height, width) != KERNEL:
        return False
    tiles = outputs[0] * math.prod(-(-size // TILE) for size in outputs[1:])
    saved = channels * gradients * (9 * math.prod(outputs) - 16 * tiles - ONCE)
    return saved > PER_TILE * tiles * (channels + gradients)


def kernel_gradient(x: jax.Array, g: jax.Array, before: Sequence[int]) -> jax.Array:
    """The gradient of a kernel that moved by single pixels, (3, 3, in, out), float32.

    Args:
      x: images (n, height, width, in), float32.
      g: the gradient of the convolution's output, (n, height, width, out), float32.
      before: the zeros before the first row and column of the images; negative where they were cut off.
    """
    tiles = [-(-size // TILE) for size in g.shape[1:3]]
    images = _framed(x, before, [TILE * number + 2 for number in tiles])
    slopes = _framed(g, (0, 0), [TILE * number for number in tiles])
    rows = _differences(*_every_second(images, 4, tiles, axis=1))
    sides = _sums(*_every_second(slopes, 2, tiles, axis=1))
    # Four products are one call. In 16 calls or in one, the gradient takes up to 1.2 times as long: threads
    # start more often, or XLA is slow to write such large operands.
    of_rows = [
        product(
            _stacked(_differences(*_every_second(row, 4, tiles, axis=2))),
            _stacked(_sums(*_every_second(side, 2, tiles, axis=2))),
            transposed=True,
        )
        for row, side in zip(rows, sides)
    ]
    return jnp.stack([jnp.stack(_taps(*of_columns)) for of_columns in _taps(*of_rows)])


def _framed(images: jax.Array, before: Sequence[int], sizes: Sequence[int]) -> jax.Array:
    """Images in so many rows and columns; zeros, so many of them before, where there were none."""
    spans = [(start, size - start - n, 0) for start, size, n in zip(before, sizes, images.shape[1:3])]
    return lax.pad(images, jnp.zeros((), images.dtype), [(0, 0, 0), *spans, (0, 0, 0)])


def _every_second(images: jax.Array, number: int, tiles: Sequence[int], *, axis: int) -> list[jax.Array]:
    """The first row of each tile, the second one, and so on; of columns with axis 2."""
    end = TILE * (tiles[axis - 1] - 1) + 1
    return [lax.slice_in_dim(images, i, i + end, TILE, axis) for i in range(number)]


def _differences(a: jax.Array, b: jax.Array, c: jax.Array, d: jax.Array) -> list[jax.Array]:
    return [a - c, b + c, c - b, d - b]


def _sums(a: jax.Array, b: jax.Array) -> list[jax.Array]:
    return [a, a + b, a - b, b]


def _stacked(pixels: Sequence[jax.Array]) -> jax.Array:
    """Arrays (n, rows, columns, channels) as one (4, pixels, channels)."""
    return jnp.stack(pixels).reshape(len(pixels), -1, pixels[0].shape[3])


def _taps(p: jax.Array, q: jax.Array, r: jax.Array, s: jax.Array) -> list[jax.Array]:
    even, odd = (q + r) / 2, (q - r) / 2
    return [p + even, odd, even + s]
