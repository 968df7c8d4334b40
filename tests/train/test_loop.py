"""The loop on a net small enough to train in NumPy: softmax regression of 2 x 2 pixels, three classes."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxperf.data import FashionMNIST, epoch_batches
from jaxperf.errors import JaxperfError
from jaxperf.measure.compile_log import nothing_compiles
from jaxperf.parallel import WAYS, first_devices, make_step, model_of_function
from jaxperf.train import Epoch, Evaluator, Trainer, train

LR, BATCH, UPDATES = 0.5, 16, 4
cpus = functools.partial(first_devices, platform="cpu")  # eight of them, wherever the tests run


def regression(X, W):
    return X.reshape(len(X), -1) @ W


def step_of(way="jit", k=2):
    W = np.random.default_rng(1).normal(size=(4, 3)).astype(np.float32)
    return make_step(way, model_of_function(regression, jnp.asarray(W)), optax.sgd(LR), cpus(k))


def pictures(n_train=37, n_test=13):
    """Bytes as Fashion-MNIST's, each first pixel another, so that images can be told apart."""
    rng = np.random.default_rng(2)
    X = rng.integers(0, 256, (n_train + n_test, 2, 2, 1), dtype=np.uint8)
    X[:, 0, 0, 0] = np.arange(len(X)) % 256
    y = rng.integers(0, 3, len(X)).astype(np.int32)
    return FashionMNIST(X[:n_train], y[:n_train], X[n_train:], y[n_train:], "made up")


def trained(step=None, data=None, *, epochs=2, **options):
    """Every epoch, and the parameters after the last."""
    options = {"batch_size": BATCH, "updates": UPDATES, **options}
    results, states = zip(*train(step or step_of(), data or pictures(), epochs=epochs, **options))
    return results, np.asarray((step or step_of()).read(states[-1]).params)


