"""Layers on different devices, and micro-batches that keep all of them busy (GPipe, Huang et al. 2019).

Each part of a network is on a device of its own; activations cross forwards, their gradients backwards. With
one batch only one device works at a time. With the batch cut into m micro-batches, p devices work like an
assembly line, which idles while it fills and drains: (p - 1) / (m + p - 1) of the time, if all parts take
equally long.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from jaxperf.errors import JaxperfError
from jaxperf.models import LeNet, ResNet
from jaxperf.parallel.by_hand import get_params
from jaxperf.parallel.model import Model, Tree, scale_images
from jaxperf.parallel.split import check_divisible
from jaxperf.parallel.update import Loss, Metrics, TrainState, apply_gradients, softmax_cross_entropy

Call = Callable[[Any, jax.Array], jax.Array]


def lenet_halves(net: LeNet) -> list[Model]:
    """Return LeNet's convolutions and its dense layers as two networks, with copies of `net`'s values."""
    return [
        _part(net, ("conv1", "conv2"), lambda part, X: part.features(scale_images(X))),
        _part(net, ("dense1", "dense2"), lambda part, X: part.classify(X)),
    ]


def resnet_halves(net: ResNet) -> list[Model]:
    """Return the stem with half the stages, and the rest, as two networks with copies of `net`'s values.

    Raises:
      JaxperfError: a network with only one stage.
    """
    middle = len(net.stages) // 2
    if not middle:
        raise JaxperfError("a ResNet of one stage has no halves; give it two stages or more")

    def first(part: Any, X: jax.Array) -> jax.Array:
        X = part.stem(scale_images(X))
        for stage in list(part.stages)[:middle]:
            X = stage(X)
        return X

    def second(part: Any, X: jax.Array) -> jax.Array:
        for stage in list(part.stages)[middle:]:
            X = stage(X)
        return part.head(X)

    stages = [f"stages/{i}" for i in range(len(net.stages))]
    return [
        _part(net, ("conv", "bn", *stages[:middle]), first),
        _part(net, ("dense", *stages[middle:]), second),
    ]


def _part(net: nnx.Module, owned: Sequence[str], call: Call) -> Model:
    """Return the part of `net` below the paths `owned`; the rest is neither kept nor read by `call`."""
    parts: Any = nnx.split(net, nnx.Param, nnx.BatchStat, ...)
    graphdef, params, stats, rest = parts
    shapes = jax.eval_shape(lambda: (params, stats))

    def keep(state: Any) -> dict[str, jax.Array]:
        named = {"/".join(map(str, path)): v[...] for path, v in nnx.to_flat_state(state)}
        return {name: v for name, v in named.items() if name.startswith(tuple(f"{o}/" for o in owned))}

    def whole(part_params: Tree, like: Any) -> Any:
        """Return the whole network's state, with zeros for what does not belong to this part.

        `nnx.merge` requires them, `call` never reads them, and the compiler drops them.
        """
        names = ["/".join(map(str, path)) for path, _ in nnx.to_flat_state(like)]
        values = [
            part_params.get(name, jnp.zeros(v.shape, v.dtype))
            for name, v in zip(names, jax.tree.leaves(like))
        ]
        return jax.tree.unflatten(jax.tree.structure(like), values)

    def apply(part_params: Tree, part_stats: Tree, X: jax.Array, *, train: bool) -> tuple[jax.Array, Tree]:
        merged = nnx.merge(graphdef, whole(part_params, shapes[0]), whole(part_stats, shapes[1]), rest)
        merged.train() if train else merged.eval()
        Y = call(merged, X)  # before its statistics are read
        return Y, keep(nnx.state(merged, nnx.BatchStat))

    return Model(apply, keep(params), keep(stats))


@dataclass(frozen=True)
class Pipeline:
    """A training step whose parts are on different devices; `step(states, X, y)` gives states and metrics.

    Attributes:
      parts: the network's parts in order.
      devices: where each is.
      optimizer: an Optax optimizer; each part has its own state of it.
      micro_batches: into how many the batch is cut.
      programs: the jitted functions that each part runs, by name, to time each alone.
    """

    parts: tuple[Model, ...]
    devices: tuple[jax.Device, ...]
    optimizer: optax.GradientTransformation
    micro_batches: int
    programs: Sequence[dict[str, Callable[..., Any]]]

    def init(self) -> list[TrainState]:
        """Return each part's state on its device."""
        states = [TrainState(p.params, p.stats, self.optimizer.init(p.params)) for p in self.parts]
        return [get_params(s, d) for s, d in zip(states, self.devices)]

    def __call__(self, states: Sequence[TrainState], X: Any, y: Any) -> tuple[list[TrainState], Metrics]:
        """Train on images (n, ...) and labels (n,); all work is queued, without waiting for any of it.

        BatchNorm sees one micro-batch at a time. All forward passes are queued before the first backward one.

        Returns:
          The new state of each part, and {"loss", "accuracy"}, means over the batch, on the last device.

        Raises:
          JaxperfError: a batch that does not divide into micro-batches.
        """
        m, last = self.micro_batches, len(self.parts) - 1
        check_divisible(len(y), m, kind="micro-batches")
        inputs: list[list[jax.Array]] = [[] for _ in self.parts]
        stats = [s.stats for s in states]
        for piece in jnp.split(X, m):
            for i in range(len(self.parts)):
                inputs[i].append(jax.device_put(piece, self.devices[i]))
                if i < last:
                    piece, stats[i] = self.programs[i]["forward"](states[i].params, stats[i], inputs[i][-1])
        grads: list[Any] = [None] * len(self.parts)
        metrics: Any = None
        for j, labels in enumerate(jnp.split(y, m)):
            labels = jax.device_put(labels, self.devices[last])
            outputs = self.programs[last]["loss"](states[last].params, stats[last], inputs[last][j], labels)
            stats[last], new, part_grads, error = outputs
            grads[last], metrics = self._add(last, grads[last], part_grads), self._add(last, metrics, new)
            for i in range(last - 1, -1, -1):
                error = jax.device_put(error, self.devices[i])
                part_grads, error = self.programs[i]["backward"](
                    states[i].params, states[i].stats, inputs[i][j], error
                )
                grads[i] = self._add(i, grads[i], part_grads)
        updated = [self.programs[i]["update"](state, grads[i], stats[i]) for i, state in enumerate(states)]
        return updated, jax.tree.map(lambda a: a / m, metrics)

    def _add(self, i: int, total: Tree, more: Tree) -> Tree:
        return more if total is None else self.programs[i]["add"](total, more)

    def crossing_bytes(self, X: Any) -> int:
        """Return the bytes sent in one step: activations forwards, their gradients backwards."""
        shape, total = jax.ShapeDtypeStruct(X.shape, X.dtype), 0
        for part in self.parts[:-1]:
            shape, _ = jax.eval_shape(partial(part.apply, train=True), part.params, part.stats, shape)
            total += 2 * shape.size * shape.dtype.itemsize
        return total


