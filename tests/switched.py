"""What convolutions give under every transformation of JAX, computed with or without XLA's switch to oneDNN.

XLA reads the switch when JAX starts, so a test computes all of it without, and another process with it:

    python switched.py ANSWERS.npz
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxperf.models import LeNet
from jaxperf.models.export import export_net, load_net
from jaxperf.onednn.trial import begin

LAYOUT = ("NHWC", "HWIO", "NHWC")
Case = tuple[Callable[..., Any], tuple[Any, ...]]


def conv(x: Any, w: Any, **options: Any) -> jax.Array:
    """The convolution of images NHWC with kernels HWIO."""
    usual: dict[str, Any] = {"window_strides": (1, 1), "padding": "SAME", "dimension_numbers": LAYOUT}
    return lax.conv_general_dilated(x, w, **(usual | options))


def with_gradients(fn: Callable[..., jax.Array]) -> Callable[..., Any]:
    """`fn`, and the gradients of a weighted sum of it."""

    def both(x: Any, w: Any) -> Any:
        y, back = jax.vjp(fn, x, w)
        return y, *back(jnp.cos(jnp.arange(y.size)).astype(y.dtype).reshape(y.shape))

    return both


def loss(x: Any, w: Any) -> jax.Array:
    """A number with derivatives of every order."""
    return jnp.tanh(conv(x, w)).sum()


def cases() -> dict[str, Case]:
    """Functions and their arguments by name; all devices are the CPU's."""
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> Any:
        return 0.3 * rng.standard_normal(shape).astype("float32")

    x, w = normal(4, 9, 9, 8), normal(3, 3, 8, 16)
    short, half = ((x.astype(t), w.astype(t)) for t in (jnp.bfloat16, jnp.float16))
    xs, ws = normal(3, 4, 9, 9, 8), normal(3, 3, 3, 8, 16)
    line = ("NWC", "WIO", "NWC")
    mesh = Mesh(jax.devices("cpu")[:2], "data")
    shares, whole = PartitionSpec("data"), PartitionSpec()
    divided = jax.device_put(x, NamedSharding(mesh, shares)), jax.device_put(w, NamedSharding(mesh, whole))
    step = jax.grad(loss, 1)

    def summed(x: Any, w: Any) -> Any:
        return lax.psum(step(x, w), "data")

    mapped = jax.shard_map(summed, mesh=mesh, in_specs=(shares, whole), out_specs=whole, check_vma=False)
    replicas = jax.pmap(summed, "data", in_axes=(0, None), devices=jax.devices("cpu")[:2])
    return {
        "plain": (with_gradients(conv), (x, w)),
        "strided": (with_gradients(partial(conv, window_strides=(2, 3))), (x, w)),
        "dilated": (with_gradients(partial(conv, rhs_dilation=(2, 2))), (x, w)),
        "few channels": (with_gradients(conv), (normal(4, 12, 12, 1), normal(5, 5, 1, 20))),
        "groups": (with_gradients(partial(conv, feature_group_count=2)), (x, normal(3, 3, 4, 16))),
        "channels first": (
            partial(lax.conv, window_strides=(1, 1), padding="SAME"), (normal(2, 4, 7, 7), normal(6, 4, 3, 3))
        ),
        "a line": (
            partial(conv, window_strides=(1,), dimension_numbers=line), (normal(2, 9, 8), normal(3, 8, 16)),
        ),
        "no images": (conv, (x[:0], w)),
        "vmap over images": (jax.vmap(conv, in_axes=(0, None)), (xs, w)),
        "vmap over kernels": (jax.vmap(conv, in_axes=(None, 0)), (x, ws)),
        "vmap over both": (jax.vmap(conv), (xs, ws)),
        "second order": (lambda x, w: jax.jvp(jax.grad(loss, (0, 1)), (x, w), (x, w)), (x, w)),
        "second order, reversed": (
            lambda x, w: jax.grad(lambda w: jnp.vdot(jax.grad(loss, 1)(x, w), w))(w), (x, w),
        ),
        "bfloat16": (with_gradients(conv), short),
        "float16": (with_gradients(conv), half),
        "bfloat16 into float32": (partial(conv, preferred_element_type=jnp.float32), short),
        "in a loop": (lambda x, w: lax.fori_loop(0, 3, lambda i, x: conv(x, w), x), (x, normal(3, 3, 8, 8))),
        "divided by the compiler": (step, divided),
        "shard_map": (mapped, (x, w)),
        "pmap": (replicas, (x.reshape(2, 2, *x.shape[1:]), w)),
    }  # fmt: skip


def exports() -> Iterator[tuple[str, Any]]:
    """A network as exported."""
    net, x = LeNet(rngs=nnx.Rngs(0)), np.linspace(0, 1, 4 * 28 * 28, dtype="float32").reshape(4, 28, 28, 1)
    with tempfile.TemporaryDirectory() as folder:
        stem = Path(folder, "net")
        export_net(net, stem, x)
        program, arrays = load_net(stem)
        yield "exported", program.call(arrays, x)


def answers() -> Iterator[tuple[str, Any]]:
    """What every case gives, by name: arrays in a tuple."""
    for name, (fn, args) in cases().items():
        yield name, (fn if name == "pmap" else jax.jit(fn))(*args)
    yield from exports()


def calls() -> tuple[int, int]:
    """How many convolutions and products of the plain case oneDNN computes."""
    fn, args = cases()["plain"]
    program = jax.jit(fn).lower(*args).compile().as_text() or ""
    return program.count('"__onednn$convolution"'), program.count('"__onednn$matmul"')


def flat(outputs: Any) -> dict[str, np.ndarray[Any, Any]]:
    """A case's arrays as float32, which holds all of their types."""
    return {str(i): np.asarray(a, np.float32) for i, a in enumerate(jax.tree.leaves(outputs))}


if __name__ == "__main__":
    begin()
    all_arrays = {f"{name}/{i}": a for name, case_output in answers() for i, a in flat(case_output).items()}
    np.savez(sys.argv[1], calls=calls(), **all_arrays)
