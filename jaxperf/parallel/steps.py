"""One training step four ways with one signature: by hand, `pmap`, `shard_map`, and `jit` over a sharding.

    model = model_of(resnet18(rngs=nnx.Rngs(0)))
    step = make_step("pmap", model, optax.sgd(0.1), first_devices(2), batch_norm="share")
    state = step.init()
    state, metrics = step(state, X, y)

The caller's state has no axis for devices in any of them: every array in it is whole, with a copy on each
device. What differs is who says how the work is divided and where the sums over devices stand:

    manual      our Python loop: pieces queued device by device, sums by `allreduce` (no collective)
    pmap        one program a device; we write `lax.psum`
    shard_map   the same program of one device over a named mesh; we write `lax.psum`
    jit         one program of the whole batch; the compiler divides it and finds the sums
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxperf.errors import JaxperfError
from jaxperf.parallel.cut import CutProgram, compile_on, cut, run_together
from jaxperf.parallel.model import Model
from jaxperf.parallel.split import check_divisible, share_sizes, split_and_load
from jaxperf.parallel.update import (
    AXIS,
    BatchNorm,
    Loss,
    Metrics,
    TrainState,
    share_update,
    softmax_cross_entropy,
    whole_update,
)

Way = Literal["manual", "pmap", "shard_map", "jit"]
WAYS: tuple[Way, ...] = get_args(Way)
Shares = tuple[Any, ...]  # X and y on the devices: an array each, or a list of one array a device


@dataclass(frozen=True)
class Step:
    """A training step on `devices`; `step(state, X, y)` gives the new state and the batch's metrics.

    Attributes:
        way: which of the four.
        devices: where it runs.
        model: the network with its initial values.
        init: `init(model)` copies values to all devices and gives a fresh `TrainState`; the model's own if
            none is given.
        load: `load(X, y)` starts copying a batch's shares to the devices.
        run: `run(state, shares)` on a loaded batch; queued, not waited for. `state` is used up.
        compile: `compile(state, shares)` compiles without running; gives the text of each program.
    """

    way: Way
    devices: tuple[jax.Device, ...]
    model: Model
    init: Callable[..., TrainState]
    load: Callable[[Any, Any], Shares]
    run: Callable[[TrainState, Shares], tuple[TrainState, Metrics]]
    compile: Callable[[TrainState, Shares], list[str]]

    def __call__(self, state: TrainState, X: Any, y: Any) -> tuple[TrainState, Metrics]:
        """One update with images (n, ...) and labels (n,), n the full batch; `state` is used up.

        Returns:
            The new state and {"loss", "accuracy"}, means over the full batch, float32 scalars.

        Raises:
            JaxperfError: a batch that does not divide among the devices.
        """
        return self.run(state, self.load(X, y))

    def compile_s(self, state: TrainState, shares: Shares) -> float:
        """Seconds to trace and compile the step for such a batch; running it later compiles nothing."""
        began = time.perf_counter()
        self.compile(state, shares)
        return time.perf_counter() - began


def make_step(
    way: Way,
    model: Model,
    optimizer: optax.GradientTransformation,
    devices: Sequence[jax.Device],
    *,
    batch_norm: BatchNorm = "share",
    loss: Loss = softmax_cross_entropy,
    weights: Sequence[float] | None = None,
) -> Step:
    """A data-parallel training step.

    Args:
        way: one of `WAYS`.
        model: the network, from `model_of` or `model_of_function`.
        optimizer: any of optax's, with any schedule.
        devices: where to run; every one holds the whole state.
        batch_norm: "share" normalises each device's share by itself, as Gluon and PyTorch's DataParallel
            do, and averages running statistics; "whole" normalises over the full batch, so that the result
            does not depend on the number of devices.
        loss: `loss(logits, labels)` gives each example's.
        weights: each device's strength, for uneven shares; "manual" only.

    Raises:
        JaxperfError: an unknown way or choice, no devices, or `weights` where they can't be.
    """
    if way not in WAYS:
        raise JaxperfError(f"no way {way!r} to run a step; use {', '.join(WAYS)}")
    if batch_norm not in get_args(BatchNorm):
        raise JaxperfError(f"batch_norm {batch_norm!r} is neither 'share' nor 'whole'")
    if not devices:
        raise JaxperfError("no devices to run on; give at least 1")
    if weights is not None:
        _check_uneven(way, weights, len(devices), batch_norm, model)
    mesh = Mesh(np.array(devices), (AXIS,))
    makers: dict[Way, Any] = {"manual": _manual, "pmap": _pmap, "shard_map": _shard_map, "jit": _jit}
    update = _whole if way == "jit" else _share
    load, run, compile_ = makers[way](update(model, optimizer, loss, batch_norm, len(devices)), mesh, weights)
    return Step(way, tuple(devices), model, partial(_init, model, optimizer, mesh), load, run, compile_)


def _share(model: Model, optimizer: Any, loss: Loss, batch_norm: BatchNorm, devices: int) -> Any:
    return share_update(model, optimizer, loss=loss, batch_norm=batch_norm, devices=devices)


def _whole(model: Model, optimizer: Any, loss: Loss, batch_norm: BatchNorm, devices: int) -> Any:
    return whole_update(model, optimizer, loss=loss, batch_norm=batch_norm, devices=devices)


def _init(own: Model, optimizer: Any, mesh: Mesh, model: Model | None = None) -> TrainState:
    source = model or own
    copies = jax.tree.map(jnp.array, (source.params, source.stats))  # the step will use its state up
    params, stats = jax.device_put(copies, NamedSharding(mesh, P()))
    opt_state = jax.device_put(optimizer.init(params), NamedSharding(mesh, P()))
    return TrainState(params, stats, opt_state)


def _check_uneven(
    way: Way, weights: Sequence[float], devices: int, batch_norm: BatchNorm, model: Model
) -> None:
    share_sizes(devices * 1_000_000, devices, weights=weights)  # refuses bad weights before the first batch
    if way != "manual":
        raise JaxperfError(f"way {way!r} has equal shares only; use 'manual' for shares by weight")
    if batch_norm == "whole" and jax.tree.leaves(model.stats):
        raise JaxperfError("batch_norm 'whole' averages equal shares; use 'share' with shares by weight")


def _pmap(update: Any, mesh: Mesh, weights: None) -> tuple[Any, Any, Any]:
    k = mesh.size
    program = jax.pmap(
        lambda state, X, y: update(state, X, y, n=k * len(y)),
        axis_name=AXIS, in_axes=(None, 0, 0), out_axes=None, devices=list(mesh.devices), donate_argnums=0,
    )  # fmt: skip

    def load(X: Any, y: Any) -> Shares:
        check_divisible(len(y), k)
        split = [a.reshape(k, -1, *a.shape[1:]) for a in (X, y)]
        return tuple(jax.device_put(split, NamedSharding(mesh, P(AXIS))))

    return load, *_compiled(program)


def _shard_map(update: Any, mesh: Mesh, weights: None) -> tuple[Any, Any, Any]:
    def of_share(state: TrainState, X: jax.Array, y: jax.Array) -> tuple[TrainState, Metrics]:
        return update(state, X, y, n=mesh.size * len(y))

    program = jax.shard_map(
        of_share, mesh=mesh, in_specs=(P(), P(AXIS), P(AXIS)), out_specs=P(), check_vma=False
    )  # unchecked, so that the sums stand where `share_update` writes them and nowhere else
    return partial(_load_whole, mesh), *_compiled(jax.jit(program, donate_argnums=0))


def _jit(update: Any, mesh: Mesh, weights: None) -> tuple[Any, Any, Any]:
    program = jax.jit(
        lambda state, X, y: update(state, X, y, n=len(y)),
        out_shardings=NamedSharding(mesh, P()),
        donate_argnums=0,
    )
    return partial(_load_whole, mesh), *_compiled(program)


def _load_whole(mesh: Mesh, X: Any, y: Any) -> Shares:
    check_divisible(len(y), mesh.size)
    return tuple(jax.device_put([X, y], NamedSharding(mesh, P(AXIS))))


def _compiled(program: Any) -> tuple[Any, Any]:
    def run(state: TrainState, shares: Shares) -> tuple[TrainState, Metrics]:
        return program(state, *shares)

    def compile_(state: TrainState, shares: Shares) -> list[str]:
        return [program.lower(state, *shares).compile().as_text()]

    return run, compile_


def _manual(update: Any, mesh: Mesh, weights: Sequence[float] | None) -> tuple[Any, Any, Any]:
    devices = list(mesh.devices)
    programs: dict[Any, list[CutProgram]] = {}

    def load(X: Any, y: Any) -> Shares:
        return tuple(split_and_load(a, devices, weights=weights) for a in (X, y))

    def prepared(states: list[TrainState], shares: Shares) -> list[CutProgram]:
        shapes = tuple((a.shape, a.dtype) for arrays in shares for a in arrays)
        if shapes not in programs:
            fn = partial(update, n=sum(map(len, shares[1])))
            traced = {
                len(y): cut(fn, state, X, y, axis_name=AXIS, axis_size=mesh.size)
                for state, X, y in zip(states, *shares)
            }
            programs[shapes] = compile_on([traced[len(y)] for y in shares[1]], devices)
        return programs[shapes]

    def run(state: TrainState, shares: Shares) -> tuple[TrainState, Metrics]:
        states = _copies(state, mesh.size)
        results = run_together(prepared(states, shares), list(zip(states, *shares)))
        return _joined(results, mesh)

    def compile_(state: TrainState, shares: Shares) -> list[str]:
        return [p.text for p in prepared(_copies(state, mesh.size), shares)[0].pieces]

    return load, run, compile_


def _copies(state: TrainState, devices: int) -> list[TrainState]:
    """Each device's own copy of a state that lies on all of them; nothing moves."""
    leaves, tree = jax.tree.flatten(state)
    shards = [[s.data for s in a.addressable_shards] for a in leaves]
    return [jax.tree.unflatten(tree, [s[i] for s in shards]) for i in range(devices)]


def _joined(copies: list[Any], mesh: Mesh) -> Any:
    """One tree of whole arrays from each device's equal copies; nothing moves."""
    everywhere = NamedSharding(mesh, P())

    def join(*arrays: jax.Array) -> jax.Array:
        return jax.make_array_from_single_device_arrays(arrays[0].shape, everywhere, list(arrays))

    return jax.tree.map(join, *copies)