def probabilities(X, W):
    logits = regression(X / np.float32(255), W)
    powers = np.exp(logits - logits.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def in_numpy(data, seed, epochs):
    """(loss, train accuracy, test accuracy) of each epoch, and the parameters after the last."""
    W, rows = np.asarray(step_of().model.params), []
    for number in range(1, epochs + 1):
        losses, hits = [], []
        for X, y in epoch_batches(
            data.train_images, data.train_labels, batch_size=BATCH, seed=seed, epoch=number, updates=UPDATES
        ):
            p = probabilities(X, W)
            losses.extend(-np.log(p[np.arange(BATCH), y]))
            hits.extend(p.argmax(1) == y)
            W = W - LR / BATCH * (X.reshape(BATCH, -1) / np.float32(255)).T @ (p - np.eye(3)[y])
        right = probabilities(data.test_images, W).argmax(1) == data.test_labels
        rows.append((np.mean(losses), np.mean(hits), np.mean(right)))
    return rows, W


@pytest.mark.parametrize("way", WAYS)
def test_figures_and_parameters_are_those_computed_by_hand(way):
    data = pictures()
    epochs, W = trained(step_of(way), data, epochs=3, seed=5)
    rows, expected = in_numpy(data, 5, 3)
    figures = [(e.loss, e.train_accuracy, e.test_accuracy) for e in epochs]
    np.testing.assert_allclose(figures, rows, rtol=1e-5)
    np.testing.assert_allclose(W, expected, rtol=0, atol=1e-5)
    assert [e.number for e in epochs] == [1, 2, 3]


def test_an_epoch_has_the_full_data_sets_updates_unless_told_otherwise():
    data = pictures(2000)
    (epoch,), _ = trained(data=data, epochs=1, batch_size=2000, updates=None)
    assert epoch.images == 60_000
    (epoch,), _ = trained(data=data, epochs=1, batch_size=2000, updates=3)
    assert epoch.images == 6_000


def test_progress_gets_every_batch_of_every_epoch_and_the_trailing_part_is_dropped():
    step, seen, counts = step_of(), [], []

    def load(X, y):
        seen.append(X[:, 0, 0, 0])
        return step.load(X, y)

    def progress(calls, updates):
        calls = list(calls)
        counts.append((updates, len(calls)))
        return calls

    trained(dataclasses.replace(step, load=load), updates=2, progress=progress, feed="host")
    assert counts == [(2, 2), (2, 2)]
    epochs = [seen[1:3], seen[3:]]  # the first batch is what the step was compiled for
    for batches in epochs:  # 37 images are two batches of 16, no image twice
        assert [len(b) for b in batches] == [BATCH, BATCH]
        assert len(set(np.concatenate(batches))) == 2 * BATCH
    assert not np.array_equal(*epochs)  # another order in each epoch


def test_one_seed_is_one_result_bit_for_bit_and_another_seed_another():
    (first, W), (again, W_again), (_, W_other) = (trained(seed=s) for s in (3, 3, 4))
    assert [(e.loss, e.train_accuracy, e.test_accuracy) for e in first] == [
        (e.loss, e.train_accuracy, e.test_accuracy) for e in again
    ]
    np.testing.assert_array_equal(W, W_again)
    assert not np.array_equal(W, W_other)


def test_another_seed_reuses_the_compiled_programs():
    step = step_of()
    trainer = Trainer(step, pictures(), batch_size=BATCH, updates=UPDATES)
    [(first, _)] = trainer.train(epochs=1, seed=0)
    with nothing_compiles("the second seed"):
        [(second, _)] = trainer.train(epochs=1, seed=1)
    assert first.compile_s > second.compile_s == 0 and first.loss != second.loss


def test_a_batch_that_does_not_fit_into_memory_is_one_line_with_a_smaller_one():
    step = step_of()

    def run(state, shares):
        raise jax.errors.JaxRuntimeError(
            "RESOURCE_EXHAUSTED: Out of memory trying to allocate 9 bytes.\nmore"
        )

    message = r"^a batch of 16 images does not fit into memory \(RESOURCE_.* 9 bytes.\); try --batch-size 8$"
    with pytest.raises(JaxperfError, match=message):
        trained(dataclasses.replace(step, run=run), feed="host")
    with pytest.raises(JaxperfError, match=r"use more devices$"):
        trained(dataclasses.replace(step, run=run), feed="host", batch_size=2)


@pytest.mark.parametrize("way", WAYS)
def test_compiling_is_counted_apart_and_happens_before_the_first_epoch_is_timed(way):
    """The sums by hand, too. Compiled ones are kept, so they are new: no other test adds arrays (4, 5)."""
    W = np.random.default_rng(1).normal(size=(4, 5)).astype(np.float32)
    step = make_step(way, model_of_function(regression, jnp.asarray(W)), optax.sgd(LR), cpus(2))

    def progress(batches, updates):
        with nothing_compiles(way):
            yield from batches

    run = train(step, pictures(), epochs=2, batch_size=BATCH, updates=UPDATES, progress=progress)
    first, _ = next(run)
    with nothing_compiles(way):
        [(second, _)] = run
    assert first.compile_s > second.compile_s == 0


def test_the_loop_is_at_most_two_steps_ahead_so_that_all_reduces_cannot_deadlock():
    step, queued, most = step_of(), [], []

    class Loss:
        def __init__(self):
            queued.append(self)
            most.append(len(queued))

        size = 1

        def __array__(self, dtype=None, copy=None):
            if self in queued:
                queued.remove(self)
            return np.array(1.0)

    def run(state, shares):
        state, metrics = step.run(state, shares)
        return state, {**metrics, "loss": Loss()}

    trained(dataclasses.replace(step, run=run), epochs=1, updates=8, feed="host")
    assert most == [1, 2] + [3] * 6  # the one that computes, and two behind it


def test_training_goes_on_from_a_state_and_with_an_evaluator_given():
    step, data = step_of(), pictures()
    start = step.init(dataclasses.replace(step.model, params=jnp.ones((4, 3))))
    zeros = FashionMNIST(data.train_images, data.train_labels, data.test_images, 0 * data.test_labels, "")
    always_right = Evaluator(
        lambda variables, X: jnp.eye(3)[jnp.zeros(len(X), int)], cpus(1), zeros.test_images,
        zeros.test_labels, batch_size=5,
    )  # fmt: skip
    epochs, W = trained(step, zeros, epochs=1, updates=1, state=start, evaluator=always_right)
    assert epochs[0].test_accuracy == 1
    assert epochs[0].loss == pytest.approx(np.log(3), rel=1e-5)  # all ones: every class is as likely
    assert 0 < np.abs(W - 1).max() < LR


def test_an_epoch_says_the_books_line_and_its_speed():
    epoch = Epoch(3, 0.51234, 0.8, 0.756, train_s=2.0, compile_s=0, test_s=0.1, images=1000)
    assert epoch.line() == "epoch 3, time 2.0 sec, loss 0.5123, train acc 0.80, test acc 0.76"
    assert epoch.images_per_s == 500


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 0}, "^0 epochs leave nothing to train; give at least 1$"),
        ({"batch_size": 15}, "^batch size 15 is not divisible by 2 devices; use 14 or 16$"),
        ({"batch_size": 64}, "batch size 64 is larger than the data, 37 examples"),
        ({"batch_size": 10**12}, "batch size 1000000000000 is larger than the data, 37 examples"),
        ({"batch_size": 0}, "batch size 0 is not"),
        ({"updates": -1}, "updates -1 is too small"),
        ({"seed": -1}, "seed -1 is too small"),
    ],
)
def test_what_cannot_be_is_told_in_one_line(options, message):
    with pytest.raises(JaxperfError, match=message) as caught:
        trained(**options)
    assert "\n" not in str(caught.value)
