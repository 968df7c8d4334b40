"""8.3 Automatic parallelism: what runs at the same time, without being told to?

A JAX call returns before its value exists, so what depends on nothing unfinished can run meanwhile: work
on another device, or the copy of an earlier result. What that saves is judged against what could be saved.

Prediction: two devices with a core each save most of it, two that share all cores nothing. Copies hide behind
computing where a core is free. Small products gain from being one program, not from being parallel.

    python experiments/auto_parallelism.py
    python experiments/auto_parallelism.py --size 2000 --rounds 25
"""

from __future__ import annotations

if __name__ == "__main__":
    from jaxperf.exits import end_at_once

    end_at_once()  # while all else is imported, Ctrl-C is no traceback

from dataclasses import dataclass
from typing import Annotated

from jaxperf import script
from jaxperf.flags import at_least


@dataclass(frozen=True)
class Config:
    """Flags of this section."""

    size: Annotated[int, at_least(1)] = 1000  # rows of the square matrices on a CPU device; the book: 2000
    gpu_size: Annotated[int, at_least(1)] = 6000  # rows of the square matrices on a GPU, as in the book
    products: Annotated[int, at_least(1)] = 10  # matrix products in one run, as in the book
    rounds: Annotated[int, at_least(1)] = (
        15  # rounds of each comparison; twice as many of copies and small products
    )
    recordings: Annotated[int, at_least(1)] = 6  # recorded runs of the two devices together
    copy_size: Annotated[int, at_least(10)] = 2000  # rows of the results that a CPU device copies
    nodes: Annotated[int, at_least(1)] = 200  # operations in a random graph
    node_size: Annotated[int, at_least(1)] = 128  # rows of its matrices where it is compared with NumPy
    node_sizes: Annotated[tuple[int, ...], at_least(1)] = (16, 64, 128, 320)  # and where it is timed
    graphs: Annotated[int, at_least(1)] = 5  # random graphs that are compared with NumPy
    small_sizes: Annotated[tuple[int, ...], at_least(1)] = (20, 50, 100, 200, 400)  # rows of small matrices
    seed: int = 0  # seed of the matrices and of the first graph

    @staticmethod
    def smoke() -> Config:
        """Every part, in seconds."""
        return Config(
            size=200,
            gpu_size=500,
            rounds=6,
            recordings=2,
            copy_size=300,
            nodes=60,
            node_size=16,
            node_sizes=(8, 32),
            graphs=2,
            small_sizes=(20, 50),
        )


FLAGS = script.parse(Config, devices=2) if __name__ == "__main__" else None  # before JAX starts

import contextlib
from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp

from jaxperf.chapter import copying, devices_together, independent_products, random_graphs, small_operations
from jaxperf.measure import interleaved, timeline
from jaxperf.measure.cores import available


def run(x: jax.Array, products: int = 10) -> list[jax.Array]:
    """The book's `run`: products of `x`, (n, n), with itself, none of which depends on another."""
    return [jnp.dot(x, x) for _ in range(products)]


def run_on_all(xs: Sequence[jax.Array], products: Sequence[int]) -> list[list[jax.Array]]:
    """A loop that looks serial: `run` on one device after the other, and nobody waits in between."""
    return [run(x, count) for x, count in zip(xs, products, strict=True)]


def lane(x: jax.Array) -> str:
    """The device of `x`, as a timeline calls it."""
    [device] = x.devices()
    return timeline.lane_of(device)


def matrices(config: Config, count: int) -> list[jax.Array]:
    """A matrix of float32, (n, n), on each of two devices: a CPU and a GPU where there are both.

    Otherwise the first two of `count` devices of one kind; one matrix where there is one device.
    """
    devices = jax.devices()[:count]
    if devices[0].platform != "cpu":
        with contextlib.suppress(RuntimeError):  # raised where JAX was told to leave the CPU alone
            devices = [jax.devices("cpu")[0], *devices]
    xs = []
    for device in devices[:2]:
        n = config.size if device.platform == "cpu" else config.gpu_size
        xs.append(jax.device_put(jax.random.uniform(jax.random.key(config.seed), (n, n)), device))
    return xs


def balanced(xs: Sequence[jax.Array], products: int) -> list[int]:
    """How many products each device computes: fewer on the slower one of unlike devices.

    With ten on each, a GPU that is done in a twentieth of the CPU's time leaves nothing to save.
    """
    if len({device.platform for x in xs for device in x.devices()}) < 2:
        return [products] * len(xs)
    took = interleaved({lane(x): partial(run, x, products) for x in xs}, count=3).values()
    quickest = min(m.median for m in took)
    return [max(1, round(products * quickest / m.median)) for m in took]


