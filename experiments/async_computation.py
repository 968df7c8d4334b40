"""8.2 Asynchronous computation: when does a call return, when is its value there, what does not waiting buy?

The front end (Python) queues computations, the back end runs them. A call returns when its computation is
queued (t1), long before it is computed (t2) and the front end is told so (t3). n calls that are waited for
one by one take n (t1 + t2 + t3); not waited for, they form a pipeline whose slower stage sets the pace, which
is the book's t1 + n t2 + t3 as long as t2 is the slower one.

Prediction: a dot returns in under a tenth of its time; waiting for the last of several results is not waiting
for all; the three times, fitted to half of the sizes of y = x + 1, predict the other half within 15 %; and on
a CPU at most 32 computations are in flight, so training without waiting cannot hold more than that.

    python experiments/async_computation.py --json results/async_computation.json
    python experiments/async_computation.py --points 33 --rounds 31 --batches 40

On 2 idle cores of an AMD EPYC, Python 3.11.7, JAX 0.10.2, Flax 0.12.8, it printed, among the rest:

                 median           IQR                  published  ours / published
jax queued       181 us  28.0 % noisy  1.40 ms (MXNet, the book)            0.129x
jax finished    43.9 ms         6.0 %   352 ms (MXNet, the book)            0.125x
numpy queued    67.8 ms         1.4 %
      999 elements: ready 21 of 21 times,  4.01 us,  4.38 us
     1000 elements: ready 20 of 21 times,  4.51 us,  4.56 us
   100000 elements: ready  1 of 21 times,  4.89 us,  61.0 us
pending_after_waiting_for_last = 1
jitted, us: t1 = 3.82 +- 0.05, t3 = 46.94 +- 0.67, t2 = 1.23 +- 1.10 + 0.057 for each 1000 elements, ...
prediction_error_median = 0.0160
    observed:  crossover at 107047 elements by the model, the plateau ends between 110218 and 162773; ...
inflight_depth = 32
synchronous: peak over start        56.8 MB
asynchronous: peak over start       57.2 MB
host synchronous: peak over start   59.0 MB
host asynchronous: peak over start   127 MB
host window: peak over start        61.1 MB

There t3 is most of it, since a core with nothing to do goes to sleep and has to be woken for each call that
is waited for; with other programs keeping the cores awake it was 1.2 us, and t2's fixed part 5.7 us.
"""

from __future__ import annotations

from dataclasses import dataclass

from jaxperf import script
from jaxperf.errors import JaxperfError


@dataclass(frozen=True)
class Config:
    """Flags of this section."""

    size: int = 2000
    """Rows and columns of the matrices, as in the book."""
    calls: int = 1000
    """How often y = x + 1 is called in 8.2.3, as in the book."""
    points: int = 17
    """Sizes in the sweep that the model is fitted to; every other one is held out to test it."""
    rounds: int = 15
    """How often every size of the sweep is timed."""
    largest: int = 0
    """Elements of the sweep's largest array; 0 takes 2**19 on a CPU and 2**25 on a GPU."""
    batches: int = 100
    """Batches in 8.2.4, as in the book."""
    batch_size: int = 1024
    """Examples in a batch, as in the book."""
    seed: int = 0
    """Seed of matrices, parameters and batches."""

    def __post_init__(self) -> None:
        least = {"size": 64, "calls": 2, "points": 11, "rounds": 1, "batches": 1, "batch_size": 1}
        for name, low in least.items():
            if getattr(self, name) < low:
                flag = "--" + name.replace("_", "-")
                raise JaxperfError(f"{flag} is {getattr(self, name)}; give at least {low}")
        if self.largest and self.largest < 64 * SMALLEST:
            raise JaxperfError(
                f"--largest is {self.largest}; give at least {64 * SMALLEST}, or 0 to have one chosen"
            )

    @property
    def is_the_books(self) -> bool:
        """Whether every size is the book's; elsewhere a ratio to its figures would mean nothing."""
        names = ("size", "calls", "batches", "batch_size")
        return all(getattr(self, n) == getattr(Config(), n) for n in names)

    @staticmethod
    def smoke() -> Config:
        """Every part, in seconds."""
        return Config(size=500, calls=50, points=11, rounds=2, batches=6, batch_size=64)


SMALLEST = 1024  # elements; a CPU runs programs of under 1000 FLOPs in the calling thread
FLAGS = script.parse(Config, devices=2) if __name__ == "__main__" else None  # before JAX starts

