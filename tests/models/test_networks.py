import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxperf.errors import JaxperfError
from jaxperf.models import BOOK_INIT, HE_INIT, MLP, SMALL_STAGES, LeNet, ResNet, lenet, lenet_params, to_gluon

IMAGES = jax.random.uniform(jax.random.key(3), (8, 28, 28, 1))

wide = partial(ResNet, 10, stages=((64, 1), (128, 1)))
small = partial(ResNet, 10, stages=SMALL_STAGES)


@pytest.mark.parametrize("network", [partial(MLP, (512, 256, 2)), LeNet, wide])
def test_a_network_begins_as_he_or_as_the_book(network):
    """Biases are 0, and BatchNorm begins as usual."""
    he = to_gluon(network(rngs=nnx.Rngs(0)))
    book = to_gluon(network(rngs=nnx.Rngs(0), kernel_init=BOOK_INIT))
    for name, value in book.items():
        if name.endswith("weight"):
            fan_in = np.prod(value.shape[1:])
            assert abs(value.std() / 0.01 - 1) < 0.15, name
            assert abs(he[name].std() / np.sqrt(2 / fan_in) - 1) < 0.15, name
        else:
            assert (value == (1 if name.endswith(("gamma", "running_var")) else 0)).all(), name


@pytest.mark.parametrize("network", [LeNet, pytest.param(small, marks=pytest.mark.thorough)])
def test_bfloat16_computes_in_bfloat16_and_keeps_weights_statistics_and_logits_float32(network):
    exact, rough = network(rngs=nnx.Rngs(0)), network(rngs=nnx.Rngs(0), dtype=jnp.bfloat16)
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


def by_hand(rngs):
    return partial(lenet, params=lenet_params(rngs()))


@pytest.mark.parametrize("network", [by_hand, LeNet, small])
def test_wrong_images_are_told_in_one_line(network):
    call = network(rngs=nnx.Rngs(0))
    integers = np.ones((8, 28, 28, 1), np.uint8)
    for images in (jnp.ones((8, 1, 28, 28)), jnp.ones((8, 28, 28, 3)), jnp.ones((28, 28)), integers):
        with pytest.raises(JaxperfError, match=r"images are .* reads floats \(n, height, width, 1\); pass"):
            call(images)


SHAPES = ((1, 1), (7, 3), (5, 5, 1, 20), (784, 256))


@pytest.mark.parametrize(
    ("initializer", "flax"),
    [(HE_INIT, nnx.initializers.he_normal()), (BOOK_INIT, nnx.initializers.normal(0.01))],
    ids=["he", "book"],
)
def test_the_values_are_flaxs_up_to_the_last_bit(initializer, flax):
    for i, shape in enumerate(SHAPES):
        key = jax.random.key(i)
        values, expected = (np.asarray(init(key, shape, jnp.float32)) for init in (initializer, flax))
        # rounding depends on the length of a vector loop, so on the processor
        np.testing.assert_array_max_ulp(values, expected, maxulp=8)
