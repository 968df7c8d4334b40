import functools

import jax
import numpy as np
import optax
import pytest

from jaxperf.errors import JaxperfError
from jaxperf.models import lenet, lenet_params, sgd
from jaxperf.parallel import first_devices, get_params, train_batch

cpus = functools.partial(first_devices, platform="cpu")  # eight of them, wherever the tests run


@pytest.fixture(scope="module")
def batch():
    rng = np.random.default_rng(3)
    return rng.integers(0, 256, (16, 28, 28, 1), dtype=np.uint8), rng.integers(0, 10, 16).astype(np.int32)


def test_get_params_copies_to_the_device_and_shares_no_memory():
    params = lenet_params(jax.random.key(0))
    device = cpus(2)[1]
    copies = get_params(params, device)
    assert all(c.devices() == {device} for c in copies)
    for copy, param in zip(copies, params, strict=True):
        np.testing.assert_array_equal(copy, param)
    here = get_params(params, params[0].devices().pop())
    assert not {c.unsafe_buffer_pointer() for c in here} & {p.unsafe_buffer_pointer() for p in params}


@pytest.mark.parametrize("k", [1, 2, 4, 8])
def test_three_batches_by_hand_are_three_of_the_books_steps(batch, k):
    X, y = batch
    expected = params = lenet_params(jax.random.key(1), scale=0.1)

    def loss(params):
        logits = lenet(X.astype(np.float32) / 255, params)
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).sum()

    devices = cpus(k)
    copies = [get_params(params, d) for d in devices]
    value_and_grad = jax.jit(jax.value_and_grad(loss))
    for _ in range(3):
        total, grads = value_and_grad(expected)
        expected = sgd(expected, grads, 0.1, len(X))
        copies, losses = train_batch(X, y, copies, devices, 0.1)
        np.testing.assert_allclose(sum(map(float, losses)), total, rtol=1e-5)
    for copy, device in zip(copies, devices, strict=True):
        assert all(p.devices() == {device} for p in copy)
        for mine, first, theirs in zip(copy, copies[0], expected, strict=True):
            np.testing.assert_array_equal(mine, first)
            np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-6)


def test_a_batch_that_does_not_divide_is_refused(batch):
    X, y = batch
    devices = cpus(3)
    copies = [get_params(lenet_params(jax.random.key(0)), d) for d in devices]
    with pytest.raises(JaxperfError, match="batch size 16 is not divisible by 3 devices; use 15 or 18"):
        train_batch(X, y, copies, devices, 0.1)
