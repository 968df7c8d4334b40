"""Kill a training at random moments, resume it until it ends, and compare its last parameters.

A training of a small network on two CPU devices is killed (SIGKILL) after a random step, and within a few
milliseconds of it, so that many kills hit a checkpoint that is being written. It goes on from its newest
checkpoint and is killed again. What it ends with must have the SHA-256 of a training that was never killed
and never saved: parameters, statistics, the optimizer's state and the figures of each epoch.

    python benchmarks/kill_and_resume.py
    python benchmarks/kill_and_resume.py --kills 20 --ways jit
    python benchmarks/kill_and_resume.py --ways jit --epochs 60  # one training takes all 100 kills
"""

from __future__ import annotations

if __name__ == "__main__":
    from jaxperf.process import end_at_once

    end_at_once()  # while all else is imported, Ctrl-C is no traceback

import collections
import hashlib
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from jaxperf import flags
from jaxperf.errors import JaxperfError
from jaxperf.process import ended

if TYPE_CHECKING:
    from jaxperf.train import Checkpoints

Way = Literal["manual", "pmap", "shard_map", "jit"]
UPDATES, BATCH = 8, 16
EVERY_STEPS, KEEP = 2, 2
FARTHEST = 8  # steps from where a process starts to where it is killed
WITHIN_S = 0.03  # from a step's start; writing a checkpoint takes longer
NEVER = sys.maxsize
DEVICES = 2


@dataclass(frozen=True)
class Config:
    """How often, and which ways to run a step."""

    kills: int = 100  # of all trainings together
    ways: tuple[Way, ...] = ("manual", "pmap", "shard_map", "jit")  # one after the other, a training each
    epochs: Annotated[int, flags.at_least(1)] = 3  # of a training, 8 steps each
    seed: int = 0  # of the moments


def train_once(
    way: Way, epochs: int, checkpoints: Checkpoints | None, on_step: Callable[[bytes], Any] = lambda dot: None
) -> str:
    """Train, calling `on_step` before each step; the SHA-256 of all that is left at the end."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax

    from jaxperf.data import FashionMNIST, to_float
    from jaxperf.parallel import Model, first_devices, make_step
    from jaxperf.train import train

    def apply(params: Any, stats: Any, X: jax.Array, *, train: bool) -> Any:
        hidden = jnp.tanh(to_float(X).reshape(len(X), -1) @ params["in"])
        mean = {"mean": 0.9 * stats["mean"] + 0.1 * hidden.mean(0)} if train else stats
        return (hidden - stats["mean"]) @ params["out"], mean

    rng = np.random.default_rng(0)  # not jax.random, whose programs take seconds to compile
    params = {name: jnp.float32(rng.normal(size=size)) for name, size in (("in", (16, 8)), ("out", (8, 10)))}
    model = Model(apply, params, {"mean": jnp.zeros(8)})
    X, y = rng.integers(0, 256, (100, 4, 4, 1), dtype=np.uint8), rng.integers(0, 10, 100, dtype=np.int32)
    data = FashionMNIST(X, y, X[:BATCH], y[:BATCH], "made up")
    step = make_step(way, model, optax.adam(0.01), first_devices(DEVICES, platform="cpu"))

    def progress(batches: Iterable[Any], updates: int) -> Iterator[Any]:
        for batch in batches:
            on_step(b".")
            yield batch

    epochs_and_arrays = list(
        train(
            step, data, epochs=epochs, batch_size=BATCH, updates=UPDATES,
            progress=progress, checkpoints=checkpoints,
        )
    )  # fmt: skip
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(step.read(epochs_and_arrays[-1][1])):
        digest.update(np.asarray(leaf).tobytes())
    digest.update(repr([(e.loss, e.train_accuracy, e.test_accuracy) for e, _ in epochs_and_arrays]).encode())
    return digest.hexdigest()


def saved_training(
    way: Way, epochs: int, folder: Path, on_step: Callable[[bytes], Any] = lambda dot: None
) -> str:
    """Train with checkpoints in `folder`, from the newest of them on."""
    from jaxperf.train import CheckpointFolder, Policy

    with CheckpointFolder(folder, Policy(EVERY_STEPS, 0, KEEP), resume=True) as checkpoint_folder:
        return train_once(way, epochs, checkpoint_folder.of(way), on_step)


def in_a_process(work: Callable[[Callable[[bytes], Any]], str], *, kill_at: int, after_s: float = 0) -> str:
    """Run `work` in a forked process, killed at its step `kill_at`; what it returned, or "" if it was killed.

    A fork of this process has JAX imported and no backend started, which saves two seconds each time.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        status = 1
        try:
            os.close(reader)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            os.write(writer, work(lambda dot: os.write(writer, dot)).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    received = b""
    with os.fdopen(reader, "rb", buffering=0) as pipe:
        while chunk := pipe.read(64):
            received += chunk
            if received.count(b".") >= kill_at:
                time.sleep(after_s)
                os.kill(child, signal.SIGKILL)
                break
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return ""
    if status:
        raise JaxperfError(f"a process ended with status {os.waitstatus_to_exitcode(status)}")
    return received.decode().strip(".")


def main(config: Config) -> int:
    """Train in turns by each way until so many kills are done."""
    import orbax.checkpoint  # noqa: F401  so that the forked processes need not

    import jaxperf.train  # noqa: F401

    moments, counts = random.Random(config.seed), collections.Counter[str]()
    expected: dict[Way, str] = {}
    while counts["kills"] < config.kills:
        way = config.ways[counts["trainings"] % len(config.ways)]
        if way not in expected:
            expected[way] = in_a_process(partial(train_once, way, config.epochs, None), kill_at=NEVER)
        with tempfile.TemporaryDirectory() as name:
            folder, digest = Path(name), ""
            while not digest:
                last = counts["kills"] == config.kills
                digest = in_a_process(
                    partial(saved_training, way, config.epochs, folder),
                    kill_at=NEVER if last else moments.randint(1, FARTHEST),
                    after_s=moments.uniform(0, WITHIN_S),
                )
                if not digest:
                    counts["kills"] += 1
                    counts["while writing"] += any(folder.glob("*/*.part"))
                    counts["before the first checkpoint"] += not any(folder.glob("*/step-*[0-9]"))
        counts["trainings"] += 1
        counts["equal"] += digest == expected[way]
    print(", ".join(f"{name}: {count}" for name, count in sorted(counts.items())))
    if counts["equal"] != counts["trainings"]:
        raise JaxperfError("a training that was resumed ended with other parameters")
    return 0


if __name__ == "__main__":
    os.environ.update(JAX_PLATFORMS="cpu", JAX_NUM_CPU_DEVICES=str(DEVICES))
    raise SystemExit(ended(lambda: main(flags.parse_argv(Config, __doc__ or ""))))
