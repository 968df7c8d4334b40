import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxperf.errors import JaxperfError
from jaxperf.measure import count_ops
from jaxperf.measure.compile_log import nothing_compiles
from jaxperf.measure.stages import COLLECTIVES
from jaxperf.models import lenet, lenet_params
from jaxperf.parallel import first_devices
from jaxperf.train import Evaluator, evaluate_accuracy

COUNTS = (1, 2, 4, 8)
cpus = functools.partial(first_devices, platform="cpu")  # eight of them, wherever the tests run
BATCH = 16


def linear(W, X):
    return X.reshape(len(X), -1) @ W


def questions(n):
    """Weights, images of small integers, so that sums are exact, and labels of which some are right."""
    rng = np.random.default_rng(n)
    W, X = rng.integers(-9, 9, (6, 5)), rng.integers(-9, 9, (n, 2, 3, 1))
    right = linear(W, X).argmax(-1)
    y = np.where(rng.random(n) < 0.6, right, rng.integers(0, 5, n))
    return W.astype(np.float32), X.astype(np.float32), y.astype(np.int32), int((right == y).sum())


@pytest.mark.parametrize("n", [1, 7, 16, 37])
@pytest.mark.parametrize("k", COUNTS)
def test_every_example_counts_once_on_any_number_of_devices(k, n):
    W, X, y, hits = questions(n)
    assert evaluate_accuracy(linear, W, X, y, devices=cpus(k), batch_size=BATCH) == hits / n


@pytest.mark.parametrize("k", COUNTS)
def test_padding_is_never_a_hit(k):
    """Padded images are zeros with label zero, and this network says zero to everything."""
    X, y = np.ones((BATCH + 3, 2, 3, 1), np.float32), np.zeros(BATCH + 3, np.int32)
    W = np.zeros((6, 5), np.float32)
    for labels, wanted in ((y, 1.0), (y + 1, 0.0)):
        accuracy = evaluate_accuracy(linear, W, X, labels, devices=cpus(k), batch_size=BATCH)
        assert accuracy == wanted


def test_many_evaluations_compile_once_whatever_the_number_of_images():
    evaluator = Evaluator(linear, cpus(2), batch_size=BATCH)
    W, X, y, _ = questions(5)
    evaluator.accuracy(W, X, y)
    with nothing_compiles("evaluation"):
        for n in (1, 16, 37):
            W, X, y, hits = questions(n)
            assert evaluator.accuracy(W, X, y) == hits / n


def test_variables_may_lie_on_other_devices():
    W, X, y, hits = questions(20)
    there = jax.device_put(W, jax.devices("cpu")[-1])
    assert evaluate_accuracy(linear, there, X, y, devices=cpus(2), batch_size=BATCH) == hits / 20
    assert there.devices() == {jax.devices("cpu")[-1]}


@pytest.mark.parametrize("k", [2, 8])
def test_no_device_waits_for_another(k):
    """No collective in the program: a count for each device, added up on the host."""
    devices = cpus(k)
    params = lenet_params(jax.random.key(0))
    evaluator = Evaluator(lambda params, X: lenet(X, params), devices, batch_size=BATCH)
    cut = jax.NamedSharding(jax.sharding.Mesh(np.array(devices), ("devices",)), jax.P("devices"))
    batch = jnp.zeros((BATCH, 28, 28, 1)), jnp.zeros(BATCH, int), jnp.ones(BATCH, bool)
    whole = jax.device_put(params, jax.NamedSharding(cut.mesh, jax.P()))
    ops = count_ops(evaluator._hits.lower(whole, *jax.device_put(batch, cut)).compile().as_text())
    assert ops["convolution"] == 2
    assert not {name: ops[name] for name in COLLECTIVES if ops[name]}


@pytest.mark.parametrize(
    ("options", "changes", "message"),
    [
        ({"devices": []}, {}, "no devices to evaluate on"),
        ({"k": 8, "batch_size": 100}, {}, "batch size 100 is not divisible by 8 devices; use 96 or 104"),
        ({"batch_size": 0}, {}, "batch size 0 is not divisible"),
        ({}, {"X": np.zeros((0, 2, 3, 1)), "y": np.zeros(0, int)}, "0 images; give at least one"),
        ({}, {"y": np.zeros(4, int)}, "5 images but 4 labels"),
    ],
)
def test_what_cannot_be_is_told_in_one_line(options, changes, message):
    W, X, y, _ = questions(5)
    devices = options.pop("devices", cpus(options.pop("k", 1)))
    with pytest.raises(JaxperfError, match=message) as caught:
        evaluate_accuracy(linear, W, changes.get("X", X), changes.get("y", y), devices=devices, **options)
    assert "\n" not in str(caught.value)
