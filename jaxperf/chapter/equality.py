"""Are several devices equal to one? The same updates of a network, each way, on 2, 4 and 8 devices."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
import optax
from flax import nnx

from jaxperf.chapter.tolerance import tolerance
from jaxperf.chapter.training import plural
from jaxperf.data import FashionMNIST
from jaxperf.measure import block, count_ops
from jaxperf.models import SMALL_STAGES, ResNet, lenet, lenet_params
from jaxperf.parallel import (
    WAYS,
    BatchNorm,
    Step,
    Way,
    first_devices,
    make_step,
    model_of,
    model_of_function,
    of_this_process,
    rows_of,
)
from jaxperf.script import Story

Batches = Sequence[tuple[Any, Any]]
MakeStep = Callable[[Way, Sequence[jax.Device]], Step]


def after_updates(step: Step, batches: Batches) -> Any:
    """Return parameters and statistics after one update for each batch, from the network's own values.

    If several processes run the step, each picks its own rows of every batch. Products are computed to
    float32's full precision; otherwise a GPU would round them to fewer bits.
    """
    state = step.init()
    with jax.default_matmul_precision("highest"):
        for X, y in batches:
            rows = slice(None) if step.way == "manual" else rows_of(len(y), step.devices)
            state, _ = step(state, X[rows], y[rows])
    found = step.read(state)
    return block((found.params, found.stats))


def distance(ours: Any, theirs: Any) -> float:
    """Return the largest absolute difference between two trees of the same structure."""
    pairs = zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True)
    return max(float(np.abs(np.asarray(a) - np.asarray(b)).max()) for a, b in pairs)


def against_one_device(
    story: Story, make: MakeStep, batches: Batches, *, ways: Sequence[Way] = WAYS, rounding: float
) -> None:
    """Compare each way on 2, 4 and 8 of the devices in use with one device's single program.

    With several processes, each computes that program by itself, and they compare all their devices with it.

    Facts: `max_param_diff_WAY_DEVICES`.

    Args:
      story: is told the results.
      make: the step of a way on the devices it is given.
      batches: one for each update.
      ways: which to compare.
      rounding: the largest difference that counts as equal.
    """
    n = len(batches[0][1])
    counts = [c for c in (2, 4, 8) if c <= story.devices and n % c == 0] or [1]
    if story.processes > 1:
        ways, counts = [way for way in ways if way != "manual"], [story.devices]
    expected = after_updates(make("jit", of_this_process(first_devices())[:1]), batches)
    found = {
        (way, k): distance(after_updates(make(way, first_devices(k)), batches), expected)
        for way in ways
        for k in counts
    }
    heads = ("way", *map(plural, counts))
    rows = [(way, *(f"{found[way, k]:.1e}" for k in counts)) for way in ways]
    title = f"Largest difference of any parameter from one device's, after {len(batches)} updates"
    story.grid(heads, rows, title=title, right=range(1, len(heads)), detail=True)
    for (way, k), value in found.items():
        words = f"difference from one device, {way} on {k}"
        story.fact(f"max_param_diff_{way}_{k}", value, words=words)
    worst = max(found.values())
    story.claim(
        ours="Training on several devices computes what one device computes",
        holds=worst <= rounding,
        predicted=f"parameters after {len(batches)} updates equal up to rounding, below {rounding:.0e}",
        right=worst <= rounding,
        observed=f"largest difference {worst:.1e}, {', '.join(ways)}, up to {counts[-1]} devices",
        cannot="" if counts != [1] else "only one device here, nothing to compare",
    )


def collectives_of(story: Story, step: Step, batch: tuple[Any, Any]) -> None:
    """Count the sums over devices, and the gathers of parameters, that the compiled step holds."""
    X, y = batch
    rows = rows_of(len(y), step.devices)
    ops = count_ops(step.compile(step.init(), step.load(X[rows], y[rows]))[0])
    k = len(step.devices)
    story.fact("allreduce_count", ops["all-reduce"], words=f"sums over {k} devices in the compiled step")
    story.fact("allgather_count", ops["all-gather"], words="gathers over devices in it")
    story.claim(
        ours="The compiler puts all sums of a step into one message",
        holds=ops["all-reduce"] == 1,
        predicted="one all-reduce for all gradients, the loss and the hits; no gather of parameters",
        right=(ops["all-reduce"], ops["all-gather"]) == (1, 0),
        observed=f"{ops['all-reduce']} all-reduce, {ops['all-gather']} all-gather",
        cannot="" if k > 1 else "one device has nothing to sum",
    )


def lenet_step(way: Way, devices: Sequence[jax.Device], *, lr: float = 0.2) -> Step:
    """LeNet with plain gradient descent, run in one of four ways.

    Its weights start wider than the book's, with which ten updates move little but the last biases. With
    still wider ones, 0.1, a relu input that rounding moves across zero changes parameters by 5e-3 (float64
    results are equal there).
    """
    return _lenet_step(way, tuple(devices), lr)


@functools.cache  # compiled once, although three parts use it
def _lenet_step(way: Way, devices: tuple[jax.Device, ...], lr: float) -> Step:
    model = model_of_function(lenet, lenet_params(jax.random.key(0), scale=0.05))
    return make_step(way, model, optax.sgd(lr), devices)


def lenet_equal_to_one_device(story: Story, data: FashionMNIST) -> None:
    """Make ten updates of LeNet each way on 2, 4, ... devices, and count the collectives of one."""
    story.heading("Equal to one device")
    story.text(
        """Is the split right? Then no parameter may depend on the number of devices. This package has the
        step in four ways with one signature: by hand, `pmap`, `shard_map`, and `jit` with a sharded batch."""
    )
    story.code(make_step)
    n = math.lcm(32, story.devices)
    X, y = data.train_images[: 10 * n], data.train_labels[: 10 * n]
    batches = list(zip(np.split(X, 10), np.split(y, 10)))
    against_one_device(story, lenet_step, batches, rounding=tolerance(story.environment.backend, 1e-6))
    collectives_of(story, lenet_step("pmap", first_devices(story.devices)), batches[0])


@functools.cache  # the step whose collectives are counted was compiled before
def small_resnet_step(seed: int, batch_norm: BatchNorm, way: Way, devices: tuple[jax.Device, ...]) -> Step:
    """Two stages of one block: it has every kind of layer of ResNet-18, and runs in milliseconds."""
    model = model_of(ResNet(10, stages=SMALL_STAGES, rngs=nnx.Rngs(seed)))
    return make_step(way, model, optax.sgd(0.1), devices, batch_norm=batch_norm)


def resnet_equal_to_one_device(story: Story, data: FashionMNIST, *, seed: int) -> None:
    """Compare each way on 2, 4, ... devices with one device, for both kinds of BatchNorm."""
    story.heading("Equal to one device")
    story.text(
        """BatchNorm makes a difference that LeNet does not have. Gluon and PyTorch normalize each device's
        share by itself, so two devices compute something else than one. Normalized over the whole batch,
        which takes sums in the middle of the network, any number of devices computes the same."""
    )
    k = story.devices
    n = 4 * k
    X, y = data.train_images[: 2 * n], data.train_labels[: 2 * n]
    batches = list(zip(np.split(X, 2), np.split(y, 2)))

    def make(batch_norm: BatchNorm, way: Way, devices: Sequence[jax.Device]) -> Step:
        return small_resnet_step(seed, batch_norm, way, tuple(devices))

    rounding = tolerance(story.environment.backend, 1e-5)
    against_one_device(story, partial(make, "whole"), batches, ways=WAYS[1:], rounding=rounding)
    ways = WAYS if story.processes == 1 else WAYS[1:]
    shares = {way: after_updates(make("share", way, first_devices(k)), batches) for way in ways}
    base = "by hand" if story.processes == 1 else ways[0]
    apart = {way: distance(found, shares[ways[0]]) for way, found in shares.items()}
    for way, found in apart.items():
        story.fact(f"max_param_diff_shares_{way}", found, words=f"BatchNorm by share: {way} against {base}")
    worst = max(apart.values())
    story.claim(
        ours="With BatchNorm by share, all four ways compute the same"
        if story.processes == 1
        else "With BatchNorm by share, the three ways that processes have compute the same",
        holds=worst <= rounding,
        predicted=f"parameters and statistics equal up to rounding, below {rounding:.0e}",
        right=worst <= rounding,
        observed=f"largest difference from {base} {worst:.1e}",
        cannot="" if k > 1 else "only one device here, nothing to compare",
    )
    collectives_of(story, make("share", "pmap", first_devices(k)), batches[0])
