import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxperf.models import BOOK_INIT, MLP, SMALL_STAGES, LeNet, ResNet, to_gluon

IMAGES = jax.random.uniform(jax.random.key(3), (8, 28, 28, 1))


def wide(**options):
    return ResNet(10, stages=((64, 1), (128, 1)), rngs=nnx.Rngs(0), **options)


def lenet(**options):
    return LeNet(rngs=nnx.Rngs(0), **options)


def mlp(**options):
    return MLP((512, 256, 2), rngs=nnx.Rngs(0), **options)


@pytest.mark.parametrize("network", [mlp, lenet, wide])
def test_a_network_begins_as_he_or_as_the_book(network):
    """Biases are 0, and BatchNorm begins as usual."""
    he, book = to_gluon(network()), to_gluon(network(kernel_init=BOOK_INIT))
    for name, value in book.items():
        if name.endswith("weight"):
            fan_in = np.prod(value.shape[1:])
            assert abs(value.std() / 0.01 - 1) < 0.15, name
            assert abs(he[name].std() / np.sqrt(2 / fan_in) - 1) < 0.15, name
        else:
            assert (value == (1 if name.endswith(("gamma", "running_var")) else 0)).all(), name


def small(**options):
    return ResNet(10, stages=SMALL_STAGES, rngs=nnx.Rngs(0), **options)


@pytest.mark.parametrize("network", [lenet, pytest.param(small, marks=pytest.mark.thorough)])
def test_bfloat16_computes_in_bfloat16_and_keeps_weights_statistics_and_logits_float32(network):
    exact, rough = network(), network(dtype=jnp.bfloat16)
    convolution = r"bf16\[8,\d+,\d+,\d+\] = conv_general_dilated"
    # BatchNorm changes its statistics, so the module is taken apart for the trace
    graphdef, state = nnx.split(rough)
    traced = jax.make_jaxpr(lambda state, x: nnx.merge(graphdef, state)(x))(state, IMAGES)
    assert re.search(convolution, str(traced))
    logits, expected = rough(IMAGES), exact(IMAGES)
    assert logits.dtype == jnp.float32
    assert 1e-4 < float(jnp.abs(logits - expected).max()) < 0.2 * float(jnp.abs(expected).max())
    assert {leaf.dtype.name for leaf in jax.tree.leaves(nnx.state(rough))} == {"float32"}
    if network is small:
        np.testing.assert_allclose(rough.bn.mean[...], exact.bn.mean[...], atol=1e-3)
        assert rough.bn(rough.conv(IMAGES)).dtype == jnp.bfloat16
