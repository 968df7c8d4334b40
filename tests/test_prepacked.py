"""Frozen convolutions through oneDNN, with kernels in its layout: the usual numbers, or the usual program."""

from __future__ import annotations

import platform
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import export, lax
from jax.interpreters import mlir
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxperf.models import hybridize, prepacked, winograd
from jaxperf.models.convolution import native_convolutions
from jaxperf.models.window import Window

pytestmark = pytest.mark.skipif(
    platform.machine().lower() not in ("x86_64", "amd64"), reason="jaxlib carries oneDNN for x86 alone"
)
CALL = "__onednn$convolution"
PACKED = r"weights_prepacked\22: true"


@pytest.fixture(autouse=True)
def native_rule(through_onednn: Any) -> Any:
    prepacked.block_of.cache_clear()
    return through_onednn


def images(*shape: int, seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape, np.float32))


def frozen(net: nnx.Module, x: jax.Array) -> Any:
    return hybridize(net, freeze=True).compile(x)


def close(a: Any, b: Any) -> None:
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5 * float(np.abs(np.asarray(b)).max()))


@pytest.mark.parametrize("block", [8, 16, 64])
def test_blocks_hold_every_weight_once_and_zeros(block: int) -> None:
    kernel = np.arange(1, 1 + 3 * 2 * 5 * 20, dtype=np.float32).reshape(3, 2, 5, 20)
    laid_out = prepacked.in_blocks(kernel, block)
    back = laid_out.reshape(-1, 3, 2, 5, block).transpose(1, 2, 3, 0, 4).reshape(laid_out.shape)
    np.testing.assert_array_equal(back[..., :20], kernel)
    assert not back[..., 20:].any()


def test_random_convolutions_equal_float64s_and_most_have_their_layout_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prepacked, "MOST_FILLING", 9)  # also where that is slower
    rng = np.random.default_rng(1)
    found = 0
    for seed in range(6):
        n, channels, features, size, stride = (
            int(a) for a in rng.integers((1, 8, 5, 1, 1), (5, 40, 70, 6, 4))
        )
        padding = [(int(a), int(b)) for a, b in rng.integers(0, 3, (2, 2))]
        conv = nnx.Conv(channels, features, (size, size), stride, padding=padding, rngs=nnx.Rngs(seed))
        x = images(n, 13, 11, channels, seed=seed)
        call = frozen(nnx.Sequential(conv), x)
        with jax.enable_x64(True):
            exact = lax.conv_general_dilated(
                *(np.asarray(a, np.float64) for a in (x, conv.kernel[...])),
                (stride, stride),
                padding,
                dimension_numbers=prepacked.LAYOUT,
            )
        close(call(x), exact)
        found += PACKED in call.lower(x).as_text()
    assert found >= 3


@pytest.mark.parametrize(("block", "outputs"), [(24, (256, 512, 72)), (64, (50, 64)), (16, (20, 230))])
def test_blocks_that_add_few_outputs_are_used_and_others_not(
    block: int, outputs: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """AVX2's blocks of 24 would make 72 outputs of 64, and 264 of 256."""
    monkeypatch.setattr(prepacked, "block_of", lambda *_: block)
    window = Window((1, 1), ((1, 1), (1, 1)), (1, 1), (1, 1))
    for out in outputs:
        found = prepacked.packed(np.ones((3, 3, 8, out), np.float32), (1, 4, 4, 8), window)
        assert found and found.laid_out.shape[3] % block == 0
    for out in (64, 128) if block == 24 else (17, 33) if block == 64 else ():
        assert prepacked.packed(np.ones((3, 3, 8, out), np.float32), (1, 4, 4, 8), window) is None


def test_whatever_is_tried_first_the_numbers_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = nnx.Sequential(nnx.Conv(20, 50, (5, 5), rngs=nnx.Rngs(0))), images(2, 13, 13, 20)
    wanted = net(x)
    for blocks in (prepacked.BLOCKS, prepacked.BLOCKS[::-1], (48,), ()):
        monkeypatch.setattr(prepacked, "BLOCKS", blocks)
        prepacked.block_of.cache_clear()
        close(frozen(net, x)(x), wanted)
    assert (
        prepacked.packed(
            np.ones((5, 5, 20, 50), np.float32), x.shape, Window((1, 1), ((0, 0),) * 2, (1, 1), (1, 1))
        )
        is None
    )


def test_products_of_tiles_read_prepared_sums_where_they_are_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(winograd.VARIABLE, "1")
    conv = nnx.Conv(160, 160, (3, 3), rngs=nnx.Rngs(0))
    net = nnx.Sequential(conv, nnx.BatchNorm(160, use_running_average=True, rngs=nnx.Rngs(1)), nnx.relu)
    x = images(8, 10, 10, 160)
    call = frozen(net, x)
    program = call.lower(x).compile().as_text()
    assert program.count('"__onednn$matmul"') == 4 and "f32[3,3,160,160]" not in program
    close(call(x), net(x))
    again = export.export(jax.jit(call))(x)
    assert "onednn" not in again.mlir_module()
    close(again.call(x), net(x))
    monkeypatch.setenv(winograd.VARIABLE, "0")
    assert PACKED in frozen(net, x).lower(x).as_text()


def test_vmap_and_derivatives_are_those_of_the_usual_convolution() -> None:
    outputs = 192  # fills blocks of 64, 48, 32 and 24: which one oneDNN wants depends on the processor
    net, x = nnx.Sequential(nnx.Conv(16, outputs, (3, 3), rngs=nnx.Rngs(0))), images(2, 8, 8, 16)
    call = frozen(net, x)
    assert PACKED in call.lower(x).as_text()
    many = images(3, 2, 8, 8, 16, seed=1)
    close(jax.vmap(call)(many), jnp.stack([net(a) for a in many]))
    close(jax.vmap(call, in_axes=1)(many.swapaxes(0, 1)), jnp.stack([net(a) for a in many]))
    loss = lambda f: lambda x: (f(x) ** 2).sum()  # noqa: E731
    close(jax.grad(loss(call))(x), jax.grad(loss(net))(x))
    close(jax.jvp(loss(call), (x,), (x,))[1], jax.jvp(loss(net), (x,), (x,))[1])


def test_exported_divided_and_native_programs_hold_no_private_name() -> None:
    net, x = nnx.Sequential(nnx.Conv(16, 32, (3, 3), rngs=nnx.Rngs(0))), images(2, 8, 8, 16)
    call = frozen(net, x)
    exported = export.export(call)(x)
    assert CALL not in exported.mlir_module()
    close(exported.call(x), net(x))
    with native_convolutions():
        assert CALL not in call.lower(x).as_text()
    mesh = Mesh(np.array(jax.devices()[:2]), ("n",))
    divided = jax.device_put(x, NamedSharding(mesh, PartitionSpec("n")))
    assert CALL not in call.lower(divided).as_text()
    close(call(divided), net(x))


def test_few_channels_and_a_process_without_onednn_keep_the_usual_layout(native_rule: Any) -> None:
    window = Window((1, 1), ((0, 0), (0, 0)), (1, 1), (1, 1))
    assert prepacked.packed(np.ones((3, 3, 1, 20), np.float32), (1, 8, 8, 1), window) is None
    mlir._platform_specific_lowerings["cpu"][lax.conv_general_dilated_p] = native_rule
    x = images(2, 8, 8, 16)
    call = frozen(nnx.Sequential(nnx.Conv(16, 32, (3, 3), rngs=nnx.Rngs(0))), x)
    assert CALL not in call.lower(x).as_text()
