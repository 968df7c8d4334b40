"""oneDNN's convolutions give the native ones' numbers under every transformation of JAX."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax import lax
from jax.interpreters import mlir
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxperf.models import SMALL_STAGES, LeNet, ResNet
from jaxperf.onednn import convolution, trial
from jaxperf.onednn.convolution import use_onednn
from jaxperf.onednn.window import MOST_TAPS
from jaxperf.parallel import first_devices, make_step, model_of

pytestmark = pytest.mark.skipif(
    trial._jaxlib() is None or trial.has_switch(),
    reason="called by name on x86 alone, and before jaxlib 0.12",
)
CALL = "__onednn$convolution"
CLOSE = 1e-5  # of the largest value: rounding of sums of at most 2,000 products
rng = np.random.default_rng(0)
START = rng.bit_generator.state  # of each test: no other test, and no order of them, changes its data


@pytest.fixture(autouse=True)
def onednn(through_onednn: Any) -> None:
    rng.bit_generator.state = START


def normal(*shape: int) -> Any:
    return rng.standard_normal(shape).astype("float32")


def conv(x: Any, w: Any, *, stride: int = 1, padding: Any = "VALID", **options: Any) -> jax.Array:
    layout = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, w, (stride, stride), padding, dimension_numbers=layout, **options)


def calls(fn: Callable[..., Any], *args: Any) -> int:
    return jax.jit(lambda *a: fn(*a)).lower(*args).as_text().count(f"custom_call @{CALL}(")


@contextmanager
def jax_rule() -> Iterator[None]:
    """Lower convolutions with JAX's own rule in this block."""
    rules = mlir._platform_specific_lowerings["cpu"]
    entry = rules[lax.conv_general_dilated_p]
    default, *_ = entry.rule.args
    mlir.register_lowering(lax.conv_general_dilated_p, default, platform="cpu")
    yield
    rules[lax.conv_general_dilated_p] = entry


def native(fn: Callable[..., Any], *args: Any) -> Any:
    with jax_rule():
        assert calls(fn, *args) == 0
        return jax.jit(lambda *a: fn(*a))(*args)


def assert_close(actual: Any, wanted: Any) -> None:
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(wanted), strict=True):
        b = np.asarray(b, np.float64)
        np.testing.assert_allclose(a, b, rtol=0, atol=CLOSE * max(np.abs(b).max(initial=0), 1e-3))


def same(fn: Callable[..., Any], *args: Any) -> None:
    assert calls(fn, *args) > 0
    assert_close(jax.jit(lambda *a: fn(*a))(*args), native(fn, *args))


def with_gradients(fn: Callable[..., jax.Array]) -> Callable[..., Any]:
    def both(x: Any, w: Any) -> Any:
        y, back = jax.vjp(fn, x, w)
        return y, *back(jnp.cos(jnp.arange(y.size, dtype=y.dtype)).reshape(y.shape))

    return both


@pytest.mark.parametrize("several", [1, pytest.param(8, marks=pytest.mark.thorough)])
def test_outputs_and_gradients_of_random_convolutions_are_float64s(several: int) -> None:
    for _ in range(several):
        n, c, o, k, stride, dilation = (int(v) for v in rng.integers(1, (6, 12, 12, 5, 4, 3)))
        low, high = (int(v) for v in rng.integers(0, k + 1, 2))
        h = int(rng.integers((k - 1) * dilation + 1, 20))
        x, w = normal(n, h, h + 1, c), normal(k, k, c, o)
        window = {
            "stride": stride,
            "padding": ((low, high), (high, low)),
            "rhs_dilation": (dilation, dilation),
        }
        fn = with_gradients(partial(conv, **window))
        assert calls(fn, x, w) > 0
        actual = jax.jit(fn)(x, w)
        with jax.enable_x64(True), pytest.MonkeyPatch.context() as patch:
            exact = native(fn, x.astype("float64"), w.astype("float64"))
            assert_close(actual, exact)
            jax.clear_caches()
            patch.setattr("jaxperf.onednn.window.MANY_WEIGHTS", 0)
            patch.setattr("jaxperf.onednn.window.FEW_PIXELS", 10**9)
            patch.setattr("jaxperf.onednn.window.MOST_TAPS", 10**9)
            with jax.enable_x64(False):
                assert calls(fn, x, w) == 0
                assert_close(jax.jit(partial(fn))(x, w), exact)
            jax.clear_caches()


def test_the_gradient_of_a_kernel_over_large_images_is_no_product_of_hundreds_of_slices() -> None:
    x, w = normal(64, 28, 28, 1), normal(3, 3, 1, 20)
    text = jax.jit(with_gradients(conv)).lower(x, w).as_text()
    assert text.count("stablehlo.slice") < MOST_TAPS and calls(with_gradients(conv), x, w) == 2


