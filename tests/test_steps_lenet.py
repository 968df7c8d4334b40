"""LeNet's step: how many sums over devices it takes, and Adam, whose state follows the parameters."""

import jax
import numpy as np
import optax
import pytest

from jaxperf.measure import count_ops
from jaxperf.measure.staging import COLLECTIVES
from jaxperf.models import lenet, lenet_params
from jaxperf.parallel import WAYS, first_devices, make_step, model_of_function

# The compiler joins the sums that are written together: eight gradients, loss and accuracy. Where it finds
# the sums itself (jit), loss and accuracy are done before the way back begins and go alone.
SUMS = {"pmap": {"all-reduce": 1}, "shard_map": {"all-reduce": 1}, "jit": {"all-reduce": 2}}


def lenet_step(way, k, optimizer, dtype="float32"):
    params = [p.astype(dtype) for p in lenet_params(jax.random.key(0), scale=0.05)]
    return make_step(way, model_of_function(lenet, params), optimizer, first_devices(k, platform="cpu"))


def batches(count, dtype="float32"):
    rng = np.random.default_rng(3)
    for _ in range(count):
        yield rng.random((16, 28, 28, 1)).astype(dtype), rng.integers(0, 10, 16).astype(np.int32)


@pytest.mark.parametrize("k", [1, 2, 8])
@pytest.mark.parametrize("way", SUMS)
def test_ten_arrays_are_summed_in_one_or_two_collectives_and_none_is_gathered(way, k):
    step = lenet_step(way, k, optax.sgd(0.1))
    ops = count_ops(*step.compile(step.init(), step.load(*next(batches(1)))))
    assert ops["convolution"] >= 2  # the text is read
    assert {name: ops[name] for name in COLLECTIVES if ops[name]} == (SUMS[way] if k > 1 else {})


def test_by_hand_no_piece_knows_of_other_devices():
    step = lenet_step("manual", 2, optax.sgd(0.1))
    texts = step.compile(step.init(), step.load(*next(batches(1))))
    ops = sum(map(count_ops, texts), start=count_ops(""))
    assert len(texts) == 2 and ops["convolution"] >= 2  # up to the sum of gradients, and the update
    assert not {name for name in COLLECTIVES if ops[name]}


def test_adam_with_a_schedule_gives_one_devices_parameters_and_moments_each_way():
    """In float64: Adam divides by a gradient's own size, which blows up the rounding of small ones."""
    with jax.enable_x64(True):
        optimizer = optax.adamw(optax.exponential_decay(1e-2, 2, 0.5))
        found = []
        for way, k in (("jit", 1), *((way, 2) for way in WAYS)):
            step = lenet_step(way, k, optimizer, "float64")
            state = step.init()
            for X, y in batches(3, "float64"):
                state, _ = step(state, X, y)
            found.append(jax.device_get((state.params, state.opt_state)))
    expected, *others = map(jax.tree.leaves, found)
    assert sum(a.dtype == np.float64 for a in expected) == 3 * 8
    for leaves in others:
        for mine, theirs in zip(leaves, expected, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-8)
