"""Convolutions on a CPU through oneDNN's kernels, which jaxlib contains and JAX before 0.12 never calls.

XLA gives every CPU convolution to YNNPACK, forward and backward. oneDNN's kernel is faster, and can be
called by its name without a flag. One device's training step on 2 cores with JAX 0.10.2: LeNet, batch 256,
2.1 times the images/s (2.0 to 2.4); ResNet-18, batch 32, 2.1 (1.6 to 2.3). It is undecided whether barriers
around the calls (0.98, 0.86 to 1.04) or BatchNorm's derivative written out (1.06, 0.97 to 1.11) gain
anything.

`use_onednn` gives JAX another rule for lowering convolutions, so every convolution gets the kernel: in
Flax's layers, the reader's own, their gradients of any order, vmap, pmap and shard_map. JAX's own rule
still applies where the new one does not fit: types other than float32, programs to be exported, programs
that XLA divides among devices (it cannot divide a call), groups, other than two spatial dimensions, and
channels that are not last.

With XLA's switch to oneDNN (`calls.switched`, JAX 0.12) the rule calls nothing by name. It only has gradients
of kernels computed as JAX's own products (`kernel_gradient`) or convolutions of pieces, and XLA has oneDNN
compute those and the rest. `jaxperf.onednn.trial` tries all of this in a separate process before anything
depends on it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxperf.jax_internals import LOWER_FUNCTION, LOWERINGS, REGISTER_LOWERING, get
from jaxperf.onednn import calls
from jaxperf.onednn.calls import switched
from jaxperf.onednn.kernel_gradient import in_one_product, kernel_gradient, products_are_faster
from jaxperf.onednn.window import FEW_PRODUCTS, Window, product_of_patches

_LAST = (0, 3, 1, 2)  # images, channels, height, width in an array with the channels last
_OF_WEIGHTS = (3, 0, 1, 2)  # the same array read with its channels as images: the gradient of a kernel
# With fewer input channels than a vector has floats, oneDNN is faster if the outputs fill whole vectors. With
# 24 channels instead of LeNet's first 20, its forward pass is 1.07 times as fast (1.01 to 1.12) at batch 16
# and 1.05 (1.02 to 1.07) at 128; for its training step the gain is undecided.
VECTOR = 8
# The convolution that computes a kernel's gradient takes the output's gradient for a kernel, with the images
# as channels, and reads all of it for each channel of the images. Both must be transposed for it, which XLA
# does slowly where the images lie far apart. So the gradient is the sum over pieces of a batch, of so many
# bytes (both operands). Intel Xeon, 2 MB of second-level cache per core: one layer with 4 to 64 channels, 128
# to 512 images, 1.0 to 2.6 times as fast; LeNet's step, batch 128, 256 and 512, 1.15, 1.49 and 1.47 times.
PIECE_BYTES, LEAST_IMAGES, MOST_PIECES = 3_000_000, 16, 32


def use_onednn() -> None:
    """Lower this process's convolutions through oneDNN from now on; calling it again has no effect.

    Raises:
      JaxperfError: this JAX lacks a private name that this needs.
    """
    rules, register, lower_function = map(get, (LOWERINGS, REGISTER_LOWERING, LOWER_FUNCTION))
    default = rules["cpu"][lax.conv_general_dilated_p].rule
    if getattr(default, "func", None) is not _lower:
        rule = partial(_lower, default, lower_function)
        register(lax.conv_general_dilated_p, rule, platform="cpu")


def _lower(default: Any, lower_function: Any, ctx: Any, lhs: Any, rhs: Any, **params: Any) -> Any:
    if not (may_call_onednn(ctx.module_context) and _fits(ctx, params)):
        return default(ctx, lhs, rhs, **params)
    numbers = params["dimension_numbers"]
    window = Window(
        params["window_strides"], params["padding"], params["lhs_dilation"], params["rhs_dilation"]
    )
    x, w = (aval.shape for aval in ctx.avals_in)
    if switched() and not (_as_products(x, w, numbers, window) or _images_at_a_time(x, w, numbers)):
        return default(ctx, lhs, rhs, **params)
    rule = lower_function(partial(_convolve, window=window, params=params), multiple_results=False)
    return rule(ctx, lhs, rhs)


def may_call_onednn(module: Any) -> bool:
    """Return whether XLA gets the program as one device runs it, here and not through an export.

    Args:
      module: the context of a lowering rule's module.
    """
    context = module.axis_context
    if module.lowering_parameters.for_export:
        return False
    if hasattr(context, "num_devices"):
        return bool(context.num_devices == 1)
    return not hasattr(context, "mesh") or set(context.mesh.axis_names) == set(context.manual_axes)


def _fits(ctx: Any, params: dict[str, Any]) -> bool:
    x, w = ctx.avals_in
    spread, strides, numbers = params["lhs_dilation"], params["window_strides"], params["dimension_numbers"]
    return (
        {x.dtype, w.dtype, ctx.avals_out[0].dtype} == {jnp.dtype("float32")}
        and x.ndim == 4
        and params["feature_group_count"] == params["batch_group_count"] == 1
        and tuple(numbers.lhs_spec) in (_LAST, _OF_WEIGHTS)
        and (max(spread) == 1 or max(strides) == 1)
        and 0 not in (*x.shape, *w.shape, *ctx.avals_out[0].shape)
        and all(isinstance(n, int) for n in (*x.shape, *w.shape))
        and not (x.shape[numbers.lhs_spec[0]] == 1 and w.size // w.shape[numbers.rhs_spec[0]] <= FEW_PRODUCTS)
    )


def _as_products(x: Sequence[int], w: Sequence[int], numbers: Any, window: Window) -> Sequence[int] | None:
    """Return the shape of the kernel whose gradient this is, if products are faster; else None."""
    images, kernel, _ = numbers
    if tuple(images) != _OF_WEIGHTS or max(*window.spread, *window.strides) > 1:
        return None
    taps = window.sizes([0, x[images[2]], x[images[3]]], [w[kernel[2]], w[kernel[3]]])
    shape = *taps, x[images[0]], w[kernel[0]]
    return shape if products_are_faster(shape, window.dilation) else None


def _images_at_a_time(x: Sequence[int], w: Sequence[int], numbers: Any) -> int | None:
    """For how many images at a time to compute the gradient of a kernel; None for all of them at once."""
    if tuple(numbers.lhs_spec) != _OF_WEIGHTS:
        return None
    number = x[numbers.lhs_spec[1]]
    fit = PIECE_BYTES * number // (4 * (math.prod(x) + math.prod(w)))
    piece = max(LEAST_IMAGES, 1 << max(fit, 1).bit_length() - 1, -(-number // MOST_PIECES))
    return piece if piece < number else None


def _convolve(x: jax.Array, w: jax.Array, *, window: Window, params: dict[str, Any]) -> jax.Array:
    """Return the convolution, with operands and result in the layout that `params` give."""
    numbers = params["dimension_numbers"]
    images, kernel, result = numbers
    once = (lambda a: a) if switched() else computed_once  # with the switch, others read the arrays too
    x = once(x)
    if shape := _as_products(x.shape, w.shape, numbers, window):
        g = w if in_one_product(shape) else once(w)  # one product is all that reads it here
        g = g.transpose(kernel[1], *kernel[2:], kernel[0])
        dw = kernel_gradient(x, g, shape, strides=window.dilation, padding=window.padding)
        return _placed(dw.transpose(2, 0, 1, 3), result)
    if switched():
        one = partial(lax.conv_general_dilated_p.bind, **params)
    else:
        one = partial(_by_name, numbers=numbers, window=window)
    if not (piece := _images_at_a_time(x.shape, w.shape, numbers)):
        return one(x, w)
    number = x.shape[images[1]]
    spans = [(i, min(i + piece, number)) for i in range(0, number, piece)]
    first, *others = [
        one(*(lax.slice_in_dim(a, *span, axis=n) for a, n in ((x, images[1]), (w, kernel[1]))))
        for span in spans
    ]
    return sum(others, start=first)


def _by_name(x: jax.Array, w: jax.Array, *, numbers: Any, window: Window) -> jax.Array:
    """Return the convolution through oneDNN's kernel, with operands and result in the layout of `numbers`."""
    images, kernel, result = numbers
    x = x.transpose(images[0], *images[2:], images[1])
    w = w.transpose(*kernel[2:], kernel[1], kernel[0])
    return _placed(_spread(x, w, window) if max(window.spread) > 1 else _onednn(x, w, window), result)


