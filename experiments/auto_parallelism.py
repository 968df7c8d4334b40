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

from dataclasses import dataclass

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
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import jax

from jaxperf.chapter import copying, independent_products, random_graphs, small_operations
from jaxperf.chapter.independent_products import run
from jaxperf.measure import Measurement, Timeline, block, timeline, together
from jaxperf.measure.cores import available, on_cores
from jaxperf.measure.intervals import length
from jaxperf.measure.rounds import Together, spread

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


def results_copied(config: Config, story: script.Story, pair: tuple[Side, Side]) -> None:
    """Section 8.3.2: the results of one device, the GPU where there is one, copied to the other."""
    target, source = pair if pair[1].device.platform != "cpu" else pair[::-1]
    copying.compute_and_copy(
        story,
        x=source.x,
        target=target.device,
        thin_size=config.copy_size if source.device.platform == "cpu" else config.gpu_size,
        products=config.products,
        rounds=config.rounds,
    )


def exercises(config: Config, story: script.Story, pair: tuple[Side, Side]) -> None:
    """Independent products on one device, random graphs over all, small products on one and on two."""
    (first, second), n, rounds = pair, config.products, config.rounds
    independent_products.on_one_device(story, x=first.x, products=n, rounds=rounds)
    ours = [first.device, second.device]
    devices = ours + [d for d in jax.devices() if d not in ours]
    graph = {"nodes": config.nodes, "node_size": config.node_size, "seed": config.seed}
    random_graphs.equal_to_numpy(story, devices=devices, graphs=config.graphs, **graph)
    random_graphs.awaited_or_not(story, devices=devices, rounds=rounds, **graph)
    small_operations.over_sizes(
        story, device=ours[0], other=ours[1], sizes=config.small_sizes, products=n, rounds=rounds
    )


def main(config: Config, story: script.Story) -> None:
    """Section 8.3 in the book's order, then its exercises."""
    pair = two_sides(config)
    on_both_devices(config, story, pair)
    results_copied(config, story, pair)
    exercises(config, story, pair)
    copying.everything_at_once(
        story, on_cpu=pair[0].x, on_gpu=pair[1].x, products=config.products, rounds=config.rounds
    )


if __name__ == "__main__":
    script.run(main, FLAGS)
