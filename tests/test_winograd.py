"""Products of tiles are float64's convolutions and gradients, chosen where they save more than they cost."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxperf.models.window import Window
from jaxperf.models.winograd import VARIABLE, convolution, is_faster, kernel_gradient

rng = np.random.default_rng(0)
x86 = pytest.mark.skipif(
    platform.machine().lower() not in ("x86_64", "amd64"), reason="jaxlib carries oneDNN for x86 alone"
)


def framed(x: np.ndarray, before: Sequence[int], after: Sequence[int]) -> np.ndarray:
    spans = ((low, high, 0) for low, high in zip(before, after))
    with jax.enable_x64(True):
        return np.asarray(lax.pad(x.astype("float64"), np.float64(0), [(0, 0, 0), *spans, (0, 0, 0)]))


def window() -> tuple[list[int], list[int], list[int], list[int], list[int]]:
    """Images' n, height, width; channels and outputs; what is before and after them; the result's size."""
    n, h, v, c, o = (int(i) for i in rng.integers((1, 4, 4, 1, 1), (5, 12, 12, 40, 40)))
    before, after = ([int(i) for i in rng.integers(-1, 4, 2)] for _ in range(2))
    sizes = [size + a + b - 2 for size, a, b in zip((h, v), before, after)]
    return [n, h, v], [c, o], before, after, sizes


def normal(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype("f")


def close(found: jax.Array, wanted: np.ndarray) -> None:
    np.testing.assert_allclose(found, wanted, rtol=0, atol=3e-6 * np.abs(wanted).max())


def taps(x: np.ndarray, sizes: Sequence[int]) -> list[tuple[int, int, np.ndarray]]:
    return [(i, j, x[:, i : i + sizes[0], j : j + sizes[1]]) for i in range(3) for j in range(3)]


@x86
def test_gradients_of_kernels_with_random_windows_are_float64s(through_onednn: Any) -> None:
    for _ in range(6):
        images, (c, o), before, after, sizes = window()
        x, g = normal(*images, c), normal(images[0], *sizes, o)
        found = jax.jit(kernel_gradient, static_argnums=2)(x, g, tuple(before))
        met = taps(framed(x, before, after), sizes)
        close(found, np.stack([np.einsum("nhwi,nhwo->io", tap, g) for *_, tap in met]).reshape(3, 3, c, o))


@x86
def test_convolutions_with_random_windows_are_float64s(through_onednn: Any) -> None:
    for transposed in (False, True) * 3:
        images, (c, o), before, after, sizes = window()
        x, w = normal(*images, c), normal(3, 3, c, o)
        moves = Window((1, 1), tuple(zip(before, after)), (1, 1), (1, 1))
        fn = partial(convolution, window=moves, transposed=transposed)
        found = jax.jit(fn)(x, w.swapaxes(2, 3) if transposed else w)
        close(found, sum(tap @ w[i, j] for i, j, tap in taps(framed(x, before, after), sizes)))


@x86
def test_layers_and_their_images_gradients_are_computed_so_where_a_variable_says_that_it_pays(
    through_onednn: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, kernels = normal(8, 10, 10, 160), {"HWIO": normal(3, 3, 160, 160)}
    kernels["OIHW"] = kernels["HWIO"].transpose(3, 2, 0, 1)

    def both(layout: str, x: jax.Array, w: jax.Array) -> tuple[jax.Array, jax.Array]:
        conv = partial(
            lax.conv_general_dilated,
            window_strides=(1, 1),
            padding="SAME",
            dimension_numbers=("NHWC", layout, "NHWC"),
        )
        y, back = jax.vjp(lambda x: conv(x, w), x)
        return y, back(jnp.cos(jnp.arange(y.size, dtype=y.dtype)).reshape(y.shape))[0]

    for layout, w in kernels.items():
        found = []
        for told, calls in (("1", 8), ("0", 0)):
            monkeypatch.setenv(VARIABLE, told)
            program = jax.jit(lambda *a, layout=layout: both(layout, *a)).lower(x, w).compile()
            assert (program.as_text() or "").count('"__onednn$matmul"') == calls
            found.append(program(x, w))
        for a, b in zip(*found, strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * np.abs(b).max())


def test_few_channels_few_tiles_and_other_kernels_are_not_faster() -> None:
    for faster, kernel, outputs in (
        (True, (3, 3, 64, 64), (32, 28, 28)),
        (True, (3, 3, 32, 128), (32, 28, 28)),
        (True, (3, 3, 512, 512), (32, 4, 4)),
        (False, (3, 3, 32, 32), (32, 28, 28)),
        (False, (3, 3, 8, 512), (32, 28, 28)),
        (False, (3, 3, 512, 512), (2, 4, 4)),  # as many sums over taps as with 256 images
        (False, (3, 3, 128, 128), (32, 3, 3)),  # 16 pixels are computed for 9
        (False, (5, 5, 64, 64), (32, 28, 28)),
        (False, (1, 1, 64, 64), (32, 28, 28)),
    ):
        assert is_faster(kernel, outputs) is faster, (kernel, outputs)
