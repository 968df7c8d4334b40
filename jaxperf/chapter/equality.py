"""Are several devices equal to one? The same updates of a network, each way, on 1, 2, 4 and 8 devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxperf.measure import block, count_ops
from jaxperf.parallel import WAYS, Step, Way, first_devices
from jaxperf.script import Story

Batches = Sequence[tuple[Any, Any]]
MakeStep = Callable[[Way, Sequence[jax.Device]], Step]


def after_updates(step: Step, batches: Batches) -> Any:
    """Return parameters and statistics after one update for each batch, from the network's own values.

    Products are computed to float32's full precision, which a GPU would otherwise round to fewer bits.
    """
    state = step.init()
    with jax.default_matmul_precision("highest"):
        for X, y in batches:
            state, _ = step(state, X, y)
    found = step.read(state)
    return block((found.params, found.stats))


def distance(ours: Any, theirs: Any) -> float:
    """Return the largest absolute difference of two trees of one structure."""
    pairs = zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True)
    return max(float(np.abs(np.asarray(a) - np.asarray(b)).max()) for a, b in pairs)


def tolerance(story: Story, on_cpu: float) -> float:
    """Return what rounding may do: `on_cpu`, or ten times that on a GPU, whose libraries choose algorithms."""
    return on_cpu if story.environment.backend == "cpu" else 10 * on_cpu


def against_one_device(
    story: Story, make: MakeStep, batches: Batches, *, ways: Sequence[Way] = WAYS, rounding: float
) -> None:
    """Compare each way on 1, 2, 4 and 8 of the devices in use with one device's single program.

    Facts: `max_param_diff_WAY_DEVICES`.

    Args:
      story: where it is told.
      make: the step of a way on the devices it is given.
      batches: one for each update.
      ways: which to compare.
      rounding: the largest difference that counts as equal.
    """
    n = len(batches[0][1])
    counts = [c for c in (1, 2, 4, 8) if c <= story.devices and n % c == 0]
    expected = after_updates(make("jit", first_devices(1)), batches)
    found = {
        (way, k): distance(after_updates(make(way, first_devices(k)), batches), expected)
        for way in ways
        for k in counts
    }
    heads = ("way", *(f"{k} device{'s' * (k > 1)}" for k in counts))
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
        observed=f"largest difference {worst:.1e}, {', '.join(ways)} on {', '.join(map(str, counts))} devices",
        cannot="" if len(counts) > 1 else "only one device here, nothing to compare",
    )


def collectives_of(story: Story, step: Step, batch: tuple[Any, Any]) -> None:
    """Count the sums over devices, and the gathers of parameters, that the compiled step holds."""
    ops = count_ops(step.compile(step.init(), step.load(*batch))[0])
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
