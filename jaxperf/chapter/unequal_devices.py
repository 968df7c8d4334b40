"""Section 8.5's exercise on devices of different strength: shares that follow what each device can do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxperf.chapter.equality import distance
from jaxperf.data import to_float
from jaxperf.errors import JaxperfError
from jaxperf.measure import block
from jaxperf.measure.rounds import interleaved, per_round
from jaxperf.models import lenet, lenet_params, sgd
from jaxperf.parallel import allreduce, first_devices, get_params, share_sizes, softmax_cross_entropy
from jaxperf.parallel import split_and_load as split
from jaxperf.script import Story

LR = 0.1
WEAK = 3  # how often the weak one of two equal devices computes its share
Gradient = Callable[..., list[Any]]


def unequal_devices(
    story: Story, images: np.ndarray[Any, Any], labels: np.ndarray[Any, Any], *, rounds: int, seed: int
) -> None:
    """LeNet on a GPU and the CPU, or on two CPU devices of which one is made weak; the step is timed.

    Facts: `max_param_diff_vs_one_device/uneven_shares`, `uneven_over_equal_step_time` (median over rounds).

    Args:
      story: where it is told.
      images: (n, 28, 28, 1), uint8, the batch.
      labels: (n,), int32.
      rounds: how often each timing is repeated.
      seed: of the weights.
    """
    story.heading("Exercise: devices of different strength")
    pair = _two_devices(story)
    if pair is None:
        story.note("one device: nothing to divide unequally")
        return
    devices, repeats = pair
    params = lenet_params(jax.random.key(seed), scale=0.05)
    gradients = [_gradient(r) for r in repeats]
    strengths = _strengths(devices, gradients, params, images, labels, rounds=rounds)
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
    rows = interleaved({"equal": step(devices, None), "by strength": step(devices, strengths)}, count=rounds)
    story.measured(*rows.values(), base="equal", title="seconds of a step, shares equal and by strength")
    ratio = per_round("ratio", lambda even, odd: odd / even, rows["equal"], rows["by strength"], unit="")
    story.fact("max_param_diff_vs_one_device/uneven_shares", difference)
    story.fact("uneven_over_equal_step_time", ratio.median)
    story.claim(
        "A batch divided by strength takes less time and gives the same update",
        predicted="less time than equal shares; equal parameters up to rounding",
        observed=f"{ratio.median:.2f} of the time; largest difference {difference:.1e}",
        held=difference <= 1e-6 and ratio.median < 1,
    )


def _two_devices(story: Story) -> tuple[list[jax.Device], tuple[int, int]] | None:
    """Two devices, and how often each computes its share."""
    if story.environment.backend != "cpu":
        story.say("a GPU and the CPU")
        return [jax.devices()[0], jax.devices("cpu")[0]], (1, 1)
    if story.flags.devices < 2:
        return None
    story.say(
        f"device 1 is made weak: it computes its share {WEAK} times (no second kind of device is here); both "
        "share the cores of this host"
    )
    return first_devices(2), (1, WEAK)


def _gradient(repeats: int) -> Gradient:
    """Gradients of a share's summed loss: its own, then those of slightly other images, as extra work."""

    @jax.jit
    def run(params: list[jax.Array], X: jax.Array, y: jax.Array) -> list[Any]:
        def loss(params: list[jax.Array], brighter: float) -> jax.Array:
            return softmax_cross_entropy(lenet(to_float(X) + brighter, params), y).sum()

        return [jax.grad(loss)(params, i / 10) for i in range(repeats)]

    return run


def _strengths(
    devices: Sequence[jax.Device], gradients: Sequence[Gradient], params: Any, X: Any, y: Any, *, rounds: int
) -> list[float]:
    """Images per second of each device alone, taken in turns."""

    def alone(i: int) -> Callable[[], Any]:
        own, loaded = get_params(params, devices[i]), jax.device_put((X, y), devices[i])
        return lambda: gradients[i](own, *loaded)

    rows = interleaved({str(i): alone(i) for i in range(len(devices))}, count=rounds)
    return [len(y) / row.median for row in rows.values()]


def _step(
    devices: Sequence[jax.Device],
    gradients: Sequence[Gradient],
    params: Any,
    X: Any,
    y: Any,
    *,
    weights: Sequence[float] | None,
) -> Callable[[], list[Any]]:
    """One update by hand, as in section 8.4, on loaded shares; gives each device's new parameters."""
    copies = [get_params(params, d) for d in devices]
    shares = list(zip(split(X, devices, weights=weights), split(y, devices, weights=weights)))
    update = jax.jit(lambda own, grads: sgd(own, grads, LR, len(y)))  # the full batch divides every sum

    def run() -> list[Any]:
        grads = [g(own, *share)[0] for g, own, share in zip(gradients, copies, shares)]
        return [update(own, total) for own, total in zip(copies, allreduce(grads))]

    return run