def test_the_gradient_of_a_kernel_is_the_sum_over_pieces_of_a_large_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """33 images are 2 pieces of 16 and one of one. The kernel is 5 x 5, so that no products are better."""
    gradient = jax.grad(lambda w, x: jnp.sin(conv(x, w, stride=2, padding="SAME")).sum())
    x, w = normal(33, 9, 10, 9), normal(5, 5, 9, 17)
    whole = calls(gradient, w, x)
    with jax.enable_x64(True):
        exact = native(gradient, w.astype("float64"), x.astype("float64"))
    monkeypatch.setattr(convolution, "PIECE_BYTES", 4 * 25 * (9 * 10 * 9 + 5 * 5 * 17))
    jax.clear_caches()
    assert (whole, calls(gradient, w, x)) == (2, 1 + 3)
    assert_close(jax.jit(gradient)(w, x), exact)
    jax.clear_caches()


def test_with_xlas_switch_pieces_are_convolutions_that_xla_hands_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "XLA_FLAGS", "--xla_cpu_experimental_onednn_custom_call=true"
    )  # read by the rule alone
    monkeypatch.setattr(convolution, "PIECE_BYTES", 1)
    x, w = normal(40, 9, 10, 9), normal(5, 5, 9, 17)
    gradient = jax.jit(jax.grad(lambda w: jnp.sin(conv(x, w)).sum()))
    text = gradient.lower(w).as_text()
    assert text.count("stablehlo.convolution") == 1 + 3 and "onednn" not in text
    actual = gradient(w)
    jax.clear_caches()
    with jax_rule():
        assert_close(actual, gradient(w))


def test_pieces_hold_whole_vectors_of_images_and_are_not_too_many() -> None:
    numbers = lax.conv_dimension_numbers((1,) * 4, (1,) * 4, ("CHWN", "IHWO", "NHWC"))

    def piece(number: int, size: int) -> int | None:
        shape = number, size, size, 8
        return convolution._images_at_a_time(shape, shape, numbers)

    fit = convolution.PIECE_BYTES // (4 * 2 * 8 * 10 * 10)
    power = 1 << fit.bit_length() - 1
    assert [piece(n, 10) for n in (16, power, power + 1)] == [None, None, power]
    assert (piece(16, 200), piece(17, 200)) == (None, convolution.LEAST_IMAGES)
    assert piece(6400, 200) == 6400 // convolution.MOST_PIECES


def test_what_comes_before_is_computed_once_for_a_convolution_and_its_gradient_bit_by_bit() -> None:
    x, w = normal(2, 9, 9, 16), normal(3, 3, 16, 16)
    x[0, 0, 0, :4] = np.inf, -np.inf, -0.0, 1e-40

    def step(x: Any, w: Any) -> Any:
        return with_gradients(conv)(jnp.maximum(2 * x, -3), w)

    assert (jax.jit(step).lower(x, w).compile().as_text() or "").count(" maximum(") == 1
    computed = jax.jit(convolution.computed_once)(x)
    np.testing.assert_array_equal(np.asarray(computed).view(np.int32), x.view(np.int32))


def test_many_weights_for_few_pixels_are_one_product() -> None:
    x, w = normal(1, 4, 4, 256), normal(3, 3, 256, 256)
    few, more = partial(conv, padding="SAME"), partial(conv, padding=((8, 8), (8, 8)))
    assert (calls(few, x, w), calls(more, x, w)) == (0, 1)
    assert_close(jax.jit(few)(x, w), native(few, x, w))


@pytest.mark.thorough
def test_derivatives_of_any_order_and_direction_are_the_native_ones() -> None:
    x, w = 0.3 * normal(2, 6, 6, 3), 0.3 * normal(3, 3, 3, 4)  # where tanh is 1, its slope is rounding

    def loss(x: Any, w: Any) -> jax.Array:
        return jnp.tanh(conv(x, w, padding="SAME")).sum()

    same(lambda x, w: jax.jvp(loss, (x, w), (x, w)), x, w)
    same(lambda x, w: jax.jvp(jax.grad(loss, (0, 1)), (x, w), (x, w)), x, w)
    same(lambda x, w: jax.grad(lambda w: jnp.vdot(jax.grad(loss, 1)(x, w), w))(w), x, w)


def test_one_image_with_few_products_per_output_is_native() -> None:
    assert calls(conv, normal(1, 9, 9, 1), normal(5, 5, 1, 8)) == 0
    assert calls(conv, normal(2, 9, 9, 1), normal(5, 5, 1, 8)) == 1
    assert calls(conv, normal(1, 9, 9, 2), normal(5, 5, 2, 8)) == 1


