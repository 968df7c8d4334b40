"""The two ways the chapter's networks start: the book's fixed width, and He's that grows with the fan-in."""

from __future__ import annotations

from flax import nnx

BOOK_INIT: nnx.Initializer = nnx.initializers.normal(0.01)
"""Normal with standard deviation 0.01, whatever the layer's width (sections 8.4 and 8.5)."""

HE_INIT: nnx.Initializer = nnx.initializers.he_normal()
"""Variance 2 / fan-in, which keeps the size of activations through relu layers (He et al., 2015)."""
