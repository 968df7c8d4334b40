"""`hybridize(net, freeze=True)`: equal outputs, constants in the program, BatchNorm in the convolutions."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxperf.errors import JaxperfError
from jaxperf.models import LeNet, ResNet, hybridize
from jaxperf.models.resnet import SMALL_STAGES


def randomized(net, seed=0):
    """The module with every array random; variances and scales positive."""
    rng = np.random.default_rng(seed)
    for path, variable in nnx.iter_graph(net):
        if isinstance(variable, nnx.Variable) and jnp.issubdtype(variable[...].dtype, jnp.floating):
            low = 0.5 if path[-1] in ("var", "scale") else -0.5
            variable[...] = jnp.asarray(rng.uniform(low, 1.5 + low, variable.shape), jnp.float32)
    net.eval()
    return net


@pytest.fixture(scope="module")
def resnet():
    return randomized(ResNet(10, stages=SMALL_STAGES, rngs=nnx.Rngs(0)))


def images(n):
    return jax.random.normal(jax.random.key(n), (n, 28, 28, 1))


def test_a_frozen_network_computes_the_same_for_every_batch_and_is_traced_once_for_each(resnet):
    frozen = hybridize(resnet, freeze=True)
    for n in (3, 1, 3):
        y = resnet(images(n))
        np.testing.assert_allclose(frozen(images(n)), y, rtol=1e-4, atol=1e-4 * float(abs(y).max()))
    assert frozen.trace_count == 2


def test_its_program_takes_the_images_alone_and_has_no_batch_norm_left(resnet):
    frozen = hybridize(resnet, freeze=True)
    text = frozen.compile(images(1)).lower(images(1)).as_text()
    (arguments,) = re.findall(r"func.func public @main\((.*?)\)", text)
    assert arguments.count("%arg") == 1
    assert "rsqrt" not in text and "stablehlo.subtract" not in text and "stablehlo.multiply" not in text
    usual = hybridize(resnet)
    assert "rsqrt" in usual.function.lower(usual.leaves(), images(1)).as_text()


@pytest.mark.thorough
@pytest.mark.parametrize("several", [2, pytest.param(8, marks=pytest.mark.thorough)])
def test_convolution_and_batch_norm_together_are_as_exact_as_apart(several):
    class Net(nnx.Module):
        def __init__(self, channels, features, size, stride, bias, rngs):
            self.conv = nnx.Conv(channels, features, (size, size), stride, use_bias=bias, rngs=rngs)
            self.norm = nnx.BatchNorm(features, epsilon=1e-5, use_scale=bias, rngs=rngs)

        def __call__(self, x):
            return self.norm(self.conv(x))

    rng = np.random.default_rng(1)
    for seed in range(several):
        channels, features, size, stride = (int(n) for n in rng.integers(1, (9, 17, 6, 4)))
        net = randomized(Net(channels, features, size, stride, seed % 2 == 0, nnx.Rngs(0)), seed)
        x = jnp.asarray(rng.normal(size=(2, 11, 9, channels)), jnp.float32)
        with jax.enable_x64(True):
            exact = _in_float64(net)(np.asarray(x, np.float64))
        close = float(abs(np.asarray(exact)).max()) * 1e-5
        np.testing.assert_allclose(net(x), exact, atol=close)
        np.testing.assert_allclose(hybridize(net, freeze=True)(x), exact, atol=close)


def _in_float64(net):
    graphdef, state = nnx.split(net)
    return nnx.merge(graphdef, jax.tree.map(lambda a: jnp.asarray(np.asarray(a), jnp.float64), state))


def test_a_replaced_parameter_statistic_or_layer_counts_from_the_next_call_on():
    net = randomized(ResNet(10, stages=((4, 1),), rngs=nnx.Rngs(0)))
    frozen = hybridize(net, freeze=True)
    frozen(images(1))
    for change in (
        lambda: net.dense.kernel.__setitem__(..., net.dense.kernel[...] * 2),
        lambda: net.bn.mean.__setitem__(..., net.bn.mean[...] + 1),
        lambda: setattr(net, "dense", nnx.Linear(4, 10, rngs=nnx.Rngs(3))),
    ):
        traced, before = frozen.trace_count, frozen(images(1))
        change()
        after = frozen(images(1))
        assert frozen.trace_count == traced + 1 and not np.allclose(before, after)
        np.testing.assert_allclose(after, net(images(1)), rtol=1e-4, atol=1e-4)


def test_what_compile_returns_keeps_the_parameters_of_then():
    net = LeNet(rngs=nnx.Rngs(0))
    net.eval()
    call = hybridize(net, freeze=True).compile(images(2))
    before = call(images(2))
    net.dense2.bias[...] = net.dense2.bias[...] + 1
    np.testing.assert_array_equal(call(images(2)), before)


def test_training_mode_is_refused_in_one_line():
    net = ResNet(10, stages=((4, 1),), rngs=nnx.Rngs(0))
    with pytest.raises(JaxperfError, match=r"would change .*/(mean|var) at each call; call net.eval"):
        hybridize(net, freeze=True)(images(2))
    assert not any(isinstance(a, jax.core.Tracer) for a in jax.tree.leaves(nnx.state(net)))
    net.eval()
    assert hybridize(net, freeze=True)(images(2)).shape == (2, 10)


class Odd(nnx.Module):
    """Norms that cannot go into a convolution, and a convolution that two layers read."""

    def __init__(self, rngs):
        self.conv = nnx.Conv(1, 4, (3, 3), rngs=rngs)
        self.half = nnx.Conv(4, 4, (1, 1), dtype=jnp.bfloat16, rngs=rngs)
        self.norms = nnx.List([nnx.BatchNorm(4, rngs=rngs) for _ in range(4)])
        self.rows = nnx.BatchNorm(28, axis=1, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x):
        y = self.conv(x)
        twice = self.norms[0](y) + self.rows(y) + y
        after_relu = self.norms[1](nnx.relu(y))
        by_flag = self.norms[2](y, use_running_average=True)
        return self.dropout(twice + after_relu + by_flag + self.norms[3](self.half(y)))


@pytest.mark.thorough
def test_what_cannot_be_folded_is_left_as_it_is():
    net = randomized(Odd(nnx.Rngs(0)))
    y = hybridize(net)(images(2))
    np.testing.assert_allclose(hybridize(net, freeze=True)(images(2)), y, rtol=2e-2, atol=1e-2)
    text = hybridize(net, freeze=True).compile(images(2)).lower(images(2)).as_text()
    assert text.count("stablehlo.rsqrt") == 4


@pytest.mark.thorough
@pytest.mark.parametrize(
    "window",
    [
        {"padding": "SAME"},
        {"padding": "VALID", "strides": 2},
        {"padding": ((2, 1), (0, 1)), "kernel_dilation": 2},
        {"padding": "SAME", "use_bias": False},
    ],
)
def test_few_pixels_and_many_weights_become_a_product_of_laid_out_weights(window, monkeypatch):
    monkeypatch.setattr("jaxperf.models.window.MANY_WEIGHTS", 1)
    net = nnx.Sequential(nnx.Conv(8, 6, (3, 3), **window, rngs=nnx.Rngs(0)))
    x = jax.random.normal(jax.random.key(0), (1, 7, 6, 8))
    call = hybridize(net, freeze=True).compile(x)
    text = call.lower(x).as_text()
    assert "stablehlo.convolution" not in text and text.count("stablehlo.dot_general") == 1
    np.testing.assert_allclose(call(x), net(x), rtol=1e-5, atol=1e-5)
    many = jax.random.normal(jax.random.key(0), (40, 7, 6, 8))
    assert "stablehlo.convolution" in call.lower(many).as_text()
    np.testing.assert_allclose(call(many), net(many), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("channels", "window"),
    [
        (1, {"padding": "SAME"}),
        (2, {"padding": "VALID", "strides": 2}),
        (1, {"padding": ((2, 1), (0, 1)), "kernel_dilation": 2, "use_bias": False}),
    ],
)
def test_few_products_per_output_are_slices_added_up_except_for_one_image(channels, window):
    net = nnx.Sequential(nnx.Conv(channels, 6, (3, 3), **window, rngs=nnx.Rngs(0)))
    for n, convolutions in ((1, 1), (3, 0)):
        x = jax.random.normal(jax.random.key(n), (n, 7, 6, channels))
        call = hybridize(net, freeze=True).compile(x)
        assert call.lower(x).as_text().count("stablehlo.convolution") == convolutions
        np.testing.assert_allclose(call(x), net(x), rtol=1e-5, atol=1e-5)


def test_a_convolution_with_a_function_of_its_own_keeps_it(monkeypatch):
    monkeypatch.setattr("jaxperf.models.window.MANY_WEIGHTS", 1)
    asked = []

    def own(*args, **kwargs):
        asked.append(kwargs.pop("out_sharding"))
        return jax.lax.conv_general_dilated(*args, **kwargs)

    net = nnx.Sequential(nnx.Conv(8, 6, (3, 3), conv_general_dilated=own, rngs=nnx.Rngs(0)))
    hybridize(net, freeze=True)(jnp.ones((1, 4, 4, 8)))
    assert asked == [None]
