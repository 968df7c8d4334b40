"""A training small enough to be interrupted often: one layer with statistics, Adam, nine images of 2 x 2."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxperf.data import FashionMNIST, to_float
from jaxperf.parallel import Model, Step, Way, first_devices, make_step
from jaxperf.process import child_environment
from jaxperf.processes.launcher import free_port
from jaxperf.train import CheckpointFolder, Epoch, Policy, train

EPOCHS, UPDATES, BATCH = 2, 4, 4
STEPS = EPOCHS * UPDATES
NAME = "toy"
EVERY_STEP = Policy(every_steps=1)


def apply(params: Any, stats: Any, X: Any, *, train: bool, axis_name: str | None = None) -> Any:
    flat = to_float(X).reshape(len(X), -1)
    mean = {"mean": 0.9 * stats["mean"] + 0.1 * flat.mean(0)} if train else stats
    return (flat - stats["mean"]) @ params["W"], mean


def step_of(way: Way = "jit", *, optimizer: Any = None, classes: int = 3, k: int = 2) -> Step:
    W = jnp.asarray(np.random.default_rng(1).normal(size=(4, classes)).astype(np.float32))
    model = Model(apply, {"W": W}, {"mean": jnp.zeros(4)})
    return make_step(way, model, optimizer or optax.adam(0.1), first_devices(k, platform="cpu"))


def pictures(seed: int = 2, n: int = 9) -> FashionMNIST:
    rng = np.random.default_rng(seed)
    X = rng.integers(0, 256, (n, 2, 2, 1), dtype=np.uint8)
    y = rng.integers(0, 3, n).astype(np.int32)
    return FashionMNIST(X, y, X[:4], y[:4], "made up")


def trained(
    step: Step,
    folder: Path | None = None,
    *,
    before: Callable[[int], Any] = lambda step: None,
    policy: Policy = EVERY_STEP,
    data: FashionMNIST | None = None,
    resume: bool = True,
    settings: dict[str, Any] | None = None,
    **options: Any,
) -> tuple[list[Epoch], list[Any]]:
    """Train; `before(n)` is called before the n-th step of this call.

    Returns:
      Every epoch, and the leaves of the last state.
    """
    count = 0

    def progress(batches: Iterable[Any], updates: int) -> Iterator[Any]:
        nonlocal count
        for batch in batches:
            count += 1
            before(count)
            yield batch

    arguments = {"epochs": EPOCHS, "batch_size": BATCH, "updates": UPDATES, "progress": progress} | options
    data = data or pictures()
    if folder is None:
        epochs_and_states = list(train(step, data, **arguments))
    else:
        with CheckpointFolder(folder, policy, resume=resume) as checkpoints:
            epochs_and_states = list(
                train(step, data, **arguments, checkpoints=checkpoints.of(NAME, **(settings or {})))
            )
    leaves = jax.tree.leaves(step.read(epochs_and_states[-1][1]))
    return [e for e, _ in epochs_and_states], [np.asarray(leaf) for leaf in leaves]


def figures(epochs: list[Epoch]) -> list[tuple[float, float, float]]:
    return [(e.loss, e.train_accuracy, e.test_accuracy) for e in epochs]


def assert_same(actual: tuple[list[Epoch], list[Any]], expected: tuple[list[Epoch], list[Any]]) -> None:
    """The same epochs and, bit for bit, the same parameters, statistics and state of the optimizer."""
    assert figures(actual[0]) == figures(expected[0])
    for actual_leaf, expected_leaf in zip(actual[1], expected[1], strict=True):
        assert actual_leaf.dtype == expected_leaf.dtype
        np.testing.assert_array_equal(actual_leaf, expected_leaf)


class InterruptedTrainingError(Exception):
    """What `at` raises in the middle of a training."""


def at(step: int) -> Callable[[int], None]:
    """For `trained(before=...)`: interrupt it before its n-th step."""

    def before(n: int) -> None:
        if n == step:
            raise InterruptedTrainingError

    return before


def steps_in(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / NAME).glob("step-*"))


def in_two_processes(code: str, *arguments: Sequence[str], **variables: str) -> list[tuple[int, str, str]]:
    """Run a program as two processes with a CPU device each.

    Args:
      code: of both; its arguments are the process's number, the coordinator's address, and `arguments`.
      arguments: those of process 0 and those of process 1.
      variables: of the environment.

    Returns:
      Of each process, its status and what it wrote.
    """
    environment = child_environment() | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1"} | variables
    address = f"127.0.0.1:{free_port()}"
    options: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": environment}
    pair = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(number), address, *extra_arguments],
            cwd=Path(__file__).parent,
            **options,
        )
        for number, extra_arguments in enumerate(arguments)
    ]
    try:
        outputs = [process.communicate(timeout=200) for process in pair]
    finally:
        for process in pair:
            process.kill()
    return [(process.returncode, *texts) for process, texts in zip(pair, outputs)]
