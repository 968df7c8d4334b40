"""How near jaxperf comes to what this machine can do at best, for each row of `jaxperf run peers`.

    jaxperf roofline
    python scripts/ceilings_of_rows.py results/peers.json

A call cannot take less than its arithmetic at the best matrix rate of any library, its arguments and outputs
at the bandwidth of the memory that holds them, and an empty program that is queued. The largest of the three
is the row's ceiling. Convolutions are counted with a multiplication for each tap, of which products of tiles
(`jaxperf.models.winograd`) need fewer. Run it where the results are from, on an idle machine.
"""

from __future__ import annotations

if __name__ == "__main__":
    from jaxperf.exits import end_at_once

    end_at_once()  # while all else is imported, Ctrl-C is no traceback

import os
import platform
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np
import optax
import tyro

from jaxperf import flags
from jaxperf.chapter.convolutions import SIDE, flop
from jaxperf.chapter.loops import add_one
from jaxperf.data import fashion_mnist
from jaxperf.errors import JaxperfError
from jaxperf.exits import ended
from jaxperf.measure import measure, roofline, staging
from jaxperf.models import hybridize
from jaxperf.models.convolution import call_onednn, native_convolutions
from jaxperf.models.lenet import PARAM_SHAPES
from jaxperf.models.window import Window
from jaxperf.parallel import make_step
from jaxperf.peers import Sizes, Workload
from jaxperf.peers.workers import files, jax_train, jax_worker
from jaxperf.peers.workloads import workloads
from jaxperf.report.words import shown
from jaxperf.result import Result, load_result

QUANTITIES = {"8.2 dot": "finished", "8.2 loop": "asynchronous"}  # else a workload has one, without a name


@dataclass(frozen=True)
class Config:
    """What to read."""

    result: tyro.conf.Positional[Path]  # of `jaxperf run peers`, from this machine
    only: tuple[str, ...] = ()  # only the rows whose names hold one of these words


@dataclass(frozen=True)
class Work:
    """What a call has to do, however well it is done: FLOPs, and bytes that come in and go out."""

    flops: float
    nbytes: int


def work_of(workload: Workload) -> Work | None:
    """Count what a workload's call has to do on one device; None where it is not about a single program."""
    settings, task = dict(workload.settings), workload.settings["task"]
    if task == "forward":
        net = hybridize(jax_worker._net(settings))
        program: Callable[..., Any] = net.function
        args: tuple[Any, ...] = net.leaves(), jax_worker._input(settings)
    elif task == "train" and workload.devices == 1:
        step = make_step("jit", jax_train._model(settings), optax.sgd(settings["lr"]), jax.devices()[:1])
        X, y = next(iter(files.batches(settings)))
        program, args = step.programs["step"], (step.init(), *step.load(X.reshape(-1, 28, 28, 1), y))
    elif task in ("dot", "loop"):
        program = add_one if task == "loop" else dot_and_sum
        args = (jnp.asarray(files.arrays(settings["square"])["x"]),)
    else:
        return None
    with native_convolutions():  # XLA counts no operations in a call of oneDNN
        built = staging.build(program, *args)
    flops = float((built.lowered.cost_analysis() or {})["flops"])
    return Work(flops, built.program.argument_bytes + built.program.output_bytes)


def dot_and_sum(x: jax.Array) -> jax.Array:
    """Section 8.2.1's product and sum."""
    return jnp.dot(x, x).sum()


def matrix_rates() -> dict[str, float]:
    """FLOP/s in float32 by library, the best of a second: of a product, oneDNN's of a convolution."""
    side, channels = 2048, 256
    a = np.random.default_rng(0).random((side, side), np.float32)
    x, product = jnp.asarray(a), jax.jit(jnp.matmul)
    calls: dict[str, tuple[Callable[[], Any], float]] = {
        "XLA": (lambda: product(x, x), 2 * side**3),
        "NumPy": (lambda: a @ a, 2 * side**3),
    }
    if platform.machine().lower() in ("x86_64", "amd64"):
        images, kernel = jnp.ones((32, SIDE, SIDE, channels)), jnp.ones((3, 3, channels, channels))
        conv = jax.jit(partial(call_onednn, window=Window((1, 1), ((1, 1), (1, 1)), (1, 1), (1, 1))))
        calls["oneDNN, a convolution"] = (lambda: conv(images, kernel), flop(32, channels))
    return {name: flops / min(measure(call, budget_s=1.0).values) for name, (call, flops) in calls.items()}


def fastest(result: Result, workload: Workload) -> tuple[str, float] | None:
    """Our fastest configuration in a result and its seconds per call; None where the row is not there."""
    ours = [
        m for m in result.measurements
        if m.system == "jax" and m.workload == workload.name and m.unit == "s"
        and m.quantity == QUANTITIES.get(workload.name, "")
    ]  # fmt: skip
    best = min(ours, key=lambda m: m.median, default=None)
    return (best.configuration, best.median) if best else None


def main(config: Config) -> int:
    """Print the machine's rates, and a line for each row.

    Raises:
      JaxperfError: this machine's roofline was never measured, or the result cannot be read.
    """
    result, found = load_result(config.result), roofline.stored()
    if found is None:
        raise JaxperfError(roofline.MISSING)
    if result.environment.fingerprint != found.result.environment.fingerprint:
        print("the result is from another machine, so the shares below say little")
    rates = matrix_rates()
    for name, rate in rates.items():
        print(f"{name}: {shown(rate, 'FLOP/s')}")
    print(f"an empty program, queued: {shown(found.queueing_s, 's')}\n")
    with tempfile.TemporaryDirectory() as folder:
        data = fashion_mnist(source="mini")
        every = workloads(Sizes(), Path(folder), data.train_images, data.train_labels, lenet=PARAM_SHAPES)
        for workload in every:
            row = fastest(result, workload)
            if row and (not config.only or any(word in workload.name for word in config.only)):
                work = work_of(workload)
                if work:
                    print(line(workload.name, *row, work, found, max(rates.values())), flush=True)
    return 0


def line(
    name: str, configuration: str, seconds: float, work: Work, found: roofline.Roofline, rate: float
) -> str:
    """Say a row's ceiling, what sets it, and how near to it our fastest configuration is."""
    bounds = {
        "arithmetic": work.flops / rate,
        "memory": work.nbytes / found.bandwidth(work.nbytes),
        "dispatch": found.queueing_s,
    }
    limit, least_s = max(bounds.items(), key=lambda bound: bound[1])
    return (
        f"{name:<28}{configuration:<10}{shown(seconds, 's'):>8}, at least {shown(least_s, 's'):>8} "
        f"by {limit:<10}{least_s / seconds:>5.0%}   "
        f"({shown(work.flops, 'FLOP')}, {shown(work.nbytes, 'bytes')})"
    )


if __name__ == "__main__":
    raise SystemExit(ended(lambda: main(flags.given(Config, __doc__ or ""))))
