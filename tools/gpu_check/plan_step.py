"""Predict a training step with `jaxperf plan`, time it here, and keep both: `plan_step.py FILE [--rehearse]`.

The step is ResNet-18's on 256 images in float32 (TF32 on a GPU); a rehearsal takes a small network.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from jaxperf.measure import measure
from jaxperf.models import SMALL_STAGES, ResNet, resnet18

SMALL = "GPU_CHECK_SMALL"  # set for the child that plans, which imports this module


def training_step(batch: int, dtype: Any = None) -> tuple[Any, Callable[[], tuple[Any, ...]]]:
    """Return a jitted step of ResNet-18, and a function that makes its arguments.

    The step returns the parameters and BatchNorm's statistics after it, and the loss before it.
    """
    small = SMALL in os.environ

    def network() -> Any:
        options: Any = {"dtype": dtype, "rngs": nnx.Rngs(0)}
        return ResNet(10, stages=SMALL_STAGES, **options) if small else resnet18(**options)

    @jax.jit
    def step(params: Any, rest: Any, X: jax.Array, y: jax.Array) -> Any:
        graph = nnx.split(nnx.eval_shape(network), nnx.Param, ...)[0]

        def loss(params: Any) -> Any:
            net = nnx.merge(graph, params, rest, copy=True)
            net.train()
            value = optax.softmax_cross_entropy_with_integer_labels(net(X), y).mean()
            return value, tuple(nnx.split(net, nnx.Param, ...))[2]

        (value, new_rest), grads = jax.value_and_grad(loss, has_aux=True)(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), new_rest, value

    def arguments() -> tuple[Any, ...]:
        _, params, rest = tuple(nnx.split(network(), nnx.Param, ...))
        n = 16 if small else batch
        return params, rest, jax.random.normal(jax.random.key(0), (n, 28, 28, 1)), jnp.zeros(n, jnp.int32)

    return step, arguments


step, arguments = training_step(256)


def main(path: Path, *, rehearse: bool) -> int:
    """Write the predicted and the measured seconds of the step."""
    if rehearse:
        os.environ[SMALL] = "1"
    planned = path.with_suffix(".plan.json")
    name, card = "tools.gpu_check.plan_step", "h100" if rehearse else "this"
    command = ["plan", f"{name}:step", "--setup", f"{name}:arguments", "--for", card, "--devices", "1"]
    plan = subprocess.run([sys.executable, "-m", "jaxperf", *command, "--json", str(planned)], check=False)
    if plan.returncode:
        return plan.returncode
    size = json.loads(planned.read_text(encoding="utf-8"))["sizes"][0]
    figures = {"predicted_s": size["step_s"], "low_s": size["step_low_s"], "high_s": size["step_high_s"]}
    # 20 calls in a row: a training loop does not wait for each
    measured = measure(step, *arguments(), wait="end", loops=20, budget_s=5)
    path.write_text(json.dumps(figures | {"measured_s": measured.median}), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1]), rehearse="--rehearse" in sys.argv))
