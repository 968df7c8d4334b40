"""A frozen network's convolutions through oneDNN, with kernels laid out once as oneDNN wants them.

oneDNN changes the layout of a kernel (height, width, in, out) at each call, unless it is told that the kernel
has its layout already. Which layout that is depends on the processor, the images and the window, and XLA does
not say. For images with the channels last it is one of blocks of output channels, (out / block, height,
width, in, block); `block_of` finds the block by trying. The array is passed in the kernel's shape, which XLA
checks where its switch to oneDNN is on.

With JAX 0.10.2 on 2 cores, frozen, LeNet's forward pass is 1.20 times as fast at batch 1 and 1.07 at 16;
ResNet-18's 1.60 at batch 1, 1.28 at 2 and 1.05 at 16.

Where products of tiles are faster (`winograd`), the sums of weights that they read are prepared instead.

A call is a primitive of its own, since only its lowering knows whether the program is exported or divided
among devices. There, and under `vmap` and derivatives, it is the usual convolution.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from jaxperf.models import winograd
from jaxperf.models.convolution import VECTOR, call_onednn, computed_once, may_call_onednn
from jaxperf.models.window import Window

# The most frequent ones first: each try compiles a program, in 20 to 40 ms. Blocks of 24 are those of AVX2.
BLOCKS = (64, 32, 24, 48, 16, 8)
# Where the outputs do not fill the blocks, the call computes the outputs of whole blocks. oneDNN by itself
# only fills whole vectors, of at most 16 floats. With 9/8 as many outputs (64 in blocks of 24), the call took
# 1.1 times as long at batch 16; with 33/32 (256 and 512 in blocks of 24) it is 1.07 and 1.4 times as fast.
LANES, MOST_FILLING = 16, 17 / 16
LAYOUT = ("NHWC", "HWIO", "NHWC")
_packed_p = Primitive("prepacked_convolution")


@dataclass(frozen=True, eq=False)
class Packed:
    """A kernel, float32, as Flax has it and as oneDNN wants it.

    Attributes:
      kernel: (height, width, in, out).
      laid_out: the same weights as (out / block, height, width, in, block), in the shape of a kernel whose
        outputs fill the blocks; or, for products of tiles, their sums, (4, 4, in, out).
      window: how it moves; `spread` is 1 and the padding is not negative.
      tiles: whether products of tiles compute it.
    """

    kernel: Any
    laid_out: Any
    window: Window
    tiles: bool = False

    def usual(self, x: jax.Array) -> jax.Array:
        """The convolution as JAX computes it."""
        strides, padding, _, dilation = self.window
        return lax.conv_general_dilated(
            x, self.kernel, strides, padding, rhs_dilation=dilation, dimension_numbers=LAYOUT
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        """Convolve images (n, height, width, in), float32."""
        y: jax.Array = _packed_p.bind(x, packed=self)
        return y


def packed(kernel: Any, images: tuple[int, ...], window: Window) -> Packed | None:
    """Lay out a kernel for images of this shape; None if that gains nothing, or no layout is found.

    Args:
      kernel: (height, width, in, out), float32, a NumPy array.
      images: (n, height, width, in).
      window: how the kernel moves; `spread` is 1 and the padding is not negative.
    """
    if kernel.shape[2] < VECTOR:
        return None
    plain = Window(*(tuple(map(_plain, numbers)) for numbers in window))
    if winograd.pays(images, kernel.shape, plain):
        return Packed(kernel, np.stack([np.stack(row) for row in winograd.sums(kernel)]), plain, tiles=True)
    if not (block := block_of(images, kernel.shape, plain)):
        return None
    laid_out, outputs = in_blocks(kernel, block), kernel.shape[3]
    whole = outputs + -outputs % LANES
    return Packed(kernel, laid_out, plain) if laid_out.shape[3] <= MOST_FILLING * whole else None


def _plain(number: Any) -> Any:
    return tuple(map(int, number)) if isinstance(number, tuple | list) else int(number)


def in_blocks(kernel: Any, block: int) -> Any:
    """A kernel (height, width, in, out) in blocks of outputs, zeros where they end.

    Returns:
      An array that is to be read as (out / block, height, width, in, block), in the shape of a kernel.
    """
    h, w, n, out = kernel.shape
    whole = np.pad(kernel, ((0, 0), (0, 0), (0, 0), (0, -out % block)))
    laid_out = whole.reshape(h, w, n, -1, block).transpose(3, 0, 1, 2, 4)
    return np.ascontiguousarray(laid_out).reshape(whole.shape)


@functools.cache
def block_of(images: tuple[int, ...], kernel: tuple[int, ...], window: Window) -> int | None:
    """The block of output channels that oneDNN wants here, or None if it wants another layout.

    Tries random numbers, of which a wrong layout gives other results.
    """
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape, np.float32) for shape in (images, kernel))
    with jax.ensure_compile_time_eval():  # this may run while the network is traced
        wanted = np.asarray(jax.jit(lambda x, w: call_onednn(x, w, window))(x, w))
        for block in BLOCKS:
            laid_out = _before_nans(in_blocks(w, block))
            y = jax.jit(lambda x, w: call_onednn(x, w, window, packed=True))(x, laid_out)[..., : kernel[3]]
            if np.allclose(y, wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max()):
                return block
    return None


def _before_nans(laid_out: Any) -> Any:
    """The array in memory that goes on with NaNs, which a layout of more numbers than these would read.

    It is aligned to 64 bytes, so JAX passes this very memory.
    """
    h, w, n, out = laid_out.shape
    room = np.full(laid_out.size + h * w * (n + 64) * (out + 64), np.nan, np.float32)
    start = -room.ctypes.data % 64 // room.itemsize
    held = room[start : start + laid_out.size].reshape(laid_out.shape)
    held[:] = laid_out
    return held


def _lower(ctx: Any, x: Any, *, packed: Packed) -> Any:
    def call(x: jax.Array) -> jax.Array:
        if packed.tiles:
            return winograd.with_sums(computed_once(x), [*jnp.asarray(packed.laid_out)], packed.window)
        y = call_onednn(x, jnp.asarray(packed.laid_out), packed.window, packed=True)
        return y[..., : packed.kernel.shape[3]]

    ours = may_call_onednn(ctx.module_context)
    return mlir.lower_fun(call if ours else packed.usual, multiple_results=False)(ctx, x)


def _batched(args: Any, dims: Any, *, packed: Packed) -> Any:
    (x,), (dim,) = args, dims
    return jax.vmap(packed.usual)(jnp.moveaxis(x, dim, 0)), 0


def _result(x: Any, *, packed: Packed) -> Any:
    sizes = packed.window.sizes(x.shape, packed.kernel.shape)
    return jax.core.ShapedArray((x.shape[0], *sizes, packed.kernel.shape[3]), x.dtype)


def _jvp(xs: Any, changes: Any, *, packed: Packed) -> Any:
    return jax.jvp(packed.usual, xs, tuple(map(ad.instantiate_zeros, changes)))


_packed_p.def_impl(lambda x, *, packed: jax.jit(partial(_packed_p.bind, packed=packed))(x))
_packed_p.def_abstract_eval(_result)
mlir.register_lowering(_packed_p, _lower)
batching.primitive_batchers[_packed_p] = _batched
ad.primitive_jvps[_packed_p] = _jvp
