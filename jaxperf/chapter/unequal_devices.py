"""Section 8.5's exercise on devices of different strength: shares that follow what each device can do."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxperf.chapter.book import LENET_EPOCHS
from jaxperf.chapter.equality import distance
from jaxperf.chapter.tolerance import tolerance
from jaxperf.data import to_float
from jaxperf.errors import JaxperfError
from jaxperf.measure import block, interleaved
from jaxperf.models import lenet, lenet_params, sgd
from jaxperf.parallel import (
    first_devices,
    get_params,
    share_sizes,
    softmax_cross_entropy,
    split_and_load,
    train_batch,
)
from jaxperf.result import ratio
from jaxperf.script import Story

LR = 0.1
WEAK = 3  # how often the weak one of two equal devices computes its share
Gradients = Mapping[jax.Device, Callable[..., list[Any]]]


def unequal_devices(
    story: Story, images: np.ndarray[Any, Any], labels: np.ndarray[Any, Any], *, rounds: int, seed: int
) -> None:
    """Train LeNet on a GPU and the CPU, or on two CPU devices, one of them made weak; time the step.

    Facts: `max_param_diff_uneven_shares`, `uneven_over_equal_step_time` (median over rounds).

    Args:
      story: is told the results.
      images: (n, 28, 28, 1), uint8, the batch.
      labels: (n,), int32.
      rounds: how often each timing is repeated.
      seed: of the weights.
    """
    story.heading("Exercise: devices of different strength")
    story.text(
        """A GPU next to a CPU, or two GPUs of different models: with equal shares the faster one waits for
        the slower. If the shares follow what each can do, both finish together. The sums and the update do
        not change: a sum over examples does not care which device added which of them."""
    )
    story.code(share_sizes)
    pair = _two_devices(story)
    if pair is None:
        story.note("one device: nothing to divide unequally")
        return
    devices, repeats = pair
    params = lenet_params(jax.random.key(seed), scale=0.05)
    gradients = {d: _gradient(r) for d, r in zip(devices, repeats)}
    strengths = _strengths(gradients, params, images, labels, rounds=rounds)
    try:
        sizes = share_sizes(len(labels), 2, weights=strengths)
    except JaxperfError as e:
        story.note(f"no uneven shares: {e}")
        return
    speeds = " and ".join(f"{s:.0f}" for s in strengths)
    story.say(f"alone they do {speeds} images/s: shares of {sizes[0]} and {sizes[1]}")

    def step(devices: Sequence[jax.Device], weights: Sequence[float] | None) -> Callable[[], Any]:
        return _step(devices, gradients, params, images, labels, weights=weights)

    with jax.default_matmul_precision("highest"):  # a GPU would round products to fewer bits
        alone, uneven = block((step(devices[:1], None)(), step(devices, strengths)()))
    difference = max(distance(copy, alone[0]) for copy in uneven)
    rows = interleaved(
        {"equal shares": step(devices, None), "shares by strength": step(devices, strengths)}, count=rounds
    )
    story.table(
        rows.values(), base="equal shares", title="Seconds of a step",
        references=LENET_EPOCHS[-1:],
    )  # fmt: skip
    _judge(story, ratio(rows["shares by strength"], rows["equal shares"]), difference)


def _judge(story: Story, found: Any, difference: float) -> None:
    rounding = tolerance(story.environment.backend, 1e-6)
    story.fact(
        "max_param_diff_uneven_shares", difference, words="difference of uneven shares from one device"
    )
    story.fact("uneven_over_equal_step_time", found.median, words="step with uneven shares over equal ones")
    story.claim(
        ours="A batch divided by strength gives the same update",
        holds=difference <= rounding,
        predicted=f"parameters equal up to rounding, below {rounding:.0e}",
        right=difference <= rounding,
        observed=f"largest difference {difference:.1e}",
    )
    story.claim(
        ours="Where one device is weaker, shares by strength shorten the step",
        holds=found.below(1),
        predicted="less time than with equal shares",
        right=found.below(1),
        observed=f"{found} of the time",
    )


def _two_devices(story: Story) -> tuple[list[jax.Device], tuple[int, int]] | None:
    """Two devices, and how often each computes its share."""
    if story.environment.backend != "cpu":
        story.say("a GPU and the CPU")
        return [jax.devices()[0], jax.devices("cpu")[0]], (1, 1)
    if story.devices < 2:
        return None
    story.say(
        f"device 1 is made weak: it computes its share {WEAK} times (no second kind of device is here); both "
        "share the cores of this host"
    )
    return first_devices(2), (1, WEAK)


@functools.cache
def _gradient(repeats: int) -> Callable[..., list[Any]]:
    """Gradients of a share's summed loss: its own, then those of slightly different images, as extra work."""

    @jax.jit
    def run(params: list[jax.Array], X: jax.Array, y: jax.Array) -> list[Any]:
        def loss(params: list[jax.Array], brighter: float) -> jax.Array:
            return softmax_cross_entropy(lenet(to_float(X) + brighter, params), y).sum()

        return [jax.grad(loss)(params, i / 10) for i in range(repeats)]

    return run


def _strengths(gradients: Gradients, params: Any, X: Any, y: Any, *, rounds: int) -> list[float]:
    """Images per second of each device alone, taken in turns."""

    def alone(device: jax.Device) -> Callable[[], Any]:
        own, loaded = get_params(params, device), jax.device_put((X, y), device)
        return lambda: gradients[device](own, *loaded)

    rows = interleaved({str(d): alone(d) for d in gradients}, count=rounds)
    return [len(y) / row.median for row in rows.values()]


def _step(
    devices: Sequence[jax.Device],
    gradients: Gradients,
    params: Any,
    X: Any,
    y: Any,
    *,
    weights: Sequence[float] | None,
) -> Callable[[], list[Any]]:
    """One update by section 8.4's `train_batch`, on loaded shares; gives each device's new parameters."""
    copies = [get_params(params, d) for d in devices]
    X_shards, y_shards = (split_and_load(a, devices, weights=weights) for a in (X, y))
    update = jax.jit(lambda own, grads, n: sgd(own, grads, LR, n))  # the full batch divides every sum

    def gradient(own: Any, X: jax.Array, y: jax.Array) -> Any:
        return gradients[next(iter(X.devices()))](own, X, y)[0]

    return lambda: train_batch(X_shards, y_shards, copies, gradient=gradient, update=update)
