"""What XLA's flags for oneDNN gain: training steps of three networks on this CPU, with and without the flags.

    python benchmarks/onednn_gains.py
    python benchmarks/onednn_gains.py --smoke    # at toy size, to see that it works

JAX trains in two processes: as installed, and with the flags. They take turns in random order, and must
agree on the first losses. The rows are those of docs/onednn.md: the seconds of a step as installed over those
with the flags, as the median of the rounds' ratios with its 95% interval. On two idle cores this takes about
three minutes.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import time
from contextlib import ExitStack
from importlib.metadata import version

import numpy as np

from jaxperf.result import ratio_of, turns
from jaxperf.result.machine import cores, cpu_model

# The last keeps XLA's default library from taking single convolutions before oneDNN can.
FLAGS = (
    "--xla_cpu_use_onednn=true",
    "--xla_cpu_experimental_onednn_custom_call=true",
    "--xla_cpu_experimental_ynn_fusion_type=-individual_convolution",
)
NETWORKS = {"LeNet": (256, (28, 28, 1)), "ResNet-18": (32, (28, 28, 1)), "5 x 5 kernels": (64, (32, 32, 3))}
STEPS = 3  # whose losses must agree
RTOL = 1e-3

# Prints the first losses and the number of convolutions that oneDNN computes. Then each line that it reads is
# a turn of so many seconds at least; it answers with the seconds of a step.
WORKER = """
import sys, time
import jax, jax.numpy as jnp, numpy as np, optax
from flax import nnx
from jaxperf.models import LeNet, resnet18

class Kernels5x5(nnx.Module):
    def __init__(self, rngs):
        layers = ((3, 24, 1), (24, 48, 2), (48, 96, 2))  # channels in and out, stride
        pad = ((2, 2), (2, 2))
        self.layers = nnx.List([nnx.Conv(i, o, (5, 5), s, padding=pad, rngs=rngs) for i, o, s in layers])
        self.dense = nnx.Linear(96, 10, rngs=rngs)

    def __call__(self, x):
        for layer in self.layers:
            x = nnx.relu(layer(x))
        return self.dense(x.mean((1, 2)))

name, batch, steps, *shape = sys.argv[1], *map(int, sys.argv[2:])
networks = {"LeNet": LeNet, "ResNet-18": resnet18, "5 x 5 kernels": Kernels5x5}
graph, params, rest = nnx.split(networks[name](rngs=nnx.Rngs(0)), nnx.Param, ...)
rng = np.random.default_rng(0)
X = jnp.asarray(rng.random((batch, *shape), np.float32))
y = jnp.asarray(rng.integers(0, 10, batch))

@jax.jit
def step(params, rest):
    def loss(params):
        net = nnx.merge(graph, params, rest, copy=True)
        value = optax.softmax_cross_entropy_with_integer_labels(net(X), y).mean()
        return value, nnx.split(net, nnx.Param, ...)[2]

    (value, new_rest), grads = jax.value_and_grad(loss, has_aux=True)(params)
    return jax.tree.map(lambda p, g: p - 0.01 * g, params, grads), new_rest, value

def take_step():
    global params, rest
    params, rest, value = jax.block_until_ready(step(params, rest))
    return float(value)

convolutions = step.lower(params, rest).compile().as_text().count('"__onednn$convolution"')
print(*[take_step() for _ in range(steps)], convolutions, flush=True)
for line in sys.stdin:
    began, count = time.perf_counter(), 0
    while not count or time.perf_counter() - began < float(line):
        take_step()
        count += 1
    print((time.perf_counter() - began) / count, flush=True)
"""


class Worker:
    """A process that trains one network; `losses` are those of its first steps."""

    def __init__(self, name: str, batch: int, *, flags: bool, stack: ExitStack) -> None:
        words = [word for word in os.environ.get("XLA_FLAGS", "").split() if word not in FLAGS]
        variables = {"XLA_FLAGS": " ".join((*words, *(FLAGS if flags else ()))), "JAX_PLATFORMS": "cpu"}
        arguments = [name, batch, STEPS, *NETWORKS[name][1]]
        self._process = stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-c", WORKER, *map(str, arguments)],
                env={**os.environ, "JAX_NUM_CPU_DEVICES": "1", **variables},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        stack.callback(self._process.kill)
        *self.losses, convolutions = map(float, self._line().split())
        self.convolutions = int(convolutions)

    def turn(self, seconds: float) -> float:
        """Take steps for so many seconds, at least one, and return the seconds of a step."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()
        return float(self._line())

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"error: a worker ended with status {self._process.wait()}, see above")
        return line


def row(name: str, *, rounds: int, turn_s: float, smoke: bool) -> str:
    """Return the row of a network, measured in rounds."""
    batch, draw = 2 if smoke else NETWORKS[name][0], random.Random()
    seconds: dict[bool, list[float]] = {False: [], True: []}
    with ExitStack() as stack:
        workers = {flags: Worker(name, batch, flags=flags, stack=stack) for flags in seconds}
        if not np.allclose(workers[True].losses, workers[False].losses, rtol=RTOL):
            raise SystemExit(f"error: {name}: losses {workers[True].losses}, not {workers[False].losses}")
        for _ in range(rounds):
            for flags in turns(tuple(workers), draw):
                seconds[flags].append(workers[flags].turn(turn_s))
        convolutions = workers[True].convolutions
    gain = ratio_of([a / b for a, b in zip(seconds[False], seconds[True])])
    installed, with_flags = (f"{1e3 * np.median(values):.1f} ms" for values in seconds.values())
    return f"| {name}, batch {batch} | {installed} | {with_flags} | {gain} | {convolutions} |"


def main() -> None:
    """Print a row for each network."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=12, help="turns of each process")
    parser.add_argument("--turn-s", type=float, default=2.0, help="seconds of a turn at least")
    parser.add_argument("--smoke", action="store_true", help="two images, turns of one step")
    options = parser.parse_args()
    if tuple(map(int, version("jaxlib").split(".")[:2])) < (0, 12):
        parser.error(f"XLA has these flags from jaxlib 0.12 on, this is {version('jaxlib')}")
    print(f"{cpu_model()}, {cores()} cores; JAX {version('jax')}, {time.strftime('%Y-%m-%d')}")
    print("| a training step | as installed | with the flags | gain | oneDNN's convolutions |")
    print("| --- | ---: | ---: | ---: | ---: |", flush=True)
    for name in NETWORKS:
        turn_s = 0.0 if options.smoke else options.turn_s
        print(row(name, rounds=options.rounds, turn_s=turn_s, smoke=options.smoke), flush=True)


if __name__ == "__main__":
    main()