def computed_once(x: jax.Array) -> jax.Array:
    """`x`, computed once and kept, which XLA would compute again in each operation that reads it.

    XLA repeats what is cheap, such as BatchNorm and relu, but no division by an array; a barrier is gone
    before it fuses. The divisors are ones, which LLVM finds out and leaves out. A step is 1.03 (1.02 to 1.05)
    times as fast for LeNet, batch 16; 1.03 (1.02 to 1.04), 1.01 (1.00 to 1.02) for ResNet-18, batch 32, 64.
    """
    bits = lax.bitcast_convert_type(x, jnp.int32)
    return x / ((bits | 1) & 1).astype(x.dtype)


def _placed(y: jax.Array, result: Sequence[int]) -> jax.Array:
    """Return a convolution's result (n, height, width, out), with its axes where `result` wants them."""
    back = [0] * 4
    for axis, place in enumerate((result[0], *result[2:], result[1])):
        back[place] = axis
    return y.transpose(back)


def _spread(x: jax.Array, w: jax.Array, window: Window) -> jax.Array:
    """Return the convolution of images with zeros between their pixels, without ever multiplying by one.

    With a spread of s, every s-th pixel of the result reads the same taps of the kernel, so the result is
    s x s small convolutions of the original images, interleaved.
    """
    sizes = [
        (n - 1) * s + 1 + sum(pad) - (k - 1) * d
        for n, s, pad, k, d in zip(x.shape[1:3], window.spread, window.padding, w.shape, window.dilation)
    ]
    s, t = window.spread
    rows = [jnp.stack([_phase(x, w, window, sizes, (r, q)) for q in range(t)], axis=3) for r in range(s)]
    y = jnp.stack(rows, axis=2)
    n, h, _, v, _, c = y.shape
    return y.reshape(n, h * s, v * t, c)[:, : sizes[0], : sizes[1]]


