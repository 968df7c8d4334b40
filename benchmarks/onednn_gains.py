"""What `jaxperf.onednn.enable()` gains: training steps of three networks on this CPU, PyTorch's beside them.

    python benchmarks/onednn_gains.py
    python benchmarks/onednn_gains.py --smoke    # at toy size, to see that it works

Each system trains in a process of its own: JAX as installed, JAX with `enable()`, and PyTorch, eager, if
`jaxperf peers install torch` has installed it. In each round they take turns in another order. The rows fit
the table of docs/onednn.md: ratios of the seconds of a step, median and range over the rounds. On two idle
cores this takes about three minutes. Busy ones make fewer rounds, at least three, and slow PyTorch down: its
threads spin while they wait for each other.
"""

from __future__ import annotations

if __name__ == "__main__":
    from jaxperf.processes.exit_status import end_at_once

    end_at_once()  # while all else is imported, Ctrl-C is no traceback

import contextlib
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from jaxperf.cli import flags
from jaxperf.cli.flags import at_least, more_than
from jaxperf.errors import JaxperfError
from jaxperf.frameworks import PEERS, look
from jaxperf.models.lenet import PARAM_SHAPES
from jaxperf.models.resnet import RESNET18_STAGES
from jaxperf.onednn import trial
from jaxperf.processes.exit_status import ended
from jaxperf.result import machine
from jaxperf.result.ratio import turns

ROOT = Path(__file__).resolve().parents[1]
BATCH = {"LeNet": 256, "ResNet-18": 32, "5 x 5 kernels": 64}
SHAPES = {"LeNet": (28, 28, 1), "ResNet-18": (28, 28, 1), "5 x 5 kernels": (32, 32, 3)}
# The third network's convolutions, 5 x 5: channels in and out, stride. A dense layer of means follows.
LAYERS = ((3, 24, 1), (24, 48, 2), (48, 96, 2))
LEAST_ROUNDS = 3
INSTALLED, ENABLED, TORCH = "JAX as installed", "JAX with enable()", "PyTorch"

# A worker says "ready" once it has taken two steps. Each line that it reads is a turn, of at least so many
# seconds; it answers with the seconds of a step.
SERVE = """
def serve(step):
    step(), step()
    print("ready", flush=True)
    for line in sys.stdin:
        began, steps = time.perf_counter(), 0
        while not steps or time.perf_counter() - began < float(line):
            step()
            steps += 1
        print((time.perf_counter() - began) / steps, flush=True)
"""
JAX_WORKER = """
import sys, time
name, batch, enable = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "True"
if enable:
    import jaxperf
    if not jaxperf.onednn.enable():
        sys.exit()
import jax, numpy as np, optax
from flax import nnx
from jaxperf.models import LeNet, resnet18
from jaxperf.parallel import first_devices, make_step, model_of

class Kernels5x5(nnx.Module):
    def __init__(self, rngs):
        self.convolutions = nnx.List(
            [nnx.Conv(i, o, (5, 5), s, padding=((2, 2), (2, 2)), rngs=rngs) for i, o, s in LAYERS]
        )
        self.dense = nnx.Linear(LAYERS[-1][1], 10, rngs=rngs)

    def __call__(self, x):
        for convolution in self.convolutions:
            x = nnx.relu(convolution(x))
        return self.dense(x.mean((1, 2)))

rngs = nnx.Rngs(0)
net = {"LeNet": LeNet, "ResNet-18": resnet18, "5 x 5 kernels": Kernels5x5}[name](rngs=rngs)
train = make_step("jit", model_of(net), optax.sgd(0.01), first_devices(1))
random = np.random.default_rng(0)
images = random.random((batch, *SHAPE), np.float32)
shares = train.load(images, random.integers(0, 10, batch).astype(np.int32))
state = train.init()

def step():
    global state
    state, metrics = train.run(state, shares)
    jax.block_until_ready((state, metrics))

serve(step)
"""
TORCH_WORKER = """
import sys, time
name, batch = sys.argv[1], int(sys.argv[2])
sys.path.insert(0, WORKERS)
import numpy as np, torch, torch_nets
from torch import nn

def kernels_5x5():
    layers = [layer for i, o, s in LAYERS for layer in (nn.Conv2d(i, o, 5, s, 2), nn.ReLU())]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(LAYERS[-1][1], 10))

random = np.random.default_rng(0)
if name == "LeNet":
    weights = {k: random.normal(0, 0.05, shape).astype("float32") for k, shape in PARAM_SHAPES.items()}
    net = torch_nets.lenet(weights)
else:
    net = torch_nets.resnet(STAGES) if name == "ResNet-18" else kernels_5x5()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
height, width, channels = SHAPE
images = torch.from_numpy(random.random((batch, channels, height, width), np.float32))
labels = torch.from_numpy(random.integers(0, 10, batch))

def step():
    optimizer.zero_grad()
    nn.functional.cross_entropy(net(images), labels).backward()
    optimizer.step()

serve(step)
"""


@dataclass(frozen=True)
class Config:
    """How long to measure."""

    rounds: Annotated[int, at_least(1)] = 7  # turns of each system
    turn_s: Annotated[float, more_than(0)] = 1.0  # at least one step, and steps for so many seconds
    network_s: Annotated[float, more_than(0)] = 60.0  # after so many seconds of a network, no further round
    smoke: bool = False  # two images, turns of one step