def what_depends_on_what(story: script.Story, xs: Sequence[jax.Array]) -> None:
    """Show the book's `run`, and why its products may run at the same time."""
    story.heading("8.3 Which work can run at the same time?")
    story.text(
        """Two operations can run at the same time if neither needs what the other computes. You do not have
        to say which those are: a call returns at once, and the runtime starts each operation when its inputs
        exist. `a = jnp.ones((1, 2))` and `b = jnp.ones((1, 2))` need nothing; `a + b` needs both.""",
        """Running at the same time does not always save time. A large product uses every core of a CPU, so
        two of them at once get half of the cores each. Time is saved where different hardware does the work:
        two devices, or one part that computes and one that copies. This section looks at both.""",
    )
    story.habit(
        gluon="x_gpu = nd.random.uniform(shape=(6000, 6000), ctx=mx.gpu(0))\nrun(x_gpu)\nnd.waitall()",
        jax="x_gpu = jax.device_put(x, try_gpu(0))\noutputs = run(x_gpu)\njax.block_until_ready(outputs)",
        remark="JAX has no `waitall`: wait for the outputs of every device, not only for the last one.",
    )
    story.code(run, run_on_all)
    with story.output(detail=True):
        for x in xs:
            print(f"x on {lane(x)}: {' x '.join(map(str, x.shape))}, {len(run(x))} products in one run")


def two_devices(story: script.Story, config: Config, xs: Sequence[jax.Array]) -> None:
    """Section 8.3.1: `run` on one device, then on the other, then on both without waiting in between."""
    story.heading("8.3.1 Computing on two devices")
    story.text(
        """Time `run` on one device, then on the other, then on both. Together they take at worst the sum of
        the two and at best as long as the longer one. What was saved is given as a share of what could be
        saved: 0 means one after the other, 1 means the best possible. All three take turns for many rounds.
        The numbers in parentheses are an interval around the median of the rounds: how sure it is."""
    )
    fake = {device.platform for x in xs for device in x.devices()} == {"cpu"}
    if fake:
        story.text(
            """There is no GPU here, so the CPU was split into two devices. First they share all cores. Then
            each gets a core: a device that works alone has one core, two that work together have two. This
            is how two real devices behave."""
        )
    cores, names = available()[:2], [lane(x) for x in xs]
    products = balanced(xs, config.products)
    one = "" if len(xs) > 1 else "there is one device"
    alone = one or ("" if len(cores) > 1 else "there are no two cores to choose from")
    compare = partial(
        devices_together.alone_and_together,
        story,
        {name: partial(run, x, count) for name, x, count in zip(names, xs, products, strict=True)},
        partial(run_on_all, xs, products),
        rounds=config.rounds,
        recordings=config.recordings,
    )
    found = [] if one else [compare(tag="all cores" if fake else "two devices")]
    if fake and not alone:
        found.append(compare(tag="a core each", cores=cores))
    if found:
        devices_together.overview(story, [both for both, _ in found], title="Two devices")
        story.timeline(
            *(recorded[0] for _, recorded in found),
            title="The loop over two devices",
            caption="Both devices are busy from beginning to end: the loop is not serial. Being busy is not "
            "the same as being fast; two devices that share all cores each take twice as long.",
        )
    last, recorded = found[-1] if found else (None, [])
    shared = alone or ("" if fake else "a CPU and a GPU share no cores")
    devices_together.claim_about_cores(story, None if shared else found[0][0], cannot=shared)
    cannot = alone if fake else one
    devices_together.claim_saved(story, last, fake=fake, cannot=cannot)
    devices_together.claim_loop(story, recorded, names, cannot=cannot)
    story.peers("8.3 products")


def main(config: Config, story: script.Story) -> None:
    """Section 8.3 in the book's order, then its exercises."""
    xs = matrices(config, story.devices)
    devices = jax.devices()[: story.devices]
    sizes = {"products": config.products, "rounds": config.rounds}
    everywhere = list(dict.fromkeys([*(device for x in xs for device in x.devices()), *devices]))
    graph = {"nodes": config.nodes, "seed": config.seed}
    story.part(what_depends_on_what, xs)
    story.part(two_devices, config, xs)
    often = sizes | {"rounds": 2 * config.rounds}  # what can be saved here is a third of the time
    story.part(copying.compute_and_copy, xs=xs, size=config.copy_size, **often)
    story.part(independent_products.on_one_device, run, x=xs[0], **sizes)
    story.part(
        random_graphs.equal_to_numpy,
        devices=everywhere,
        size=config.node_size,
        graphs=config.graphs,
        **graph,
    )
    story.part(
        random_graphs.over_sizes, devices=devices, sizes=config.node_sizes, rounds=config.rounds, **graph
    )
    story.part(small_operations.over_sizes, devices=devices[:2], sizes=config.small_sizes, **sizes)
    story.part(copying.everything_at_once, run, xs=xs, **sizes)


if __name__ == "__main__":
    script.run(main, FLAGS)
