"""Section 8.3.2: do copies, to another device and to NumPy, hide behind computing?

At the end CPU, GPU and the copies between them are at work all at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxperf.chapter.independent_products import run
from jaxperf.measure import interleaved, per_round, timeline, together
from jaxperf.measure.rounds import Together, above_one, spread
from jaxperf.script import Story

Run = Callable[[], Any]
Copy = Callable[[Any], Any]
THIN = 64  # columns of the thin factors: copying their product costs about what computing it does


def to_device(ys: Sequence[jax.Array], device: jax.Device) -> list[jax.Array]:
    """Copies on another device, each begun as soon as its original is there."""
    return [jax.device_put(y, device) for y in ys]


def to_host(ys: Sequence[jax.Array]) -> list[np.ndarray]:
    """Copies in NumPy: all begun at once, then fetched in order.

    What a CPU device holds lies in the host's memory already, where `np.asarray` shows it uncopied; there
    Python makes one.
    """
    for y in ys:
        y.copy_to_host_async()
    copies = []
    for y in ys:
        with timeline.mark("output"):
            shown = np.asarray(y)
        with timeline.mark("to host", lane="copies"):
            copies.append(np.array(shown) if {d.platform for d in y.devices()} == {"cpu"} else shown)
    return copies


def compute_and_copy(
    story: Story, *, x: jax.Array, target: jax.Device, thin_size: int, products: int, rounds: int
) -> None:
    """Results copied after all are computed, and each as soon as it is there.

    Two kinds of products, of `x` with itself and of thin matrices, each copied to two places.
    Facts: `copy_sum_over_together`.

    Args:
      story: is told the headings, times, timelines and the claim.
      x: the square products' operand, float32 (n, n), on the device that computes.
      target: another device, to which results are copied; the other place is NumPy.
      thin_size: rows and columns of the thin products' results.
      products: how many are computed in one run.
      rounds: of the comparison.
    """
    [source] = x.devices()
    thin = jax.device_put(jnp.ones((thin_size, THIN)), source)
    runs: dict[str, Run] = {
        "square": lambda: run(x, products),
        "thin": lambda: [jnp.dot(thin, thin.T) for _ in range(products)],
    }
    ways: dict[str, Copy] = {timeline.lane_of(target): lambda ys: to_device(ys, target), "NumPy": to_host}
    found = []
    for what, compute in runs.items():
        for where, copy in ways.items():
            story.heading(f"8.3.2 {what} products on {timeline.lane_of(source)}, copied to {where}")
            found.append(_one_way(story, compute, copy, tag=f"{what} to {where}", rounds=rounds))
    _claim_faster_together(story, found)


def _one_way(story: Story, compute: Run, copy: Copy, *, tag: str, rounds: int) -> Together:
    """Computed, copied and both, timed; then both, recorded."""

    def both() -> Any:
        ys = compute()
        return ys, copy(ys)

    parts: dict[str, Callable[..., Any]] = {
        "run": compute,
        "then copy": copy,
        "run and copy in parallel": both,
    }
    found = together(tag, parts, count=rounds, before={"then copy": compute})
    story.measured(*found.rows())
    recorded = timeline.record(both, name=tag, folder=story.traces)
    story.timeline(recorded)
    for device in timeline.devices(recorded):
        inside = timeline.overlap(recorded, device, "copies")
        story.say(f"{device} and the copies overlap for {inside * 100:.0f} % of the shorter of the two")
    return found


def _claim_faster_together(story: Story, found: Sequence[Together]) -> None:
    """Over all ways whose copies take long enough to be hidden; undecided where the rounds are."""
    worth = [c for c in found if c.possible.median >= 1.1]
    story.fact("copy_sum_over_together", max(c.ratio.median for c in worth or found))
    decided = [above_one(c.ratio) for c in worth]
    story.claim(
        "Computing and copying together take less time than one after the other",
        predicted="less than the sum wherever a copy takes at least a tenth of the computing",
        observed="; ".join(f"{c.tag} {spread(c.ratio)} times" for c in worth or found)
        + (
            " (no copy takes a tenth)"
            if not worth
            else " (undecided: quartiles on both sides of 1)"
            if None in decided
            else ""
        ),
        held=False if False in decided else None if None in decided or not worth else True,
    )


def everything_at_once(
    story: Story, *, on_cpu: jax.Array, on_gpu: jax.Array, products: int, rounds: int
) -> None:
    """CPU, GPU and the copies from one to the other, all at once: what hides behind what.

    Args:
      story: is told times, timeline and claim; a note, where the devices aren't a CPU and a GPU.
      on_cpu, on_gpu: the products' operands, float32 (n, n), each on its device.
      products: how many a device computes in one run.
      rounds: of the comparison.
    """
    story.heading("CPU, GPU and copies at once")
    [cpu], [gpu] = on_cpu.devices(), on_gpu.devices()
    if gpu.platform == "cpu" or cpu.platform != "cpu":
        story.note("CPU, GPU and copies at once: not measured, it takes a CPU and a GPU")
        return
    parts: dict[str, Run] = {
        "at once: run on the CPU": lambda: run(on_cpu, products),
        "at once: run on the GPU": lambda: run(on_gpu, products),
        "at once: run on the GPU, copy to the CPU": lambda: to_device(run(on_gpu, products), cpu),
        "at once: all": lambda: (to_device(run(on_gpu, products), cpu), run(on_cpu, products)),
    }
    rows = list(interleaved(parts, count=rounds).values())
    story.measured(*rows, base=rows[-1].name)
    recorded = timeline.record(parts["at once: all"], name="CPU, GPU and copies", folder=story.traces)
    story.timeline(recorded)
    total = per_round("at once: sum / all", lambda a, _, c, d: (a + c) / d, *rows, unit="times")
    story.measured(total)
    story.claim(
        "Computing on the CPU, on the GPU and copying between them go on at the same time",
        predicted="all at once faster than CPU and GPU with its copies one after the other",
        observed=f"{spread(total)} times",
        held=above_one(total),
    )