def commands(name: str, batch: int, torch: Path | None) -> dict[str, list[str]]:
    """Return the command of each system's worker for a network and its batch size."""
    constants = {
        "LAYERS": LAYERS,
        "SHAPE": SHAPES[name],
        "PARAM_SHAPES": PARAM_SHAPES,
        "STAGES": RESNET18_STAGES,
        "WORKERS": str(ROOT / "jaxperf" / "frameworks" / "workers"),
    }
    head = SERVE + "".join(f"{key} = {value!r}\n" for key, value in constants.items())
    systems = {
        system: [sys.executable, "-P", "-c", head + JAX_WORKER, name, str(batch), str(system == ENABLED)]
        for system in (INSTALLED, ENABLED)
    }
    if torch:
        systems[TORCH] = [str(torch), "-I", "-c", head + TORCH_WORKER, name, str(batch)]
    return systems


@contextlib.contextmanager
def workers(systems: dict[str, list[str]]) -> Iterator[dict[str, subprocess.Popen[str]]]:
    """Start a process per system and yield those that are ready; their errors go to the terminal.

    A process that ends by itself without an error, as where `enable()` returns False, is left out.
    """
    environment = {k: v for k, v in os.environ.items() if k not in (trial.BY_NAME, trial.CACHE)}
    environment |= {"XLA_FLAGS": trial.without_onednn(environment.get("XLA_FLAGS", ""))}
    environment |= {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1", "PYTHONPATH": str(ROOT)}
    pipe = subprocess.PIPE
    with contextlib.ExitStack() as stack:
        started = {
            system: stack.enter_context(
                subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True)
            )
            for system, command in systems.items()
        }
        for process in started.values():
            stack.callback(process.kill)
        ready = {}
        for system, process in started.items():
            if answer(process) == "ready":
                ready[system] = process
            elif process.wait():
                raise JaxperfError(f"the worker of {system} failed, see above; status {process.returncode}")
        yield ready


def answer(process: subprocess.Popen[str]) -> str:
    """Return the next line of a worker, "" if it has ended."""
    assert process.stdout
    return process.stdout.readline().strip()


def step_s(system: str, process: subprocess.Popen[str], turn_s: float) -> float:
    """Return the seconds of a step in a system's next turn."""
    assert process.stdin
    process.stdin.write(f"{turn_s}\n")
    process.stdin.flush()
    if not (seconds := answer(process)):
        raise JaxperfError(f"the worker of {system} ended, see above; status {process.wait()}")
    return float(seconds)


def measured(config: Config, name: str, torch: Path | None) -> dict[str, list[float]]:
    """Return the seconds of a step of a network, per system and round."""
    turn_s, limit_s = (1e-9, 0.0) if config.smoke else (config.turn_s, config.network_s)
    draw = random.Random()
    with workers(commands(name, batch_size(config, name), torch)) as ready:
        seconds: dict[str, list[float]] = {system: [] for system in ready}
        began = time.perf_counter()
        for number in range(config.rounds):
            if number >= LEAST_ROUNDS and time.perf_counter() - began > limit_s:
                break
            for system in turns(tuple(ready), draw):
                seconds[system].append(step_s(system, ready[system], turn_s))
    return seconds


def batch_size(config: Config, name: str) -> int:
    """Return the number of images of a step."""
    return 2 if config.smoke else BATCH[name]


def ratio(seconds: dict[str, list[float]], over: str, under: str) -> str:
    """Return the median of the rounds' ratios, with their range, or "-" where a system is missing."""
    if not {over, under} <= seconds.keys():
        return "-"
    ratios = [a / b for a, b in zip(seconds[over], seconds[under])]
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def main(config: Config) -> int:
    """Print a row for each network, then the seconds behind it."""
    torch = look(PEERS["torch"])
    ready = torch.state == "ready"
    versions = ", ".join(f"{k} {v}" for k, v in machine.versions(("jax", "jaxlib", "flax")).items())
    print(f"{machine.cpu_model()}, {machine.cores()} cores; {versions}")
    print(
        f"PyTorch: {torch.detail if ready else f'{torch.state}; `jaxperf peers install torch` installs it'}"
    )
    columns = (INSTALLED, ENABLED), (TORCH, INSTALLED), (TORCH, ENABLED)
    print("| a training step | " + " | ".join(f"{a} over {b}" for a, b in columns) + " |")
    print("| --- |" + " ---: |" * len(columns), flush=True)
    details = []
    for name in BATCH:
        seconds = measured(config, name, torch.python if ready else None)
        title = f"{name}, batch {batch_size(config, name)}"
        print(f"| {title} | " + " | ".join(ratio(seconds, *pair) for pair in columns) + " |", flush=True)
        medians = "; ".join(f"{k} {1e3 * statistics.median(v):.1f} ms" for k, v in seconds.items())
        details.append(f"{title}, {len(seconds[INSTALLED])} rounds: {medians}")
    print("\n".join(details))
    return 0


if __name__ == "__main__":
    raise SystemExit(ended(lambda: main(flags.parse_argv(Config, __doc__ or ""))))
