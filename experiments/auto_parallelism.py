"""8.3 Automatic parallelism: what runs at the same time, without being told to?

A JAX call returns before its value exists, so whatever depends on nothing unfinished can run beside it: work
on another device, or the copy of an earlier result. How much of what could be saved was saved is measured
twice, by the clock (sum, together, best possible, in interleaved rounds) and from the profiler's spans.

Prediction: two devices with a core each take little longer than one alone. Two CPU devices that share all
cores gain nothing, because one operation uses every core already, although their spans overlap as fully: a
span says that a device was busy, not that it got anywhere. Copies hide behind computing where something else
than the computing cores can make them. Independent products called one by one on one device run one after
the other. Small ones gain from being one program, not from being parallel.

    python experiments/auto_parallelism.py --json results/auto_parallelism.json
    python experiments/auto_parallelism.py --size 2000 --rounds 25

On 2 cores of an AMD EPYC, Python 3.11.7, JAX 0.10.2, in 32 s, it printed, among the rest:

all cores: run on cpu 0                54.8 ms  5.4 %
all cores: then run on cpu 1           54.8 ms  4.7 %
all cores: run on both in parallel      108 ms  3.7 %
all cores: overlap by the spans    0.999 of the shorter          2.2 %
all cores: overlap by the clock  0.0715 of the possible  134.3 % noisy
a core each: run on cpu 0                94.1 ms  9.6 %
a core each: then run on cpu 1           91.9 ms  2.6 %
a core each: run on both in parallel      108 ms  6.2 %
two devices, a core each: 104 ms on the clock
python |▓█▓                                                                 | 4.16 ms, 4 %, 20 spans
wait   |  ░████████████████████████████████████████████████████████████████▓| 99.3 ms, 96 %, 2 spans
cpu 0  |▓█████▓████▓█████▓██▓██████████▓███████▓█████▓███████▓██████▓██████▓| 103 ms, 99 %, 10 spans
cpu 1  |▓█████▓████▓████████▓█████▓████▓██████▓██████▓██████▓███████▓██████░| 102 ms, 98 %, 10 spans
        0 s                                                           104 ms
a core each: overlap by the spans   0.999 of the shorter   1.6 %
a core each: overlap by the clock  0.865 of the possible  10.0 %
thin to NumPy: sum / together            1.10 times         9.3 %
thin to NumPy: sum / best possible       1.47 times         5.2 %
dots_at_once/eager = 1
dots_at_once/one program = 3
dots_in_program = 10
dots_in_program_merged = 1
graph, awaited / not            1.30 times  5.9 %
graph, one / all devices       0.843 times  2.4 %
queued, 20         107 us  22.0 % noisy             1x
one program, 20   79.4 us  30.5 % noisy          0.74x
vmap, 20          31.9 us  54.9 % noisy         0.298x
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from jaxperf import script
from jaxperf.errors import JaxperfError


@dataclass(frozen=True)
class Config:
    """Flags of this section."""

    size: int = 1000
    """Rows and columns of the matrices on a CPU device; the book has 2000."""
    gpu_size: int = 6000
    """Rows and columns of the matrices on a GPU, as in the book."""
    products: int = 10
    """Matrix products in one run, as in the book."""
    rounds: int = 15
    """Rounds of every comparison; each part is timed once a round."""
    recordings: int = 5
    """Recorded runs of the two devices together, for the spread of the overlap."""
    copy_size: int = 2000
    """Rows and columns of the thin products' results, whose copies cost about as much as they do."""
    small_sizes: tuple[int, ...] = (20, 50, 100, 200, 400)
    """Sizes of the sweep over small operations."""
    nodes: int = 300
    """Operations in a random dependency graph."""
    node_size: int = 128
    """Rows and columns of the integer matrices in it."""
    graphs: int = 5
    """Random graphs, each of a seed of its own."""
    seed: int = 0
    """Seed of the first graph and of all matrices."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            for number in value if isinstance(value, tuple) else (value,):
                if number < 1 and name != "seed":
                    raise JaxperfError(f"--{name.replace('_', '-')} is {number}; give at least 1")

    @staticmethod
    def smoke() -> Config:
        """Every part, in seconds."""
        return Config(
            size=200,
            gpu_size=500,
            rounds=4,
            recordings=2,
            copy_size=300,
            small_sizes=(20, 50),
            nodes=100,
            graphs=2,
        )


FLAGS = (
    script.parse(Config, devices=2) if __name__ == "__main__" else None
)  # flags are read before JAX starts

import contextlib
import functools
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxperf.measure import (
    Benchmark,
    Measurement,
    Reference,
    Series,
    Timeline,
    block,
    count_ops,
    interleaved,
    per_round,
    timeline,
    together,
)
from jaxperf.measure.cores import available, on_cores
from jaxperf.measure.intervals import length, most_at_once
from jaxperf.measure.rounds import Together, above_one, quartiles
from jaxperf.parallel.graph import depth, graph_leaves, oracle, random_graph, run_graph

Run = Callable[[], Any]


@dataclass(frozen=True)
class Side:
    """A device and its matrix, of float32, (n, n)."""

    device: jax.Device
    x: jax.Array

    @property
    def name(self) -> str:
        """As its lane in a timeline is called."""
        return timeline.lane_of(self.device)


def run(x: jax.Array, products: int = 10) -> list[jax.Array]:
    """The book's `run`: products of `x`, (n, n), with itself, none of which needs another."""
    return [jnp.dot(x, x) for _ in range(products)]


