"""Random graphs: as asked for, not degenerate, and equal to NumPy in every bit on any number of devices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxperf.parallel import graph as g

N = 16


def leaves_of(seed):
    inputs = g.graph_leaves(seed, N)
    return inputs, [jnp.asarray(x) for x in inputs]


@pytest.mark.parametrize("wait", [False, True])
@pytest.mark.parametrize("devices", [1, 2, 5])
@pytest.mark.parametrize("seed", range(4))
def test_every_value_equals_numpy_in_every_bit_on_its_own_device(seed, devices, wait):
    ours = jax.devices()[:devices]
    graph = g.random_graph(seed, nodes=120, devices=len(ours))
    inputs, leaves = leaves_of(seed)
    values = g.run_graph(graph, leaves, ours, wait=wait)
    expected = g.oracle(graph, inputs)
    assert len(values) == len(expected) == 120
    for node, value, right in zip(graph, values, expected):
        assert value.devices() == {ours[node.device]}
        assert value.dtype == right.dtype == np.int32
        np.testing.assert_array_equal(value, right)


@pytest.mark.parametrize("seed", range(10))
def test_graphs_are_sound_and_hardly_any_value_is_zero_or_repeated(seed):
    graph = g.random_graph(seed, nodes=300, devices=3)
    assert {node.device for node in graph} == {0, 1, 2}
    assert {node.op for node in graph} == set(g.OPS)
    for i, node in enumerate(graph):
        assert len(set(node.inputs)) == g.OPS[node.op]
        assert all(0 <= j < g.LEAVES + i for j in node.inputs)
    values = g.oracle(graph, g.graph_leaves(seed, N))
    assert sum(not v.any() for v in values) <= 15
    assert len({v.tobytes() for v in values}) >= 200


def test_the_same_seed_gives_the_same_graph_and_another_another():
    make = [g.random_graph(seed, nodes=50, devices=2) for seed in (1, 1, 2)]
    assert make[0] == make[1] != make[2]


def test_a_wrong_value_is_noticed():
    graph = g.random_graph(0, nodes=60, devices=1)
    inputs, leaves = leaves_of(0)
    wrong = [g.Node("subtract" if n.op == "add" else n.op, n.inputs, n.device) for n in graph]
    values = g.run_graph(wrong, leaves, jax.devices()[:1])
    assert not all(np.array_equal(a, b) for a, b in zip(values, g.oracle(graph, inputs)))


def test_depth_is_the_longest_chain():
    chain = [g.Node("flip", (3 + i,), 0) for i in range(5)]
    assert g.depth(chain) == 5
    wide = [g.Node("flip", (i % g.LEAVES,), 0) for i in range(5)]
    assert g.depth(wide) == 1
    assert g.depth([*wide, g.Node("add", (4, 5), 0)]) == 2
