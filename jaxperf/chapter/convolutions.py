"""Section 8.1, which library computes a convolution and its gradient on a CPU: XLA's choice, and another."""

from __future__ import annotations

import dataclasses
import platform
import re
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxperf.chapter.fused_dot import measured_with
from jaxperf.measure import block, interleaved
from jaxperf.models.convolution import native_convolutions, use_onednn
from jaxperf.report.words import quantity
from jaxperf.result import Ratio, ratio
from jaxperf.script import Story

SIDE = 14  # pixels: the images of ResNet-18's second stage
DEFAULT, ONEDNN, PRODUCT = "convolution, XLA's default", "convolution, oneDNN", "matrix product"
GRADIENT, PRODUCTS = "its kernel's gradient, XLA's default", "its kernel's gradient, oneDNN's products"


def conv3x3(X: jax.Array, W: jax.Array) -> jax.Array:
    """A convolution of ResNet-18: 3 x 3, the size is kept."""
    return jax.lax.conv_general_dilated(X, W, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def kernel_gradient(X: jax.Array, W: jax.Array, G: jax.Array) -> jax.Array:
    """The gradient of the kernel W that belongs to a gradient G of the output."""
    gradient: jax.Array = jax.vjp(partial(conv3x3, X), W)[1](G)[0]
    return gradient


def flop(batch: int, channels: int) -> int:
    """Operations of `conv3x3`, counting the zeros at the border: a product and a sum for each tap."""
    return 2 * batch * SIDE**2 * 9 * channels**2


def side_by_side(batch: int, channels: int, rounds: int) -> dict[str, Any]:
    """Seconds per call of a convolution and of its kernel's gradient, each by XLA's default and by oneDNN.

    A matrix product with as many operations stands beside them. `program` names the library that
    computes each, according to the compiled program.
    """
    use_onednn()
    images = (batch, SIDE, SIDE, channels)
    shapes = (
        images,
        (3, 3, channels, channels),
        images,
        (batch * SIDE**2, 9 * channels),
        (9 * channels, channels),
    )
    X, W, G, A, B = map(jax.random.normal, jax.random.split(jax.random.key(0), 5), shapes)

    def compiled(fn: Callable[..., jax.Array], *args: jax.Array) -> jax.stages.Compiled:
        return jax.jit(fn).lower(*args).compile()

    with native_convolutions():
        default, gradient = compiled(conv3x3, X, W), compiled(kernel_gradient, X, W, G)
    programs = {
        DEFAULT: (default, (X, W)),
        ONEDNN: (compiled(conv3x3, X, W), (X, W)),
        PRODUCT: (compiled(jnp.matmul, A, B), (A, B)),
        GRADIENT: (gradient, (X, W, G)),
        PRODUCTS: (compiled(kernel_gradient, X, W, G), (X, W, G)),
    }
    block((X, W, G, A, B))
    timed = interleaved({n: partial(program, *args) for n, (program, args) in programs.items()}, count=rounds)
    calls = {name: library(program.as_text() or "") for name, (program, _) in programs.items()}
    return {
        "rows": [dataclasses.asdict(m) for m in timed.values()],
        "program": [
            f"convolution: {calls[DEFAULT]}, or {calls[ONEDNN]}",
            f"its kernel's gradient: {calls[GRADIENT]}, or {calls[PRODUCTS]}",
            f"matrix product: {calls[PRODUCT]}",
        ],
    }


def library(program: str) -> str:
    """What a compiled program calls: a library's kernel, by name, or XLA's own code."""
    found = re.findall(r'(?:custom_call_target=|"kind":)"(__[^"]+)"', program[program.index("ENTRY") :])
    return ", ".join(sorted(set(found))) or "XLA's own code"


def who_computes_a_convolution(story: Story, batch: int, channels: int, rounds: int) -> None:
    """A layer of ResNet-18 by the library that XLA chooses and by oneDNN, next to a matrix product.

    Facts: `convolution_gflops`, `convolution_gflops_onednn`, `product_gflops`, `kernel_gradient_gflops`,
    `kernel_gradient_gflops_onednn`.

    Args:
      story: is told times, libraries, facts and a claim.
      batch: images.
      channels: of the layer, in and out; ResNet-18 has 128 at this size.
      rounds: of the comparison.
    """
    story.heading("8.1 Who computes a convolution?")
    operations = flop(batch, channels)
    story.text(
        f"""How fast should a program be? A profile tells where the time goes, but not whether that is too
        much. So count the operations, divide them by the time, and compare with something simple that does
        as many. This layer takes {quantity(operations, "FLOP")} for {batch} images, and so does the matrix
        product below.""",
        """The compiled program says whose kernel does the work. On a CPU, XLA gives products and
        convolutions to a library, YNNPACK (`__ynn_fusion`). jaxlib carries another one, oneDNN, which
        PyTorch and MXNet use too, and leaves it idle. From jaxlib 0.12 on a switch in `XLA_FLAGS` turns it
        on. Before that its kernel can be called by its private name, which `jaxperf/models/convolution.py`
        does. `jaxperf run` gives its sections one or the other on x86, after it has tried it in a process of
        its own; with `--no-onednn` they keep what XLA chooses.""",
        """Two thirds of a training step's operations are in gradients. JAX computes the kernel's as a
        convolution, too: of the images, read with their channels as a batch, with the output's whole gradient
        as a kernel. Both must be transposed for that, and a library that is made for kernels of 3 x 3 is slow
        at one of 14 x 14. So read the compiled program for what the library is really asked to do. With
        `ONEDNN_VERBOSE=1`, oneDNN prints the shapes, layouts and milliseconds of each call. The same gradient
        is nine matrix products, one per tap, of arrays as they lie (`jaxperf/models/kernel_gradient.py`). And
        the fastest operations are those that nobody needs: neighboring outputs share sums, so that tiles of
        2 x 2 outputs take 16 multiplications instead of 36 (Winograd's minimal filtering,
        `jaxperf/models/winograd.py`). Gradients of kernels are computed so here, and the convolution itself
        where `jaxperf run` found that this processor gains from it. The rates below count all 36, so they can
        exceed that of the matrix product.""",
    )
    story.code(conv3x3, kernel_gradient, library)
    if platform.machine().lower() not in ("x86_64", "amd64"):
        claim(story, cannot="jaxlib carries oneDNN for x86 alone")
        return
    rows, libraries = measured_with("", side_by_side, batch, channels, rounds)
    with story.output():
        print("\n".join(libraries))
    story.table(rows, title="Seconds per call", base=DEFAULT)
    facts = (
        "convolution_gflops", "convolution_gflops_onednn", "product_gflops", "kernel_gradient_gflops",
        "kernel_gradient_gflops_onednn",
    )  # fmt: skip
    for name, row in zip(facts, rows):
        story.fact(name, operations / statistics.median(row.values) / 1e9, words=f"GFLOP/s, {row.name}")
    claim(story, found=ratio(rows[0], rows[1]))


def claim(story: Story, *, found: Ratio | None = None, cannot: str = "") -> None:
    """Is the kernel that XLA chooses the faster of the two?"""
    story.claim(
        ours="XLA gives a convolution to the fastest kernel that is installed with it",
        holds=found.at_most(1.1) if found else None,
        predicted="it takes 1.2 times the time of oneDNN's or more",
        right=found.at_least(1.2) if found else None,
        observed=f"the kernel XLA chooses takes {found} times the time of oneDNN's",
        cannot=cannot,
    )
