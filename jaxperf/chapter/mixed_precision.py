"""Mixed precision: compute in bfloat16, remember in float32."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from jaxperf.data import FashionMNIST
from jaxperf.models import SMALL_STAGES, ResNet
from jaxperf.parallel import first_devices, make_step, model_of
from jaxperf.script import Story


def mixed_precision(story: Story, data: FashionMNIST, *, seed: int) -> None:
    """Make one update of a small ResNet in float32 and in bfloat16, and compare losses and dtypes.

    Facts: `bfloat16_loss_difference`.
    """
    story.heading("Mixed precision")
    story.text(
        """bfloat16 has half the bytes of float32 and 8 bits of precision. Products and convolutions can be
        computed in it. Parameters and statistics stay float32, or small updates would be rounded away."""
    )
    X, y = data.train_images[:8], data.train_labels[:8]
    losses, kinds = {}, set()
    for name, dtype in (("float32", None), ("bfloat16", jnp.bfloat16)):
        net = ResNet(10, stages=SMALL_STAGES, dtype=dtype, rngs=nnx.Rngs(seed))
        step = make_step("jit", model_of(net), optax.sgd(0.1), first_devices(1))
        state, metrics = step(step.init(), X, y)
        losses[name] = float(metrics["loss"])
        kinds |= {str(a.dtype) for a in jax.tree.leaves((state.params, state.stats))}
    apart = abs(losses["bfloat16"] / losses["float32"] - 1)
    story.fact("bfloat16_loss_difference", apart, words="relative difference of the loss in bfloat16")
    story.claim(
        ours="Computing in bfloat16 changes a loss by about its rounding, and no array that is kept",
        holds=apart < 0.05 and kinds == {"float32"},
        predicted="the loss within 5 %; parameters and statistics stay float32",
        right=apart < 0.05 and kinds == {"float32"},
        observed=f"{losses['float32']:.4f} in float32, {losses['bfloat16']:.4f} in bfloat16; kept as "
        f"{', '.join(sorted(kinds))}",
    )
