"""Micro-batches in a pipeline: how long do its devices idle, and does a schedule of its stages predict it?"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
import optax

from jaxperf.measure import interleaved, timeline
from jaxperf.measure.cores import available, on_cores
from jaxperf.models import ResNet
from jaxperf.parallel.pipeline import Pipeline, make_pipeline, resnet_halves
from jaxperf.result import Axis, Curve, Measurement, Ratio, Timeline, both, ratio, ratio_of
from jaxperf.result.intervals import length
from jaxperf.story import Story

Times = Mapping[str, float]  # seconds of "forward", "backward" and "loss" of one micro-batch
NEAR = 0.15  # of the step: how close the measured idle shares must be to those of the schedule


def micro_batches(
    story: Story,
    net: ResNet,
    *,
    devices: Sequence[jax.Device],
    batch: int,
    counts: Sequence[int],
    rounds: int,
    seed: int,
) -> None:
    """Run the halves of `net` on two devices, with the batch cut into more and more micro-batches.

    Facts: `idle_share_M` (measured), `idle_share_schedule_M` (predicted) for M micro-batches.

    Args:
      story: is told the results.
      net: ResNet-18, or a smaller one.
      devices: two.
      batch: images in a batch; every count divides it.
      counts: numbers of micro-batches, from the smallest.
      rounds: recordings of each, taken in turns.
      seed: of images and labels.
    """
    story.heading("Micro-batches in a pipeline")
    story.text(
        """With its layers on two devices a network trains no faster: the second device waits for the first
        one's activations, then the first waits for the gradients. GPipe cuts the batch into m
        micro-batches, so that one device works on the second micro-batch while the other works on the
        first. What remains idle is the time in which the pipeline fills and drains: (p - 1) / (m + p - 1)
        of the step for p equal stages.""",
        """Real stages are not equal. We time the forward pass, the backward pass and the loss of one
        micro-batch, each on its own, and follow the queues of both devices through a step. That schedule is
        the prediction.""",
    )
    story.code(schedule)
    rng = np.random.default_rng(seed)
    X, y = rng.random((batch, 28, 28, 1), np.float32), rng.integers(0, 10, batch)
    steps = {m: make_pipeline(resnet_halves(net), optax.sgd(0.1), devices, micro_batches=m) for m in counts}
    states = {m: step.init() for m, step in steps.items()}
    fake = {d.platform for d in devices} == {"cpu"}  # also those of a GPU's host, in a result for a GPU
    predicted = {m: 1 - _predict(steps[m], states[m], X, y, fake=fake) for m in counts}
    rows, shown = _record(story, steps, states, (X, y), rounds=rounds)
    story.timeline(
        shown[counts[0]], shown[counts[-1]], title="Two stages with one micro-batch and with several"
    )
    _tell(story, rows, predicted)
    if fake:
        story.note("fake devices share cores: one that waits lends its core, which the schedule takes in")


def schedule(m: int, lone: Times, both: Times) -> tuple[float, float]:
    """Follow two devices through one step of m micro-batches.

    The first device runs all forward passes, then all backward passes; the second runs the losses. A task
    starts when its device is free and its input is ready.

    Args:
      m: how many micro-batches.
      lone: seconds of each task while the other device idles.
      both: the same while both work, which is longer on devices that share cores.

    Returns:
      Seconds of the whole step, and of work on both devices together.
    """
    queues = [[("forward", j) for j in range(m)] + [("backward", j) for j in range(m)]]
    queues.append([("loss", j) for j in range(m)])
    needs = {"loss": "forward", "backward": "loss"}
    done: set[tuple[str, int]] = set()
    left = [1.0, 1.0]  # share of each device's current task that is still to do
    now = worked = 0.0
    while any(queues):
        ready = [d for d in (0, 1) if queues[d] and _ready(queues[d][0], needs, done)]
        cost = lone if len(ready) == 1 else both
        step_s = min(left[d] * cost[queues[d][0][0]] for d in ready)
        now, worked = now + step_s, worked + step_s * len(ready)
        for d in ready:
            left[d] -= step_s / cost[queues[d][0][0]]
            if left[d] <= 1e-9:
                done.add(queues[d].pop(0))
                left[d] = 1.0
    return now, worked


def _ready(task: tuple[str, int], needs: Mapping[str, str], done: set[tuple[str, int]]) -> bool:
    name, j = task
    return name not in needs or (needs[name], j) in done


def _predict(step: Pipeline, states: Any, X: Any, y: Any, *, fake: bool) -> float:
    """The share of the step in which the devices work, by the schedule of the measured stages."""
    parts = _stages(step, states, X, y)
    lone = {name: m.median for name, m in interleaved(parts, count=5).items()}
    cores = available()
    if not fake or len(cores) < 2:
        both = lone
    else:  # two CPU devices that both work have a core each, one that works alone has all
        limited = {name: partial(_on_core, fn, cores[0]) for name, fn in parts.items()}
        both = {name: m.median for name, m in interleaved(limited, count=5).items()}
    total, worked = schedule(step.micro_batches, lone, both)
    return worked / (2 * total)


def _on_core(fn: Callable[[], Any], core: int) -> Any:
    with on_cores([core]):
        return jax.block_until_ready(fn())


def _stages(step: Pipeline, states: Any, X: Any, y: Any) -> dict[str, Callable[[], Any]]:
    """The programs of one micro-batch, each ready to be run alone."""
    n = len(y) // step.micro_batches
    first, last = step.programs
    x, labels = jax.device_put(X[:n], step.devices[0]), jax.device_put(y[:n], step.devices[1])
    own = states[0].params, states[0].stats
    Y, _ = first["forward"](*own, x)
    h = jax.device_put(Y, step.devices[1])
    other = states[1].params, states[1].stats
    error = jax.device_put(last["loss"](*other, h, labels)[3], step.devices[0])
    return {
        "forward": lambda: first["forward"](*own, x),
        "backward": lambda: first["backward"](*own, x, error),
        "loss": lambda: last["loss"](*other, h, labels),
    }


def _record(
    story: Story, steps: Mapping[int, Pipeline], states: Mapping[int, Any], batch: Any, *, rounds: int
) -> tuple[dict[int, Measurement], dict[int, Timeline]]:
    """Idle shares from the profiler's spans, recorded in turns, and a timeline for each number of parts."""
    idle: dict[int, list[float]] = {m: [] for m in steps}
    shown: dict[int, Timeline] = {}
    for i in range(rounds):
        for m, step in steps.items():
            name = f"{m} micro-batch{'es' * (m > 1)}"
            folder = None if i else story.traces
            run = timeline.record(step, states[m], *batch, name=name, warmup_calls=int(i == 0), folder=folder)
            shown.setdefault(m, run)
            idle[m].append(_idle(run, [timeline.lane_of(d) for d in step.devices]))
    label = "recordings in turns"
    rows = {
        m: Measurement(f"{m} micro-batch{'es' * (m > 1)}", "", tuple(v), rounds=label)
        for m, v in idle.items()
    }
    return rows, shown


