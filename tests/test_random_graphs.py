"""Random graphs in section 8.3: equal to NumPy in every seed, and a wrong value does not pass for right."""

import jax
import pytest
from stories import begin

from jaxperf.chapter import random_graphs
from jaxperf.parallel import graph


@pytest.fixture
def story(tmp_path):
    return begin("auto_parallelism", json=tmp_path / "r.json")


def test_the_sections_graphs_equal_numpy_in_every_seed(story):
    random_graphs.equal_to_numpy(story, devices=jax.devices(), nodes=200, node_size=8, graphs=6, seed=3)
    told = story.result()
    assert told.facts["graphs_equal"] == 6
    assert [claim.held for claim in told.claims] == [True]


def test_the_seed_whose_graph_differs_is_named(story, monkeypatch):
    def wrong_in_seed_4(nodes, leaves):
        values = graph.oracle(nodes, leaves)
        if (leaves[0] == graph.graph_leaves(4, 8)[0]).all():
            values[-1] = values[-1] + 1
        return values

    monkeypatch.setattr(random_graphs, "oracle", wrong_in_seed_4)
    random_graphs.equal_to_numpy(story, devices=jax.devices(), nodes=60, node_size=8, graphs=3, seed=3)
    told = story.result()
    assert told.facts["graphs_equal"] == 2
    [claim] = told.claims
    assert claim.held is False
    assert claim.observed == "2 of 3 graphs equal, not [4]"


def test_awaited_or_not_compares_the_same_rounds(story):
    random_graphs.awaited_or_not(story, devices=jax.devices()[:2], nodes=60, node_size=8, seed=0, rounds=3)
    told = story.result()
    awaited, one, queued, ratio, against_one = told.measurements
    assert ratio.values == tuple(a / b for a, b in zip(awaited.values, queued.values))
    assert against_one.values == tuple(a / b for a, b in zip(one.values, queued.values))
    [recorded] = told.timelines
    assert recorded.spans and recorded.trace
    assert len(told.claims) == 2