def _phase(
    x: jax.Array, w: jax.Array, window: Window, sizes: Sequence[int], at: tuple[int, int]
) -> jax.Array:
    """Every s-th pixel of `_spread`'s result in both directions, from pixel `at` on."""
    kernel, padding, steps = w, [], []
    for axis in (0, 1):
        s, d, low = window.spread[axis], window.dilation[axis], window.padding[axis][0]
        taps = [i for i in range(w.shape[axis]) if (at[axis] - low + i * d) % s == 0]
        if not taps:
            return jnp.zeros((len(x), *[-(-n // s) for n, s in zip(sizes, window.spread)], w.shape[3]))
        gap = taps[1] - taps[0] if len(taps) > 1 else 1
        kernel = lax.slice_in_dim(kernel, taps[0], taps[-1] + 1, gap, axis)
        steps.append(gap * d // s if len(taps) > 1 else 1)
        first = (at[axis] - low + taps[0] * d) // s  # the pixel that the first tap of the first output reads
        last = first + -(-sizes[axis] // s) - 1 + (len(taps) - 1) * steps[axis]
        padding.append((-first, last - (x.shape[1 + axis] - 1)))
    return _onednn(x, kernel, Window((1, 1), padding, (1, 1), steps))


def _onednn(x: jax.Array, w: jax.Array, window: Window) -> jax.Array:
    """oneDNN's kernel: images NHWC, kernel HWIO, result NHWC. Negative padding crops the images first."""
    cut = [slice(max(0, -a), n - max(0, -b)) for (a, b), n in zip(window.padding, x.shape[1:3])]
    x = x[:, cut[0], cut[1]]
    padding = [(max(0, a), max(0, b)) for a, b in window.padding]
    window = window._replace(padding=padding)
    if window.few_pixels(x.shape, w.shape):
        return product_of_patches(x, w.reshape(-1, w.shape[3]).T, w.shape, window)
    outputs = w.shape[3]
    if w.shape[2] < VECTOR:
        w = jnp.pad(w, (*((0, 0),) * 3, (0, -outputs % VECTOR)))
    return calls.convolution(x, w, window)[..., :outputs]
