"""A layer over several devices: equal to one device, and only the sums that the scheme needs."""

import itertools

import chex
import jax
import numpy as np
import optax
import pytest
from cases import cases
from flax import nnx

from jaxperf.errors import JaxperfError
from jaxperf.measure.stages import count_ops
from jaxperf.measure.traffic import device_bytes
from jaxperf.models import LeNet
from jaxperf.parallel.tensor import (
    lenet_by_hand,
    lenet_by_sharding,
    most_devices,
    replicate,
    sgd_step,
    split_lenet,
)
from jaxperf.parallel.update import softmax_cross_entropy

rng = np.random.default_rng(1)
X = rng.random((6, 28, 28, 1), np.float32)
Y = rng.integers(0, 10, 6)
WAYS = [lenet_by_sharding, lenet_by_hand]


@pytest.fixture(scope="module")
def alone():
    """One device's logits, its loss at each of three steps, and its parameters by name after them."""
    net = LeNet(rngs=nnx.Rngs(0))
    logits, losses = net(X), []
    gradient = nnx.jit(nnx.value_and_grad(lambda net: softmax_cross_entropy(net(X), Y).mean()))
    optimizer = nnx.Optimizer(net, optax.sgd(0.1), wrt=nnx.Param)
    for _ in range(3):
        loss, grads = gradient(net)
        losses.append(loss)
        optimizer.update(net, grads)
    return logits, losses, {"/".join(k): v[...] for k, v in nnx.to_flat_state(nnx.state(net, nnx.Param))}


@pytest.mark.parametrize(
    ("make", "devices"), cases(itertools.product(WAYS, (1, 2, 4)), quick=lambda make, devices: devices == 2)
)
def test_output_and_training_equal_one_device(make, devices, alone):
    logits, losses, expected = alone
    params, mesh = split_lenet(LeNet(rngs=nnx.Rngs(0)), jax.devices("cpu")[:devices])
    batch = replicate((X, Y), mesh)
    np.testing.assert_allclose(jax.jit(make(mesh))(params, batch[0]), logits, rtol=1e-5, atol=1e-6)
    step = sgd_step(make(mesh), softmax_cross_entropy, 0.1)
    for wanted in losses:
        params, loss = step(params, *batch)
        np.testing.assert_allclose(loss, wanted, rtol=1e-5)
    chex.assert_trees_all_close(jax.device_get(params), jax.device_get(expected), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("make", WAYS)
def test_a_step_sums_three_times_and_gathers_nothing(make):
    """Two sums of partial results forwards, one of dense 1's input gradient backwards."""
    params, mesh = split_lenet(LeNet(rngs=nnx.Rngs(0)), jax.devices("cpu")[:2])
    step = sgd_step(make(mesh), softmax_cross_entropy, 0.1)
    ops = count_ops(step.lower(params, *replicate((X, Y), mesh)).compile().as_text())
    assert (ops["all-reduce"], ops["all-gather"], ops["all-to-all"]) == (3, 0, 0)


@pytest.mark.parametrize("make", WAYS)
def test_parameters_stay_cut_and_each_device_holds_its_part(make):
    params, mesh = split_lenet(LeNet(rngs=nnx.Rngs(0)), jax.devices("cpu")[:2])
    after, _ = sgd_step(make(mesh), softmax_cross_entropy, 0.1)(params, *replicate((X, Y), mesh))
    for name, before in params.items():
        assert after[name].sharding.is_equivalent_to(before.sharding, before.ndim), name
    whole = sum(a.nbytes for a in params.values())
    cut = sum(a.nbytes for name, a in params.items() if name not in ("conv2/bias", "dense2/bias"))
    assert set(device_bytes(after).values()) == {whole - cut // 2}


def test_the_most_devices_are_the_largest_number_that_divides_every_width():
    assert [most_devices(k) for k in (1, 2, 3, 4, 7, 8, 20)] == [1, 2, 2, 4, 4, 4, 4]


def test_widths_that_do_not_divide_name_a_number_that_does():
    with pytest.raises(
        JaxperfError, match="convolution 1's channels, 20, don't divide among 8 devices; use 4"
    ):
        split_lenet(LeNet(rngs=nnx.Rngs(0)), jax.devices("cpu")[:8])
