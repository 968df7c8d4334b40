"""8.2 Asynchronous computation: when does a call return, when is its value ready, what does not waiting gain?

Python, the front end, queues computations; the back end runs them. A call returns when its computation is
queued (t1), long before it is computed (t2) and the front end is told (t3). Prediction: a product returns
in under a tenth of its time; a loop that waits once takes max(t1, t2) per call instead of t1 + t2 + t3; a CPU
has at most 32 computations in flight, so that training without waiting holds no more than that.

    python experiments/async_computation.py
    python experiments/async_computation.py --points 33 --rounds 31 --batches 100
"""

from __future__ import annotations

if __name__ == "__main__":
    from jaxperf.exits import end_at_once

    end_at_once()  # while all else is imported, Ctrl-C is no traceback

from dataclasses import dataclass
from typing import Annotated

from jaxperf import script
from jaxperf.errors import JaxperfError
from jaxperf.flags import at_least


@dataclass(frozen=True)
class Config:
    """Flags of this section."""

    size: Annotated[int, at_least(0)] = (
        0  # rows of the matrices; 0: the book's 2000, on a GPU as many as last 5 ms
    )
    calls: Annotated[int, at_least(2)] = 1000  # how often y = x + 1 is called in 8.2.3, as in the book
    points: Annotated[int, at_least(11)] = 17  # sizes in the sweep of the model; every other one is held out
    rounds: Annotated[int, at_least(1)] = 15  # rounds of each comparison
    largest: Annotated[int, at_least(0)] = 0  # elements of the sweep's largest array; 0: chosen by the device
    batches: Annotated[int, at_least(1)] = 20  # batches of the long run in 8.2.4; the book has 100
    batch_size: Annotated[int, at_least(1)] = 1024  # examples in a batch, as in the book
    seed: int = 0  # seed of matrices, parameters and batches

    @staticmethod
    def smoke() -> Config:
        """Every part, in seconds."""
        return Config(size=500, calls=50, points=11, rounds=6, batches=3, batch_size=32)


FLAGS = script.parse(Config, devices=2) if __name__ == "__main__" else None  # before JAX starts

import time
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from jaxperf.chapter import dispatch_model, fused_dot, loops, running_ahead, surfacing, waiting
from jaxperf.chapter.book import book
from jaxperf.chapter.loops import add_one, one_core, rows_that_last
from jaxperf.chapter.really_asynchronous import really_asynchronous
from jaxperf.measure import (
    Benchmark,
    asynchronous_loop,
    block,
    ceilings,
    interleaved,
    pending,
    per_round,
    probe,
    synchronous_loop,
)
from jaxperf.measure.sizes import size_for
from jaxperf.result import Measurement, both, ratio

SMALLEST = 1024  # elements of the sweep's smallest array; a CPU runs smaller programs in the calling thread


def three_statements() -> tuple[jax.Array, jax.Array, jax.Array]:
    """The book's first cell: each statement only puts its computation into a queue."""
    a = jnp.ones((1, 2))
    b = jnp.ones((1, 2))
    c = a * b + 2
    return a, b, c


def queued_and_finished(x: jax.Array) -> None:
    """The book's second cell: until the product is queued, and until it is there to be printed."""
    with Benchmark("Workloads are queued."):
        y = jnp.dot(x, x).sum()
    with Benchmark("Workloads are finished."):
        print("sum =", y)


def slowly(fn: Callable[[jax.Array], jax.Array], seconds: float) -> Callable[[jax.Array], jax.Array]:
    """`fn` behind a slower front end: Python works for so many seconds before each call."""

    def call(x: jax.Array) -> jax.Array:
        ends = time.perf_counter() + seconds
        while time.perf_counter() < ends:
            pass
        return fn(x)

    return call


def a_thousand_times(x: jax.Array, calls: int) -> tuple[float, float]:
    """The book's third cell: y = x + 1, waiting for each, then waiting once."""
    with Benchmark("synchronous.") as each:
        synchronous_loop(add_one, x, calls)
    with Benchmark("asynchronous.") as once:
        asynchronous_loop(add_one, x, calls)
    return each.seconds, once.seconds


