"""oneDNN's convolution and product: by XLA's switch where jaxlib has it (0.12), else by their private names.

With the switch on, a product is JAX's own, which XLA hands to oneDNN, and nothing is called by name. The
names and their configurations are private to XLA: `jaxperf.onednn.trial` tries them in a separate process,
and compares the results, before anything depends on them. A configuration is what XLA's rewriter attaches to
such a call: the fields of its protocol buffer, as JSON. With ONEDNN_VERBOSE=1, oneDNN prints each call with
the kernel that it chose, the layouts and the milliseconds.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

import jax
from jax import lax

from jaxperf.onednn.window import Window

_OPTIMIZATION = {"bias_broadcast": False, "user_scratchpad": False, "weights_prepacked": False}


def switched() -> bool:
    """Return whether XLA's switch is on: XLA itself then has oneDNN compute convolutions and products."""
    return "onednn_custom_call=true" in os.environ.get("XLA_FLAGS", "")


def convolution(x: jax.Array, w: jax.Array, window: Window) -> jax.Array:
    """Convolve images with a kernel; by name.

    Args:
      x: images (n, height, width, in), float32.
      w: the kernel, (height, width, in, out), float32.
      window: how the kernel moves; `spread` is 1 and the padding is not negative.
    """
    shape = len(x), *window.sizes(x.shape, w.shape), w.shape[3]
    return _call("convolution", shape, _convolution_config(w.shape, window), x, w)


def product(a: jax.Array, b: jax.Array, *, transposed: Sequence[bool] = (False, False)) -> jax.Array:
    """Multiply a (m, k) by b (k, n), float32, as they lie in memory; by name unless `switched`.

    Args:
      a, b: the matrices, or their transposes.
      transposed: which of them are transposes.
    """
    if switched():
        summed = [int(not transposed[0])], [int(transposed[1])]
        return lax.dot_general(a, b, (summed, ((), ())))
    layout = {"dims": "2"}
    config = {
        "transpose_a": transposed[0],
        "transpose_b": transposed[1],
        "lhs": layout,
        "rhs": layout,
        "result": layout,
        "optimization_config": _OPTIMIZATION,
    }
    rows, columns = a.shape[transposed[0]], b.shape[not transposed[1]]
    return _call("matmul", (rows, columns), config, a, b)


def _call(name: str, shape: tuple[int, ...], config: dict[str, Any], a: jax.Array, b: jax.Array) -> jax.Array:
    field = {"convolution": "onednn_conv_config", "matmul": "onednn_matmul_config"}[name]
    call = jax.ffi.ffi_call(
        f"__onednn${name}",
        jax.ShapeDtypeStruct(shape, a.dtype),
        custom_call_api_version=2,
        legacy_backend_config=json.dumps({field: config, "outer_dimension_partitions": []}),
    )
    y: jax.Array = call(a, b)
    return y


def _convolution_config(kernel: Sequence[int], window: Window) -> dict[str, Any]:
    """Return what XLA's oneDNN rewriter attaches to such a call: its protocol buffer's fields as JSON."""
    strings = lambda numbers: [str(n) for n in numbers]  # noqa: E731
    layout = {"data": {"batch_dim": "0", "feature_dim": "3", "spatial_dims": ["1", "2"]}, "dims": "0"}
    return {
        "dims": "4",
        "feature_groups": "1",
        "input": layout,
        "output": layout,
        "kernel": {
            "dims": "0",
            "filter": {
                "input_feature_dim": "2",
                "output_feature_dim": "3",
                "shape": strings(kernel),
                "spatial_dims": ["0", "1"],
            },
        },
        "optimization_config": _OPTIMIZATION,
        "window": {
            "pad_left": strings(low for low, _ in window.padding),
            "pad_right": strings(high for _, high in window.padding),
            "size": [],
            "strides": strings(window.strides),
            "window_dilations": strings(window.dilation),
        },
    }
