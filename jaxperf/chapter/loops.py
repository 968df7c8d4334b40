"""Section 8.2.3: the loops that wait for each result and once, at all sizes and as timelines."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxperf.launch import ALLOCATOR
from jaxperf.measure import block, ceilings, in_fresh_process, interleaved, timeline
from jaxperf.measure.awake import cores_awake
from jaxperf.measure.dispatch import (
    Fit,
    Sample,
    asynchronous_loop,
    fit,
    queueing_s,
    sweep,
    synchronous_loop,
)
from jaxperf.measure.sizes import size_that_lasts
from jaxperf.result import Measurement, Ratio, both, ratio
from jaxperf.script import Story

CALLS = 200  # in one loop of the sweep
CLOSE = 0.5  # how far off a predicted gain may be: a quotient of two loops, each predicted to within 25 %


def add_one(x: jax.Array) -> jax.Array:
    """The book's statement. It is called op by op, so Python's dispatch is part of t1."""
    return x + 1


@dataclasses.dataclass(frozen=True)
class Swept:
    """What the sweep's process measured.

    Attributes:
      samples: both loops at every size, with the cores kept awake.
      awake, asleep: the synchronous loop at the smallest size, seconds for `CALLS` calls.
      t1_s: seconds that the front end alone takes to queue one "eager" call, and one "compiled" call.
      floor: seconds per call of an empty program, including the wait, with the cores kept awake.
    """

    samples: list[Sample]
    awake: Measurement
    asleep: Measurement
    t1_s: dict[str, float]
    floor: Measurement

    @cached_property
    def model(self) -> Fit:
        """t1, t2 and t3, fitted to every other size."""
        return fit(self.samples[::2], t1_s=self.t1_s["eager"])

    @property
    def gains(self) -> dict[float, Ratio]:
        """The synchronous loop's time over the asynchronous loop's, by size."""
        return {s.size: s.gain for s in self.samples}


def sweep_loops(*, sizes: Sequence[int], rounds: int) -> Swept:
    """Run both loops over all sizes, in a process with one thread to compute and with cores kept awake."""
    found = in_fresh_process(
        sweep_child, list(sizes), rounds, environment={"NPROC": "1", **ALLOCATOR}, timeout_s=1200
    )
    samples = [
        Sample(row["size"], row["calls"], tuple(row["sync_s"]), tuple(row["async_s"]))
        for row in found["samples"]
    ]
    awake, asleep = (Measurement(**row) for row in found["sleeping"])
    return Swept(samples, awake, asleep, found["t1_s"], Measurement(**found["floor"]))


def sweep_child(sizes: list[int], rounds: int) -> dict[str, Any]:
    """Both loops over all sizes; one loop with cores asleep and awake; t1 alone, compiled and eager."""
    inputs = [(float(size), block(jnp.ones(size))) for size in sizes]
    x = inputs[0][1]
    loop = partial(synchronous_loop, add_one, x, CALLS)
    with cores_awake() as keep:
        samples = sweep(add_one, inputs, calls=CALLS, rounds=rounds)
        t1_s = {"eager": queueing_s(add_one, x), "compiled": queueing_s(jax.jit(add_one), x)}
        floor = ceilings.dispatch_floor(budget_s=0.2)
        sleeping = interleaved(
            {"cores kept awake": loop, "cores may sleep": loop},
            before={"cores kept awake": lambda: keep(True), "cores may sleep": lambda: keep(False)},
            count=rounds,
        )
    return {
        "samples": [dataclasses.asdict(s) for s in samples],
        "sleeping": [dataclasses.asdict(m) for m in sleeping.values()],
        "t1_s": t1_s,
        "floor": dataclasses.asdict(floor),
    }


def the_gain(story: Story, swept: Swept, at_book: Ratio, *, size: int) -> None:
    """The book's sentence, judged at sizes on both sides of the crossover and at the book's size."""
    model = swept.model.costs
    gains = swept.gains
    rows = [
        (f"{n:.0f}", str(gain), f"{model.gain(n):.3g}", "queueing" if n < model.crossover else "computing")
        for n, gain in gains.items()
    ]
    story.grid(
        ("elements", "synchronous over asynchronous", "predicted", "slower stage"),
        [*rows, (f"{size} x {size}, all threads", str(at_book), "", "computing")],
        title="what waiting once instead of each time gains",
        right=(0, 1, 2),
        detail=True,
    )
    missed = statistics.median(abs(model.gain(n) / gain.median - 1) for n, gain in gains.items())
    story.fact("gain_error_median", missed, words="median error of the predicted gains")
    at = max((s.size for s in swept.samples[1::2]), key=model.gain)  # among the sizes that were not fitted
    best = gains[at]
    story.claim(
        book="Asynchronous computation improves performance (there: 2.1 times)",
        holds=best.above(1),
        predicted=f"(t1 + t2 + t3) / max(t1, t2) times within {CLOSE:.0%} (median): most near t1 = t2, under "
        f"2 at {size} x {size}",
        right=both(best.above(1), at_book.at_most(2), missed <= CLOSE),
        observed=f"{best} times at {at:.0f} elements, by the model {model.gain(at):.3g}; {at_book} at "
        f"{size} x {size}; predictions are {missed:.0%} off (median)",
        cannot=one_core(story),
    )


def loops_as_timelines(story: Story, *, elements: int) -> None:
    """The two loops under the profiler, on an array so small that t1 and t3 can be seen."""
    x = block(jnp.ones(elements))

    def synchronous() -> jax.Array:
        for _ in range(8):
            y = add_one(x)
            with timeline.mark("y"):
                block(y)
        return y

    def asynchronous() -> list[jax.Array]:
        return [add_one(x) for _ in range(8)]

    runs = [
        timeline.record(fn, name=f"{fn.__name__} loop", folder=story.traces)
        for fn in (synchronous, asynchronous)
    ]
    story.timeline(
        *runs,
        title=f"the two loops, {elements} elements",
        caption="In the synchronous loop the back end is idle between two computations, while the front end "
        "is told (t3) and while it queues the next (t1). The asynchronous loop hides both. The profiler adds "
        "some microseconds to each call.",
    )


def loops_at(fn: Any, x: jax.Array, *, calls: int, rounds: int) -> Ratio:
    """The synchronous loop's time over the asynchronous loop's, in rounds."""
    loops = {
        "each": partial(synchronous_loop, fn, x, calls),
        "once": partial(asynchronous_loop, fn, x, calls),
    }
    found = interleaved(loops, count=rounds, loops=1)
    return ratio(found["each"], found["once"])


def one_core(story: Story) -> str:
    """Why a single core cannot show two stages working together; "" if there are more cores."""
    one = story.environment.cores == 1
    return "with one core the front end and the back end take turns on it" if one else ""


def rows_that_last(seconds: float) -> int:
    """The rows of a square matrix, a power of two, whose product with itself lasts this long."""
    dot = jax.jit(lambda x: x @ x)
    return size_that_lasts(256, lambda n: partial(dot, block(jnp.ones((n, n)))), seconds=seconds, most=2**14)
