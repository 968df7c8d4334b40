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

import math
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
_ROLES = ("weight", "bias", "gamma", "beta", "running_mean", "running_var")


@dataclass(frozen=True)
class _Slot:
    """One of our variables and the array that Gluon keeps for it."""

    name: str
    variable: nnx.Variable[Any]
    image: tuple[int, int, int] | None = None  # (h, w, c) of the image that a dense kernel reads flattened

    @property
    def role(self) -> str:
        return self.name.rpartition(".")[2]

    def to_gluon(self, value: np.ndarray) -> np.ndarray:
        if self.role != "weight":
            return value
        if value.ndim == 4:
            return value.transpose(3, 2, 0, 1)
        return value[_channels_first(self.image)].T if self.image else value.T

    def from_gluon(self, array: np.ndarray) -> np.ndarray:
        if self.role != "weight":
            return array
        if array.ndim == 4:
            return array.transpose(2, 3, 1, 0)
        return array.T[np.argsort(_channels_first(self.image))] if self.image else array.T


def _channels_first(image: tuple[int, int, int]) -> np.ndarray:
    """Return the rows of a kernel that reads an image flattened, in the order of a channel-first image."""
    return np.arange(math.prod(image)).reshape(image).transpose(2, 0, 1).ravel()


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
    role = next((role for role in _ROLES if name.endswith(role)), slot.role)
    if role != slot.role:
        raise JaxperfError(f"array {name} comes where {slot.name} is due; keep the order of collect_params()")
    if array.shape != shape:
        raise JaxperfError(
            f"array {name} has shape {array.shape}, parameter {slot.name} needs {shape} as Gluon keeps it"
        )
    if not jnp.issubdtype(array.dtype, jnp.floating):
        raise JaxperfError(f"array {name} is {array.dtype}, parameter {slot.name} needs floats; pass float32")
    return array


def _slots(part: Any, name: str = "", image: tuple[int, int, int] | None = None) -> Iterator[_Slot]:
    """Yield the variables of a network, or of a part of it, in Gluon's order."""
    if isinstance(part, nnx.Variable):
        yield _Slot(name.removeprefix("."), part, image)
    elif part is not None:  # a layer may lack its bias
        for key, child in _parts(part).items():
            reads_image = isinstance(part, LeNet) and child is part.dense1
            yield from _slots(child, f"{name}.{key}", FLATTENED if reads_image else image)


def _parts(net: Any) -> dict[str, Any]:
    """Return the layers of a network, or the variables of a layer, by Gluon's names and in its order.

    The order is spelled out because a module that went through `nnx.split` and `nnx.merge` has its attributes
    sorted by name. Numbers are positions in the book's `Sequential`, which counts pooling and relu too.
    """
    match net:
        case MLP() | nnx.Sequential():
            return {str(i): layer for i, layer in enumerate(net.layers) if isinstance(layer, nnx.Module)}
        case LeNet():
            return {"0": net.conv1, "2": net.conv2, "4": net.dense1, "5": net.dense2}
        case Residual():
            return {name: getattr(net, name) for name in ("conv1", "conv2", "conv3", "bn1", "bn2")}
        case ResNet():
            stages = {str(i): stage for i, stage in enumerate(net.stages, start=3)}
            return {"0": net.conv, "1": net.bn, **stages, str(4 + len(stages)): net.dense}
        case nnx.BatchNorm():
            return {"gamma": net.scale, "beta": net.bias, "running_mean": net.mean, "running_var": net.var}
        case nnx.Conv() | nnx.Linear():
            return {"weight": net.kernel, "bias": net.bias}
    raise JaxperfError(f"no Gluon order is known for a layer of type {type(net).__name__}")