import dataclasses
import statistics
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxperf.chapter import waiting
from jaxperf.chapter.book import book
from jaxperf.chapter.dispatch_model import add_one, the_model
from jaxperf.chapter.surfacing import errors
from jaxperf.chapter.training_memory import memory
from jaxperf.measure import (
    Benchmark,
    Measurement,
    Series,
    asynchronous_loop,
    block,
    in_fresh_process,
    pending,
    probe,
    run_ahead_depth,
    synchronous_loop,
    timeline,
)
from jaxperf.report.text import quantity


def main(config: Config, story: script.Story) -> None:
    """Section 8.2 in the book's order, then what it leaves out: the queue's depth, and errors."""
    queued_and_finished(config, story)
    really_asynchronous(config, story)
    waiting.ways_to_wait(story, size=config.size, seed=config.seed, beside_book=config.is_the_books)
    waiting.last_is_not_all(story, size=config.size)
    waiting.in_place_of_waitall(story, size=config.size)
    a_thousand_times(config, story)
    loops_as_timelines(config, story)
    largest = config.largest or (2**19 if jax.default_backend() == "cpu" else 2**25)
    sizes = [round(s) for s in np.geomspace(SMALLEST, largest, config.points)]
    the_model(story, sizes=sizes, rounds=config.rounds)
    how_deep(config, story)
    memory(
        story,
        batches=config.batches,
        batch_size=config.batch_size,
        seed=config.seed,
        beside_book=config.is_the_books,
    )
    errors(story)


# 8.2.1 Asynchronous computation


def queued_and_finished(config: Config, story: script.Story) -> None:
    """The book's first cell, then the same with statistics, and NumPy beside it."""
    story.heading("8.2.1 Queued and finished")
    shape = (config.size, config.size)
    x = jax.random.uniform(jax.random.key(config.seed), shape)
    block(jnp.dot(x, x).sum())  # compile first

    with Benchmark("Workloads are queued.", show=story.say):
        x = jax.random.uniform(jax.random.key(config.seed), shape)
        y = jnp.dot(x, x).sum()
    with Benchmark("Workloads are finished.", show=story.say):
        story.say(f"sum = {y}")

    ours = probe(lambda x: jnp.dot(x, x).sum(), x, calls=7)
    numpy = probe(lambda x: np.dot(x, x).sum(), np.asarray(x), calls=7)
    references = (
        book("queued", 0.0014, "8.2.1", "jax queued"),
        book("finished", 0.3517, "8.2.1", "jax finished"),
    )
    story.measured(
        Measurement("jax queued", "s", ours.queued_s),
        Measurement("jax finished", "s", ours.finished_s),
        Measurement("numpy queued", "s", numpy.queued_s),
        Measurement("numpy finished", "s", numpy.finished_s),
        references=references if config.is_the_books else (),
        title=f"dot of {config.size} x {config.size}, summed: until the call returns, until it is there",
    )
    share = statistics.median(ours.queued_s) / statistics.median(ours.finished_s)
    story.fact("queued_share_of_finished", share)
    story.claim(
        "y = nd.dot(x, x).sum() returns without waiting until y is computed",
        predicted="y not ready, and under a tenth of the time gone, when the call returns",
        observed=f"ready in {sum(ours.ready)} of {len(ours.ready)} calls, {share:.1%} of the time gone",
        held=ours.asynchronous and share < 0.1,
    )


def really_asynchronous(config: Config, story: script.Story) -> None:
    """Which programs this backend really queued, and the same with asynchronous dispatch off."""
    story.heading("8.2.1 Was it really asynchronous?")
    story.say("jitted x + 1: ready when the call returned; time of the call; time of call and wait in a loop")
    add = jax.jit(add_one)
    for n in (10, 999, 1000, 100_000, 1000 * config.size):
        x = jnp.ones(n)
        asked = probe(add, x, calls=21)
        loop_s = statistics.median(synchronous_loop(add, x, 20) / 20 for _ in range(5))
        called = quantity(statistics.median(asked.queued_s), "s")
        waited = quantity(loop_s, "s")
        story.say(f"{n:9} elements: ready {sum(asked.ready):2} of 21 times, {called:>8}, {waited:>8}")
        story.fact(f"ready_at_return_{n}", sum(asked.ready) / 21, show=False)
        story.fact(f"call_and_wait_{n}_s", loop_s, show=False)
    if jax.default_backend() == "cpu":
        story.say("a CPU runs a program of under 1000 FLOPs in the calling thread: waking another costs more")
    rows = []
    for word, on in (("on", True), ("off", False)):
        found = in_fresh_process(dispatch_child, config.size, config.seed, on)
        rows.append(Measurement(f"dispatch {word}: queued", "s", tuple(found["queued_s"])))
        rows.append(Measurement(f"dispatch {word}: finished", "s", tuple(found["finished_s"])))
        story.fact(f"asynchronous_with_dispatch_{word}", found["asynchronous"])
    story.measured(*rows, title="the dot with jax_cpu_enable_async_dispatch on and off, a process each")