def two_sides(config: Config) -> tuple[Side, Side]:
    """A CPU and a GPU where there are both, else two devices of one kind."""
    devices = jax.devices()
    if devices[0].platform != "cpu":
        with contextlib.suppress(RuntimeError):  # raised where JAX was told to leave the CPU alone
            devices = [jax.devices("cpu")[0], *devices]
    if len(devices) < 2:
        name = timeline.lane_of(devices[0])
        raise JaxperfError(f"two devices run side by side here, and there is only {name}; give --devices 2")
    key = jax.random.key(config.seed)
    sizes = [config.size if d.platform == "cpu" else config.gpu_size for d in devices[:2]]
    first, second = (
        Side(d, jax.device_put(jax.random.uniform(key, (n, n)), d)) for d, n in zip(devices, sizes)
    )
    return first, second


THIN = 64  # columns of the thin factors: copying their product costs about what computing it does


def limited(fn: Run, cores: Sequence[int] | None) -> Run:
    """`fn` with all its outputs awaited, on these cores only; None: on all."""
    if cores is None:
        return fn

    def on_few() -> Any:
        with on_cores(cores):
            outputs = fn()
            with timeline.mark("outputs"):
                return block(outputs)

    return on_few


def spread(m: Measurement) -> str:
    """Median and quartiles in words."""
    low, middle, high = quartiles(m)
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def on_both_devices(config: Config, story: script.Story, pair: tuple[Side, Side]) -> None:
    """Section 8.3.1: `run` on one device, then on the other, then on both without waiting in between."""
    story.heading(f"8.3.1 {config.products} products on {pair[0].name} and on {pair[1].name}")
    if {side.device.platform for side in pair} != {"cpu"}:
        claim_faster_together(story, devices_together(config, story, pair, tag="both devices"))
        return
    story.note("no GPU here: two CPU devices of one host stand for the book's CPU and GPU")
    shared = devices_together(config, story, pair, tag="all cores", suffix="_shared_cores")
    story.claim(
        "An operation on the CPU uses all its threads, so that running several at once gains little",
        predicted="two CPU devices that share all cores at most 1.2 times as fast as one after the other",
        observed=f"{spread(shared.ratio)} times, at {spread(shared.possible)} possible",
        held=shared.ratio.median <= 1.2,
    )
    cores = available()[:2]
    if len(cores) < 2:
        for name in ("overlap_fraction", "overlap_fraction_clock", "sum_over_together"):
            story.fact(name, story.facts[f"{name}_shared_cores"])
        claim_faster_together(story, shared, undecided=f"{len(cores)} cores to choose from, 2 are needed; ")
        return
    story.say("a core each: one core for a device that works alone, two for two that work together")
    claim_faster_together(story, devices_together(config, story, pair, tag="a core each", cores=cores))


