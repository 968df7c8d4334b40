"""The accuracy on images of the devices: every example counts once, in one program."""

import functools

import jax
import numpy as np
import pytest

from jaxperf.errors import JaxperfError
from jaxperf.measure.compile_log import nothing_compiles
from jaxperf.parallel import first_devices
from jaxperf.train import Evaluator

COUNTS = (1, 2, 8)
cpus = functools.partial(first_devices, platform="cpu")  # eight of them, wherever the tests run
BATCH = 16


def linear(W, X):
    return X.reshape(len(X), -1) @ W


def questions(n):
    """Weights, images of small integers, so that sums are exact, labels, and how many of them are right."""
    rng = np.random.default_rng(n)
    W, X = rng.integers(-9, 9, (6, 5)), rng.integers(-9, 9, (n, 2, 3, 1))
    right = linear(W, X).argmax(-1)
    y = np.where(rng.random(n) < 0.6, right, rng.integers(0, 5, n))
    return W.astype(np.float32), X.astype(np.float32), y.astype(np.int32), int((right == y).sum())


@pytest.mark.parametrize("scan", [False, True])
@pytest.mark.parametrize("n", [1, 16, 37])
@pytest.mark.parametrize("k", COUNTS)
def test_every_example_counts_once_on_any_number_of_devices(k, n, scan):
    W, X, y, hits = questions(n)
    assert Evaluator(linear, cpus(k), X, y, batch_size=BATCH, scan=scan).accuracy(W) == hits / n


def test_padding_is_never_a_hit():
    """Padded images are zeros, and this network predicts class 0 for everything."""
    X, y = np.ones((BATCH + 3, 2, 3, 1), np.float32), np.zeros(BATCH + 3, np.int32)
    W = np.zeros((6, 5), np.float32)
    for labels, wanted in ((y, 1.0), (y + 1, 0.0)):
        assert Evaluator(linear, cpus(2), X, labels, batch_size=BATCH).accuracy(W) == wanted


@pytest.mark.parametrize("scan", [False, True])
def test_an_evaluation_compiles_nothing_and_sends_nothing_once_its_program_is_compiled(scan):
    W, X, y, hits = questions(37)
    evaluator = Evaluator(linear, cpus(2), X, y, batch_size=BATCH, scan=scan)
    W = jax.device_put(W, jax.NamedSharding(evaluator._mesh, jax.P()))
    evaluator.lower(W).compile()
    with nothing_compiles("evaluation"), jax.transfer_guard_host_to_device("disallow_explicit"):
        assert evaluator.accuracy(W) == evaluator.accuracy(W) == hits / 37


def test_each_batch_is_waited_for_so_that_all_reduces_on_cpu_devices_cannot_deadlock(monkeypatch):
    W, X, y, hits = questions(37)
    evaluator, waits = Evaluator(linear, cpus(2), X, y, batch_size=BATCH, scan=False), []
    wait = jax.block_until_ready
    monkeypatch.setattr(jax, "block_until_ready", lambda total: waits.append(int(total)) or wait(total))
    assert evaluator.accuracy(W) == hits / 37
    assert len(waits) == 3 and waits[-1] == hits  # batches of 16, 16 and 5


def test_variables_may_be_on_another_device():
    W, X, y, hits = questions(20)
    there = jax.device_put(W, jax.devices("cpu")[-1])
    assert Evaluator(linear, cpus(2), X, y, batch_size=BATCH).accuracy(there) == hits / 20
    assert there.devices() == {jax.devices("cpu")[-1]}


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
def test_impossible_arguments_are_refused_in_one_line(options, changes, message):
    _, X, y, _ = questions(5)
    devices = options.pop("devices", cpus(options.pop("k", 1)))
    with pytest.raises(JaxperfError, match=message) as caught:
        Evaluator(linear, devices, changes.get("X", X), changes.get("y", y), **options)
    assert "\n" not in str(caught.value)
