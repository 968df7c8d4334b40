"""Section 8.1, a case in which compiling makes a network slower: convolutions and a mean in one fusion."""

from __future__ import annotations

from typing import Any

import jax

from jaxperf.chapter.fused_dot import SETTING, SLOW_VERSIONS, eager_and_compiled, measured_with
from jaxperf.result import Ratio, both, ratio
from jaxperf.script import Story

BATCH = 2  # images: few, since from 16 on the fault costs nothing


def conv(X: jax.Array, W: jax.Array) -> jax.Array:
    """A convolution that keeps the size, and relu."""
    return jax.nn.relu(
        jax.lax.conv_general_dilated(X, W, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    )


def end_of_resnet(X: jax.Array, W1: jax.Array, W2: jax.Array) -> jax.Array:
    """Two convolutions, then the mean over each image."""
    return conv(conv(X, W1), W2).mean((1, 2))


def cpu_seconds(batch: int, channels: int, rounds: int) -> dict[str, Any]:
    """CPU seconds per call of `end_of_resnet`, op by op and compiled, and the compiled program."""
    keys = jax.random.split(jax.random.key(0), 3)
    X = jax.random.normal(keys[0], (batch, 4, 4, channels))
    W1, W2 = (jax.random.normal(key, (3, 3, channels, channels)) / 100 for key in keys[1:])
    return eager_and_compiled(end_of_resnet, [X, W1, W2], ("op by op", "compiled"), rounds)


def about_the_mlp(widest: Ratio) -> str:
    """A network without that fusion that was also slower compiled, and whether it is so in this run."""
    seen = {True: "That is not so here", False: "So it is here", None: "Here that is undecided"}
    return f"""The widest MLP above, 2048 inputs at batch 256, was seen on one machine to run compiled at 0.8
        of its speed op by op. {seen[widest.at_least(0.95)]}: the largest MLP of this run is {widest} times as
        fast compiled as op by op."""


def where_compiling_is_slower(
    story: Story, channels: int, rounds: int, *, widest: Ratio | None = None
) -> None:
    """The last layers of ResNet-18 on a few images, with XLA's defaults and a setting that avoids the fault.

    Facts: `compiled_cpu_ratio` and `compiled_cpu_ratio_without_reduce`, CPU seconds over those of op by op.

    Args:
      story: is told times, programs, facts and claims.
      channels: of the convolutions; ResNet-18 ends with 512.
      rounds: of each comparison.
      widest: how many times as fast the largest MLP of the section was compiled, if that was measured.
    """
    story.heading("8.1 Where compiling makes a network slower")
    story.text(
        f"""A compiler may choose worse code for a whole program than for its operations. ResNet-18 on one or
        two images is such a case on JAX 0.10.2: compiled it takes up to one and a half times the CPU time of
        op by op. The reason is in its last layers, convolutions of {channels} channels on images of 4 x 4
        whose outputs are averaged. They are shown here alone, on {BATCH} images. We compare CPU time, the
        time that all threads of the process worked, which other programs on the machine hardly disturb.""",
        """Look for `ynn_fusion` in the first program below. On a CPU XLA gives convolutions, products and
        sums to a library, YNNPACK, and puts what leads to a sum into one fusion, here both convolutions and
        the mean. In this fusion JAX 0.10.2 works on a fixed block, so 1 image takes as long as 16.""",
        f"""With `XLA_FLAGS={SETTING}` sums stay out of the fusions, and each convolution gets its own, as it
        has op by op. XLA reads the setting as JAX starts, so each table is from a process of its own. JAX
        0.11.2 and 0.12.0.1 make the same fusion and run it well. The MLP has no sum, so it has no such
        fusion; section 8.2.2 meets the same fault with a single product.""",
    )
    if widest:
        story.text(about_the_mlp(widest))
    story.code(conv, end_of_resnet)
    usual, program = measured_with("", cpu_seconds, BATCH, channels, rounds)
    avoided, instead = measured_with(SETTING, cpu_seconds, BATCH, channels, rounds)
    with story.output(detail=True):
        print("\n".join(["as XLA comes:", *program, "", f"with {SETTING}:", *instead]))
    story.table(usual, title="CPU seconds per call, as XLA comes", base="op by op", detail=True)
    story.table(avoided, title=f"CPU seconds per call, with {SETTING}", base="op by op", detail=True)
    found, without = ratio(usual[1], usual[0]), ratio(avoided[1], avoided[0])
    story.fact("compiled_cpu_ratio", found.median, words="CPU seconds, compiled over op by op")
    story.fact("compiled_cpu_ratio_without_reduce", without.median, words="the same with the setting")
    slow = jax.__version__ in SLOW_VERSIONS
    story.claim(
        ours="A compiled program takes no more CPU time than its operations one by one",
        holds=found.at_most(1.1),
        predicted=f"{'half as much again or more' if slow else 'no more'}; no more with the setting",
        right=both(found.at_least(1.5) if slow else found.at_most(1.1), without.at_most(1.1)),
        observed=f"{found} times as much; with the setting {without} times",
    )