def claim_faster_together(story: script.Story, found: Together, *, undecided: str = "") -> None:
    story.claim(
        "Two devices together take less time than one after the other",
        predicted="at least 1.5 times as fast as the sum",
        observed=f"{undecided}{spread(found.ratio)} times, at {spread(found.possible)} possible",
        held=None if undecided else found.ratio.median >= 1.5,
    )


def devices_together(
    config: Config,
    story: script.Story,
    pair: tuple[Side, Side],
    *,
    tag: str,
    cores: Sequence[int] | None = None,
    suffix: str = "",
) -> Together:
    """The two devices alone and together; with `cores`, one of them for a device alone and both for both."""
    (first, second), n = pair, config.products
    one, other = ([cores[0]], [cores[1]]) if cores else (None, None)
    both = limited(lambda: (run(first.x, n), run(second.x, n)), cores)
    parts = {
        f"run on {first.name}": limited(lambda: run(first.x, n), one),
        f"then run on {second.name}": limited(lambda: run(second.x, n), other),
        "run on both in parallel": both,
    }
    found = together(tag, parts, count=config.rounds)
    story.measured(*found.rows())
    recorded = [
        timeline.record(both, name=f"two devices, {tag}", folder=None if i else story.traces)
        for i in range(config.recordings)
    ]
    story.timeline(recorded[0])
    shares = tuple(timeline.overlap(t, first.name, second.name) for t in recorded)
    spans = Measurement(f"{tag}: overlap by the spans", "of the shorter", shares)
    story.measured(spans, found.overlap)
    story.fact(f"overlap_fraction{suffix}", spans.median)
    story.fact(f"overlap_fraction_clock{suffix}", found.overlap.median)
    story.fact(f"sum_over_together{suffix}", found.ratio.median)
    check_against_clock(story, pair, recorded, suffix=suffix)
    return found


def check_against_clock(
    story: script.Story, pair: tuple[Side, Side], recorded: Sequence[Timeline], *, suffix: str
) -> None:
    """What the spans leave of the time on the clock: nothing was missed if the devices fill it."""
    lanes = [side.name for side in pair]
    filled = [length(i for lane in lanes for i in t.intervals(lane)) / t.wall_s for t in recorded]
    story.fact(f"spans_over_clock{suffix}", statistics.median(filled))
    story.fact(f"profiler_over_clock{suffix}", statistics.median(t.traced_s / t.wall_s for t in recorded))


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


def compute_and_copy(config: Config, story: script.Story, pair: tuple[Side, Side]) -> None:
    """Section 8.3.2: results copied after all are computed, and each as soon as it is there."""
    target, source = pair if pair[1].device.platform != "cpu" else pair[::-1]
    n = config.copy_size if source.device.platform == "cpu" else config.gpu_size
    thin = jax.device_put(jnp.ones((n, THIN)), source.device)
    runs: dict[str, Run] = {
        "square": lambda: run(source.x, config.products),
        "thin": lambda: [jnp.dot(thin, thin.T) for _ in range(config.products)],
    }
    ways: dict[str, Callable[[Any], Any]] = {
        target.name: lambda ys: to_device(ys, target.device),
        "NumPy": to_host,
    }
    found = []
    for what, compute in runs.items():
        for where, copy in ways.items():
            story.heading(f"8.3.2 {what} products on {source.name}, copied to {where}")
            found.append(computed_and_copied(config, story, compute, copy, tag=f"{what} to {where}"))
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


