"""What a checkpoint costs: a few steps of a training with one in their middle, and without, taking turns.

    python benchmarks/cost_of_saving.py
    python benchmarks/cost_of_saving.py --networks lenet --rounds 15

All in one process, compiled before. At a checkpoint the loop waits for its last step and copies the state;
files and SHA-256 are written behind the next steps, which share the processor with them.
"""

from __future__ import annotations

if __name__ == "__main__":
    from jaxperf.process import end_at_once

    end_at_once()  # while all else is imported, Ctrl-C is no traceback

import os
import random
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from jaxperf import flags
from jaxperf.flags import at_least
from jaxperf.process import ended
from jaxperf.result import turns
from jaxperf.result.ratio import interval

if TYPE_CHECKING:
    from jaxperf.parallel import Model

Network = Literal["lenet", "resnet18"]
BATCH = {"lenet": 256, "resnet18": 16}
STEPS = 6  # the third saves; the last three last longer than writing does
TEST_IMAGES = 32  # which are no part of what is timed


@dataclass(frozen=True)
class Config:
    """Of which networks, and how often."""

    networks: tuple[Network, ...] = ("lenet", "resnet18")  # batches of 256, and of 16
    rounds: Annotated[int, at_least(6)] = 25  # turns with and without


def model_named(network: Network) -> Model:
    """Return the network of section 8.4 or 8.5."""
    import jax
    from flax import nnx

    from jaxperf.models import lenet, lenet_params, resnet18
    from jaxperf.parallel import model_of, model_of_function

    if network == "lenet":
        return model_of_function(lenet, lenet_params(jax.random.key(0)))
    return model_of(resnet18(rngs=nnx.Rngs(0)))


def steps_of(network: Network, folder: Path) -> tuple[Callable[[bool], float], int]:
    """Return `steps(save)`, the seconds of steps with or without a checkpoint, and a checkpoint's bytes."""
    import jax
    import optax

    from jaxperf.data import fashion_mnist
    from jaxperf.parallel import first_devices, make_step
    from jaxperf.train import CheckpointFolder, Policy, train

    step = make_step("jit", model_named(network), optax.sgd(0.1, momentum=0.9), first_devices(1))
    data = fashion_mnist(source="mini")
    few = data.test_images[:TEST_IMAGES], data.test_labels[:TEST_IMAGES]
    data = replace(data, test_images=few[0], test_labels=few[1])
    policy = Policy(every_steps=STEPS // 2)

    def steps(save: bool) -> float:
        with (
            tempfile.TemporaryDirectory(dir=folder) as name,
            CheckpointFolder(Path(name), policy) as checkpoints,
        ):
            there = checkpoints.of(network) if save else None
            [(epoch, _)] = train(
                step, data, epochs=1, batch_size=BATCH[network], updates=STEPS, checkpoints=there
            )
        return epoch.train_s

    return steps, sum(leaf.nbytes for leaf in jax.tree.leaves(step.read(step.init())))


def main(config: Config) -> int:
    """Print a line for each network."""
    with tempfile.TemporaryDirectory() as folder:
        for network in config.networks:
            steps, size = steps_of(network, Path(folder))
            for save in (False, True):
                steps(save)  # compiles, and loads Orbax
            values: dict[bool, list[float]] = {False: [], True: []}
            draw = random.Random()
            for _ in range(config.rounds):
                for save in turns((False, True), draw):
                    values[save].append(steps(save))
            added = [a - b for a, b in zip(values[True], values[False])]
            alone, (low, high) = statistics.median(values[False]), interval(added)
            print(
                f"{network}: a step of batch {BATCH[network]} takes {1e3 * alone / STEPS:.0f} ms; a "
                f"checkpoint of {size / 1e6:.1f} MB adds {1e3 * statistics.median(added):.0f} ms "
                f"({1e3 * low:.0f} to {1e3 * high:.0f}) in {config.rounds} rounds",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    raise SystemExit(ended(lambda: main(flags.parse_argv(Config, __doc__ or ""))))
