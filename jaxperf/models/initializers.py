"""The two initializations of the chapter's networks: the book's fixed width, and He's, set by the fan-in.

The values are those of `nnx.initializers`, up to rounding of the last bit, but they are drawn in another way.
XLA takes about 1 s of processor time to compile the drawing of one shape with four axes, and ResNet-18 has
twelve. Its first network took 15.9 s of processor time that way, and takes 3.2 s this way (JAX 0.10.2).
"""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike

Shape = tuple[int, ...]
Draw = Callable[..., jax.Array]  # of a key, `shape` and `dtype`


@functools.partial(jax.jit, static_argnums=(0, 2, 3))
def _drawn(draw: Draw, key: jax.Array, size: int, dtype: DTypeLike) -> jax.Array:
    return draw(key, shape=(size,), dtype=dtype)


def initializer(draw: Draw, std: Callable[[Shape], float]) -> nnx.Initializer:
    """Return the initializer that multiplies what `draw` gives by `std` of the shape.

    It draws 4^k values in a row, at least 4^8, and takes as many as the shape has. The i-th of them depends
    only on the key and i, so the surplus changes no value (a loop of another length may round the last bit
    differently), and all shapes share few programs: LeNet's two, ResNet-18's four.
    """

    def init(key: jax.Array, shape: Shape, dtype: DTypeLike = jnp.float32) -> jax.Array:
        n = math.prod(shape)
        size = 4 ** max(8, ((n - 1).bit_length() + 1) // 2)  # 4^8 take 1 ms; a program compiles in 400 ms
        values = _drawn(draw, key, size, jnp.dtype(dtype))
        if isinstance(values, jax.core.Tracer):
            return values[:n].reshape(shape) * jnp.asarray(std(shape), dtype)
        # In JAX, the slice, the reshape and the product would each be a program for each shape
        scaled = np.asarray(values)[:n].reshape(shape) * np.asarray(std(shape), values.dtype)
        return jax.device_put(scaled)

    return init


def _he(shape: Shape) -> float:
    spread = np.float32(0.87962566103423978)  # of a standard normal cut off at -2 and 2
    return float(np.sqrt(np.float32(2 / math.prod(shape[:-1]))) / spread)


BOOK_INIT: nnx.Initializer = initializer(jax.random.normal, lambda _: 0.01)
"""Normal with standard deviation 0.01, whatever the layer's width (sections 8.4 and 8.5)."""

_TRUNCATED = functools.partial(jax.random.truncated_normal, lower=-2, upper=2)
HE_INIT: nnx.Initializer = initializer(_TRUNCATED, _he)
"""Variance 2 / fan-in, which keeps the size of activations through relu layers (He et al., 2015)."""
