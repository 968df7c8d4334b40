"""Convolutions with 3 x 3 kernels, and their kernels' gradients, from 16 products per tile instead of 36.

Winograd's minimal filtering (Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", 2015):
three sums of two products each, such as g0 x0 + g1 x1, g0 x1 + g1 x2 and g0 x2 + g1 x3, follow from four
products of sums, as
    p = g0 (x0 - x2),  q = (g0 + g1) (x1 + x2) / 2,  r = (g0 - g1) (x2 - x1) / 2,  s = g1 (x3 - x1)
are p + q + r, q - r and q + r + s. With x as four neighboring pixels of an image and g as two of the output's
gradient, they are gradients of three taps. In both directions of an image, 4 x 4 products do for 6 x 6. Those
of all tiles, channels and outputs are 16 products of matrices. The convolution itself, two outputs from four
pixels and three taps, needs the same sums of pixels, and the gradient of the images is such a convolution.

Nothing but sums and halves is multiplied in, so rounding is as usual, in float32 and of the largest number:
for gradients of kernels 4e-7 to 1.3e-6, and 3e-7 to 1.1e-6 with nine products; for convolutions 4e-7 to 9e-7,
and 1.1e-6 to 2.5e-6 with oneDNN's. With tiles of 4 x 4, a quarter of the products would be left, but errors
of 3e-6 to 1.8e-5. Where an image is infinite, results are NaN.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxperf.models.onednn_calls import product
from jaxperf.models.window import Window, moved

KERNEL = (3, 3)
TILE = 2  # rows and columns of the output's gradient; of the images, two more
# What the sums cost, in multiplications: per tile and channel or output, and per pair of them. Of 69 layers,
# with 8 to 256 channels on 3 x 3 to 56 x 56 pixels and 2 to 128 images, the 29 gradients of kernels that the
# rule admits are 1.02 to 1.85 times as fast as with nine products, with a median of 1.38 (an EPYC of family
# 25 with AVX-512).
PER_TILE, ONCE = 400, 400
# For convolutions it depends on how many multiplications the processor does while it moves a number. Where
# they are few (that EPYC, 215 GFLOP/s and 88 GB/s), 1200 admits 36 of 82 layers, which are 1.09 to 2.08 times
# as fast as with oneDNN's convolution, with a median of 1.48. Where memory is as fast but products are twice
# as fast, layers of 128 channels would be slower. So `jaxperf.onednn` measures one, and a variable tells
# whether the first or the second applies.
WHERE_CHEAP, ELSEWHERE = 1200, 2400
VARIABLE = "JAXPERF_WINOGRAD"
LAYER = (16, 14, 14, 128)  # the images of the layer to measure; it has as many outputs
CHEAP = 1.1  # where it is so many times as fast as with oneDNN's convolution


def per_tile() -> int:
    """What the sums of a convolution cost per tile and channel or output, as this process was told."""
    return WHERE_CHEAP if os.environ.get(VARIABLE) == "1" else ELSEWHERE


def pays(images: Sequence[int], kernel: Sequence[int], window: Window) -> bool:
    """Whether `convolution` is faster than oneDNN's, as this process was told.

    Args:
      images: their shape, (n, height, width, in).
      kernel: its shape, (height, width, in, out).
      window: how it moves.
    """
    if max(*window.strides, *window.spread, *window.dilation) > 1:
        return False
    return is_faster(kernel, (images[0], *window.sizes(images, kernel)), per_tile=per_tile())


def is_faster(kernel: Sequence[int], outputs: Sequence[int], *, per_tile: float = PER_TILE) -> bool:
    """Whether `kernel_gradient` is faster than nine products of all pixels, or `convolution` than oneDNN's.

    Args:
      kernel: shape of the kernel, (height, width, in, out).
      outputs: of the convolution, (n, height, width).
      per_tile: what the sums cost per tile and channel or output, in multiplications; for `convolution`,
        what the function `per_tile` returns.
    """
    height, width, channels, gradients = kernel
    if (height, width) != KERNEL:
        return False
    tiles = outputs[0] * math.prod(_tiles(outputs[1:]))
    saved = channels * gradients * (9 * math.prod(outputs) - 16 * tiles - ONCE)
    return saved > per_tile * tiles * (channels + gradients)


def convolution(x: jax.Array, w: jax.Array, window: Window, *, transposed: bool = False) -> jax.Array:
    """The convolution of a kernel that moves by single pixels, (n, height, width, out), float32.

    Args:
      x: images (n, height, width, in), float32.
      w: the kernel, (3, 3, in, out), float32.
      window: how it moves; of the padding, negative numbers cut images off.
      transposed: whether the kernel is (3, 3, out, in), as the gradient of the images reads it.
    """
    return with_sums(x, [jnp.stack(row) for row in sums(w)], window, transposed=transposed)


def sums(w: Any) -> list[list[Any]]:
    """What the products read of a kernel (3, 3, in, out): 4 x 4 matrices (in, out)."""
    return [_weights(*row) for row in _weights(*w)]


def with_sums(x: jax.Array, rows: Sequence[Any], window: Window, *, transposed: bool = False) -> jax.Array:
    """`convolution` with four rows of `sums`, each (4, in, out), instead of the kernel."""
    sizes = window.sizes(x.shape, KERNEL)
    tiles = _tiles(sizes)
    pixels = _pixels(x, [low for low, _ in window.padding], tiles)
    of_rows = [
        product(row, weights, transposed=(False, transposed)).reshape(4, len(x), *tiles, -1)
        for row, weights in zip(pixels, rows)
    ]
    y = jnp.stack([jnp.stack(_outputs(*of_columns), 3) for of_columns in _outputs(*of_rows)], 2)
    return y.reshape(len(x), *(TILE * number for number in tiles), -1)[:, : sizes[0], : sizes[1]]


def kernel_gradient(x: jax.Array, g: jax.Array, before: Sequence[int]) -> jax.Array:
    """The gradient of a kernel that moved by single pixels, (3, 3, in, out), float32.

    Args:
      x: images (n, height, width, in), float32.
      g: the gradient of the convolution's output, (n, height, width, out), float32.
      before: the zeros before the first row and column of the images; negative where they were cut off.
    """
    tiles = _tiles(g.shape[1:3])
    slopes = moved(g, (0, 0), [TILE * number for number in tiles])
    sides = _sums(*_every_second(slopes, 2, tiles, axis=1))
    # Four products are one call. In 16 calls or in one, the gradient takes up to 1.2 times as long: threads
    # start more often, or XLA is slow to write such large operands.
    of_rows = [
        product(row, _stacked(_sums(*_every_second(side, 2, tiles, axis=2))), transposed=(True, False))
        for row, side in zip(_pixels(x, before, tiles), sides)
    ]
    return jnp.stack([jnp.stack(_taps(*of_columns)) for of_columns in _taps(*of_rows)])


def _tiles(sizes: Sequence[int]) -> list[int]:
    return [-(-size // TILE) for size in sizes]


def _pixels(x: jax.Array, before: Sequence[int], tiles: Sequence[int]) -> list[jax.Array]:
    """What the products read of images: for each row of a tile (4, pixels, in)."""
    images = moved(x, before, [TILE * number + 2 for number in tiles])
    rows = _differences(*_every_second(images, 4, tiles, axis=1))
    return [_stacked(_differences(*_every_second(row, 4, tiles, axis=2))) for row in rows]


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


def _weights(a: Any, b: Any, c: Any) -> list[Any]:
    even, odd = (a + c) / 2, b / 2
    return [a, even + odd, even - odd, c]


def _outputs(p: jax.Array, q: jax.Array, r: jax.Array, s: jax.Array) -> list[jax.Array]:
    return [p + q + r, q - r + s]
