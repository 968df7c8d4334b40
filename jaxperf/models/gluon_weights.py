"""Weights to and from MXNet Gluon, so that a model trained in one can be used in the other.

In MXNet's environment save `collect_params()` in its own order, and load the file here:

    np.savez("w.npz", **{name: p.data().asnumpy() for name, p in mx_net.collect_params().items()})

    net = from_gluon(resnet18(rngs=nnx.Rngs(0)), np.load("w.npz"))

`to_gluon` gives arrays under the names that Gluon's `save_parameters` uses for the book's `Sequential`; in
MXNet `nd.save(file, {name: nd.array(a) for ...})` writes what `mx_net.load_parameters(file)` reads. Layouts
are converted: convolutions OIHW / HWIO, dense (out, in) / (in, out), and the dense layer after LeNet's
convolutions reads a channel-first image there, a channel-last one here. A Gluon model trained on several
contexts has running statistics for each of them: take those of one, `p.data(ctx)`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxperf.errors import JaxperfError
from jaxperf.models.lenet import FLATTENED, LeNet
from jaxperf.models.mlp import MLP
from jaxperf.models.resnet import Residual, ResNet

M = TypeVar("M", bound=nnx.Module)
_KINDS = ("weight", "bias", "gamma", "beta", "running_mean", "running_var")


@dataclass(frozen=True)
class _Slot:
    """One of our variables and the array that Gluon keeps for it."""

    name: str
    variable: nnx.Variable[Any]
    image: tuple[int, int, int] | None = None  # (h, w, c) of the image that a dense kernel reads flattened

    @property
    def kind(self) -> str:
        return self.name.rpartition(".")[2]

    def to_gluon(self, value: np.ndarray) -> np.ndarray:
        if self.kind != "weight":
            return value
        if value.ndim == 4:
            return value.transpose(3, 2, 0, 1)
        if self.image:
            h, w, c = self.image
            value = value.reshape(h, w, c, -1).transpose(2, 0, 1, 3).reshape(h * w * c, -1)
        return value.T

    def from_gluon(self, array: np.ndarray) -> np.ndarray:
        if self.kind != "weight":
            return array
        if array.ndim == 4:
            return array.transpose(2, 3, 1, 0)
        if self.image:
            h, w, c = self.image
            return array.T.reshape(c, h, w, -1).transpose(1, 2, 0, 3).reshape(h * w * c, -1)
        return array.T


def from_gluon(net: M, arrays: Mapping[str, Any] | Sequence[Any]) -> M:
    """Fill `net` with Gluon's weights and running statistics.

    Args:
      net: an `MLP`, `LeNet`, `ResNet` or `Residual`, or an `nnx.Sequential` of those or of plain layers;
        an abstract one, `nnx.eval_shape(lambda: resnet18(rngs=nnx.Rngs(0)))`, saves drawing weights.
      arrays: Gluon's arrays, in MXNet's layout and in the order of `collect_params()`; a mapping whose
        names are exactly `to_gluon`'s may come in any order. Cast to the variables' dtype.

    Returns:
      `net` itself, changed in place; it stays unchanged if anything is wrong.

    Raises:
      JaxperfError: an array is missing or left over, has another shape, has no floating dtype, or has a name
        of another kind than the parameter at its position.
    """
    slots = list(_slots(net))
    names = [slot.name for slot in slots]
    if isinstance(arrays, Mapping):
        in_order = names if set(arrays) == set(names) else list(arrays)
        pairs = [(name, arrays[name]) for name in in_order]
    else:
        pairs = [(f"number {i}", array) for i, array in enumerate(arrays)]
    if len(slots) != len(pairs):
        raise JaxperfError(f"the network has {len(slots)} arrays, {len(pairs)} were given; give as many")
    values = [_checked(slot, name, np.asarray(array)) for slot, (name, array) in zip(slots, pairs)]
    for slot, value in zip(slots, values):
        slot.variable.set_value(jnp.asarray(slot.from_gluon(value), slot.variable.dtype))
    return net


def to_gluon(net: nnx.Module) -> dict[str, np.ndarray]:
    """Return `net`'s weights and running statistics as Gluon keeps them, in the order of `collect_params()`.

    Raises:
      JaxperfError: `net` holds a layer for which no Gluon order is known.
    """
    return {slot.name: slot.to_gluon(np.asarray(slot.variable[...])) for slot in _slots(net)}


def _checked(slot: _Slot, name: str, array: np.ndarray) -> np.ndarray:
    shape = slot.to_gluon(np.broadcast_to(np.float32(0), slot.variable.shape)).shape
    kind = next((kind for kind in _KINDS if name.endswith(kind)), slot.kind)
    if kind != slot.kind:
        raise JaxperfError(f"array {name} comes where {slot.name} is due; keep the order of collect_params()")
    if array.shape != shape:
        raise JaxperfError(
            f"array {name} has shape {array.shape}, parameter {slot.name} needs {shape} as Gluon keeps it"
        )
    if not jnp.issubdtype(array.dtype, jnp.floating):
        raise JaxperfError(f"array {name} is {array.dtype}, parameter {slot.name} needs floats; pass float32")
    return array


def _slots(net: nnx.Module) -> Iterator[_Slot]:
    for name, layer, image in _layers(net, ""):
        named: list[tuple[str, nnx.Variable[Any] | None]]
        if isinstance(layer, nnx.BatchNorm):
            named = [("gamma", layer.scale), ("beta", layer.bias)]
            named += [("running_mean", layer.mean), ("running_var", layer.var)]
        elif isinstance(layer, nnx.Conv | nnx.Linear):
            named = [("weight", layer.kernel), ("bias", layer.bias)]
        else:
            raise JaxperfError(f"no Gluon order is known for a layer of type {type(layer).__name__}")
        yield from (_Slot(name + kind, variable, image) for kind, variable in named if variable is not None)


def _layers(net: Any, prefix: str) -> Iterator[tuple[str, Any, tuple[int, int, int] | None]]:
    """Yield each plain layer: its dotted name, itself, and (h, w, c) of the image it reads flattened."""
    children = _children(net)
    if not children:
        yield prefix, net, None
    for name, child in children:
        for path, layer, image in _layers(child, f"{prefix}{name}."):
            yield path, layer, FLATTENED if isinstance(net, LeNet) and child is net.dense1 else image


def _children(net: Any) -> list[tuple[str, Any]]:
    """Return the parts of a composed network in Gluon's order; nothing for a plain layer.

    The order is spelled out because a module that went through `nnx.split` and `nnx.merge` has its attributes
    sorted by name. Numbers are positions in the book's `Sequential`, which counts pooling and relu too.
    """
    match net:
        case MLP() | nnx.Sequential():
            return [(str(i), layer) for i, layer in enumerate(net.layers) if isinstance(layer, nnx.Module)]
        case LeNet():
            return [("0", net.conv1), ("2", net.conv2), ("4", net.dense1), ("5", net.dense2)]
        case Residual():
            conv3 = [] if net.conv3 is None else [("conv3", net.conv3)]
            return [("conv1", net.conv1), ("conv2", net.conv2), *conv3, ("bn1", net.bn1), ("bn2", net.bn2)]
        case ResNet():
            stages = [(str(3 + i), stage) for i, stage in enumerate(net.stages)]
            return [("0", net.conv), ("1", net.bn), *stages, (str(4 + len(stages)), net.dense)]
    return []