def dispatch_child(size: int, seed: int, on: bool) -> dict[str, Any]:
    """One process's answer: was the dot asynchronous here?"""
    jax.config.update("jax_cpu_enable_async_dispatch", on)  # heeded until JAX starts; no variable sets it
    x = jax.random.uniform(jax.random.key(seed), (size, size))
    asked = probe(jax.jit(lambda x: jnp.dot(x, x).sum()), x, calls=7)
    return {**dataclasses.asdict(asked), "asynchronous": asked.asynchronous}


# 8.2.3 What asynchronous computation buys


def a_thousand_times(config: Config, story: script.Story) -> None:
    """`y = x + 1` a thousand times, waiting for each and waiting once; the book's matrix, and a small one."""
    story.heading(f"8.2.3 {config.calls} times y = x + 1")
    ways: tuple[tuple[str, Any, int, int], ...] = (
        (f"{config.size} x {config.size}", add_one, config.size, 3),
        ("100 x 100", add_one, 100, 7),
        ("100 x 100, jitted", jax.jit(add_one), 100, 7),
    )
    rows, gains = [], {}
    for name, fn, size, rounds in ways:
        x = block(jnp.ones((size, size)))
        asynchronous_loop(fn, x, 2)
        loops = (synchronous_loop, asynchronous_loop)
        pairs = [tuple(loop(fn, x, config.calls) for loop in loops) for _ in range(rounds)]
        each, once = zip(*pairs)
        rows.append(Measurement(f"synchronous, {name}", "s", each))
        rows.append(Measurement(f"asynchronous, {name}", "s", once))
        gains[name] = rows[-2].median / rows[-1].median
        story.fact(f"asynchronous_gain/{name}", gains[name], show=False)
    references = (
        book("synchronous", 7.3877, "8.2.3", rows[0].name),
        book("asynchronous", 3.5370, "8.2.3", rows[1].name),
    )
    story.measured(*rows, references=references if config.is_the_books else ())
    kept = [add_one(x) for _ in range(50)]
    kept[-1].block_until_ready()
    story.fact("pending_behind_the_last_on_one_device", pending(kept))
    story.say(
        "y is dropped each time, so waiting at the end is for the last only: one device works in order.\n"
        "By the book's own formulas its figures mean t2 = 3.54 ms and t1 + t3 = 3.85 ms."
    )
    story.claim(
        "Asynchronous computation improves performance (the book: 2.1 times)",
        predicted="a gain at every size, the larger the less there is to compute",
        observed=", ".join(f"{gain:.2f} times for {name}" for name, gain in gains.items()),
        held=min(gains.values()) > 1,
    )


def loops_as_timelines(config: Config, story: script.Story) -> None:
    """The two loops under the profiler: who works when."""
    story.heading("8.2.3 The two loops as timelines")
    x = block(jnp.ones((config.size, config.size)))

    def synchronous() -> jax.Array:
        for _ in range(8):
            with timeline.mark("y"):
                y = add_one(x).block_until_ready()
        return y

    def asynchronous() -> list[jax.Array]:
        return [add_one(x) for _ in range(8)]

    for fn in (synchronous, asynchronous):
        story.timeline(timeline.record(fn, name=f"{fn.__name__} loop", folder=story.traces))


def how_deep(config: Config, story: script.Story) -> None:
    """How many computations may be queued before the client holds the front end back; donation included."""
    story.heading("8.2.4 How far does the front end run ahead?")
    x = block(jnp.ones((500, 500)))
    halve = jax.jit(lambda x: (x @ x / 1000, x[0, 0]))
    donated = jax.jit(lambda x: (x @ x / 1000, x[0, 0]), donate_argnums=0)
    deepest = {}
    for name, step in (("", halve), ("_donated", donated)):
        state, _ = block(step(x + 0))

        def enqueue(step: Any = step) -> Any:
            nonlocal state
            state, metric = step(state)
            return metric

        counts = run_ahead_depth(enqueue, calls=100)
        deepest[name] = max(counts)
        story.fact(f"inflight_depth{name}", max(counts))
        calls = tuple(float(i + 1) for i in range(len(counts)))
        story.curve(Series(f"inflight{name}", calls, tuple(map(float, counts)), "calls", "computations"))
    story.claim(
        "Without synchronisation the front end hands over all computations at once",
        predicted="on a CPU 32 are in flight and the front end then waits for one to end",
        observed=f"at most {deepest['']} of 100 in flight, {deepest['_donated']} with donated arguments",
        held=deepest[""] >= 100,
    )


if __name__ == "__main__":
    script.run(main, FLAGS)
