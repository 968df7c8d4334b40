"""Predict steps that were measured on one H200 and set no constant: `python benchmarks/plan/held_out.py`.

A block of a transformer with flash attention, the same with XLA's attention, a perceptron with Adam, and
convolutions of other shapes than the chapter's. The measured seconds are in
benchmarks/results/2026-11-28-h200/held-out-steps.json. It writes held_out.csv, and needs JAX's CUDA plugin.
"""

from __future__ import annotations

import csv
import itertools
import json
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax

FOLDER = Path(__file__).parent
MEASURED = FOLDER.parent / "results" / "2026-11-28-h200" / "held-out-steps.json"
TITLES = {
    "flash_block_step": "block with flash attention", "xla_block_step": "block with XLA's attention",
    "mlp_step": "perceptron, Adam", "conv_step": "four convolutions",
}  # fmt: skip
WIDTH, HEADS = 1024, 16
CHANNELS = ((5, 3, 48, 1), (3, 48, 96, 2), (3, 96, 192, 2), (3, 192, 384, 2))
SIZES = (2048, 6144, 6144, 1000)


def shape(*lengths: int, dtype: Any = jnp.float32) -> Any:
    """Return an array as its shape."""
    return jax.ShapeDtypeStruct(lengths, dtype)


def norm(x: jax.Array) -> jax.Array:
    """Normalize the last axis."""
    wide = x.astype(jnp.float32)
    return (wide * jax.lax.rsqrt(jnp.mean(wide**2, -1, keepdims=True) + 1e-6)).astype(x.dtype)


def descend(loss_of: Any, rate: float = 1e-3) -> Any:
    """Return a jitted step of gradient descent."""

    def step(params: Any, x: jax.Array) -> Any:
        loss, grads = jax.value_and_grad(loss_of)(params, x)
        return jax.tree.map(lambda p, g: p - rate * g, params, grads), loss

    return jax.jit(step)


def block_loss(implementation: Literal["xla", "cudnn"]) -> Any:
    """Return the loss of a block of parameters and activations (8, 2048, 1024), in bfloat16."""

    def loss_of(params: Any, x: jax.Array) -> jax.Array:
        parts = jnp.split(norm(x) @ params["qkv"], 3, axis=-1)
        q, k, v = (a.reshape(*a.shape[:2], HEADS, -1) for a in parts)
        mixed = jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation=implementation)
        x = x + mixed.reshape(x.shape) @ params["out"]
        x = x + jax.nn.gelu(norm(x) @ params["up"]) @ params["down"]
        return jnp.mean(x.astype(jnp.float32) ** 2)

    return loss_of


def block_arguments() -> tuple[Any, ...]:
    """Return shapes of a block's parameters and activations."""
    sides = {
        "qkv": (WIDTH, 3 * WIDTH),
        "out": (WIDTH, WIDTH),
        "up": (WIDTH, 4 * WIDTH),
        "down": (4 * WIDTH, WIDTH),
    }
    params = {name: shape(*lengths, dtype=jnp.bfloat16) for name, lengths in sides.items()}
    return params, shape(8, 2048, WIDTH, dtype=jnp.bfloat16)


@jax.jit
def mlp_step(params: Any, state: Any, x: jax.Array, y: jax.Array) -> Any:
    """Take a step of Adam."""

    def loss_of(params: Any) -> jax.Array:
        h = x
        for w, b in params[:-1]:
            h = jax.nn.relu(h @ w + b)
        logits = h @ params[-1][0] + params[-1][1]
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    loss, grads = jax.value_and_grad(loss_of)(params)
    updates, state = optax.adam(1e-3).update(grads, state, params)
    return optax.apply_updates(params, updates), state, loss


def mlp_arguments() -> tuple[Any, ...]:
    """Return shapes of parameters, Adam's state, inputs (4096, 2048) and labels."""
    params = [(shape(n, m), shape(m)) for n, m in itertools.pairwise(SIZES)]
    state = jax.eval_shape(optax.adam(1e-3).init, params)
    return params, state, shape(4096, 2048), shape(4096, dtype=jnp.int32)


def conv_loss(kernels: Any, x: jax.Array) -> jax.Array:
    """Return the mean square after four convolutions."""
    for kernel, (_, _, _, stride) in zip(kernels, CHANNELS, strict=True):
        layout = ("NHWC", "HWIO", "NHWC")
        x = jax.lax.conv_general_dilated(x, kernel, (stride, stride), "SAME", dimension_numbers=layout)
        x = jax.nn.relu(x)
    return jnp.mean(x**2)


def conv_arguments() -> tuple[Any, ...]:
    """Return shapes of the kernels and of pictures (96, 112, 112, 3)."""
    return [shape(k, k, i, o) for k, i, o, _ in CHANNELS], shape(96, 112, 112, 3)


STEPS = {
    "flash_block_step": (descend(block_loss("cudnn")), block_arguments),
    "xla_block_step": (descend(block_loss("xla")), block_arguments),
    "mlp_step": (mlp_step, mlp_arguments),
    "conv_step": (descend(conv_loss), conv_arguments),
}


def main() -> None:
    """Predict the steps, and write held_out.csv."""
    jax.config.update("jax_platforms", "cpu")
    from jaxperf.plan.planning import plan

    measured = json.loads(MEASURED.read_text(encoding="utf-8"))["steps"]
    with (FOLDER / "held_out.csv").open("w", encoding="utf-8", newline="") as file:
        file.write("# Written by held_out.py: steps measured on one H200 (JAX 0.11.2), and predicted.\n")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["step", "measured_s", "predicted_s", "jax"])
        for name, (step, arguments) in STEPS.items():
            (size,) = plan(step, *arguments(), device="h200", devices=(1,)).sizes
            assert size.step_s
            seconds = measured[name]["measured_s"]
            writer.writerow([TITLES[name], f"{seconds:.4g}", f"{size.step_s:.4g}", jax.__version__])
            print(name, seconds, size.step_s, size.step_s / seconds, flush=True)


if __name__ == "__main__":
    main()
