"""Every way to run a step equals MXNet on as many contexts: LeNet by the book's allreduce, ResNets by Gluon.

In float64, where no relu changes sides by rounding (see mxnet_fixtures); MXNet keeps BatchNorm's momentum and
the trainer's rate in float32 whatever the network's dtype, hence the ResNets' wider bounds.
"""

import functools
from dataclasses import astuple, dataclass, replace

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from cases import cases
from flax import nnx
from mxnet_fixtures import LENET, LENET_SHAPES, NETS, batch, digest, digest_error, load, weights

from jaxperf.models import lenet
from jaxperf.parallel import WAYS, first_devices, make_step, model_of, model_of_function
from tests.models.test_resnet import as_gluon, prepared

SUMMING = WAYS[1:]  # those that can sum in the middle of the network
# Rounding of float64; the same in a gradient told by an update; what MXNet keeps in float32 anyhow.
SUMS, GRADIENTS, FLOAT32_INSIDE = 1e-10, 1e-9, 1e-5
EXACT = 1e-13  # between our ways, which differ only in the order of sums


@pytest.fixture(autouse=True)
def float64_on_cpus(optimized):
    with jax.enable_x64(True), jax.default_device(jax.devices("cpu")[0]):
        yield


def batches(name, setting):
    for step in range(setting.steps):
        X, y = batch(int(load(name)["seed"]), step, setting.batch)
        yield X.transpose(0, 2, 3, 1).astype(np.float64), y


LENETS = [*((way, "sound", 2) for way in WAYS), ("manual", "book", 2), ("manual", "sound", 4)]
LENETS += [("pmap", "sound", 4), ("jit", "sound", 8)]


def quick(way, *case):
    """Two contexts by hand; that the other ways agree shows in test_data_parallel.py."""
    return way == "manual" and case == ("sound", 2)


@pytest.mark.parametrize(("way", "kind", "contexts"), cases(LENETS, quick=quick))
def test_eight_steps_of_lenet_each_way_equal_mxnets_allreduce(way, kind, contexts):
    drawn = weights(LENET_SHAPES, kind, int(load("lenet")["seed"]))
    start, devices = [*map(jnp.float64, drawn.values())], first_devices(contexts, platform="cpu")
    step = make_step(way, model_of_function(lenet, start), optax.sgd(LENET.lr), devices)
    state, losses = step.init(), []
    for X, y in batches("lenet", LENET):
        state, metrics = step(state, X, y)
        losses.append(float(metrics["loss"]))
    answers, case = load("lenet"), f"{kind}/float64/{contexts}ctx"
    np.testing.assert_allclose(losses, answers[f"{case}/loss"].mean(1), rtol=SUMS)
    for device_state in state if way == "manual" else [state]:
        update = jax.tree.map(np.subtract, jax.device_get(device_state.params), jax.device_get(start))
        assert update[0].dtype == np.float64
        assert digest_error(answers, f"{case}/update", update).max() < SUMS


@functools.cache
def resnet(name):
    return nnx.merge(*prepared(name, "sound", "float64")[1])


@functools.cache
def stats_of_context_0(name, contexts):
    """Running statistics after the first step of the first share alone."""
    model, (X, _) = model_of(resnet(name)), next(batches(name, NETS[name][1]))
    forward = jax.jit(functools.partial(model.apply, train=True))
    return jax.device_get(forward(model.params, model.stats, X[: len(X) // contexts])[1])


@dataclass(frozen=True)
class Trained:
    """What the fixture's steps gave, in Gluon's order; `grad` is of the first batch's summed loss."""

    losses: list
    grad: list
    update: list
    stats: list


@functools.cache
def trained(name, way, contexts, batch_norm):
    """The fixture's steps.

    Gluon's first step copies context 0's running statistics to the others; so do we, to compare the rest.
    """
    model, setting = model_of(resnet(name)), NETS[name][1]
    devices = first_devices(contexts, platform="cpu")
    step = make_step(way, model, optax.sgd(setting.lr), devices, batch_norm=batch_norm)
    state, losses = step.init(), []
    for i, (X, y) in enumerate(batches(name, setting)):
        state, metrics = step(state, X, y)
        losses.append(float(metrics["loss"]))
        if i == 0:
            first = jax.device_get(step.read(state).params)
        if i == 0 and batch_norm == "share":
            state = step.init(replace(model, params=first, stats=stats_of_context_0(name, contexts)))
    state = step.read(state)
    graph, *_ = nnx.split(resnet(name), nnx.Param, ...)
    start, first, last = (as_gluon(graph, p, state.stats) for p in (model.params, first, state.params))
    grad = [(old - new) / setting.lr * setting.batch for old, new in zip(start[0], first[0])]
    return Trained(losses, grad, [new - old for new, old in zip(last[0], start[0])], last[1])


def check_resnet(name, contexts, trained_net):
    answers, case = load(name), f"sound/float64/{contexts}ctx"
    np.testing.assert_allclose(trained_net.losses, answers[f"{case}/loss"].mean(1), rtol=FLOAT32_INSIDE / 10)
    assert trained_net.update[0].dtype == np.float64
    assert digest_error(answers, f"{case}/update", trained_net.update).max() < FLOAT32_INSIDE
    # Ours are the mean over contexts, and so is what is linear in them.
    stats_digest = digest("stats", trained_net.stats)
    for part in ("dot", "part"):
        desired = np.mean([answers[f"{case}/stats/{c}/{part}"] for c in range(contexts)], 0)
        np.testing.assert_allclose(stats_digest[f"stats/{part}"], desired, rtol=0, atol=FLOAT32_INSIDE)


SHARES = [*(("resnet_small", way, 2) for way in WAYS), ("resnet_small", "pmap", 4), ("resnet18", "pmap", 2)]


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "way", "contexts"), SHARES)
def test_shares_normalized_apart_equal_gluon_on_that_many_contexts(name, way, contexts):
    check_resnet(name, contexts, trained(name, way, contexts, "share"))


@pytest.mark.thorough
@pytest.mark.parametrize("way", SUMMING)
def test_the_whole_batch_normalized_over_devices_equals_gluon_on_one_context(way):
    trained_net = trained("resnet_small", way, 2, "whole")
    check_resnet("resnet_small", 1, trained_net)
    assert digest_error(load("resnet_small"), "sound/float64/grad", trained_net.grad).max() < GRADIENTS


@pytest.mark.thorough
def test_all_ways_agree_to_the_last_digits_for_either_batch_norm():
    one = trained("resnet_small", "jit", 1, "whole")
    for batch_norm, ways in (("share", WAYS), ("whole", SUMMING)):
        trained_nets = [trained("resnet_small", way, 2, batch_norm) for way in ways]
        expected = one if batch_norm == "whole" else trained_nets[0]
        chex.assert_trees_all_close(astuple(expected), *map(astuple, trained_nets), rtol=0, atol=EXACT)
