"""A kernel on its way over images: products of patches are the convolution."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax import lax

from jaxperf.onednn.window import FEW_PIXELS, MANY_WEIGHTS, Window, product_of_patches


@pytest.mark.thorough
def test_random_products_equal_float64s_convolution_and_have_the_size_that_was_said() -> None:
    rng = np.random.default_rng(0)
    for _ in range(8):
        n, h, v, channels, outputs, rows, columns = (
            int(a) for a in rng.integers((1, 7, 7, 1, 1, 1, 1), (4, 12, 12, 4, 6, 4, 4))
        )
        pairs = [
            [(int(a), int(b)) for a, b in rng.integers(low, high, (2, 2))] for low, high in ((1, 4), (0, 3))
        ]
        window = Window(pairs[0][0], pairs[1], (1, 1), (int(rng.integers(1, 3)), 1))
        x, w = (
            rng.standard_normal((n, h, v, channels)),
            rng.standard_normal((rows, columns, channels, outputs)),
        )
        with jax.enable_x64(True):
            exact = lax.conv_general_dilated(
                x, w, window.strides, window.padding,
                rhs_dilation=window.dilation, dimension_numbers=("NHWC", "HWIO", "NHWC"),
            )  # fmt: skip
        x, w = x.astype("float32"), w.astype("float32")
        assert exact.shape == (n, *window.sizes(x.shape, w.shape), outputs)
        patches = product_of_patches(x, w.reshape(-1, outputs).T, w.shape, window)
        np.testing.assert_allclose(patches, exact, rtol=1e-4, atol=1e-5)


def test_few_pixels_need_many_weights() -> None:
    window = Window((1, 1), ((1, 1), (1, 1)), (1, 1), (1, 1))
    images = (FEW_PIXELS // 16, 4, 4, 512)
    assert window.few_pixels(images, (3, 3, 512, MANY_WEIGHTS // (9 * 512) + 1))
    assert not window.few_pixels(images, (3, 3, 512, MANY_WEIGHTS // (9 * 512)))
    assert not window.few_pixels((images[0] + 1, *images[1:]), (3, 3, 512, 512))