@pytest.mark.thorough
def test_vmap_over_images_kernels_or_both_is_the_native_one() -> None:
    x, w = normal(3, 2, 7, 7, 4), normal(3, 3, 3, 4, 5)
    same(jax.vmap(conv, in_axes=(0, None)), x, w[0])
    same(jax.vmap(conv, in_axes=(None, 0)), x[0], w)
    assert calls(jax.vmap(conv), x, w) == 0  # becomes one convolution in groups


def test_each_device_calls_it_and_xla_divides_only_what_it_can() -> None:
    x, w = normal(4, 7, 7, 4), normal(3, 3, 4, 5)
    mesh = Mesh(jax.devices("cpu")[:2], "data")
    shares, whole = PartitionSpec("data"), PartitionSpec()

    def gradient(x: Any, w: Any) -> Any:
        return lax.psum(jax.grad(lambda w: jnp.sin(conv(x, w)).sum())(w), "data")

    def alone(x: Any, w: Any) -> Any:
        return jax.grad(lambda w: jnp.sin(conv(x, w)).sum())(w)

    wanted = native(alone, x, w)
    for check in (True, False):
        mapped = jax.shard_map(
            gradient, mesh=mesh, in_specs=(shares, whole), out_specs=whole, check_vma=check
        )
        if not check:  # with the check on, the sum over devices is part of the gradient
            assert calls(mapped, x, w) == 2
            assert_close(jax.jit(mapped)(x, w), wanted)
        else:
            assert calls(mapped, x, w) > 0
    by_device = jax.pmap(gradient, "data", in_axes=(0, None), devices=jax.devices("cpu")[:2])
    assert_close(by_device(x.reshape(2, 2, 7, 7, 4), w)[0], wanted)

    divided = jax.device_put(x, NamedSharding(mesh, shares)), jax.device_put(w, NamedSharding(mesh, whole))
    assert calls(alone, *divided) == 0
    assert_close(jax.jit(lambda *a: alone(*a))(*divided), wanted)


def test_exported_programs_hold_no_private_name() -> None:
    x, w = normal(2, 7, 7, 3), normal(3, 3, 3, 5)
    fn = jax.jit(with_gradients(conv))
    jax.block_until_ready(fn(x, w))
    exported = jax.export.export(fn)(x, w)
    assert CALL not in exported.mlir_module()
    assert_close(jax.export.deserialize(exported.serialize()).call(x, w), fn(x, w))


def test_other_types_groups_ranks_and_layouts_stay_native() -> None:
    x, w = normal(2, 7, 7, 4), normal(3, 3, 4, 6)
    narrow = x.astype(jnp.bfloat16), w.astype(jnp.bfloat16)
    channels_first = normal(2, 4, 7, 7), normal(6, 4, 3, 3)
    one_axis = partial(
        lax.conv_general_dilated, window_strides=(1,), padding="SAME", dimension_numbers=("NWC", "WIO", "NWC")
    )
    for fn, *args in (
        (with_gradients(conv), *narrow),
        (partial(conv, preferred_element_type="float32"), *narrow),
        (partial(conv, feature_group_count=2), x, normal(3, 3, 2, 6)),
        (lambda x, w: lax.conv(x, w, (1, 1), "SAME"), *channels_first),
        (one_axis, normal(2, 7, 4), normal(3, 4, 6)),
        (conv, x[:0], w),
    ):
        assert calls(fn, *args) == 0


def small_resnet() -> ResNet:
    return ResNet(10, stages=SMALL_STAGES, rngs=nnx.Rngs(0))


def lenet() -> LeNet:
    return LeNet(rngs=nnx.Rngs(0))


@pytest.mark.thorough
@pytest.mark.parametrize(("net", "side"), [(small_resnet, 8), (lenet, 28)])
def test_networks_train_to_the_native_losses_and_parameters(net: Callable[[], nnx.Module], side: int) -> None:
    X, y = rng.random((8, side, side, 1), np.float32), rng.integers(0, 10, 8).astype(np.int32)

    def train() -> Any:
        step = make_step("jit", model_of(net()), optax.sgd(0.01), first_devices(1, platform="cpu"))
        state = step.init()
        for _ in range(2):
            state, metrics = step(state, X, y)
        return state.params, metrics["loss"]

    with jax_rule():
        wanted = train()
    assert_close(train(), wanted)


def test_asking_twice_is_asking_once() -> None:
    rules = mlir._platform_specific_lowerings["cpu"]
    before = rules[lax.conv_general_dilated_p].rule
    use_onednn()
    assert rules[lax.conv_general_dilated_p].rule is before