def computed_and_copied(
    config: Config, story: script.Story, compute: Run, copy: Callable[[Any], Any], *, tag: str
) -> Together:
    """One way of copying: computed, copied and both, timed; then both, recorded."""

    def both() -> Any:
        ys = compute()
        return ys, copy(ys)

    parts: dict[str, Callable[..., Any]] = {
        "run": compute,
        "then copy": copy,
        "run and copy in parallel": both,
    }
    found = together(tag, parts, count=config.rounds, before={"then copy": compute})
    story.measured(*found.rows())
    recorded = timeline.record(both, name=tag, folder=story.traces)
    story.timeline(recorded)
    for device in timeline.devices(recorded):
        inside = timeline.overlap(recorded, device, "copies")
        story.say(f"{device} and the copies overlap for {inside * 100:.0f} % of the shorter of the two")
    return found


def ten_products(config: Config, story: script.Story, side: Side) -> None:
    """Exercise 1: are independent products on one device run in parallel?"""
    story.heading(f"Exercise 1: {config.products} independent products on {side.name}")
    operands = [side.x + i for i in range(config.products)]
    programs: dict[str, tuple[Any, Any]] = {
        "one program": (jax.jit(lambda xs: [jnp.dot(x, x) for x in xs]), operands),
        "one program, equal operands": (jax.jit(lambda x: run(x, config.products)), side.x),
        "one program, vmap": (jax.jit(jax.vmap(lambda x: jnp.dot(x, x))), jnp.stack(operands)),
    }
    dots = {name: dots_in(fn, given) for name, (fn, given) in programs.items()}
    parts: dict[str, Run] = {
        "one product": lambda: jnp.dot(side.x, side.x),
        "eager": lambda: [jnp.dot(x, x) for x in operands],
        **{name: functools.partial(fn, given) for name, (fn, given) in programs.items()},
    }
    story.measured(*interleaved(parts, count=config.rounds).values(), base="eager")
    most = {}
    for name in ("eager", "one program"):
        recorded = timeline.record(parts[name], name=f"{config.products} products, {name}")
        story.timeline(recorded)
        most[name] = most_at_once(recorded.intervals(side.name))
        story.fact(f"dots_at_once/{name}", most[name])
    story.fact("dots_in_program", dots["one program"])
    story.fact("dots_in_program_merged", dots["one program, equal operands"])
    story.fact("dots_in_program_vmap", dots["one program, vmap"])
    assert dots["one program"] == config.products, f"the compiler left {dots['one program']} products"
    story.claim(
        "The products of run, called one by one on one device, are not run in parallel (a reader's answer)",
        predicted="never two at once, although none needs another",
        observed=f"{most['eager']} at once",
        held=most["eager"] == 1,
    )
    story.claim(
        "The system knows all needs and can choose to run what is independent in parallel",
        predicted="within one program, at least two products at once",
        observed=f"{most['one program']} at once",
        held=most["one program"] >= 2,
    )
    story.claim(
        "Under jit the book's run, with equal operands, is one product",
        predicted=f"{config.products} products with operands of their own, 1 with equal ones",
        observed=f"{dots['one program']} and {dots['one program, equal operands']}",
        held=dots["one program"] == config.products and dots["one program, equal operands"] == 1,
    )


def dots_in(fn: Any, *args: Any) -> int:
    """Matrix products in the optimised program of a jitted function."""
    return count_ops(fn.lower(*args).compile().as_text())["dot"]