def _idle(run: Timeline, lanes: Sequence[str]) -> float:
    """The share of the time in which the two devices idle, from the first span of either to the last."""
    spans = [run.intervals(lane) for lane in lanes]
    start = min(a for lane in spans for a, _ in lane)
    end = max(b for lane in spans for _, b in lane)
    return 1 - sum(map(length, spans)) / (len(lanes) * (end - start))


def _tell(story: Story, rows: Mapping[int, Measurement], predicted: Mapping[int, float]) -> None:
    for m, row in rows.items():
        words = f"{m} micro-batch{'es' * (m > 1)}"
        story.fact(f"idle_share_{m}", row.median, words=f"idle share with {words}")
        story.fact(f"idle_share_schedule_{m}", predicted[m], words=f"the same, by the schedule, with {words}")
    story.grid(
        ("micro-batches", "idle", "by the schedule", "for equal stages"),
        [(str(m), f"{r.median:.0%}", f"{predicted[m]:.0%}", f"{1 / (m + 1):.0%}") for m, r in rows.items()],
        title="Share of the step in which the devices idle",
        right=(0, 1, 2, 3),
    )
    x = tuple(map(float, rows))
    story.lines(
        "Idle share of a pipeline of two stages",
        [
            Curve("measured", x, tuple(r.median for r in rows.values())),
            Curve("schedule of the measured stages", x, tuple(predicted.values()), "line"),
            Curve("equal stages, 1 / (m + 1)", x, tuple(1 / (m + 1) for m in rows), "line", dash="formula"),
        ],
        x=Axis("micro-batches"),
        y=Axis("idle share"),
    )
    first, *_, last = rows.values() if len(rows) > 1 else (next(iter(rows.values())),) * 2
    found = ratio(last, first)
    shares = {m: ratio_of(row.values) for m, row in rows.items()}
    near = (
        both(share.above(predicted[m] - NEAR), share.below(predicted[m] + NEAR))
        for m, share in shares.items()
    )
    story.claim(
        ours="A pipeline idles less, the more micro-batches a batch is cut into",
        holds=found.below(1) if len(rows) > 1 else None,
        predicted=", ".join(f"{p:.0%}" for p in predicted.values()) + " by the schedule, within 15 points",
        right=both(*near),
        observed=", ".join(map(_percent, shares.values())),
    )


def _percent(share: Ratio) -> str:
    interval = f" ({share.low:.0%} to {share.high:.0%})" if math.isfinite(share.low) else ""
    return f"{share.median:.0%}{interval}"
