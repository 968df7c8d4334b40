"""One training step four ways with one signature: by hand, `pmap`, `shard_map`, and `jit` over a sharding.

    model = model_of(resnet18(rngs=nnx.Rngs(0)))
    step = make_step("pmap", model, optax.sgd(0.1), first_devices(2), batch_norm="share")
    state = step.init()
    state, metrics = step(state, X, y)

All four compute `gradient` and `update` (update.py). They differ in who decides how the work is divided and
where the sums over devices are:

    manual      our Python loop, `train_batch`: programs queued device by device, sums by `allreduce`
    pmap        one program per device; we write `lax.psum`
    shard_map   the same program for one device over a named mesh; we write `lax.psum`
    jit         one program for the whole batch; the compiler divides it and inserts the sums

The devices may belong to several processes, which then make the same calls, each with its own rows of a batch
(multihost.py). `manual` copies from device to device, so it stays within one process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

from jaxperf.errors import JaxperfError
from jaxperf.measure.compile_together import compile_lowered
from jaxperf.parallel.by_hand import get_params, pmap_train_batch, train_batch
from jaxperf.parallel.collectives import compile_sum
from jaxperf.parallel.devices import AXIS, mesh_of
from jaxperf.parallel.model import Model, Tree
from jaxperf.parallel.multihost import load_rows, of_this_process, processes_of, replicate
from jaxperf.parallel.split import check_divisible, split_and_load
from jaxperf.parallel.update import (
    Gradient,
    Loss,
    Metrics,
    TrainState,
    Update,
    gradient_of,
    softmax_cross_entropy,
    update_of,
)

Way = Literal["manual", "pmap", "shard_map", "jit"]
WAYS: tuple[Way, ...] = get_args(Way)
BatchNorm = Literal["share", "whole"]
Shares = tuple[Any, ...]  # X and y on the devices: an array each, or a list of one array per device
State = (
    Any  # a TrainState of whole arrays, each with a copy on every device; by hand a list of one per device
)


@dataclass(frozen=True)
class Step:
    """A training step on `devices`; `step(state, X, y)` gives the new state and the batch's metrics.

    Attributes:
      way: which of the four.
      devices: where it runs.
      model: the network with its initial values.
      optimizer: optax's.
      load: `load(X, y)` starts copying a batch's shares to the devices; with several processes, each gives
        its own rows of the batch.
      run: `run(state, shares)` on a loaded batch; it queues the work without waiting. `state` is donated.
      compile: `compile(state, shares)` compiles without running, so that running it compiles nothing, and
        gives the text of each program that the first device runs.
      programs: the jitted functions it runs, for timing each alone: "gradient" and "update" by hand,
        otherwise "step".
      body: `body(state, X, y)`, the step as a part of a larger program; None by hand and for `pmap`.
    """

    way: Way
    devices: tuple[jax.Device, ...]
    model: Model
    optimizer: optax.GradientTransformation
    load: Callable[[Any, Any], Shares]
    run: Callable[[State, Shares], tuple[State, Metrics]]
    compile: Callable[[State, Shares], list[str]]
    programs: Mapping[str, Any]
    body: Callable[..., tuple[TrainState, Metrics]] | None = None

    def init(self, model: Model | None = None) -> State:
        """Return a fresh state on all devices: copies of the values of `model`, or else of the step's own."""
        source = model or self.model
        opt_state = jax.jit(self.optimizer.init)(source.params)
        return self.place(TrainState(source.params, source.stats, opt_state))

    def place(self, state: Tree) -> State:
        """Return copies of a tree of arrays on all devices: of a `TrainState` for `run`; `read` undoes it."""
        if self.way == "manual":
            return [get_params(state, device) for device in self.devices]
        # Copied first, because the step donates its state, and `device_put` to a sharding reuses the memory
        # of an array that is already on one of the devices, whatever its `may_alias` says (JAX 0.10)
        devices = of_this_process(self.devices) if self.way == "pmap" else self.devices
        return replicate(_copy(state), mesh_of(devices))

    def read(self, state: State) -> TrainState:
        """Return the state as one `TrainState`; by hand it is the first device's, which equals the others."""
        return state[0] if self.way == "manual" else state

    def __call__(self, state: State, X: Any, y: Any) -> tuple[State, Metrics]:
        """Train on images (n, ...) and labels (n,), n the full batch; `state` is donated.

        With several processes, each gives its own rows of the batch.

        Returns:
          The new state and {"loss", "accuracy"}, means over the full batch, float32 scalars.

        Raises:
          JaxperfError: a batch that does not divide among the devices.
        """
        return self.run(state, self.load(X, y))