def random_graphs(config: Config, story: script.Story, devices: Sequence[jax.Device]) -> None:
    """Exercise 2: more involved needs, over all devices: right in every bit?"""
    story.heading(f"Exercise 2: random graphs of {config.nodes} operations on {len(devices)} devices")
    wrong = []
    for seed in range(config.seed, config.seed + config.graphs):
        graph = random_graph(seed, nodes=config.nodes, devices=len(devices))
        leaves = graph_leaves(seed, config.node_size)
        ours = run_graph(graph, [jnp.asarray(x) for x in leaves], devices)
        equal = [np.array_equal(a, b) for a, b in zip(ours, oracle(graph, leaves), strict=True)]
        wrong += [seed] * (not all(equal))
        story.say(
            f"seed {seed}: {sum(equal)} of {len(equal)} values equal NumPy's; longest chain {depth(graph)}"
        )
    story.fact("graphs_equal", config.graphs - len(wrong))
    story.claim(
        "A task with involved dependencies is computed correctly when parallelised automatically",
        predicted="every value of every graph equal to NumPy's in every bit",
        observed=f"{config.graphs - len(wrong)} of {config.graphs} graphs equal"
        + f", not {wrong}" * bool(wrong),
        held=not wrong,
    )
    graph_times(config, story, devices)


def graph_times(config: Config, story: script.Story, devices: Sequence[jax.Device]) -> None:
    """Exercise 2, its second half: is it faster as well?"""
    graph = random_graph(config.seed, nodes=config.nodes, devices=len(devices))
    leaves = [jnp.asarray(x) for x in graph_leaves(config.seed, config.node_size)]
    alone = [replace(node, device=0) for node in graph]
    parts: dict[str, Run] = {
        "graph, each operation awaited": lambda: run_graph(graph, leaves, devices, wait=True),
        "graph on one device": lambda: run_graph(alone, leaves, devices),
        "graph on all devices": lambda: run_graph(graph, leaves, devices),
    }
    awaited, one, queued = interleaved(parts, count=config.rounds).values()
    ratio = per_round("graph, awaited / not", lambda a, b: a / b, awaited, queued, unit="times")
    against_one = per_round("graph, one / all devices", lambda a, b: a / b, one, queued, unit="times")
    story.measured(awaited, one, queued, ratio, against_one)
    recorded = timeline.record(parts["graph on all devices"], name="random graph", folder=story.traces)
    story.timeline(recorded)
    story.claim(
        "Such a task is faster when its operations are not awaited one by one",
        predicted="faster",
        observed=f"{spread(ratio)} times",
        held=above_one(ratio),
    )
    python = length(recorded.intervals("python")) / recorded.wall_s
    story.claim(
        "Such a task is faster on several devices than on one",
        predicted="not where operations are so small that Python, which calls them, is what takes the time",
        observed=f"{spread(against_one)} times; Python at work for {python * 100:.0f} % of the time",
        held=above_one(against_one),
    )


READER = {"system": "MXNet, a reader", "source": "reading notes on section 8.3, exercise 3", "unit": "s"}


def small_products(config: Config, story: script.Story, side: Side, other: Side) -> None:
    """Exercise 3: products so small that calling them is the work, five ways, over their size."""
    story.heading("Exercise 3: small operations")
    found = {n: small(config, side.device, other.device, n) for n in sorted(config.small_sizes)}
    smallest, largest = min(found), max(found)
    called = called_only(config, side.device, smallest)
    references = [
        Reference(
            f"ten 20 x 20, {kind}", value, beside=called.name * (kind == side.device.platform), **READER
        )
        for kind, value in {"cpu": 0.0006, "gpu": 0.0}.items()
    ]
    story.measured(called, references=references)
    for rows in found.values():
        story.measured(*rows.values(), base=rows["queued"].name)
    for way in found[smallest]:
        medians = tuple(rows[way].median for rows in found.values())
        story.curve(Series(f"small products, {way}", tuple(map(float, found)), medians, "rows", "s"))
    against = {
        way: {n: rows["queued"].median / rows[way].median for n, rows in found.items()}
        for way in ("one program", "vmap", "two devices")
    }
    for way, ratios in against.items():
        story.fact(f"times_as_fast_as_calls/{way}, {smallest}", ratios[smallest])
        story.fact(f"times_as_fast_as_calls/{way}, {largest}", ratios[largest])
    losing = [n for n in found if max(against["one program"][n], against["vmap"][n]) >= 1.2]
    story.fact("calls_lose_up_to_size", max(losing, default=None))
    gained = [f"{way} {ratios[smallest]:.2f} and {ratios[largest]:.2f}" for way, ratios in against.items()]
    story.claim(
        "With operations small enough, running them in parallel on one device can be faster",
        predicted="faster as one program or one batch, which saves calls; not on two devices",
        observed=f"times as fast as calls at sizes {smallest} and {largest}: {', '.join(gained)}",
        held=smallest in losing and against["two devices"][smallest] < 1.2,
    )


