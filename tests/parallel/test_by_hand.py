import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from late import Late

from jaxperf.errors import JaxperfError
from jaxperf.parallel import allreduce, first_devices, make_step, model_of, split_and_load

cpus = functools.partial(first_devices, platform="cpu")  # eight of them, wherever the tests run


def test_the_first_devices_come_in_jaxs_order():
    assert first_devices() == jax.devices()
    assert first_devices(1) == jax.devices()[:1]
    assert cpus(5) == jax.devices("cpu")[:5]


@pytest.mark.parametrize("k", [1, 2, 4, 8])
@pytest.mark.parametrize("of", [np.asarray, jax.numpy.asarray])
def test_shares_put_together_are_the_batch(k, of):
    batch = of(np.arange(16 * 3).reshape(16, 3))
    shares = split_and_load(batch, cpus(k))
    assert {len(s) for s in shares} == {16 // k}
    np.testing.assert_array_equal(np.concatenate(shares), batch)


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


def test_allreduce_waits_for_nothing():
    """The sum of work still queued is returned before the work is done."""
    late = Late()
    summed = allreduce([late.array(), late.array()])
    ready = summed[0].is_ready()
    late.gate.set()
    assert summed[0] == 2
    assert not ready


def made(way, **options):
    model = model_of(nnx.BatchNorm(3, rngs=nnx.Rngs(0)))
    return make_step(way, model, optax.sgd(0.1), cpus(2), **options)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: cpus(0), "0 devices asked for"),
        (lambda: cpus(9), "9 devices asked for, 8 cpu there; use 1 to 8; set JAX_NUM_CPU_"),
        *((lambda n=n, k=k: split_and_load(np.zeros(n), cpus(k)),
           f"^batch size {n} is not divisible by {k} devices; use {sizes}$")
          for n, k, sizes in ((100, 8, "96 or 104"), (3, 4, "4"), (0, 2, "2"))),
        (lambda: split_and_load(np.zeros(8), []), "no devices"),
        (lambda: allreduce([]), "allreduce of an empty list"),
        (lambda: allreduce([jnp.ones(2), jnp.ones(3)]), r"shape \(2,\) on device 0 and \(3,\) on device 1"),
        (lambda: allreduce([[jnp.ones(2)], [jnp.ones(2), jnp.ones(2)]]), "on device 1"),
        (lambda: made("pmpa"), "no way 'pmpa' to run a step; use manual, pmap, shard_map, jit"),
        (lambda: made("pmap", batch_norm="both"), "batch_norm 'both' is neither 'share' nor 'whole'"),
        (lambda: made("manual", batch_norm="whole"), "sums in the middle .*; use 'pmap', 'shard_map' or"),
        (lambda: make_step("jit", None, None, []), "no devices to run on"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_in_one_line(call, message):
    with pytest.raises(JaxperfError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
