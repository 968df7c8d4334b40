"""A pipeline computes what one device computes, whatever the parts, the devices and the micro-batches."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from cases import cases
from flax import nnx

from jaxperf.errors import JaxperfError
from jaxperf.models import LeNet, ResNet
from jaxperf.parallel.pipeline import lenet_halves, make_pipeline, resnet_halves

rng = np.random.default_rng(0)
X = rng.random((8, 28, 28, 1), np.float32)
Y = rng.integers(0, 10, 8)


def allowed(on_cpu):
    """The tolerance where one side was computed on the default device, which may be a GPU."""
    return on_cpu if jax.default_backend() == "cpu" else 10 * on_cpu


def small_resnet():
    return ResNet(10, stages=((8, 1), (16, 1)), rngs=nnx.Rngs(0))


def loss_of(net, x, y):
    return optax.softmax_cross_entropy_with_integer_labels(net(x), y).mean()


def named(state):
    return {"/".join(map(str, path)): np.asarray(v[...]) for path, v in nnx.to_flat_state(state)}


def lenet():
    return LeNet(rngs=nnx.Rngs(0))


@functools.cache
def trained_alone(make, micro_batches):
    """The module after three steps on one device; BatchNorm sees micro-batches one by one."""
    net = make()
    optimizer = nnx.Optimizer(net, optax.sgd(0.1), wrt=nnx.Param)
    gradient = nnx.jit(nnx.grad(loss_of))
    for _ in range(3):
        pieces = zip(np.split(X, micro_batches), np.split(Y, micro_batches))
        grads = [gradient(net, x, y) for x, y in pieces]
        optimizer.update(net, jax.tree.map(lambda *g: sum(g) / micro_batches, *grads))
    return {**named(nnx.state(net, nnx.Param)), **named(nnx.state(net, nnx.BatchStat))}


CASES = [(lenet, lenet_halves, m) for m in (1, 2, 4)] + [(small_resnet, resnet_halves, m) for m in (1, 4)]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("make", "halves", "micro_batches"), cases(CASES, quick=lambda net, _, n: net is lenet and n == 4)
)
def test_training_over_two_devices_equals_one_device(make, halves, micro_batches):
    devices = jax.devices("cpu")[:2]
    step = make_pipeline(halves(make()), optax.sgd(0.1), devices, micro_batches=micro_batches)
    states = step.init()
    for i in range(3):
        states, metrics = step(states, X, Y)
        if i == 0 and make is lenet:  # with BatchNorm there is no loss of the whole batch
            np.testing.assert_allclose(metrics["loss"], loss_of(make(), X, Y), rtol=allowed(1e-6))
    merged = {k: v for s in states for k, v in {**s.params, **s.stats}.items()}
    # without BatchNorm the number of micro-batches makes no difference
    expected = trained_alone(make, micro_batches if make is small_resnet else 1)
    chex.assert_trees_all_close(jax.device_get(merged), expected, rtol=allowed(2e-5), atol=allowed(2e-6))
    assert 0 <= float(metrics["accuracy"]) <= 1
    for state, device in zip(states, devices):  # each part is on its device and only there
        assert {a.devices().pop() for a in jax.tree.leaves(state)} == {device}
    assert not states[0].params.keys() & states[1].params.keys()


def test_bytes_that_cross_are_the_activations_twice():
    step = make_pipeline(lenet_halves(lenet()), optax.sgd(0.1), jax.devices("cpu")[:2])
    assert step.crossing_bytes(X) == 2 * 8 * 4 * 4 * 50 * 4
    assert step.crossing_bytes(X[:4]) == step.crossing_bytes(X) // 2


def test_integer_images_are_scaled_like_everywhere():
    images = (X * 255).astype(np.uint8)
    step = make_pipeline(lenet_halves(lenet()), optax.sgd(0.1), jax.devices("cpu")[:2])
    from_bytes, _ = step(step.init(), images, Y)
    from_floats, _ = step(step.init(), images.astype(np.float32) / 255, Y)
    for a, b in zip(jax.tree.leaves(from_bytes), jax.tree.leaves(from_floats)):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)


def test_wrong_numbers_end_in_one_line():
    halves, sgd = lenet_halves(lenet()), optax.sgd(0.1)
    with pytest.raises(JaxperfError, match="2 parts for 1 devices; a pipeline needs one each"):
        make_pipeline(halves, sgd, jax.devices("cpu")[:1])
    with pytest.raises(JaxperfError, match="0 micro-batches"):
        make_pipeline(halves, sgd, jax.devices("cpu")[:2], micro_batches=0)
    step = make_pipeline(halves, sgd, jax.devices("cpu")[:2], micro_batches=3)
    with pytest.raises(JaxperfError, match="batch size 8 is not divisible by 3 micro-batches; use 6 or 9"):
        step(step.init(), X, Y)
    with pytest.raises(JaxperfError, match="one stage has no halves"):
        resnet_halves(ResNet(10, stages=((8, 1),), rngs=nnx.Rngs(0)))


def test_parts_together_give_the_networks_output():
    net = small_resnet()
    first, second = resnet_halves(net)
    h, _ = first.apply(first.params, first.stats, jnp.asarray(X), train=False)
    logits, _ = second.apply(second.params, second.stats, h, train=False)
    net.eval()
    np.testing.assert_allclose(logits, net(X), rtol=allowed(1e-5), atol=allowed(1e-6))
