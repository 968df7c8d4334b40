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
    """Parameters and statistics after one update for each batch, from the network's own values.

    Products are computed to float32's full precision, which a GPU would otherwise round to fewer bits.
    """
    state = step.init()
    with jax.default_matmul_precision("highest"):
        for X, y in batches:
            state, _ = step(state, X, y)
    return block((state.params, state.stats))


def distance(ours: Any, theirs: Any) -> float:
    """Largest absolute difference of two trees of one structure."""
    pairs = zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True)
    return max(float(np.abs(np.asarray(a) - np.asarray(b)).max()) for a, b in pairs)


def against_one_device(story: Story, make: MakeStep, batches: Batches, *, devices: int) -> float:
    """Each way on 1, 2, 4 and 8 of `devices` against one device's single program; the largest difference.

    Facts: `max_param_diff_vs_one_device/WAY/DEVICES`.
    """
    n, worst = len(batches[0][1]), 0.0
    expected = after_updates(make("jit", first_devices(1)), batches)
    for way in WAYS:
        for k in (c for c in (1, 2, 4, 8) if c <= devices and n % c == 0):
            found = distance(after_updates(make(way, first_devices(k)), batches), expected)
            story.fact(f"max_param_diff_vs_one_device/{way}/{k}", found)
            worst = max(worst, found)
    return worst


def collectives_of(story: Story, step: Step, batch: tuple[Any, Any]) -> None:
    """How many sums over devices, and gathers of parameters, the compiled step holds."""
    ops = count_ops(step.compile(step.init(), step.load(*batch))[0])
    story.fact("allreduce_count", ops["all-reduce"])
    story.fact("allgather_count", ops["all-gather"])
