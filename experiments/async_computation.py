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

On 2 cores of an AMD EPYC that other programs used as well, Python 3.11.7, JAX 0.10.2, Flax 0.12.8, it
printed, among the rest:

                 median           IQR                  published  ours / published
jax queued       189 us  12.1 % noisy  1.40 ms (MXNet, the book)            0.135x
jax finished    71.9 ms         8.4 %   352 ms (MXNet, the book)            0.205x
numpy queued     145 ms  33.4 % noisy
      999 elements: ready 21 of 21 times,  3.91 us,  4.23 us
     1000 elements: ready  0 of 21 times,  3.34 us,  22.4 us
pending_after_waiting_for_last = 1
jitted, us: t1 = 5.77 +- 0.06, t3 = 1.17 +- 1.42, t2 = 5.74 +- 1.50 + 0.005 for each 1000 elements, ...
prediction_error_median = 0.0268
    observed:  crossover at 135210 elements by the model, the plateau ends between 110218 and 162773; ...
inflight_depth = 32
synchronous: peak over start        56.9 MB
asynchronous: peak over start       57.4 MB
host synchronous: peak over start   59.0 MB
host asynchronous: peak over start   127 MB
host window: peak over start        61.1 MB

On the same machine when it was nearly idle (Python 3.12.1, JAX 0.12.0.1) t3 was the most of it, since a core
with nothing to do goes to sleep and has to be woken for each call that is waited for:

jitted, us: t1 = 3.86 +- 0.06, t3 = 43.47 +- 0.93, t2 = 0.00 +- 0.78 + 0.065 for each 1000 elements, ...
prediction_error_median = 0.0167
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

    @staticmethod
    def smoke() -> Config:
        """Every part, in seconds."""
        return Config(size=500, calls=50, points=11, rounds=2, batches=6, batch_size=64)


SMALLEST = 1024  # elements; a CPU runs programs of under 1000 FLOPs in the calling thread
FLAGS = (
    script.parse(Config, devices=2) if __name__ == "__main__" else None
)  # flags are read before JAX starts

import dataclasses
import functools
import io
import re
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from jaxperf.launch import ALLOCATOR
from jaxperf.measure import Benchmark, Measurement, Reference, Series, block, timeline
from jaxperf.measure.dispatch import (
    Fit,
    Sample,
    asynchronous_loop,
    fit,
    leaves_plateau,
    prediction_errors,
    queueing_s,
    sweep,
    synchronous_loop,
)
from jaxperf.measure.fresh import in_fresh_process
from jaxperf.measure.memory import MemorySampler, device_memory, live_bytes
from jaxperf.measure.run_ahead import pending, probe, run_ahead, run_ahead_depth
from jaxperf.report.text import quantity

CALLS = 200  # in one loop of the sweep
GIVE_BACK = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536", "MALLOC_TOP_PAD_": "0"}


def book(name: str, value: float, part: str, beside: str, unit: str = "s") -> Reference:
    """A figure of the book's, next to the measurement called `beside`."""
    return Reference(name, value, unit, "MXNet, the book", f"section {part}", beside=beside)


def as_in_book(config: Config, *references: Reference) -> tuple[Reference, ...]:
    """The references where every size is the book's; elsewhere a ratio to them would mean nothing."""
    names = ("size", "calls", "batches", "batch_size")
    return references if all(getattr(config, n) == getattr(Config(), n) for n in names) else ()


