"""One layer over several devices: channels and columns split, by the compiler and by hand.

LeNet's layers in pairs, so that each pair costs one sum over devices (Megatron, Shoeybi et al. 2019):

    convolution 1   its output channels are split: each device computes its own, nothing is sent
    convolution 2   its input channels are split the same way: partial results, summed over devices
    dense 1         columns split
    dense 2         rows split the same way: partial results, summed over devices
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxperf.errors import JaxperfError
from jaxperf.models import LeNet
from jaxperf.parallel.model import scale_images

AXIS = "model"
Params = dict[str, jax.Array]
SPLIT = {  # where each of LeNet's arrays is cut; kernels are HWIO, dense weights (in, out)
    "conv1/kernel": P(None, None, None, AXIS),
    "conv1/bias": P(AXIS),
    "conv2/kernel": P(None, None, AXIS, None),
    "conv2/bias": P(),
    "dense1/kernel": P(None, AXIS),
    "dense1/bias": P(AXIS),
    "dense2/kernel": P(AXIS, None),
    "dense2/bias": P(),
}
WIDTHS = {"convolution 1's channels": 20, "dense 1's columns": 128}


def most_devices(k: int) -> int:
    """Return the largest number of devices, `k` or fewer, that all of LeNet's widths divide among."""
    return max(n for n in range(1, k + 1) if not any(width % n for width in WIDTHS.values()))


def split_lenet(net: LeNet, devices: Sequence[jax.Device]) -> tuple[Params, Mesh]:
    """Return `net`'s arrays by name, cut over `devices` as `SPLIT` says, and the mesh they are on.

    Raises:
      JaxperfError: a width that does not divide among the devices.
    """
    for name, width in WIDTHS.items():
        if width % len(devices):
            fits = most_devices(len(devices))
            raise JaxperfError(f"{name}, {width}, don't divide among {len(devices)} devices; use {fits}")
    mesh = Mesh(np.array(devices), (AXIS,))
    flat = {"/".join(map(str, path)): v[...] for path, v in nnx.to_flat_state(nnx.state(net, nnx.Param))}
    return {k: jax.device_put(flat[k], NamedSharding(mesh, spec)) for k, spec in SPLIT.items()}, mesh


def lenet_by_sharding(mesh: Mesh) -> Callable[[Params, jax.Array], jax.Array]:
    """Return `f(params, X)` written for one device; the compiler divides it as the parameters' shardings say.

    The only hint is how convolution 1's output is cut; without it the compiler may gather the kernels.
    """

    def forward(params: Params, X: jax.Array) -> jax.Array:
        def split_channels(h: jax.Array) -> jax.Array:
            return lax.with_sharding_constraint(h, NamedSharding(mesh, P(None, None, None, AXIS)))

        return _lenet(params, X, after_conv1=split_channels)

    return forward


def lenet_by_hand(mesh: Mesh) -> Callable[[Params, jax.Array], jax.Array]:
    """Return the same with `shard_map`: each device runs it on its own slices, and we write the two sums."""

    def forward(params: Params, X: jax.Array) -> jax.Array:
        return _lenet(params, X, total=lambda partial_result: lax.psum(partial_result, AXIS))

    return jax.shard_map(forward, mesh=mesh, in_specs=(SPLIT, P()), out_specs=P())


def _lenet(
    params: Params,
    X: jax.Array,
    *,
    after_conv1: Callable[[jax.Array], jax.Array] = lambda h: h,
    total: Callable[[jax.Array], jax.Array] = lambda partial_result: partial_result,
) -> jax.Array:
    """Return LeNet's logits from whole arrays or slices; `total` sums the devices' partial results."""
    h = _conv(scale_images(X), params["conv1/kernel"]) + params["conv1/bias"]
    h = nnx.avg_pool(jax.nn.relu(after_conv1(h)), (2, 2), strides=(2, 2))
    h = total(_conv(h, params["conv2/kernel"])) + params["conv2/bias"]
    h = nnx.avg_pool(jax.nn.relu(h), (2, 2), strides=(2, 2)).reshape(len(X), -1)
    h = jax.nn.relu(h @ params["dense1/kernel"] + params["dense1/bias"])
    return total(h @ params["dense2/kernel"]) + params["dense2/bias"]


def _conv(X: jax.Array, kernel: jax.Array) -> jax.Array:
    return lax.conv_general_dilated(X, kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def sgd_step(
    forward: Callable[[Params, jax.Array], jax.Array],
    loss: Callable[[jax.Array, jax.Array], jax.Array],
    lr: float,
) -> Any:
    """Return a jitted `step(params, X, y)`: new parameters, cut as the old ones, and the mean loss."""

    def step(params: Params, X: jax.Array, y: jax.Array) -> tuple[Params, jax.Array]:
        value, grads = jax.value_and_grad(lambda p: loss(forward(p, X), y).mean())(params)
        return jax.tree.map(lambda p, g: p - lr * g, params, grads), value

    return jax.jit(step)


def replicate(tree: Any, mesh: Mesh) -> Any:
    """Return `tree` with a full copy on every device of `mesh`."""
    return jax.device_put(tree, NamedSharding(mesh, P()))