def small(config: Config, device: jax.Device, other: jax.Device, n: int) -> dict[str, Measurement]:
    """Products of (n, n), seconds for all of them, by way of running them."""
    xs = [jax.device_put(jnp.full((n, n), 1.0 + i), device) for i in range(config.products)]
    apart = [jax.device_put(x, other) if i % 2 else x for i, x in enumerate(xs)]
    program, batch = jax.jit(lambda xs: [jnp.dot(x, x) for x in xs]), jax.jit(jax.vmap(jnp.dot))
    stacked = jnp.stack(xs)
    parts: dict[str, Run] = {
        "each awaited": lambda: [block(jnp.dot(x, x)) for x in xs],
        "queued": lambda: [jnp.dot(x, x) for x in xs],
        "one program": lambda: program(xs),
        "vmap": lambda: batch(stacked, stacked),
        "two devices": lambda: [jnp.dot(x, x) for x in apart],
    }
    rows = interleaved(parts, count=3 * config.rounds)
    return {way: replace(m, name=f"{way}, {n}") for way, m in rows.items()}


def called_only(config: Config, device: jax.Device, n: int) -> Measurement:
    """What the reader timed: calls that return, with nothing awaited."""
    x, seconds = jax.device_put(jnp.ones((n, n)), device), []
    for _ in range(config.rounds + 1):
        with Benchmark("Run.", show=None) as bench:
            outputs = run(x, config.products)
        seconds.append(bench.seconds)
        block(outputs)
    return Measurement(f"called, not awaited, {n}", "s", tuple(seconds[1:]), warmup=(seconds[0],))


def everything_at_once(config: Config, story: script.Story, pair: tuple[Side, Side]) -> None:
    """CPU, GPU and the copies from one to the other, all at once: what hides behind what."""
    story.heading("CPU, GPU and copies at once")
    (cpu, gpu), n = pair, config.products
    if gpu.device.platform == "cpu" or cpu.device.platform != "cpu":
        story.note("CPU, GPU and copies at once: not measured, it takes a CPU and a GPU")
        return
    parts: dict[str, Run] = {
        "at once: run on the CPU": lambda: run(cpu.x, n),
        "at once: run on the GPU": lambda: run(gpu.x, n),
        "at once: run on the GPU, copy to the CPU": lambda: to_device(run(gpu.x, n), cpu.device),
        "at once: all": lambda: (to_device(run(gpu.x, n), cpu.device), run(cpu.x, n)),
    }
    rows = list(interleaved(parts, count=config.rounds).values())
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


def main(config: Config, story: script.Story) -> None:
    """Section 8.3 in the book's order, then its exercises."""
    pair = two_sides(config)
    on_both_devices(config, story, pair)
    compute_and_copy(config, story, pair)
    ten_products(config, story, pair[0])
    devices = [side.device for side in pair] + [d for d in jax.devices() if d not in {s.device for s in pair}]
    random_graphs(config, story, devices)
    small_products(config, story, *pair)
    everything_at_once(config, story, pair)


if __name__ == "__main__":
    script.run(main, FLAGS)