def main(config: Config, story: script.Story) -> None:
    """Section 8.2 in the book's order, then what it leaves out: the queue's depth, and errors."""
    queued_and_finished(config, story)
    really_asynchronous(config, story)
    ways_to_wait(config, story)
    last_is_not_all(config, story)
    in_place_of_waitall(config, story)
    a_thousand_times(config, story)
    loops_as_timelines(config, story)
    the_model(config, story)
    how_deep(config, story)
    memory(config, story)
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
    story.measured(
        Measurement("jax queued", "s", ours.queued_s),
        Measurement("jax finished", "s", ours.finished_s),
        Measurement("numpy queued", "s", numpy.queued_s),
        Measurement("numpy finished", "s", numpy.finished_s),
        references=as_in_book(
            config,
            book("queued", 0.0014, "8.2.1", "jax queued"),
            book("finished", 0.3517, "8.2.1", "jax finished"),
        ),
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


# 8.2.2 Making the front end wait

# what is queued, and what is then done with it; the scalar is for ways that need one
WAYS: dict[str, tuple[Literal["matrix", "scalar", "tree"], Callable[[Any], Any]]] = {
    "y.block_until_ready()": ("scalar", lambda y: y.block_until_ready()),
    "jax.block_until_ready((y, z))": ("tree", jax.block_until_ready),
    "our block((y, z))": ("tree", block),
    "np.asarray(y)": ("matrix", np.asarray),
    "y.item()": ("scalar", lambda y: y.item()),
    "float(y)": ("scalar", float),
    "print(y)": ("scalar", lambda y: print(y, file=io.StringIO())),
    "if y > 0": ("scalar", lambda y: bool(y > 0)),
    "copy_to_host_async, np.asarray": ("matrix", lambda y: (y.copy_to_host_async(), np.asarray(y))),
    "y.copy_to_host_async()": ("matrix", lambda y: y.copy_to_host_async()),
    "y.shape, y.dtype": ("matrix", lambda y: (y.shape, y.dtype)),
    "jax.effects_barrier()": ("matrix", lambda y: jax.effects_barrier()),
}
NO_WAIT = ("y.copy_to_host_async()", "y.shape, y.dtype", "jax.effects_barrier()")


def ways_to_wait(config: Config, story: script.Story) -> None:
    """Each way on a computation of its own that is still pending: does it wait, and how long?"""
    story.heading("8.2.2 Every way to make the front end wait")
    x = block(jax.random.uniform(jax.random.key(config.seed), (config.size, config.size)))
    dot = jax.jit(lambda x: jnp.dot(x, x))
    norm = jax.jit(lambda x: jnp.linalg.norm(jnp.dot(x, x)))
    queue = {"matrix": lambda: dot(x), "scalar": lambda: norm(x), "tree": lambda: (dot(x), norm(x))}
    rows, left = [], {}
    for way, (kind, wait) in WAYS.items():
        block(queue[kind]())
        times, unfinished = [], 0
        for _ in range(3):
            began = time.perf_counter()
            y = queue[kind]()
            wait(y)
            times.append(time.perf_counter() - began)
            unfinished += pending(y)
            block(y)
        rows.append(Measurement(way, "s", tuple(times)))
        left[way] = unfinished
    there = [block(norm(x)) for _ in range(3)]
    rows.append(Measurement("print(y) after waiting", "s", tuple(timed(str, y) for y in there)))
    references = as_in_book(
        config,
        book("print after wait_to_read", 0.0011, "8.2.2", "print(y) after waiting"),
        book("wait_to_read", 0.3558, "8.2.2", "y.block_until_ready()"),
        book("two dots, waitall", 0.6061, "8.2.2", "jax.block_until_ready((y, z))"),
        book("asnumpy", 0.3111, "8.2.2", "np.asarray(y)"),
        book("norm().asscalar()", 0.3302, "8.2.2", "y.item()"),
    )
    story.measured(*rows, references=references, title="from queueing the dot until the way returned")
    waiting = [way for way in WAYS if way not in NO_WAIT]
    early = [way for way in waiting if left[way]]
    idle = [way for way in NO_WAIT if left[way]]
    story.say(f"these did not wait: {', '.join(idle) or 'none'}")
    story.claim(
        "Whatever turns an array into something that isn't asynchronous makes the front end wait",
        predicted="the result is there after each of the ways above that ask for its value",
        observed=f"still pending after: {', '.join(early) or 'none of them'}",
        held=not early,
    )


def timed(fn: Callable[..., Any], *args: Any) -> float:
    """Seconds until `fn(*args)` returns."""
    began = time.perf_counter()
    fn(*args)
    return time.perf_counter() - began


def last_is_not_all(config: Config, story: script.Story) -> None:
    """The trap: a long computation on one device, then a short one on another; wait for the last only."""
    story.heading("8.2.2 The trap: waiting for the last result is not waiting for all")
    statement = "Waiting for the last of several independent results leaves the others to come"
    devices = two_devices()
    if devices is None:
        story.claim(statement, predicted="pending results", observed="there is one device only", held=None)
        return
    long, short = jax.jit(lambda x: x @ x), jax.jit(lambda x: x + 1)
    x = jax.device_put(jnp.ones((config.size, config.size)), devices[0])
    z = jax.device_put(jnp.ones((100, 100)), devices[1])
    block((long(x), short(z)))
    last_s, all_s, left_last, left_all = [], [], 0, 0
    for _ in range(5):
        began = time.perf_counter()
        results = [long(x), short(z)]
        results[-1].block_until_ready()
        last_s.append(time.perf_counter() - began)
        left_last += pending(results)
        block(results)
        all_s.append(time.perf_counter() - began)
        left_all += pending(results)
    story.measured(
        Measurement("results[-1].block_until_ready()", "s", tuple(last_s)),
        Measurement("block(results)", "s", tuple(all_s)),
        base="block(results)",
        title=f"a dot on {devices[0]}, then x + 1 on {devices[1]}",
    )
    story.fact("pending_after_waiting_for_last", left_last / 5)
    story.claim(
        statement,
        predicted="the dot is pending after waiting for the last, nothing is after block",
        observed=f"pending in {left_last} of 5 runs, and in {left_all} after block",
        held=left_last > 0 and left_all == 0,
    )


def two_devices() -> tuple[jax.Device, jax.Device] | None:
    """Two devices: of the default kind, or an accelerator and the CPU; None on a single CPU device."""
    first, *others = jax.devices()
    others += jax.devices("cpu") if first.platform != "cpu" else []
    return (first, others[0]) if others else None


def in_place_of_waitall(config: Config, story: script.Story) -> None:
    """What could take `waitall`'s place, each tried on work whose results nobody holds any more."""
    story.heading("8.2.2 What takes the place of waitall")
    finished = threading.Event()
    zero = jax.ShapeDtypeStruct((), jnp.float32)

    def tell(_: Any) -> Any:
        finished.set()
        return np.float32(0)

    dot, add = jax.jit(lambda x: x @ x), jax.jit(add_one)
    then_tell = jax.jit(lambda y: jax.pure_callback(tell, zero, y[0, 0]))
    x, z = block((jnp.ones((config.size, config.size)), jnp.ones(2000)))
    block((dot(x), then_tell(x), add(z)))
    ways: dict[str, Callable[[], Any]] = {
        "jax.effects_barrier()": jax.effects_barrier,
        "block(jax.live_arrays())": lambda: block(jax.live_arrays()),
        "block(a program queued behind)": lambda: block(add(z)),
    }
    waited: dict[str, list[bool]] = {way: [] for way in ways}
    for way, wait in ways.items():
        for thread in ("this", "another"):
            finished.clear()
            run_in(thread, lambda: then_tell(dot(x)))  # the result is dropped
            took = quantity(timed(wait), "s")
            waited[way].append(finished.is_set())
            finished.wait(60)
            verdict = "waited" if waited[way][-1] else "DID NOT WAIT"
            story.say(f"{way:31} work queued by {thread:8} thread: {verdict:13} ({took})")
            story.fact(f"waited/{way}/{thread} thread", waited[way][-1], show=False)
    story.say(
        "effects_barrier waits for side effects, live_arrays names what a variable still holds, and a\n"
        "program runs after those that its own thread queued on its own device. So keep what you compute\n"
        "and hand all of it to block: it waits for every leaf, refuses one that it can't wait for\n"
        "(TypeError), and raises what a computation raised."
    )
    complete = [way for way, tries in waited.items() if all(tries)]
    story.claim(
        "One call, waitall, waits for all computations before it",
        predicted="no call of JAX does",
        observed=f"waited whatever thread queued the work: {', '.join(complete) or 'none'}",
        held=bool(complete),
    )


def run_in(thread: str, fn: Callable[[], Any]) -> None:
    """Call `fn` in "this" thread or in "another", and return when the call has."""
    if thread == "this":
        fn()
    else:
        other = threading.Thread(target=fn)
        other.start()
        other.join()


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
    references = as_in_book(
        config,
        book("synchronous", 7.3877, "8.2.3", rows[0].name),
        book("asynchronous", 3.5370, "8.2.3", rows[1].name),
    )
    story.measured(*rows, references=references)
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


def add_one(x: jax.Array) -> jax.Array:
    """The book's statement, dispatched eagerly."""
    return x + 1


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


def the_model(config: Config, story: script.Story) -> None:
    """t1, t2 and t3 fitted to half of the sizes, and the other half predicted."""
    story.heading("8.2.3 t1, t2 and t3")
    largest = config.largest or (2**19 if jax.default_backend() == "cpu" else 2**25)
    sizes = [round(s) for s in np.geomspace(SMALLEST, largest, config.points)]
    one_thread = {"NPROC": "1", **ALLOCATOR}
    found = in_fresh_process(sweep_child, sizes, config.rounds, environment=one_thread)
    story.say(
        f"{CALLS} times y = x + 1, {config.rounds} rounds, in a process whose back end has one thread, as\n"
        f"in the book's picture (a program is split in {found['parts']}); two would make large operations\n"
        "pay for waking the second"
    )
    for way in ("jitted", "eager"):
        samples = [
            Sample(row["size"], row["calls"], tuple(row["sync_s"]), tuple(row["async_s"]))
            for row in found[way]
        ]
        model = fit(samples[::2], t1_s=found["t1_alone_s"][way])
        errors = prediction_errors(model.costs, samples)
        show_model(story, way, model, samples, errors)
        missed = statistics.median(abs(e) for pair in errors[1::2] for e in pair)
        if way == "jitted":
            keep_model(story, model, samples, missed)
        else:
            story.fact("t1_eager_s", model.costs.t1_s, unit="s")
            story.fact("prediction_error_median_eager", missed)
            why_999(story, model, samples)
    story.say("the front end alone, 16 jitted calls queued and the clock read before any waiting, a call:")
    story.fact("t1_alone_s", found["t1_alone_s"]["jitted"], unit="s")


def sweep_child(sizes: list[int], rounds: int) -> dict[str, Any]:
    """Both loops over all sizes, jitted and eager; into how many parts a large program is split; t1 alone."""
    jitted = jax.jit(add_one)
    inputs = [(float(size), block(jnp.ones(size))) for size in sizes]
    program = jitted.lower(inputs[-1][1]).compile().as_text() or ""
    parts = re.search(r'outer_dimension_partitions":\["(\d+)"', program)
    return {
        "jitted": [dataclasses.asdict(s) for s in sweep(jitted, inputs, calls=CALLS, rounds=rounds)],
        "eager": [dataclasses.asdict(s) for s in sweep(add_one, inputs, calls=CALLS, rounds=-(-rounds // 2))],
        "parts": int(parts.group(1)) if parts else 1,
        "t1_alone_s": {
            "jitted": queueing_s(jitted, inputs[0][1]),
            "eager": queueing_s(add_one, inputs[0][1]),
        },
    }


def show_model(
    story: script.Story, way: str, model: Fit, samples: list[Sample], errors: Sequence[tuple[float, float]]
) -> None:
    """Costs with their standard errors, then prediction against measurement for every size."""
    costs, error = model.costs, model.errors
    each_ns = costs.t2_per_unit_s * 1e9
    story.say(
        f"\n{way}, us: t1 = {costs.t1_s * 1e6:.2f} +- {error.t1_s * 1e6:.2f}, "
        f"t3 = {costs.t3_s * 1e6:.2f} +- {error.t3_s * 1e6:.2f}, "
        f"t2 = {costs.t2_fixed_s * 1e6:.2f} +- {error.t2_fixed_s * 1e6:.2f} + {each_ns:.3f} for each 1000 "
        f"elements, {each_ns + costs.t2_per_unit_beyond_s * 1e9:.3f} beyond {costs.knee:.0f}"
    )
    story.say(f"{'':20}{'synchronous, ms':>28}{'asynchronous, ms':>28}")
    story.say(f"{'elements':>10}{'':10}" + f"{'measured':>10}{'predicted':>10}{'':8}" * 2)
    for i, (s, missed) in enumerate(zip(samples, errors)):
        totals = (
            (s.synchronous_s, costs.synchronous_s(s.size, s.calls)),
            (s.asynchronous_s, costs.asynchronous_s(s.size, s.calls)),
        )
        columns = (f"{m * 1e3:10.2f}{p * 1e3:10.2f}  {e:+6.1%}" for (m, p), e in zip(totals, missed))
        story.say(f"{s.size:10.0f}{'  held out' if i % 2 else '  fitted  '}" + "".join(columns))


def keep_model(story: script.Story, model: Fit, samples: list[Sample], missed: float) -> None:
    """The fitted costs as facts, the curves for the report, and the verdict on the predictions."""
    costs, largest = model.costs, samples[-1].size
    for name in ("t1_s", "t3_s"):
        story.fact(name, getattr(costs, name), unit="s")
        story.fact(f"{name}_error", getattr(model.errors, name), unit="s", show=False)
    story.fact("t2_s", costs.t2_s(largest), unit="s")
    story.fact("t2_elements", largest)
    story.fact("prediction_error_median", missed)
    sizes = tuple(s.size for s in samples)
    curves = {
        "sync/measured": [s.synchronous_s for s in samples],
        "sync/predicted": [costs.synchronous_s(s.size, s.calls) for s in samples],
        "async/measured": [s.asynchronous_s for s in samples],
        "async/predicted": [costs.asynchronous_s(s.size, s.calls) for s in samples],
    }
    for name, totals in curves.items():
        story.curve(Series(name, sizes, tuple(totals), "elements", "s"))
    gap = statistics.median((s.synchronous_s - s.asynchronous_s) / s.calls for s in samples)
    story.claim(
        "n calls take about n (t1 + t2 + t3) one by one, and t1 + n t2 + t3 asynchronously",
        predicted="with max(t1, t2) for t2, held-out sizes are predicted within 15 % (median)",
        observed=f"median error {missed:.1%} at {len(samples) // 2} held-out sizes; waiting for each costs "
        f"{quantity(gap, 's')} a call",
        held=missed <= 0.15,
    )


def why_999(story: script.Story, model: Fit, samples: list[Sample]) -> None:
    """The exercise: the book's formula assumes 1000 t2 > 999 t1. What happens where that is false?"""
    costs = model.costs
    low, high = leaves_plateau(samples)
    story.fact("crossover_elements", costs.crossover)
    story.fact("crossover_elements_error", model.crossover_error)
    story.fact("plateau_ends_after_elements", low)
    story.fact("plateau_ends_before_elements", high)
    share = [costs.book_s(s.size, s.calls) / s.asynchronous_s for s in samples]
    above = statistics.median([v for v, s in zip(share, samples) if s.size > costs.crossover] or [0.0])
    story.say(
        "1000 t2 > 999 t1 says that the back end never runs dry: the front end has queued the last call\n"
        "before its turn has come. With t2 under t1 it runs dry, the front end is the bottleneck, and the\n"
        "loop takes n t1 + t2 + t3 whatever the size: a plateau."
    )
    story.claim(
        "t1 + 1000 t2 + t3 holds if 1000 t2 > 999 t1 (exercise 1)",
        predicted="right within 15 % beyond the crossover t2 = t1, too little before it",
        observed=f"crossover at {costs.crossover:.0f} elements by the model, the plateau ends between "
        f"{low:.0f} and {high:.0f}; the book's formula gives {share[0]:.0%} of the time measured at "
        f"{samples[0].size:.0f} elements, {above:.0%} beyond the crossover",
        held=abs(above - 1) <= 0.15 if above else None,
    )


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


# 8.2.4 Memory

Wait = Literal["each", "end", "window"]
RUNS: dict[str, tuple[Literal["device", "host"], Wait]] = {
    "synchronous": ("device", "each"),
    "asynchronous": ("device", "end"),
    "host synchronous": ("host", "each"),
    "host asynchronous": ("host", "end"),
    "host window": ("host", "window"),
}
BOOK_MADE_S = {"synchronous": (13.377381, 26.867962), "asynchronous": (0.083964, 0.166682)}  # batches 50, 100
BOOK_BYTES = {"synchronous": 4.648e6, "asynchronous": 0.016e6}


def train(step: Any, params: list[jax.Array], batches: Iterator[Any], *, wait: Wait) -> list[float]:
    """One pass over the batches; the losses are asked for after each step, one step late, or at the end."""

    def queued() -> Iterator[jax.Array]:
        nonlocal params
        for X, y in batches:
            params, loss = step(params, X, y)
            yield loss

    if wait == "each":
        losses = [loss.item() for loss in queued()]
    elif wait == "window":
        losses = [loss.item() for loss in run_ahead(queued(), depth=1)]
    else:
        losses = [loss.item() for loss in list(queued())]
    block(params)  # the last loss doesn't wait for the last update
    return losses


def make_step(seed: int) -> tuple[Any, list[jax.Array]]:
    """The book's MLP, L2 loss and SGD as one jitted step of the flat parameters, and the parameters."""
    from flax import nnx  # only the children that train need them

    from jaxperf.models import MLP

    graph, state = nnx.split(MLP((512, 2048, 512, 1), rngs=nnx.Rngs(seed)))
    params, tree = jax.tree.flatten(state)

    @jax.jit
    def step(params: list[jax.Array], X: jax.Array, y: jax.Array) -> tuple[list[jax.Array], jax.Array]:
        def l2_loss(params: list[jax.Array]) -> jax.Array:
            net = nnx.merge(graph, jax.tree.unflatten(tree, params))
            return 0.5 * jnp.mean((net(X)[:, 0] - y) ** 2)

        loss, grads = jax.value_and_grad(l2_loss)(params)
        return [p - 0.005 * g for p, g in zip(params, grads)], loss

    return step, params


@functools.partial(jax.jit, static_argnums=2)
def draw(key: jax.Array, i: int, batch_size: int) -> jax.Array:
    """Batch number i, drawn by the back end in one program."""
    return jax.random.normal(jax.random.fold_in(key, i), (batch_size, 512))


def data_iter(
    feed: str, *, batches: int, batch_size: int, seed: int, produced: list[float], held: list[int]
) -> Iterator[tuple[jax.Array, jax.Array]]:
    """The book's `data_iter`: random batches, drawn by the back end as there or handed over from the host."""
    key, rng, start = jax.random.key(seed), np.random.default_rng(seed), time.perf_counter()
    for i in range(batches):
        if feed == "device":
            X, y = draw(key, i, batch_size), jnp.ones(batch_size)
        else:
            X, y = jax.device_put(
                (rng.standard_normal((batch_size, 512), np.float32), np.ones(batch_size, "f"))
            )
        produced.append(time.perf_counter() - start)
        held.append(live_bytes())
        yield X, y


def train_child(names: list[str], batches: int, batch_size: int, seed: int) -> dict[str, dict[str, Any]]:
    """Trainings of these names, watched; one to a process unless times and memory don't matter."""
    shares = {name: batches if RUNS[name][0] == "device" else -(-batches // 2) for name in names}
    return {name: watched(*RUNS[name], shares[name], batch_size, seed) for name in names}


def watched(feed: str, wait: Wait, batches: int, batch_size: int, seed: int) -> dict[str, Any]:
    """One training: when its batches were made, what it held, and its last loss."""
    step, params = make_step(seed)
    produced: list[float] = []
    held: list[int] = []
    data = functools.partial(data_iter, feed, batch_size=batch_size, seed=seed, produced=produced, held=held)
    train(step, params, data(batches=3), wait="each")  # compile
    time.sleep(0.2)  # a step's temporaries are freed a moment after its results are there
    produced.clear()
    held.clear()
    with MemorySampler() as sampled:
        began = time.perf_counter()
        losses = train(step, params, data(batches=batches), wait=wait)
        total_s = time.perf_counter() - began
    return {
        "produced_s": produced,
        "total_s": total_s,
        "increase_bytes": sampled.increase_bytes,
        "memory": dataclasses.asdict(sampled.series("memory")),
        "live_bytes": max(held),
        "device": device_memory(),
        "loss": losses[-1],
    }


def memory(config: Config, story: script.Story) -> None:
    """The book's training with and without a synchronising call, in a process each, watched from a thread."""
    story.heading("8.2.4 What asynchronous computation costs in memory")
    story.say(
        f"MLP 512-2048-512-1, {config.batches} batches of {config.batch_size} x 512 drawn by the back end,\n"
        "as in the book; then half as many handed over from the host. A process each, in which the C\n"
        "library gives freed memory back at once."
    )
    together = [list(RUNS)] if story.flags.smoke else [[name] for name in RUNS]
    runs: dict[str, dict[str, Any]] = {}
    for names in together:
        sizes = (config.batches, config.batch_size, config.seed)
        runs |= in_fresh_process(train_child, names, *sizes, environment=GIVE_BACK)
    for name, run in runs.items():
        keep_run(story, name, run)
    show_runs(config, story, runs)
    judge_memory(config, story, runs)


def keep_run(story: script.Story, name: str, run: dict[str, Any]) -> None:
    """One run's curves and facts."""
    curve, word = run["memory"], name.replace(" ", "_")
    story.curve(Series(f"memory/{name}", tuple(curve["x"]), tuple(curve["y"]), "s", "bytes"))
    batches = tuple(float(i + 1) for i in range(len(run["produced_s"])))
    story.curve(Series(f"produced/{name}", batches, tuple(run["produced_s"]), "batches", "s"))
    story.fact(f"last_batch_{word}_s", run["produced_s"][-1], show=False)
    story.fact(f"live_arrays_{word}_bytes", run["live_bytes"], show=False)
    if "peak_bytes_in_use" in run["device"]:
        story.fact(f"device_peak_{word}_bytes", run["device"]["peak_bytes_in_use"], unit="bytes")


def show_runs(config: Config, story: script.Story, runs: dict[str, dict[str, Any]]) -> None:
    """Times and memory of all runs, the book's at the side."""
    rows, grown, made, increased = [], [], [], []
    for name, run in runs.items():
        count = len(run["produced_s"])
        for i, batch in enumerate(dict.fromkeys((max(count // 2, 1), count))):
            label = f"{name}: batch {batch} made"
            rows.append(Measurement(label, "s", (run["produced_s"][batch - 1],)))
            if name in BOOK_MADE_S:
                made.append(book(f"batch {50 * (i + 1)}", BOOK_MADE_S[name][i], "8.2.4", label))
        rows.append(Measurement(f"{name}: trained", "s", (run["total_s"],)))
        label = f"{name}: peak over start"
        grown.append(Measurement(label, "bytes", (float(run["increase_bytes"]),)))
        if name in BOOK_BYTES:
            increased.append(book("increased memory", BOOK_BYTES[name], "8.2.4", label, "bytes"))
    story.measured(*rows, references=as_in_book(config, *made))
    story.measured(*grown, references=as_in_book(config, *increased))
    story.say(
        f"variables held at most {quantity(max(r['live_bytes'] for r in runs.values()), 'bytes')}; "
        + (
            ""
            if any(r["device"] for r in runs.values())
            else "this backend keeps no account of device memory"
        )
    )
    story.note(
        "the book's own figures contradict its text: synchronous training grew by 4.648 MB, asynchronous by "
        "0.016 MB, each the difference of two looks, before and after"
    )


def judge_memory(config: Config, story: script.Story, runs: dict[str, dict[str, Any]]) -> None:
    """The section's sentences on memory, and the pattern that we recommend in place of its advice."""
    grown = {name: run["increase_bytes"] for name, run in runs.items()}
    batch_bytes = 4 * config.batch_size * 513

    def shown(name: str) -> str:
        return quantity(grown[name], "bytes")

    ahead = runs["asynchronous"]["produced_s"][-1] / runs["asynchronous"]["total_s"]
    story.claim(
        "Without synchronising calls all batches are made long before training is through",
        predicted="not on a CPU: with 32 programs in flight the last batch waits for all but a few",
        observed=f"the last batch was made after {ahead:.0%} of the run",
        held=ahead < 0.5,
    )
    story.claim(
        "Asynchronous training takes more memory: the book's program",
        predicted="no more on a CPU, which gives a queued program its memory only when it runs",
        observed=f"{shown('synchronous')} synchronous, {shown('asynchronous')} asynchronous",
        held=grown["asynchronous"] > 1.5 * grown["synchronous"],
    )
    more = grown["host asynchronous"] - grown["host synchronous"]
    story.claim(
        "Asynchronous training takes more memory: batches handed over by the host",
        predicted="more by the batches in flight",
        observed=f"{shown('host synchronous')} synchronous, {shown('host asynchronous')} asynchronous: "
        f"{more / batch_bytes:.0f} batches more",
        held=grown["host asynchronous"] > 1.5 * grown["host synchronous"],
    )
    story.claim(
        "To save memory, call a synchronising function for each batch",
        predicted="a window of one step (the loss of step k - 1 is read while step k runs) saves as much",
        observed=f"{shown('host window')} and {runs['host window']['total_s']:.1f} s with the window, "
        f"{shown('host synchronous')} and {runs['host synchronous']['total_s']:.1f} s synchronous, "
        f"{shown('host asynchronous')} and {runs['host asynchronous']['total_s']:.1f} s asynchronous",
        held=grown["host synchronous"] < grown["host asynchronous"],
    )
    losses = {run["loss"] for name, run in runs.items() if name.startswith("host")}
    story.fact("losses_equal_however_waited_for", len(losses) == 1)


# Errors


def errors(story: script.Story) -> None:
    """Where an error of a queued computation surfaces, tried in a process of its own."""
    story.heading("Where do errors surface?")
    rows = in_fresh_process(errors_child)
    for title, surfaced, message in rows:
        story.say(f"{title:38} {surfaced:32} {message}")
        story.fact(f"error_surfaces/{title}", surfaced, show=False)
    where = {title: surfaced for title, surfaced, _ in rows}
    story.say(
        "A call that has returned has not succeeded yet, and work that depends on a failed result fails\n"
        "too. NaN is no error unless jax_debug_nans looks for it, which makes every call wait."
    )
    story.claim(
        "An error of an asynchronous computation is raised by block",
        predicted="the call returns, block raises, and so does everything that depends on the result",
        observed=f"{where['callback, argument pending']}; dependent work: {where['work that depends on it']}",
        held=where["callback, argument pending"] == where["work that depends on it"] == "block",
    )


def errors_child() -> list[tuple[str, str, str]]:
    """Provoke errors; for each, the first step that raised, and the last line of what it said."""

    def complain(_: Any) -> None:
        raise ValueError("the callback refused")

    def with_callback(x: jax.Array) -> jax.Array:
        jax.debug.callback(complain, x[0, 0])
        return x + 1

    x = block(jnp.ones((1000, 1000)))
    dot = jax.jit(lambda x: x @ x)
    refuse = jax.jit(with_callback).lower(x).compile()  # compiled first, or the dot would be through by then
    spoil = jax.jit(lambda x: jnp.log(x @ x - 1e9))
    block(dot(x))
    there = surfaces("callback, argument there", lambda: refuse(x))
    failed = refuse(dot(x))
    rows = [
        there,
        surfaces("callback, argument pending", lambda: refuse(dot(x))),
        surfaces("work that depends on it", lambda: failed + 1),
        surfaces("jax.effects_barrier afterwards", jax.effects_barrier),
        surfaces("NaN", lambda: spoil(x)),
    ]
    with jax.debug_nans(True):
        return [*rows, surfaces("NaN, jax_debug_nans on", lambda: spoil(x))]


def surfaces(title: str, call: Callable[[], Any]) -> tuple[str, str, str]:
    """Whether the call raises, or its shape, or block on what it returned; and the error's last line."""
    out: Any = None
    step = "call"
    try:
        out = call()
        step = "shape"
        _ = jax.tree.map(jnp.shape, out)
        step = "block"
        block(out)
    except (jax.errors.JaxRuntimeError, FloatingPointError) as e:
        return title, step, str(e).strip().splitlines()[-1]
    return title, "nowhere", ""


if __name__ == "__main__":
    script.run(main, FLAGS)
