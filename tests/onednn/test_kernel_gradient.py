"""Gradients of kernels as oneDNN's products are float64's, wherever convolutions get them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxperf.onednn import trial
from jaxperf.onednn.kernel_gradient import in_one_product, products_are_faster

pytestmark = pytest.mark.skipif(
    trial._jaxlib() is None or trial.has_switch(),
    reason="called by name on x86 alone, and before jaxlib 0.12",
)
rng = np.random.default_rng(0)
START = rng.bit_generator.state  # of each test: no other test, and no order of them, changes its data


@pytest.fixture(autouse=True)
def onednn(through_onednn: Any) -> None:
    rng.bit_generator.state = START


def normal(*shape: int) -> Any:
    return rng.standard_normal(shape).astype("float32")


def gradient(x: Any, w: Any, **options: Any) -> jax.Array:
    """The gradient of a kernel under a loss whose slope differs from output to output."""
    usual: dict[str, Any] = {"window_strides": (1, 1), "padding": "SAME"}

    def conv(w: Any) -> jax.Array:
        return lax.conv_general_dilated(x, w, dimension_numbers=("NHWC", "HWIO", "NHWC"), **usual | options)

    y, back = jax.vjp(conv, w)
    slope = jnp.cos(jnp.arange(y.size, dtype=jnp.float32)).astype(y.dtype).reshape(y.shape)
    return back(slope)[0]


def products(fn: Callable[..., Any], *args: Any) -> int:
    return jax.jit(lambda *a: fn(*a)).lower(*args).as_text().count("custom_call @__onednn$matmul(")


def exact(x: Any, w: Any, **options: Any) -> Any:
    """float64 keeps JAX's own convolution."""
    with jax.enable_x64(True):
        return np.asarray(gradient(x.astype("float64"), w.astype("float64"), **options))


def assert_close(actual: Any, wanted: Any) -> None:
    np.testing.assert_allclose(actual, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())


@pytest.mark.parametrize("several", [1, pytest.param(15, marks=pytest.mark.thorough)])
def test_gradients_of_random_kernels_are_float64s(several: int) -> None:
    for _ in range(several):
        n, h, v, k, stride = (int(i) for i in rng.integers((1, 4, 4, 1, 1), (6, 15, 15, 4, 4)))
        c = int(rng.choice([1, 3, *range(8, 20)]))
        o = int(rng.integers(max(16, c + 1), 40))
        tall = int(rng.integers(1, k + 1))
        low, high = (int(i) for i in rng.integers(-1, k + 2, 2))
        window = {"window_strides": (stride, 1), "padding": ((low, high), (high, low))}
        x, w = normal(n, h, v, c), normal(tall, k, c, o)
        fn = partial(gradient, **window)
        wanted = 1 if in_one_product(w.shape) else tall
        assert products(fn, x, w) == wanted, (x.shape, w.shape, window)
        assert_close(jax.jit(fn)(x, w), exact(x, w, **window))


@pytest.mark.thorough
def test_few_channels_many_taps_and_copies_without_a_gain_keep_the_convolution() -> None:
    x = normal(2, 9, 9, 16)
    for fits, w, window in (
        (True, normal(3, 3, 16, 16), {}),
        (False, normal(3, 3, 16, 15), {}),
        (False, normal(5, 5, 16, 16), {}),
        (False, normal(3, 3, 16, 16), {"window_strides": (2, 2)}),
        (True, normal(3, 3, 16, 17), {"window_strides": (2, 2)}),
        (True, normal(1, 1, 16, 16), {"window_strides": (2, 2)}),
        (False, normal(3, 3, 16, 32), {"rhs_dilation": (2, 2)}),
    ):
        fn = partial(gradient, **window)
        assert (products(fn, x, w) > 0) is fits, (w.shape, window)
        assert_close(jax.jit(fn)(x, w), exact(x, w, **window))
    assert not products_are_faster((3, 3, 7, 64), (1, 1))
    assert products_are_faster((5, 5, 1, 1), (3, 3)) and not products_are_faster((5, 5, 2, 64), (1, 1))


def test_many_channels_have_a_product_for_each_row() -> None:
    for x, w, padding in (
        (normal(4, 11, 8, 64), normal(3, 3, 64, 64), ((1, 1), (2, 0))),
        (normal(8, 9, 12, 64), normal(3, 3, 64, 64), "VALID"),
    ):
        fn = partial(gradient, padding=padding)
        assert products(fn, x, w) == 3
        assert_close(jax.jit(fn)(x, w), exact(x, w, padding=padding))


def test_the_gradient_of_a_first_layer_is_one_product() -> None:
    x, w, window = normal(2, 9, 9, 3), normal(3, 3, 3, 8), {"window_strides": (2, 2), "padding": "VALID"}
    fn = partial(gradient, **window)
    assert products(fn, x, w) == 1
    assert_close(jax.jit(fn)(x, w), exact(x, w, **window))


def test_images_and_gradients_are_not_transposed() -> None:
    for x, w in ((normal(2, 9, 9, 16), normal(3, 3, 16, 16)), (normal(2, 9, 9, 1), normal(3, 3, 1, 16))):
        large = [
            line for line in jax.jit(gradient).lower(x, w).as_text().splitlines()
            if "stablehlo.transpose" in line and "2x9x9" in line.split("->")[0]
        ]  # fmt: skip
        large_products = [line for line in large if "dims = [0, 1, 2, 3]" not in line]
        # images of one channel may be, since no number changes its place
        assert not [line for line in large_products if "x1xf32>) -> tensor<1x" not in line]


def test_with_xlas_switch_the_products_are_jax_own_and_nothing_is_called_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(
        "XLA_FLAGS", "--xla_cpu_experimental_onednn_custom_call=true"
    )  # read by the rule alone
    few, many = (normal(2, 9, 9, 1), normal(5, 5, 1, 20)), (normal(2, 9, 9, 16), normal(3, 3, 16, 16))
    strided = normal(2, 9, 9, 8), normal(3, 3, 8, 16)
    for (x, w), number, stride in ((few, 1, 1), (many, 3, 1), (strided, 3, 2)):
        fn = partial(gradient, window_strides=(stride, stride))
        text = jax.jit(lambda *a, fn=fn: fn(*a)).lower(x, w).as_text()
        assert "onednn" not in text
        assert text.count("stablehlo.dot_general") == number
    x, w = strided
    assert_close(jax.jit(fn)(x, w), exact(x, w, window_strides=(2, 2)))