def front_end_and_back_end(story: script.Story, config: Config) -> None:
    """Two ends and a queue; and how much the speed of the front end matters."""
    story.heading("8.2.1 Front end and back end")
    story.text(
        """A program in Python, the front end, does not compute. It hands computations to the back end, which
        is written in C++, keeps them in a queue and runs them on threads of its own. Below, `a`, `b` and `c`
        are names for results that need not be there yet. Only printing `c` has to wait."""
    )
    story.habit(
        gluon="a = nd.ones((1, 2))\nb = nd.ones((1, 2))\nc = a * b + 2\nc",
        jax="a = jnp.ones((1, 2))\nb = jnp.ones((1, 2))\nc = a * b + 2\nc",
        remark="Both are asynchronous by default.",
    )
    story.code(three_statements)
    with story.output(detail=True):
        print(three_statements()[2])
    dot = jax.jit(lambda x: x @ x)
    large, small = (block(jnp.ones((n, n))) for n in (rows_that_last(2e-3), 10))
    t1_s = min(probe(dot, small, calls=20).queued_s)
    story.text(
        f"""So the speed of Python hardly matters, says the book, if the back end has enough to do. We test it
        with a front end that works ten times as long per call, {10 * t1_s * 1e6:.0f} us: for products that
        last milliseconds, and for tiny ones that last no longer than queueing them. No 100 calls take less
        than 100 of a program that computes nothing, the last row."""
    )
    story.code(slowly)
    found = interleaved(
        {
            f"{what}, {pace} front end": partial(asynchronous_loop, fn, x, calls)
            for what, x, calls in (("large products", large, 24), ("tiny products", small, 100))
            for pace, fn in (("fast", dot), ("slow", slowly(dot, 10 * t1_s)))
        },
        count=4 * config.rounds,
        loops=1,
    )
    least = per_round("100 empty programs", lambda s: 100 * s, ceilings.queueing_floor(budget_s=0.2))
    story.table((*found.values(), least), title="a loop of products that waits once", detail=True)
    fast, slow, tiny_fast, tiny_slow = found.values()
    hardly, much = ratio(slow, fast), ratio(tiny_slow, tiny_fast)
    story.claim(
        book="The front end's speed hardly matters to the whole program",
        holds=hardly.at_most(1.2),
        predicted="under 1.2 times for large products, over 2 times for tiny ones",
        right=both(hardly.at_most(1.2), much.above(2)),
        observed=f"{hardly} times as long for large products, {much} for tiny ones",
        cannot=one_core(story),
    )


def a_product(story: script.Story, config: Config, size: int) -> None:
    """The book's cell, then the same with statistics, and NumPy next to it."""
    story.heading("8.2.1 Queued and finished")
    story.text(
        """How long until a call returns, and how long until its value is there? `Benchmark` is the book's
        stopwatch. NumPy computes at once, in the calling thread."""
    )
    story.code(Benchmark, queued_and_finished)
    x = block(jax.random.uniform(jax.random.key(config.seed), (size, size)))
    block(jnp.dot(x, x).sum())  # compile first
    with story.output():
        queued_and_finished(x)
    calls = max(9, config.rounds) if size <= 2000 else 9
    ours = probe(lambda x: jnp.dot(x, x).sum(), x, calls=calls)
    host = np.asarray(x[:2000, :2000])
    numpy = probe(lambda x: np.dot(x, x).sum(), host, calls=3)
    references = (
        book("queued", 0.0014, "8.2.1", beside="JAX, queued"),
        book("finished", 0.3517, "8.2.1", beside="JAX, finished"),
    )
    story.table(
        (
            Measurement("JAX, queued", "s", ours.queued_s),
            Measurement("JAX, finished", "s", ours.finished_s),
            Measurement("NumPy, queued", "s", numpy.queued_s, note=f"{len(host)} x {len(host)}"),
            Measurement("NumPy, finished", "s", numpy.finished_s, note=f"{len(host)} x {len(host)}"),
        ),
        title=f"dot of {size} x {size} and its sum: until the call returns, until the value is there",
        references=references if size == 2000 else (),
        detail=True,
    )
    share = ours.queued_share
    story.fact("queued_share_of_finished", share.median, words="share of the time gone when the call returns")
    story.claim(
        book="y = nd.dot(x, x).sum() returns without waiting until y is computed",
        holds=both(ours.asynchronous, share.below(0.5)),
        predicted="y not ready, and under a tenth of the time gone, when the call returns",
        right=both(ours.asynchronous, share.below(0.1)),
        observed=f"ready in {sum(ours.ready)} of {calls} calls, {share} of the time gone",
    )
    story.peers("8.2 dot")


