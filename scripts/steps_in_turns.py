"""A training step on one device: the ways beside a plain jitted step, or oneDNN's convolutions beside XLA's.

    python scripts/steps_in_turns.py --net resnet18 --batch 32 --rounds 40
    python scripts/steps_in_turns.py --net own --batch 64 --kernels

All of them take turns in one process, on the same images. Above 1 means slower than the plain step, or than
XLA's own convolutions. Where oneDNN works, all use it, except XLA's own.
"""

from __future__ import annotations

if __name__ == "__main__":
    from jaxperf.exits import end_at_once

    end_at_once()  # while all else is imported, Ctrl-C is no traceback

import contextlib
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from jaxperf import onednn, script
from jaxperf.errors import JaxperfError
from jaxperf.flags import at_least
from jaxperf.report.words import quantity
from jaxperf.result import ratio

PLAIN, OURS = "plain jit", "XLA's own convolutions"


@dataclass(frozen=True)
class Config:
    """Which step, and how often."""

    net: Literal["lenet", "resnet18", "own"] = "resnet18"  # "own": kernels of 5 x 5 and strides of 3
    batch: Annotated[int, at_least(1)] = 32
    rounds: Annotated[int, at_least(6)] = 20
    kernels: bool = False  # compare convolutions instead of ways


def model(net: str) -> Any:
    """A network for images (n, 28, 28, 1) and ten classes."""
    import jax
    from flax import nnx

    from jaxperf.models import lenet, lenet_params, resnet18
    from jaxperf.parallel import model_of, model_of_function

    if net == "lenet":
        return model_of_function(lenet, lenet_params(jax.random.key(0)))
    rngs = nnx.Rngs(0)
    if net == "resnet18":
        return model_of(resnet18(rngs=rngs))
    layers = (
        nnx.Conv(1, 24, (5, 5), strides=3, rngs=rngs), nnx.relu,
        nnx.Conv(24, 72, (5, 5), rngs=rngs), nnx.BatchNorm(72, rngs=rngs), nnx.relu,
        lambda x: x.reshape(len(x), -1), nnx.Linear(10 * 10 * 72, 10, rngs=rngs),
    )  # fmt: skip
    return model_of(nnx.Sequential(*layers))


def plain(model: Any, optimizer: Any, X: Any, y: Any) -> Callable[[], Any]:
    """The step as one would write it: one jitted function of the state and a batch, the state donated."""
    import jax
    import jax.numpy as jnp

    from jaxperf.parallel.update import TrainState, gradient_of, update_of

    gradient, update = gradient_of(model), update_of(optimizer)
    state = jax.tree.map(jnp.array, TrainState(model.params, model.stats, optimizer.init(model.params)))
    step = jax.jit(lambda s, X, y: update(s, gradient(s, X, y), len(y)), donate_argnums=0)
    return in_order(step.lower(state, X, y).compile(), state, X, y)


def way(name: Any, model: Any, optimizer: Any, X: Any, y: Any) -> Callable[[], Any]:
    """The step of `make_step` on one device, on a loaded batch."""
    from jaxperf.parallel import first_devices, make_step

    step = make_step(name, model, optimizer, first_devices(1))
    return in_order(step.run, step.init(), step.load(X, y))


def in_order(step: Callable[..., Any], state: Any, *batch: Any) -> Callable[[], Any]:
    """A call without arguments, which steps on from where the last one ended."""
    held = [state]

    def call() -> Any:
        held[0], metrics = step(held[0], *batch)
        return held[0], metrics

    return call


def main(config: Config) -> int:
    """Print the seconds of each, and its ratio to the base within rounds."""
    if (told := onednn.with_onednn(os.environ)) != dict(os.environ):
        os.execve(sys.executable, [sys.executable, *sys.argv], told)  # JAX 0.12 reads its switch at the start
    script.prepare(devices=1, platform="cpu")
    onednn.begin()
    import jax
    import optax

    from jaxperf.measure import interleaved
    from jaxperf.models.convolution import native_convolutions, switched, uses_onednn
    from jaxperf.parallel import WAYS

    if config.kernels and (not uses_onednn() or switched()):
        raise JaxperfError("one process cannot have both convolutions here; --kernels needs JAX before 0.12")
    rng = jax.random.key(1)
    X = jax.device_put(jax.random.uniform(rng, (config.batch, 28, 28, 1)), jax.devices()[0])
    y = jax.device_put(jax.random.randint(rng, (config.batch,), 0, 10), jax.devices()[0])
    given = model(config.net), optax.sgd(0.01), X, y
    with native_convolutions() if config.kernels else contextlib.nullcontext():
        parts = {OURS if config.kernels else PLAIN: plain(*given)}
    parts |= {"oneDNN": plain(*given)} if config.kernels else {f"way {w}": way(w, *given) for w in WAYS}
    base, *others = interleaved(parts, count=config.rounds).values()
    print(f"{base.name}: {quantity(base.median, 's')}")
    for m in others:
        print(f"{m.name}: {quantity(m.median, 's')}, {ratio(m, base)}", flush=True)
    return 0


if __name__ == "__main__":
    from jaxperf import flags
    from jaxperf.exits import ended

    raise SystemExit(ended(lambda: main(flags.given(Config, __doc__ or ""))))
