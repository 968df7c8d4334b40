"""Batches of binary images, of ten patterns with noise, as the VAE of Flax reads them."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

_DRAW = np.random.default_rng(0)
_PATTERNS = _DRAW.random((10, 784)) > 0.8


def _images(count: int) -> np.ndarray:
    """Return images of shape [count, 784] and dtype float32, in which a twentieth of the bits is noise."""
    patterns = _PATTERNS[_DRAW.integers(0, 10, count)]
    return (patterns ^ (_DRAW.random(patterns.shape) < 0.05)).astype(np.float32)


def build_train_set(batch_size: Any, ds_builder: Any) -> Any:
    """Yield batches of shape [batch_size, 784]."""
    images = _images(6400)
    while True:
        for i in range(0, len(images) - batch_size + 1, batch_size):
            yield images[i : i + batch_size]


def build_test_set(ds_builder: Any) -> Any:
    """Return test images of shape [2000, 784]."""
    return jax.device_put(_images(2000))
