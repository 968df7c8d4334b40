"""What more devices are worth: images per second of one training step, a core for each device of a CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxperf.measure import Series, block
from jaxperf.measure.cores import available, on_cores
from jaxperf.measure.rounds import interleaved, per_round
from jaxperf.parallel import Step, first_devices
from jaxperf.script import Story


def scaling(
    story: Story,
    make: Callable[[Sequence[jax.Device]], Step],
    images: np.ndarray[Any, Any],
    labels: np.ndarray[Any, Any],
    *,
    rounds: int,
) -> None:
    """The same batch on 1, 2, 4 and 8 of the devices in use, in turns; the ratio is formed per round.

    Facts: `images_per_s/scaling/DEVICES`, and `scaling_efficiency`, the gain over one device divided by the
    number of devices.

    Args:
      story: where it is told.
      make: the training step on the devices it is given.
      images: (n, ...); what no number of devices divides is left out.
      labels: (n,).
      rounds: how often each number of devices has its turn.
    """
    k, fake, cores = story.flags.devices, story.environment.devices_are_fake, available()
    counts = [c for c in (1, 2, 4, 8) if c <= k and (not fake or c <= len(cores))]
    if len(counts) < 2:
        story.note(f"scaling not measured: devices {k}, cores to give them {len(cores)}")
        return
    story.heading("Scaling")
    last = counts[-1]
    n = len(labels) // last * last
    rows = interleaved(
        {str(c): _one_step(make, images[:n], labels[:n], c, cores[:c] if fake else ()) for c in counts},
        count=rounds,
    )
    speed = {c: n / rows[str(c)].median for c in counts}
    for c in counts:
        story.fact(f"images_per_s/scaling/{c}", speed[c])
    story.curve(
        Series("scaling/measured", tuple(map(float, counts)), tuple(speed.values()), "devices", "images/s")
    )
    gain = per_round("speed-up", lambda one, many: one / many, rows["1"], rows[str(last)], unit="")
    story.fact("scaling_efficiency", gain.median / last)
    story.say(f"{last} devices do {gain.median:.2f} times the work of one, batch {n} (per round, median)")
    if fake:
        story.note(
            "devices are fake: one device ran on one core of this host and two on two, so this is the "
            "efficiency of the method on cores, not of GPUs"
        )


def _one_step(
    make: Callable[[Sequence[jax.Device]], Step], images: Any, labels: Any, k: int, cores: Sequence[int]
) -> Callable[[], Any]:
    """A step on `k` devices and, if given, on these cores only."""
    step = make(first_devices(k))
    state, shares = step.init(), step.load(images, labels)

    def run() -> Any:
        nonlocal state  # the step uses its state up
        state, metrics = step.run(state, shares)
        return block((state, metrics))

    def run_on_cores() -> Any:
        with on_cores(cores):
            return run()

    return run_on_cores if cores else run
