"""The cost of each way to run a step when the devices belong to several processes."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from typing import Any

from jaxperf.chapter.equality import lenet_step
from jaxperf.data import FashionMNIST
from jaxperf.measure import block
from jaxperf.measure.timing import nothing_compiles
from jaxperf.parallel import Way, first_devices, rows_of
from jaxperf.result import Measurement, Ratio, ratio, turns
from jaxperf.script import Story

WAYS: tuple[Way, ...] = ("jit", "shard_map", "pmap")
STEPS = 10  # per value; every process must make the same number, so the clock must not choose it


def ways_together(story: Story, data: FashionMNIST, *, batch_size: int, rounds: int) -> None:
    """Time LeNet's step each way, the ways taking turns; all processes make the same calls.

    Facts: `pmap_over_jit`, `shard_map_over_jit`, `pmap_front_end_over_jit`, `shard_map_front_end_over_jit`.

    Args:
      story: is told the results.
      data: its first images are the batch.
      batch_size: images of all processes together.
      rounds: how often each way has its turn.
    """
    story.heading("The ways over several processes")
    story.text(
        """All three ways run one program per device with one all-reduce. They differ in what Python does at
        each call: `pmap` takes and gives arrays of this process, which JAX puts together and takes apart
        again, while `jit` and `shard_map` keep global arrays."""
    )
    devices = first_devices(story.devices)
    rows = rows_of(batch_size, devices)
    X, y = data.train_images[:batch_size][rows], data.train_labels[:batch_size][rows]
    steps = {way: lenet_step(way, devices) for way in WAYS}
    states: dict[Way, Any] = {way: step.init() for way, step in steps.items()}
    shares = {way: step.load(X, y) for way, step in steps.items()}
    values: dict[Way, list[tuple[float, float]]] = {way: [] for way in WAYS}

    def turn(way: Way) -> tuple[float, float]:
        front_end, began = 0.0, time.perf_counter()
        for _ in range(STEPS):
            called = time.perf_counter()
            states[way], metrics = steps[way].run(states[way], shares[way])
            front_end += time.perf_counter() - called
            block((states[way], metrics))
        return (time.perf_counter() - began) / STEPS, front_end / STEPS

    for way in WAYS:
        turn(way)  # compiles
    with nothing_compiles("the ways over several processes"):
        draw = random.Random(0)  # every process must take the same turns
        for _ in range(rounds):
            for way in turns(WAYS, draw):
                values[way].append(turn(way))
    title = f"A step of LeNet on {story.processes} processes, batch {batch_size}"
    finished, returned = ({way: [pair[i] for pair in values[way]] for way in WAYS} for i in (0, 1))
    whole = _compared(story, finished, title, "", items=batch_size)
    queued = _compared(story, returned, "Until the call returns", "front_end_")
    story.claim(
        ours="Across processes pmap keeps the front end longer than jit does",
        holds=queued["pmap"].above(1),
        predicted="longer, by the arrays that are put together at each call",
        right=queued["pmap"].above(1),
        observed=f"pmap keeps it {queued['pmap']} times as long; the whole step takes {whole['pmap']} times "
        f"as long, and {whole['shard_map']} times with shard_map",
    )


def _compared(
    story: Story, values: Mapping[Way, Sequence[float]], title: str, fact: str, *, items: int = 0
) -> dict[Way, Ratio]:
    """Show a table of the ways, and return each one's time over that of jit."""
    found = {
        way: Measurement(way, "s", tuple(each), loops=STEPS, items=items, rounds=title)
        for way, each in values.items()
    }
    story.table(found.values(), base="jit", title=title)
    over = {way: ratio(found[way], found["jit"]) for way in WAYS[1:]}
    for way, slower in over.items():
        story.fact(f"{way}_{fact}over_jit", slower.median, words=f"{title}: {way} over jit")
    return over