def make_step(
    way: Way,
    model: Model,
    optimizer: optax.GradientTransformation,
    devices: Sequence[jax.Device],
    *,
    batch_norm: BatchNorm = "share",
    loss: Loss = softmax_cross_entropy,
) -> Step:
    """Return a data-parallel training step.

    Args:
      way: one of `WAYS`.
      model: the network, from `model_of` or `model_of_function`.
      optimizer: any Optax optimizer, with any schedule.
      devices: where to run; each holds the whole state.
      batch_norm: "share" normalizes each device's share by itself, as Gluon and PyTorch's DataParallel do,
        and averages running statistics; "whole" normalizes over the full batch, so that the result does not
        depend on the number of devices.
      loss: `loss(logits, labels)` gives each example's.

    Raises:
      JaxperfError: an unknown way or choice, no devices, "manual" with batch_norm "whole" over several
        devices, or "manual" over several processes.
    """
    if way not in WAYS:
        raise JaxperfError(f"no way {way!r} to run a step; use {', '.join(WAYS)}")
    if batch_norm not in get_args(BatchNorm):
        raise JaxperfError(f"batch_norm {batch_norm!r} is neither 'share' nor 'whole'")
    if not devices:
        raise JaxperfError("no devices to run on; give at least 1")
    if way == "manual" and processes_of(devices) > 1:
        raise JaxperfError(
            f"way 'manual' copies between the devices of one process, and these belong to "
            f"{processes_of(devices)}; use 'pmap', 'shard_map' or 'jit'"
        )
    makers = {"manual": _manual, "pmap": _pmap, "shard_map": _shard_map, "jit": _jit}
    gradient = gradient_of(_with_batch_norm(model, way, batch_norm, len(devices)), loss)
    parts = makers[way](gradient, update_of(optimizer), tuple(devices))
    return Step(way, tuple(devices), model, optimizer, *parts)


def _with_batch_norm(model: Model, way: Way, batch_norm: BatchNorm, devices: int) -> Model:
    """Return the model whose BatchNorm sees a share or the whole batch, for a program of this way."""
    if devices == 1 or not jax.tree.leaves(model.stats) or (way == "jit") == (batch_norm == "whole"):
        return model  # the program already sees exactly the examples to normalize over
    if way == "jit":
        return _mapped_over_shares(model, devices)
    if way == "manual":
        raise JaxperfError(
            "batch_norm 'whole' needs sums in the middle of the network, and 'manual' has them at its end; "
            "use 'pmap', 'shard_map' or 'jit'"
        )
    return replace(model, apply=partial(model.apply, axis_name=AXIS))


def _mapped_over_shares(model: Model, devices: int) -> Model:
    """Return the model with a separate axis for shares: X (n, ...) becomes (k, m, ...), mapped over k.

    So the one program for the whole batch normalizes each share by itself, wherever the compiler puts it.
    """

    def apply(params: Tree, stats: Tree, X: jax.Array, *, train: bool) -> tuple[jax.Array, Tree]:
        shares = X.reshape(devices, -1, *X.shape[1:])
        logits, stats = jax.vmap(lambda x: model.apply(params, stats, x, train=train))(shares)
        return logits.reshape(len(X), -1), jax.tree.map(lambda s: s.mean(0), stats)

    return replace(model, apply=apply)