def make_pipeline(
    parts: Sequence[Model],
    optimizer: optax.GradientTransformation,
    devices: Sequence[jax.Device],
    *,
    micro_batches: int = 1,
    loss: Loss = softmax_cross_entropy,
) -> Pipeline:
    """Return a training step with `parts[i]` on `devices[i]`.

    Backward passes recompute their part's forward pass rather than keep its activations (as GPipe does).

    Args:
      parts: a network cut into parts, e.g. by `lenet_halves`.
      optimizer: any Optax optimizer.
      devices: as many as parts.
      micro_batches: into how many the batch is cut; 1 runs the parts one after the other.
      loss: `loss(logits, labels)` gives each example's.

    Raises:
      JaxperfError: different numbers of devices and parts, fewer than two of them, or no micro-batch.
    """
    if len(parts) != len(devices) or len(parts) < 2:
        raise JaxperfError(
            f"{len(parts)} parts for {len(devices)} devices; a pipeline needs one each, at least 2"
        )
    if micro_batches < 1:
        raise JaxperfError(f"{micro_batches} micro-batches; a batch is at least 1")
    programs = [_programs(part, optimizer, loss, micro_batches, first=i == 0) for i, part in enumerate(parts)]
    return Pipeline(tuple(parts), tuple(devices), optimizer, micro_batches, programs)


def _programs(
    part: Model, optimizer: Any, loss: Loss, micro_batches: int, *, first: bool
) -> dict[str, Callable[..., Any]]:
    """Return what one device runs; gradients are of the full batch's mean: a micro-batch has weight 1 / m."""
    forward = partial(part.apply, train=True)

    def last(params: Tree, stats: Tree, X: jax.Array, y: jax.Array) -> Any:
        def mean_loss(params: Tree, X: jax.Array) -> Any:
            logits, new = forward(params, stats, X)
            mean = loss(logits, y).mean()
            return mean / micro_batches, (new, {"loss": mean, "accuracy": (logits.argmax(-1) == y).mean()})

        (part_grads, error), (new, metrics) = jax.grad(mean_loss, argnums=(0, 1), has_aux=True)(params, X)
        return new, metrics, part_grads, error

    def backward(params: Tree, stats: Tree, X: jax.Array, error: jax.Array) -> Any:
        if first:  # the images' gradient is not needed
            _, pull, _ = jax.vjp(lambda p: forward(p, stats, X), params, has_aux=True)
            return *pull(error), None
        _, pull, _ = jax.vjp(lambda p, x: forward(p, stats, x), params, X, has_aux=True)
        return pull(error)

    return {
        "forward": jax.jit(forward),
        "loss": jax.jit(last),
        "backward": jax.jit(backward),
        "update": jax.jit(partial(apply_gradients, optimizer)),
        "add": jax.jit(partial(jax.tree.map, jnp.add)),
    }
