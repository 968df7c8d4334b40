"""What each way to run a step costs where the devices belong to several processes."""

from __future__ import annotations

import time
from typing import Any

from jaxperf.chapter.equality import lenet_step
from jaxperf.data import FashionMNIST
from jaxperf.measure import block
from jaxperf.measure.timing import nothing_compiles
from jaxperf.parallel import Way, first_devices, rows_of
from jaxperf.result import Measurement, ratio, turns
from jaxperf.script import Story

WAYS: tuple[Way, ...] = ("jit", "shard_map", "pmap")
STEPS = 10  # of one value; every process must make as many, so no clock chooses it


def ways_together(story: Story, data: FashionMNIST, *, batch_size: int, rounds: int) -> None:
    """Time LeNet's step each way, the ways taking turns; all processes make the same calls.

    Facts: `pmap_over_jit`, `shard_map_over_jit`.

    Args:
      story: where it is told.
      data: its first images are the batch.
      batch_size: of all processes together.
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
    values: dict[Way, list[float]] = {way: [] for way in WAYS}

    def turn(way: Way) -> float:
        began = time.perf_counter()
        for _ in range(STEPS):
            states[way], metrics = steps[way].run(states[way], shares[way])
            block((states[way], metrics))
        return (time.perf_counter() - began) / STEPS

    for way in WAYS:
        turn(way)  # compiles
    with nothing_compiles("the ways over several processes"):
        for number in range(rounds):
            for way in turns(WAYS, number):
                values[way].append(turn(way))
    found = {
        way: Measurement(way, "s", tuple(each), loops=STEPS, items=batch_size, rounds="rounds of the ways")
        for way, each in values.items()
    }
    title = f"A step of LeNet on {story.processes} processes, batch {batch_size}"
    story.table(found.values(), base="jit", title=title)
    over = {way: ratio(found[way], found["jit"]) for way in WAYS[1:]}
    for way, slower in over.items():
        story.fact(f"{way}_over_jit", slower.median, words=f"{way}'s step over jit's")
    story.claim(
        ours="Across processes a step costs more with pmap than with jit",
        holds=over["pmap"].above(1),
        predicted="more, by the arrays that are put together at each call",
        right=over["pmap"].above(1),
        observed=f"pmap takes {over['pmap']} times as long, shard_map {over['shard_map']} times",
    )
