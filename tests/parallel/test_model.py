import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxperf.errors import JaxperfError
from jaxperf.models import ResNet
from jaxperf.parallel import first_devices, model_of, model_of_function


@pytest.fixture(autouse=True)
def on_a_cpu():
    """Where the same program gives the same bits each time."""
    with jax.default_device(jax.devices("cpu")[0]):
        yield


def small():
    return ResNet(10, stages=((8, 1),), rngs=nnx.Rngs(0))


BYTES = np.random.default_rng(0).integers(0, 256, (4, 8, 8, 1), dtype=np.uint8)
IMAGES = BYTES / np.float32(255)


def equal(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    return all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b)))


def test_a_module_computes_and_remembers_what_it_did_as_a_module():
    net, X = small(), IMAGES
    model = model_of(net)
    apply = jax.jit(model.apply, static_argnames="train")
    call = nnx.jit(lambda net, X: net(X))
    logits, stats = apply(model.params, model.stats, X, train=True)
    np.testing.assert_array_equal(logits, call(net, X))
    assert equal(stats, nnx.to_pure_dict(nnx.state(net, nnx.BatchStat)))
    assert not equal(stats, model.stats)  # the module went on, the model did not
    net.eval()
    logits, after = apply(model.params, stats, X, train=False)
    np.testing.assert_array_equal(logits, call(net, X))
    assert equal(after, stats)


def test_batch_norm_sums_over_the_axis_only_when_told_one():
    model, X = model_of(small()), IMAGES
    alone, stats = jax.jit(model.apply, static_argnames="train")(model.params, model.stats, X, train=True)

    def share(params, stats, x, axis_name="d"):
        return model.apply(params, stats, x, train=True, axis_name=axis_name)

    def over_shares(fn):  # parameters as arguments: as constants they crash the compiler of JAX 0.11.2
        of_all = jax.pmap(fn, "d", in_axes=(None, None, 0), devices=first_devices(2, platform="cpu"))
        return of_all(model.params, model.stats, X.reshape(2, 2, 8, 8, 1))

    shares, stats_of_shares = over_shares(share)
    np.testing.assert_allclose(shares.reshape(4, 10), alone, rtol=1e-4, atol=1e-5)
    both = jax.tree.map(lambda s: np.stack([s, s]), stats)
    chex.assert_trees_all_close(jax.device_get(stats_of_shares), both, rtol=1e-4, atol=1e-6)
    apart, _ = over_shares(functools.partial(share, axis_name=None))
    assert not np.allclose(apart.reshape(4, 10), alone, atol=1e-3)


def test_bytes_are_scaled_on_the_device():
    for model in (model_of(nnx.Linear(1, 3, rngs=nnx.Rngs(0))), model_of_function(jnp.multiply, jnp.ones(3))):
        of_bytes, of_floats = (
            model.apply(model.params, model.stats, X, train=True)[0] for X in (BYTES, IMAGES)
        )
        np.testing.assert_allclose(of_bytes, of_floats, rtol=1e-5, atol=1e-6)


def test_state_that_would_differ_between_devices_is_refused_by_name():
    with pytest.raises(JaxperfError, match=r"state of kind Rng.* is not divided among devices") as caught:
        model_of(nnx.Sequential(nnx.Linear(2, 2, rngs=nnx.Rngs(0)), nnx.Dropout(0.5, rngs=nnx.Rngs(0))))
    assert "\n" not in str(caught.value)