@jax.jit
def _copy(tree: Tree) -> Tree:
    return jax.tree.map(jnp.copy, tree)


def _pmap(gradient: Gradient, update: Update, devices: Sequence[jax.Device]) -> tuple[Any, ...]:
    mesh, here = mesh_of(devices), len(of_this_process(devices))

    def load_split(X: Any, y: Any) -> Shares:
        check_divisible(len(y), here)
        return tuple(load_rows([a.reshape(here, -1, *a.shape[1:]) for a in (X, y)], mesh))

    return load_split, *_as_one_program(pmap_train_batch(devices, gradient=gradient, update=update))


def _shard_map(gradient: Gradient, update: Update, devices: Sequence[jax.Device]) -> tuple[Any, ...]:
    k, mesh = len(devices), mesh_of(devices)

    # Unchecked, so that the sums are only where we write them: with the check, `jax.grad` with respect to
    # what all devices share (the parameters) would sum over devices by itself.
    @partial(jax.shard_map, mesh=mesh, in_specs=(P(), P(AXIS), P(AXIS)), out_specs=P(), check_vma=False)
    def step(state: TrainState, X: jax.Array, y: jax.Array) -> tuple[TrainState, Metrics]:
        sums = gradient(state, X, y)
        return update(state, lax.psum(sums, AXIS) if k > 1 else sums, k * len(y))

    return partial(_load_whole, mesh), *_as_one_program(jax.jit(step, donate_argnums=0)), step


def _jit(gradient: Gradient, update: Update, devices: Sequence[jax.Device]) -> tuple[Any, ...]:
    mesh = mesh_of(devices)

    def step(state: TrainState, X: jax.Array, y: jax.Array) -> tuple[TrainState, Metrics]:
        return update(state, gradient(state, X, y), len(y))

    program = jax.jit(step, out_shardings=NamedSharding(mesh, P()), donate_argnums=0)
    return partial(_load_whole, mesh), *_as_one_program(program), step


def _load_whole(mesh: Mesh, X: Any, y: Any) -> Shares:
    check_divisible(len(y), len(mesh.local_devices))
    return tuple(load_rows([X, y], mesh))


def _as_one_program(program: Any) -> tuple[Any, ...]:
    def run(state: TrainState, shares: Shares) -> tuple[TrainState, Metrics]:
        return program(state, *shares)

    def compile_(state: TrainState, shares: Shares) -> list[str]:
        return [each.as_text() or "" for each in compile_lowered([program.lower(state, *shares)])]

    return run, compile_, {"step": program}


def _manual(gradient: Gradient, update: Update, devices: Sequence[jax.Device]) -> tuple[Any, ...]:
    first = jax.jit(gradient)
    second = jax.jit(update, static_argnums=2, donate_argnums=0)

    def load(X: Any, y: Any) -> Shares:
        return tuple(split_and_load(a, devices) for a in (X, y))

    def run(states: list[TrainState], shares: Shares) -> tuple[list[TrainState], Metrics]:
        X_shards, y_shards = shares
        new = train_batch(X_shards, y_shards, states, gradient=first, update=second)
        return [state for state, _ in new], new[0][1]  # every device has the same metrics

    def compile_(states: list[TrainState], shares: Shares) -> list[str]:
        n, lowered = sum(map(len, shares[1])), []
        for state, X, y, device in zip(states, *shares, devices):
            one = first.lower(state, X, y)
            sums = _placed(one.out_info, device)
            lowered += [one, second.lower(state, sums, n)]
        if len(devices) > 1:
            compile_sum(_placed(lowered[0].out_info, devices[0]))
        return [each.as_text() or "" for each in compile_lowered(lowered)[:2]]

    return load, run, compile_, {"gradient": first, "update": second}


def _placed(shapes: Tree, device: jax.Device) -> Tree:
    """Return the shapes and dtypes as descriptions of arrays on `device`."""
    sharding = SingleDeviceSharding(device)
    return jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=sharding), shapes)
