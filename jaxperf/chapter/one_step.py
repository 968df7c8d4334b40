"""One training step by hand under the microscope: what runs at the same time, and where its time goes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax

from jaxperf.chapter.training import plural
from jaxperf.measure import block, interleaved, per_round, timeline
from jaxperf.measure.trace import COPIES, PYTHON, WAIT
from jaxperf.parallel import allreduce, split_and_load
from jaxperf.result import Timeline
from jaxperf.script import Story


def timeline_of_a_step(
    story: Story, step: Callable[[], Any], *, devices: Sequence[jax.Device], gradient: str = "gradient"
) -> None:
    """Record one step, with a lane for each program on each device: do the gradients run side by side?

    Facts: `gradients_overlap`, `queued_share`.

    Args:
      story: is told the results.
      step: makes one step and returns its outputs.
      devices: where it runs; the first two are compared.
      gradient: name of the function that computes a device's gradient.
    """
    run = timeline.record(step, name="train_batch", folder=story.traces, by_program=True)
    run = _by_time(run)
    lanes = [f"{timeline.lane_of(d)} {gradient}" for d in devices[:2]]
    story.timeline(
        run,
        title=f"One train_batch on {len(devices)} devices",
        caption="Python queues everything and then waits. The gradients come first, then the sum on the "
        "first device (add), the copies back, and an update on each device.",
    )
    shared = timeline.overlap(run, *lanes) if len(lanes) == 2 else 0.0
    story.fact("gradients_overlap", shared, words="share of the shorter gradient in which both compute")
    wait = min((start for start, _ in run.intervals(WAIT)), default=0.0)
    queued = wait / run.traced_s if run.traced_s else 0.0
    story.fact("queued_share", queued, words="share of the step after which all of it was queued")
    story.claim(
        ours="A loop over devices looks serial and runs in parallel, because each call only queues its work",
        holds=shared > 0.5,
        predicted="the second gradient starts while the first is computed: more than half of it overlaps",
        right=shared > 0.5,
        observed=f"{shared:.0%} of the shorter gradient overlaps; Python had queued all after {queued:.0%}",
        cannot="" if len(lanes) == 2 else "only one device here",
    )


def _by_time(run: Timeline) -> Timeline:
    """Sort the lanes in the order in which they begin to work: Python, waiting, programs, copies."""
    first = {lane: min(start for start, _ in run.intervals(lane)) for lane in run.lanes}
    place = {PYTHON: 0, WAIT: 1, COPIES: 3}
    order = sorted(run.spans, key=lambda s: (place.get(s.lane, 2), first[s.lane], s.lane, s.start_s))
    return dataclasses.replace(run, spans=tuple(order))


def where_time_goes(
    story: Story,
    step: Callable[..., Any],
    halves: tuple[Callable[..., Any], Callable[..., Any]],
    batch: tuple[Any, Any],
    device_params: Sequence[Any],
    *,
    devices: Sequence[jax.Device],
    rounds: int,
) -> None:
    """Time a step by hand and each of its parts alone, in turns; show the parts as a stack.

    Facts: `communication_share`.

    Args:
      story: is told the results.
      step: `step(X, y, device_params)`, the whole.
      halves: the gradient and the update that it calls.
      batch: images and labels.
      device_params: the parameters on each device.
      devices: where it runs.
      rounds: how often each has its turn.
    """
    X, y = batch
    gradient, update = halves
    X_shards, y_shards = split_and_load(X, devices), split_and_load(y, devices)
    sums = block(list(map(gradient, device_params, X_shards, y_shards)))
    totals = block(allreduce(sums))
    whole, *rows = interleaved(
        {
            "train_batch": lambda: step(X, y, device_params),
            "split_and_load": lambda: (split_and_load(X, devices), split_and_load(y, devices)),
            "gradients": lambda: list(map(gradient, device_params, X_shards, y_shards)),
            "allreduce": lambda: allreduce(sums),
            "updates": lambda: [update(p, t, len(y)) for p, t in zip(device_params, totals)],
        },
        count=rounds,
    ).values()
    story.text(
        """Where does the time of a step go? Each part is timed alone, in turns with the whole step. The whole
        can take less than its parts together, since it overlaps them."""
    )
    rest = per_round("dispatch and the rest", lambda t, *known: max(0.0, t - sum(known)), whole, *rows)
    title = f"A step on {plural(len(devices))}, batch {len(y)}"
    story.table(
        (*rows, rest, whole), base=whole.name, title=title, bars="stacked", key=(rows[2].name, whole.name)
    )
    share = per_round("share", lambda a, t: a / t, rows[2], whole, unit="")
    story.fact("communication_share", share.median, words="the sums alone, as a share of the step")
