import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from late import Late

from jaxperf.errors import JaxperfError
from jaxperf.parallel import allreduce, first_devices

cpus = functools.partial(first_devices, platform="cpu")  # eight of them, wherever the tests run


def test_the_books_ones_and_twos_become_threes_on_both_devices():
    devices = cpus(2)
    data = [jax.device_put(jnp.ones((1, 2)) * (i + 1), d) for i, d in enumerate(devices)]
    summed = allreduce(data)
    assert [np.asarray(a).tolist() for a in summed] == [[[3.0, 3.0]]] * 2
    assert [a.devices() for a in summed] == [{d} for d in devices]
    assert [np.asarray(a).tolist() for a in data] == [[[1.0, 1.0]], [[2.0, 2.0]]]  # ours are immutable


@pytest.mark.parametrize("k", [1, 3, 8])
def test_trees_are_summed_leaf_by_leaf_everywhere(k):
    rng = np.random.default_rng(0)
    host = [{"w": rng.integers(-9, 9, (2, 3)), "b": [rng.integers(-9, 9, 4)]} for _ in range(k)]
    devices = cpus(k)
    summed = allreduce([jax.device_put(tree, d) for tree, d in zip(host, devices)])
    for tree, device in zip(summed, devices, strict=True):
        np.testing.assert_array_equal(tree["w"], sum(h["w"] for h in host))
        np.testing.assert_array_equal(tree["b"][0], sum(h["b"][0] for h in host))
        assert all(leaf.devices() == {device} for leaf in jax.tree.leaves(tree))


def test_nothing_is_waited_for():
    """The sum of work still queued is returned before the work is done."""
    late = Late()
    summed = allreduce([late.array(), late.array()])
    ready = summed[0].is_ready()
    late.gate.set()
    assert summed[0] == 2
    assert not ready


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "allreduce of an empty list"),
        ([jnp.ones(2), jnp.ones(3)], r"shape \(2,\) on device 0 and \(3,\) on device 1"),
        ([[jnp.ones(2)], [jnp.ones(2), jnp.ones(2)]], "on device 1"),
    ],
)
def test_what_cannot_be_added_is_told(data, message):
    with pytest.raises(JaxperfError, match=message):
        allreduce(data)
