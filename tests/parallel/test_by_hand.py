"""The book's `train_batch` on copies of the parameters: one device's steps, on any number of devices."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from late import Late

from jaxperf.models import lenet_params, sgd
from jaxperf.parallel import first_devices, get_params, pmap_train_batch, split_and_load, train_batch

cpus = functools.partial(first_devices, platform="cpu")  # eight of them, wherever the tests run
LR = 0.1


def gradient(params, X, y):
    """The gradient of a share's summed loss, with images of three values and two outputs."""
    return jax.grad(lambda p: ((jnp.tanh(X @ p[0]) + p[1] - y[:, None]) ** 2).sum())(params)


def update(params, total, n):
    return sgd(params, total, LR, n)


compiled = {"gradient": jax.jit(gradient), "update": jax.jit(update, static_argnums=2)}


def start():
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.normal(size=shape), "float32") for shape in ((3, 2), (2,))]


@pytest.fixture(scope="module")
def batches():
    rng = np.random.default_rng(3)
    return [(rng.random((16, 3), np.float32), rng.random(16, np.float32)) for _ in range(3)]


@pytest.fixture(scope="module")
def expected(batches):
    """The parameters after the book's steps on the whole batch, in float64."""
    with jax.enable_x64(True):
        params = [np.asarray(p, "float64") for p in start()]
        for X, y in batches:
            whole = gradient(params, X.astype("float64"), y.astype("float64"))
            params = sgd(params, whole, LR, len(X))
        return jax.device_get(params)


def test_get_params_copies_to_the_device_and_shares_no_memory():
    params = lenet_params(jax.random.key(0))
    device = cpus(2)[1]
    copies = get_params(params, device)
    assert all(c.devices() == {device} for c in copies)
    chex.assert_trees_all_equal(jax.device_get(copies), jax.device_get(params))
    here = get_params(params, params[0].devices().pop())
    assert not {c.unsafe_buffer_pointer() for c in here} & {p.unsafe_buffer_pointer() for p in params}


def by_hand(batches, devices, *, programs=compiled):
    copies = [get_params(start(), d) for d in devices]
    for X, y in batches:
        shards = [split_and_load(a, devices) for a in (X, y)]
        copies = train_batch(*shards, copies, **programs)
    return copies


@pytest.mark.parametrize("k", [1, 2, 8])
def test_three_batches_by_hand_are_three_of_the_books_steps_on_every_device(batches, expected, k):
    devices = cpus(k)
    copies = by_hand(batches, devices)
    for copy, device in zip(copies, devices, strict=True):
        assert all(p.devices() == {device} for p in copy)
        chex.assert_trees_all_equal(jax.device_get(copy), jax.device_get(copies[0]))
    chex.assert_trees_all_close(jax.device_get(copies[0]), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("k", [1, 2])
def test_pmap_and_psum_are_the_same_step(batches, k):
    train = pmap_train_batch(cpus(k), gradient=gradient, update=update)
    params = get_params(start(), cpus(1)[0])
    for X, y in batches:
        params = train(params, X.reshape(k, -1, 3), y.reshape(k, -1))
    same = by_hand(batches, cpus(k))[0]
    chex.assert_trees_all_close(jax.device_get(params), jax.device_get(same), rtol=0, atol=1e-6)


def test_one_trace_serves_all_devices_and_steps(batches):
    chex.clear_trace_counter()
    once = {"gradient": jax.jit(chex.assert_max_traces(gradient, n=1)), "update": compiled["update"]}
    by_hand(batches, cpus(4), programs=once)
    with pytest.raises(AssertionError, match="traced > 1 times"):  # a share of another size would be seen
        by_hand(batches, cpus(2), programs=once)


def test_nothing_is_waited_for():
    """The sums of work still queued, and what is done with them, are returned before the work is done."""
    devices = cpus(2)
    late = {d: Late(device=d) for d in devices}
    a = [jax.device_put(jnp.float32(i), d) for i, d in enumerate(devices)]
    shards = [split_and_load(np.ones(2), devices)] * 2
    new = train_batch(
        *shards, a, gradient=lambda a, X, y: late[a.device].array(), update=lambda a, total, n: a + n * total
    )
    ready = [x.is_ready() for x in new]
    for one in late.values():
        one.gate.set()
    assert ready == [False, False]
    assert new == [4, 5]
