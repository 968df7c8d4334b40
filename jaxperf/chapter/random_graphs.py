"""Exercise 2 of section 8.3: more involved needs over all devices. Right in every bit, and faster?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxperf.measure import interleaved, per_round, timeline
from jaxperf.measure.intervals import length
from jaxperf.measure.rounds import above_one, spread
from jaxperf.parallel.graph import depth, graph_leaves, oracle, random_graph, run_graph
from jaxperf.script import Story


def equal_to_numpy(
    story: Story, *, devices: Sequence[jax.Device], nodes: int, node_size: int, graphs: int, seed: int
) -> None:
    """Exercise 2: graphs of operations, each on a device of its own choice: right in every bit?

    Facts: `graphs_equal`.

    Args:
      story: is told a line for each graph, the fact and the claim.
      devices: over which the operations are spread.
      nodes: operations in a graph.
      node_size: rows and columns of the int32 matrices in it.
      graphs: how many.
      seed: of the first graph; those after it count up.
    """
    story.heading(f"Exercise 2: random graphs of {nodes} operations on {len(devices)} devices")
    wrong = []
    for s in range(seed, seed + graphs):
        graph = random_graph(s, nodes=nodes, devices=len(devices))
        leaves = graph_leaves(s, node_size)
        ours = run_graph(graph, [jnp.asarray(x) for x in leaves], devices)
        equal = [np.array_equal(a, b) for a, b in zip(ours, oracle(graph, leaves), strict=True)]
        wrong += [s] * (not all(equal))
        story.say(
            f"seed {s}: {sum(equal)} of {len(equal)} values equal NumPy's; longest chain {depth(graph)}"
        )
    story.fact("graphs_equal", graphs - len(wrong))
    story.claim(
        "A task with involved dependencies is computed correctly when parallelised automatically",
        predicted="every value of every graph equal to NumPy's in every bit",
        observed=f"{graphs - len(wrong)} of {graphs} graphs equal" + f", not {wrong}" * bool(wrong),
        held=not wrong,
    )


def awaited_or_not(
    story: Story, *, devices: Sequence[jax.Device], nodes: int, node_size: int, seed: int, rounds: int
) -> None:
    """Exercise 2, its second half: is it faster as well?

    Args:
      story: is told times, timeline and claims.
      devices, nodes, node_size, seed: as for `equal_to_numpy`, of one graph.
      rounds: of the comparison.
    """
    graph = random_graph(seed, nodes=nodes, devices=len(devices))
    leaves = [jnp.asarray(x) for x in graph_leaves(seed, node_size)]
    alone = [replace(node, device=0) for node in graph]
    parts: dict[str, Callable[[], Any]] = {
        "graph, each operation awaited": lambda: run_graph(graph, leaves, devices, wait=True),
        "graph on one device": lambda: run_graph(alone, leaves, devices),
        "graph on all devices": lambda: run_graph(graph, leaves, devices),
    }
    awaited, one, queued = interleaved(parts, count=rounds).values()
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
