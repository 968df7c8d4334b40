"""The gradient of a convolution's kernel, as products through oneDNN of arrays as they lie.

JAX asks for this gradient as a convolution: of the images, read with their channels as a batch, with the
output's gradient as a kernel of 28 x 28. Both operands must be transposed for it, and oneDNN, which is made
for small kernels, reads the whole gradient again for each channel of the images. But each of the 3 x 3
pieces of the result is one product: the images moved by some pixels (rows: all pixels of all images;
columns: channels), transposed, times the gradient. oneDNN's product reads its first operand transposed at
full speed.

Moves along the width are made with the gradient, whose 3 copies lie side by side, those along the height
with the images: 3 + 3 copies instead of 9, and 3 larger products instead of 9.

Over oneDNN's convolution with its transpositions, JAX 0.10.2, 2 cores of an EPYC with AVX-512: one layer of
64 channels on 28 x 28 pixels 1.7 times as fast, 128 on 14 x 14 1.7, 256 on 7 x 7 1.4, 512 on 4 x 4 1.5 (32
images; with 128 images 2.5, 1.7, 2.0, 1.2). ResNet-18's step, batch 32: 1.31 (1.29 to 1.32). A barrier
behind the copies changes nothing.

Where images have few channels, as in a network's first layer, each tap of each channel becomes one row: the
pixels that it met in all images. The gradient is one product of these rows and the output's gradient, of
which nothing is moved or copied.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from jaxperf.onednn.calls import product
from jaxperf.onednn.window import moved

# Outside of these the convolution is as fast or faster: for one layer, 32 to 128 images, products took 0.6 to
# 1.6 times as long with 5 x 5 kernels, 1.1 to 3 times with few channels, and 1.0 to 1.6 times for strided
# kernels that do not have more outputs than inputs, whose images need a copy for each tap.
MOST_TAPS = 9
LEAST_INPUTS, LEAST_OUTPUTS = 8, 16
# With fewer inputs, one product of so many rows is 1.0 to 3.1 times as fast as the convolution (up to 8 times
# for 1 x 1 kernels): 3 x 3 kernels over one or three channels, 5 x 5 over one, 4 to 64 outputs, strides of 1
# to 3, 2 to 512 images. With 36 to 75 rows it took 0.5 to 1.7 times as long. LeNet's step, batch 256: 1.22
# (1.20 to 1.24).
MOST_ROWS = 27


def products_are_faster(kernel: Sequence[int], strides: Sequence[int]) -> bool:
    """Return whether `kernel_gradient` is faster than a convolution.

    Args:
      kernel: shape of the kernel, (height, width, in, out).
      strides: with which the kernel moved.
    """
    height, width, inputs, outputs = kernel
    if in_one_product(kernel):
        return True
    if height * width > MOST_TAPS or inputs < LEAST_INPUTS or outputs < LEAST_OUTPUTS:
        return False
    return max(strides) == 1 or height * width == 1 or outputs > inputs


def in_one_product(kernel: Sequence[int]) -> bool:
    """Return whether one product computes the whole gradient, and reads the output's gradient as it lies."""
    return kernel[2] < LEAST_INPUTS and math.prod(kernel[:3]) <= MOST_ROWS


def kernel_gradient(
    x: jax.Array,
    g: jax.Array,
    kernel: Sequence[int],
    *,
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
) -> jax.Array:
    """Return the gradient of a kernel that is not dilated, (height, width, in, out), float32.

    Args:
      x: images (n, height, width, in), float32.
      g: the gradient of the convolution's output, (n, height, width, out), float32.
      kernel: shape of the kernel, (height, width, in, out).
      strides: with which the kernel moved.
      padding: the zeros before the first row and column; negative where they were cut off. Those behind the
        last ones follow from the shapes.
    """
    (top, _), (left, _) = padding
    if in_one_product(kernel):
        return _of_few_channels(x, g, kernel, strides, (top, left))
    if max(strides) > 1:
        return _of_strided(x, g, kernel, strides, (top, left))
    height, width, inputs, outputs = kernel
    rows, columns = g.shape[1], x.shape[2]
    beside = [moved(g, (0, j - left), (rows, columns)) for j in range(width)]
    above = [moved(x, (top - i, 0), (rows, columns)) for i in range(height)]
    wide = jnp.stack(beside, 3).reshape(-1, width * outputs)
    products = [product(_rows(images), wide, transposed=(True, False)) for images in above]
    return jnp.stack(products).reshape(height, inputs, width, outputs).transpose(0, 2, 1, 3)


def _of_few_channels(
    x: jax.Array, g: jax.Array, kernel: Sequence[int], strides: Sequence[int], before: Sequence[int]
) -> jax.Array:
    places = _taps(x, g, kernel, strides, before)
    taps = [tap[..., c] for row in places for tap in row for c in range(kernel[2])]
    return product(jnp.stack(taps).reshape(len(taps), -1), _rows(g)).reshape(kernel)


def _of_strided(
    x: jax.Array, g: jax.Array, kernel: Sequence[int], strides: Sequence[int], before: Sequence[int]
) -> jax.Array:
    beside = [
        jnp.stack(row, 3).reshape(-1, kernel[1] * kernel[2]) for row in _taps(x, g, kernel, strides, before)
    ]
    return jnp.stack([product(row, _rows(g), transposed=(True, False)) for row in beside]).reshape(kernel)


def _taps(
    x: jax.Array, g: jax.Array, kernel: Sequence[int], strides: Sequence[int], before: Sequence[int]
) -> list[list[jax.Array]]:
    """For each row and column of the kernel, the pixels that it met: (n, height, width, in) of g's size."""
    (s, t), (top, left) = strides, before
    size = (s * (g.shape[1] - 1) + 1, t * (g.shape[2] - 1) + 1)
    return [
        [moved(x, (top - i, left - j), size)[:, ::s, ::t] for j in range(kernel[1])] for i in range(kernel[0])
    ]


def _rows(images: jax.Array) -> jax.Array:
    return images.reshape(-1, images.shape[3])
