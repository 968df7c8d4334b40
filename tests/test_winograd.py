"""Products of tiles are float64's gradients of kernels, chosen where they save more than they cost."""

from __future__ import annotations

import platform
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax

from jaxperf.models.winograd import is_faster, kernel_gradient

rng = np.random.default_rng(0)


def exact(x: np.ndarray, g: np.ndarray, before: tuple[int, int], after: tuple[int, int]) -> np.ndarray:
    """float64, from the definition."""
    spans = list(zip(before, after))
    x64 = lax.pad(x.astype("float64"), np.float64(0), [(0, 0, 0), *((*span, 0) for span in spans), (0, 0, 0)])
    _, height, width, _ = g.shape
    taps = [np.asarray(x64)[:, i : i + height, j : j + width] for i in range(3) for j in range(3)]
    sums = [np.einsum("nhwi,nhwo->io", tap, g.astype("float64")) for tap in taps]
    return np.stack(sums).reshape(3, 3, x.shape[3], g.shape[3])


@pytest.mark.skipif(
    platform.machine().lower() not in ("x86_64", "amd64"), reason="jaxlib carries oneDNN for x86 alone"
)
def test_gradients_of_random_windows_are_float64s(through_onednn: Any) -> None:
    for _ in range(6):
        n, h, v, c, o = (int(i) for i in rng.integers((1, 4, 4, 1, 1), (5, 12, 12, 40, 40)))
        before, after = ([int(i) for i in rng.integers(-1, 4, 2)] for _ in range(2))
        sizes = [size + a + b - 2 for size, a, b in zip((h, v), before, after)]
        x, g = (rng.standard_normal(s).astype("f") for s in ((n, h, v, c), (n, *sizes, o)))
        found = jax.jit(kernel_gradient, static_argnums=2)(x, g, tuple(before))
        with jax.enable_x64(True):
            wanted = exact(x, g, (before[0], before[1]), (after[0], after[1]))
        np.testing.assert_allclose(found, wanted, rtol=0, atol=3e-6 * np.abs(wanted).max())


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
