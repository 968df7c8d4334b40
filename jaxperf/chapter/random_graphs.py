"""Exercise 2 of section 8.3: complex dependencies over several devices. Correct in every bit, and faster?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxperf.chapter.devices_together import limited
from jaxperf.measure import interleaved, timeline
from jaxperf.measure.cores import available
from jaxperf.measure.sizes import size_for
from jaxperf.parallel.graph import depth, graph_leaves, oracle, random_graph, run_graph
from jaxperf.result import Axis, Curve, Measurement, Ratio, both, ratio
from jaxperf.story import Story

AWAITED, ONE, SEVERAL = "all devices, each operation waited for", "one device", "all devices"
ALL_CORES = "one device, all cores"


def equal_to_numpy(
    story: Story, *, devices: Sequence[jax.Device], nodes: int, size: int, graphs: int, seed: int
) -> None:
    """Exercise 2: graphs of operations, each on a random device: correct in every bit?

    Facts: `graphs_equal`.

    Args:
      story: is told text, code, a line per graph, the fact and the claim.
      devices: over which the operations are spread.
      nodes: operations in a graph.
      size: rows and columns of the int32 matrices in it.
      graphs: how many.
      seed: of the first graph; those after it count up.
    """
    story.heading(f"Exercise 2: complex dependencies, {nodes} operations on {len(devices)} devices")
    story.text(
        """Does the runtime respect dependencies that nobody drew by hand? Each operation of a random graph
        reads one or two earlier values and runs on a random device; all are called without waiting. The
        values are integers, which overflow in the same way everywhere, so they must equal NumPy's in every
        bit: an operation that started too early would be seen."""
    )
    story.code(run_graph)
    wrong = []
    for s in range(seed, seed + graphs):
        graph = random_graph(s, nodes=nodes, devices=len(devices))
        leaves = graph_leaves(s, size)
        ours = run_graph(graph, [jnp.asarray(x) for x in leaves], devices)
        equal = [np.array_equal(a, b) for a, b in zip(ours, oracle(graph, leaves), strict=True)]
        wrong += [s] * (not all(equal))
        chain = depth(graph)
        story.say(
            f"seed {s}: {sum(equal)} of {len(equal)} values equal NumPy's; longest chain {chain}", detail=True
        )
    story.fact("graphs_equal", graphs - len(wrong), words="graphs equal to NumPy's in every bit")
    story.claim(
        book="A task with complex dependencies is computed correctly when it is parallelized automatically",
        holds=not wrong,
        predicted="every value of every graph equal to NumPy's in every bit",
        right=not wrong,
        observed=f"{graphs - len(wrong)} of {graphs} graphs equal" + f", not {wrong}" * bool(wrong),
        cannot="there is one device" if len(devices) < 2 else "",
    )


def over_sizes(
    story: Story, *, devices: Sequence[jax.Device], nodes: int, sizes: Sequence[int], seed: int, rounds: int
) -> None:
    """Exercise 2, second half: at which size of the operations are several devices faster?

    Facts: `graph_gains_from_size`.

    Args:
      story: is told times, curves, a timeline, the fact and claims.
      devices: of one kind; with a single one the comparison cannot be made.
      nodes: operations in the graph.
      sizes: rows and columns of the int32 matrices in it, on a CPU; a GPU gets larger ones.
      seed: of the graph.
      rounds: of the comparison at each size.
    """
    story.text(
        """And is it faster? The same graph runs on one device and on all of them. On a CPU each device has a
        core: one device runs on one, all devices on as many as they are, as real devices would. Python calls
        one operation after the other and copies inputs to where they are needed. So where operations are
        tiny, these calls and copies take the time, and more devices only add copies."""
    )
    sizes = sizes_for(devices[0], sizes)
    found = {n: times(n, devices, nodes=nodes, seed=seed, rounds=rounds) for n in sorted(set(sizes))}
    for n, rows in found.items():
        story.table(rows.values(), title=f"Graphs of {n} x {n} matrices", base=ONE, detail=True)
    story.lines(
        "Random graphs over the size of their operations",
        [
            Curve(way, tuple(map(float, found)), tuple(rows[way].median for rows in found.values()))
            for way in found[max(found)]
        ],
        x=Axis("rows and columns of the matrices"),
        y=Axis("time of a graph", "s"),
        caption=f"{nodes} operations; lower is faster. Devices gain where their line is below that of one.",
    )
    against = {n: (ratio(r[AWAITED], r[SEVERAL]), ratio(r[ONE], r[SEVERAL])) for n, r in found.items()}
    story.grid(
        ("size", "all devices, each operation waited for", "one device"),
        [(f"{n} x {n}", *map(str, ratios)) for n, ratios in against.items()],
        title="Random graphs: time over that on all devices",
        right=(1, 2),
    )
    graph, leaves = _graph(max(found), devices, nodes=nodes, seed=seed)
    recorded = timeline.record(
        partial(run_graph, graph, leaves, devices), name="random graph", folder=story.traces
    )
    story.timeline(recorded, title="A random graph on all devices")
    _claims(story, against, devices=devices)


def sizes_for(device: jax.Device, sizes: Sequence[int]) -> list[int]:
    """`sizes` on a CPU; else multiplied so that a product of the largest lasts 0.2 ms."""

    def product(n: int) -> Callable[[], jax.Array]:
        x = jax.device_put(jnp.ones((n, n), jnp.int32), device)
        return lambda: jnp.dot(x, x)

    largest = max(sizes)
    larger = size_for(device.platform, largest, product, seconds=2e-4, most=16 * largest) // largest
    return [n * larger for n in sizes]


def times(
    n: int, devices: Sequence[jax.Device], *, nodes: int, seed: int, rounds: int
) -> dict[str, Measurement]:
    """Seconds for a graph over int32 (n, n), for each way to run it; CPU devices get one core each."""
    graph, leaves = _graph(n, devices, nodes=nodes, seed=seed)
    alone = [replace(node, device=0) for node in graph]
    cores = available()[: len(devices)] if devices[0].platform == "cpu" else ()
    one, several = partial(run_graph, alone, leaves, devices), partial(run_graph, graph, leaves, devices)
    parts = {
        AWAITED: limited(partial(several, wait=True), cores or None),
        ONE: limited(one, cores[:1] or None),
        SEVERAL: limited(several, cores or None),
    }
    return interleaved({**parts, ALL_CORES: one} if cores else parts, count=rounds)


def _graph(n: int, devices: Sequence[jax.Device], *, nodes: int, seed: int) -> tuple[Any, list[jax.Array]]:
    graph = random_graph(seed, nodes=nodes, devices=len(devices))
    return graph, [jax.device_put(x, devices[0]) for x in graph_leaves(seed, n)]


def _claims(story: Story, against: dict[int, tuple[Ratio, Ratio]], *, devices: Sequence[jax.Device]) -> None:
    """Judge the gains from not waiting and from more devices, at the smallest and the largest size."""
    smallest, largest = against[min(against)], against[max(against)]
    shown = f"{min(against)} and {max(against)}"
    gains = [n for n, (_, devices_gain) in against.items() if devices_gain.above()]
    story.fact(
        "graph_gains_from_size", min(gains, default=None), words="smallest operations that gain from devices"
    )
    few_cores = "1 core" if story.environment.cores == 1 and devices[0].platform == "cpu" else ""
    story.claim(
        ours="Such a task is faster when its operations are not waited for one by one",
        holds=largest[0].above(),
        predicted=f"faster at size {max(against)}",
        right=largest[0].above(),
        observed=f"{smallest[0]} and {largest[0]} times as fast at sizes {shown}",
        cannot=few_cores,
    )
    gained = both(largest[1].above(), smallest[1].at_most(1.1))
    story.claim(
        ours="Such a task is faster on several devices than on one only where its operations are large",
        holds=gained,
        predicted=f"faster at size {max(against)}, at most 1.1 times as fast at size {min(against)}",
        right=gained,
        observed=f"{smallest[1]} and {largest[1]} times as fast at sizes {shown}",
        cannot=few_cores or ("there is one device of a kind" if len(devices) < 2 else ""),
    )
