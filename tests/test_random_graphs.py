"""Random graphs in section 8.3: equal to NumPy in every seed, and judged at both ends of the sizes."""

from dataclasses import replace

import jax
import pytest
from stories import begin

from jaxperf.chapter import random_graphs
from jaxperf.parallel import graph
from jaxperf.result import Grid, Lines, Ratio, Table


def exactly(value):
    return Ratio(value, value, value, 15)


@pytest.fixture
def story(tmp_path):
    return begin("auto_parallelism", json=tmp_path / "r.json")


@pytest.mark.thorough
def test_the_sections_graphs_equal_numpy_in_every_seed(story):
    random_graphs.equal_to_numpy(story, devices=jax.devices("cpu"), nodes=200, size=8, graphs=6, seed=3)
    told = story.result()
    assert told.facts["graphs_equal"] == 6
    assert [claim.holds for claim in told.claims] == ["holds"]


def test_the_seed_whose_graph_differs_is_named(story, monkeypatch):
    def wrong_in_seed_4(nodes, leaves):
        values = graph.oracle(nodes, leaves)
        if (leaves[0] == graph.graph_leaves(4, 8)[0]).all():
            values[-1] = values[-1] + 1
        return values

    monkeypatch.setattr(random_graphs, "oracle", wrong_in_seed_4)
    random_graphs.equal_to_numpy(story, devices=jax.devices("cpu"), nodes=60, size=8, graphs=3, seed=3)
    told = story.result()
    assert told.facts["graphs_equal"] == 2
    [claim] = told.claims
    assert claim.holds == "does not hold"
    assert claim.observed == "2 of 3 graphs equal, not [4]"


def test_one_device_proves_nothing_about_several(story):
    random_graphs.equal_to_numpy(story, devices=jax.devices("cpu")[:1], nodes=20, size=4, graphs=1, seed=0)
    random_graphs.over_sizes(story, devices=jax.devices("cpu")[:1], nodes=20, sizes=(4,), seed=0, rounds=6)
    correct, _, several = story.result().claims
    assert correct.holds == several.holds == "cannot be measured here"


def test_every_size_is_timed_in_ascending_order_in_the_same_ways(story):
    random_graphs.over_sizes(
        story, devices=jax.devices("cpu")[:2], nodes=60, sizes=(16, 8, 16), seed=0, rounds=6
    )
    told = story.result()
    assert [table.title for table in told.of(Table)] == [f"Graphs of {n} x {n} matrices" for n in (8, 16)]
    [lines] = told.of(Lines)
    for curve in lines.curves:
        medians = [m.median for table in told.of(Table) for m in table.rows if m.name == curve.name]
        assert curve.x == (8.0, 16.0) and list(curve.y) == medians
    [grid] = told.of(Grid)
    assert len(grid.rows) == 2
    [recorded] = told.timelines
    assert recorded.spans and recorded.trace


def test_devices_gain_where_operations_are_large_and_only_there(story):
    for small, large, several in (
        (0.5, 1.5, "holds"),
        (1.5, 1.5, "does not hold"),
        (0.5, 0.9, "does not hold"),
    ):
        story = begin("auto_parallelism")
        story.environment = replace(story.environment, cores=2)
        against = {16: (exactly(1.0), exactly(small)), 256: (exactly(1.3), exactly(large))}
        random_graphs._claims(story, against, devices=jax.devices("cpu")[:2])
        told = story.result()
        assert [claim.holds for claim in told.claims] == ["holds", several]
        gains = [n for n, (_, ratio) in against.items() if ratio.median > 1]
        assert told.facts["graph_gains_from_size"] == (min(gains) if gains else None)


def test_one_core_decides_nothing(story):
    story.environment = replace(story.environment, cores=1)
    random_graphs._claims(story, {16: (exactly(1.0), exactly(2.0))}, devices=jax.devices("cpu")[:2])
    assert {claim.holds for claim in story.result().claims} == {"cannot be measured here"}
