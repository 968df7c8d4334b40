"""`hybridize(net, freeze=True)`: a network for inference whose parameters are constants of its program.

The counterpart of `torch.jit.freeze` and of Gluon's `static_alloc`. A call passes only its arguments. A
BatchNorm that follows a convolution becomes part of the convolution's weights, since with running statistics
it is a scale and a shift. A convolution's weights are laid out once: as oneDNN wants them where it is used
(`prepacked`), else for a product if the result has few pixels, as in ResNet-18's last layers on one image.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import is_
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax import lax

from jaxperf.errors import JaxperfError
from jaxperf.models.convolution import uses_onednn
from jaxperf.models.parts import Parts, attributes
from jaxperf.models.prepacked import packed
from jaxperf.models.window import Window, product_of_patches, sum_of_products


class Frozen:
    """What `hybridize(net, freeze=True)` returns; call it as you would call `net`.

    The next call notices a parameter, layer or flag that has been replaced, and compiles again.

    Attributes:
      net: the module itself, which still runs op by op when called.
      trace_count: how often its Python code ran, to be compiled.
    """

    def __init__(self, net: nnx.Module, static_argnames: tuple[str, ...]) -> None:
        self.net, self.trace_count = net, 0
        self._static = static_argnames
        self._freeze()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the module's output for these arguments, from the compiled program."""
        if self._parts.changed() or not all(map(is_, self._constants, self._parts.leaves())):
            self._freeze()
        return self._program(*args, **kwargs)

    def compile(self, *args: Any, **kwargs: Any) -> Callable[..., Any]:
        """Return a function of arguments like these, compiled with the current parameters.

        It only calls the program: no Python code of this package runs, and changes to the network are not
        noticed.
        """
        self(*args, **kwargs)
        return self._program

    def _freeze(self) -> None:
        self._parts = Parts(self.net)
        self._constants = self._parts.leaves()
        parts, constants = self._parts, self._constants

        def program(*args: Any, **kwargs: Any) -> Any:
            self.trace_count += 1
            net = parts.put_together(constants)
            held = Parts(net)
            before = held.leaves()
            fold(net)
            output = net(*args, **kwargs)
            changed = [n for n, a, b in zip(held.names, before, held.leaves(), strict=True) if a is not b]
            if changed:
                raise JaxperfError(
                    f"a frozen {type(self.net).__name__} would change {changed[0]} at each call; "
                    "call net.eval() first, or leave out freeze=True"
                )
            return output

        program.__name__ = type(self.net).__name__
        self._program = jax.jit(program, static_argnames=self._static)


def fold(net: nnx.Module) -> None:
    """Merge each BatchNorm of a module that is about to be traced into the convolution before it.

    Running the module shows which one that is: it returned the very array that BatchNorm takes. The module
    must be a copy, which is useless afterwards: its layers are replaced by objects that can only be called.
    """
    given: dict[int, tuple[nnx.Conv, Any, Any]] = {}
    for _, node in list(nnx.iter_graph(net)):
        held = attributes(node) or {}
        for name, layer in list(held.items()):
            if type(layer) is nnx.Conv:
                held[name] = _Convolution(layer, given)
            elif type(layer) is nnx.BatchNorm:
                held[name] = _Normalization(layer, given)


class _Behind:
    """A layer, and what convolutions have returned: by the array's id, the layer, its input and the array."""

    def __init__(self, layer: Any, given: dict[int, tuple[nnx.Conv, Any, Any]]) -> None:
        self.layer, self.given = layer, given

    def __getattr__(self, name: str) -> Any:
        return getattr(self.layer, name)


class _Convolution(_Behind):
    def __call__(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        plain = not args and not kwargs and _is_plain(self.layer)
        if plain:
            _lay_out(self.layer)
        y = self.layer(x, *args, **kwargs)
        if plain:
            self.given[id(y)] = self.layer, x, y  # the array too: its id is unique only while it lives
        return y


class _Normalization(_Behind):
    def __call__(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        before = self.given.get(id(x))
        fits = self.layer.use_running_average and self.layer.axis in (-1, x.ndim - 1)
        if before is None or args or kwargs or not fits or x.dtype != np.float32:
            return self.layer(x, *args, **kwargs)
        conv, its_x, _ = before
        return _with_factors(conv, *_scale_and_shift(self.layer))(its_x)


def _is_plain(conv: nnx.Conv) -> bool:
    return conv.mask is None and conv.kernel.get_raw_value().dtype == np.float32


def _lay_out(conv: nnx.Conv) -> None:
    """Have a convolution's weights laid out on a CPU as its kernel takes them, when its inputs are known."""
    on_cpu = jax.default_backend() == "cpu"  # only this was measured
    if on_cpu and conv.conv_general_dilated is lax.conv_general_dilated and len(conv.kernel_size) == 2:
        conv.conv_general_dilated = partial(_convolve, np.asarray(conv.kernel.get_raw_value()))


def _convolve(weights: Any, x: Any, kernel: Any, strides: Any, padding: Any, **options: Any) -> Any:
    """`lax.conv_general_dilated`, or the same with the kernel's weights in a prepared layout."""
    dilation = options["rhs_dilation"]
    if isinstance(padding, str):
        spans = [(k - 1) * d + 1 for k, d in zip(kernel.shape, dilation)]
        padding = lax.padtype_to_pads(x.shape[1:3], spans, strides, padding)
    window = Window(strides, padding, options["lhs_dilation"], dilation)
    fits = max(window.spread) == 1 and options["feature_group_count"] == 1 and options["precision"] is None
    types = {x.dtype, kernel.dtype} == {weights.dtype} and options.get("preferred_element_type") is None
    if fits and types and x.ndim == 4 and min(map(min, padding)) >= 0:
        if window.few_products(kernel.shape) and len(x) > 1:
            return sum_of_products(x, kernel, window)
        if uses_onednn() and (laid_out := packed(weights, x.shape, window)):
            return laid_out(x)
        if window.few_pixels(x.shape, kernel.shape):
            rows = np.ascontiguousarray(weights.reshape(-1, kernel.shape[3]).T)
            return product_of_patches(x, rows, kernel.shape, window)
    return lax.conv_general_dilated(x, kernel, strides, padding, **options)


def _scale_and_shift(norm: nnx.BatchNorm) -> tuple[Any, Any]:
    """What BatchNorm with running statistics multiplies by and adds, (channels,), float64."""
    scale = _values(norm.scale, 1.0) / np.sqrt(_values(norm.var) + norm.epsilon)
    return scale, _values(norm.bias) - _values(norm.mean) * scale


def _with_factors(conv: nnx.Conv, scale: Any, shift: Any) -> nnx.Conv:
    """A convolution whose output is `conv`'s times a scale, plus a shift, per channel."""
    folded = nnx.clone(conv)
    folded.kernel = nnx.Param(_float32(_values(conv.kernel) * scale))
    folded.bias = nnx.Param(_float32(_values(conv.bias) * scale + shift))
    folded.use_bias, folded.conv_general_dilated = True, lax.conv_general_dilated
    _lay_out(folded)
    return folded


def _float32(values: Any) -> Any:
    return np.asarray(values, np.float32)  # a NumPy array: a JAX array would belong to the trace


def _values(variable: nnx.Variable[Any] | None, otherwise: float = 0.0) -> Any:
    """A variable's array itself, as float64: the result of indexing would belong to the trace."""
    return otherwise if variable is None else np.asarray(variable.get_raw_value(), np.float64)