def a_thousand_sums(story: script.Story, config: Config, size: int) -> None:
    """y = x + 1 a thousand times: the book's cell, all sizes, the model, and the two loops as timelines."""
    story.heading(f"8.2.3 {config.calls} times y = x + 1")
    story.text(
        """Waiting inside the loop makes it synchronous; waiting after it leaves it asynchronous. In the book
        that more than halves the time. How much it can gain depends on the work in each call, so we run both
        loops in turns at many sizes, from 1024 elements up, and at the book's."""
    )
    story.code(synchronous_loop, asynchronous_loop, a_thousand_times)
    x = block(jnp.ones((size, size)))
    block(add_one(x))
    with story.output(detail=True):
        each_s, once_s = a_thousand_times(x, config.calls)
    references = (
        book("synchronous", 7.3877, "8.2.3", beside="waiting for each"),
        book("asynchronous", 3.5370, "8.2.3", beside="waiting once"),
    )
    story.table(
        (Measurement("waiting for each", "s", (each_s,)), Measurement("waiting once", "s", (once_s,))),
        title=f"{config.calls} times y = x + 1, {size} x {size}",
        references=references if (size, config.calls) == (2000, 1000) else (),
        detail=True,
    )
    story.text(
        """By the formulas below the book's figures mean t2 = 3.54 ms and t1 + t3 = 3.85 ms. `y` is dropped
        each time, so waiting at the end waits for the last only. That is enough on one device, which works
        in order."""
    )
    kept = [add_one(x[:2000]) for _ in range(50)]
    kept[-1].block_until_ready()
    story.fact("pending_behind_the_last_on_one_device", pending(kept), words="results pending after the last")
    at_book = loops.loops_at(add_one, x, calls=max(2, config.calls // 50), rounds=config.rounds)
    swept = loops.sweep_loops(sizes=sweep_sizes(config), rounds=config.rounds)
    loops.the_gain(story, swept, at_book, size=size)
    loops.loops_as_timelines(story, elements=2**16)
    story.peers("8.2 loop")
    dispatch_model.the_model(story, swept)


def check(config: Config) -> None:
    """Refuse a sweep that ends too early.

    Raises:
      JaxperfError: the largest is too small to show where computing takes over from queueing.
    """
    if config.largest and config.largest < 64 * SMALLEST:
        raise JaxperfError(
            f"--largest is {config.largest}; give at least {64 * SMALLEST}, or 0 to have one chosen"
        )


def sweep_sizes(config: Config) -> list[int]:
    """Elements of the sweep's arrays; on a GPU the largest takes several times as long as it is queued."""
    largest = config.largest or size_for(
        jax.default_backend(), 2**20, lambda n: partial(add_one, block(jnp.ones(n))), seconds=2e-4, most=2**28
    )
    return [round(n) for n in np.geomspace(SMALLEST, largest, config.points)]


def main(config: Config, story: script.Story) -> None:
    """Section 8.2 in the book's order, then what it leaves out: the queue's depth, and errors."""
    check(config)
    on_cpu = story.environment.backend == "cpu"
    size = config.size or (2000 if on_cpu else rows_that_last(5e-3))
    books = size == 2000
    story.part(front_end_and_back_end, config)
    story.part(a_product, config, size)
    story.part(really_asynchronous, size=size, seed=config.seed)
    story.part(waiting.ways_to_wait, size=size, seed=config.seed, rounds=2 * config.rounds, beside_book=books)
    story.part(fused_dot.compiled_is_slower, size=min(size, 1500), rounds=min(config.rounds, 9))
    story.part(waiting.last_is_not_all, size=size)
    story.part(waiting.in_place_of_waitall, size=size)
    story.part(a_thousand_sums, config, size)
    story.part(running_ahead.how_deep)
    story.part(
        running_ahead.memory,
        batches=config.batches,
        batch_size=config.batch_size,
        seed=config.seed,
        rounds=min(config.rounds, 6),  # the fewest that decide anything; each is the book's whole run
        beside_book=on_cpu and config.batch_size == Config.batch_size,
    )
    story.part(surfacing.errors)


if __name__ == "__main__":
    script.run(main, FLAGS)
