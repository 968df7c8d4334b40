"""A training as one of several processes: each way, a few updates of LeNet; process 0 writes what came out.

    python tests/train_lenet.py OUT.npz WAY...

`RAISES`, `KILLED` or `STOPPED` in the environment names the process that does so in the middle, and
`FAULT_AT` a file that it makes then; started again, it finds the file and goes on. `CHECKPOINTS` is a folder
to save each step in, and to go on from.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path

import jax
import numpy as np
import optax

from jaxperf.data import fashion_mnist
from jaxperf.models import lenet, lenet_params
from jaxperf.parallel import first_devices, make_step, model_of_function
from jaxperf.process import ended
from jaxperf.processes.distributed import Processes, together
from jaxperf.train import CheckpointFolder, Policy, train

UPDATES, BATCH = 4, 16


def trouble(number: int) -> None:
    if "FAULT_AT" in os.environ and Path(os.environ["FAULT_AT"]).exists():
        return
    if str(number) in (os.environ.get(name) for name in ("RAISES", "KILLED", "STOPPED")):
        Path(os.environ["FAULT_AT"]).touch()
    if os.environ.get("RAISES") == str(number):
        raise ValueError("this process is broken")
    for name, sent in (("KILLED", signal.SIGKILL), ("STOPPED", signal.SIGSTOP)):
        if os.environ.get(name) == str(number):
            os.kill(os.getpid(), sent)


def main(out: Path, *ways: str) -> int:
    data, arrays = fashion_mnist(source="mini"), {}
    model = model_of_function(lenet, lenet_params(jax.random.key(0), scale=0.05))

    def broken_in_the_middle(batches, updates):
        for i, batch in enumerate(batches):
            if i == updates // 2:
                trouble(jax.process_index())
            yield batch

    def trained(way, folder):
        step, checkpoints = make_step(way, model, optax.sgd(0.2), first_devices()), folder and folder.of(way)
        [(epoch, state)] = train(
            step, data, epochs=1, batch_size=BATCH, updates=UPDATES, progress=broken_in_the_middle,
            checkpoints=checkpoints,
        )  # fmt: skip
        leaves = jax.tree.leaves(step.read(state).params)
        arrays.update((f"{way}/{i}", np.asarray(a)) for i, a in enumerate(leaves))
        arrays[f"{way}/figures"] = np.float64([epoch.loss, epoch.train_accuracy, epoch.test_accuracy])

    saved = os.environ.get("CHECKPOINTS")
    checkpoints = CheckpointFolder(Path(saved), Policy(every_steps=1), resume=True) if saved else None
    with checkpoints or contextlib.nullcontext() as folder:
        for way in ways:
            trained(way, folder)
    if jax.process_index() == 0:
        np.savez(out, **arrays)
        print(f"written by process 0 of {jax.process_count()}")
    return 0


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", int(os.environ.get("DEVICES", "1")))
    jax.config.update("jax_platforms", "cpu")
    sys.exit(ended(lambda: together(Processes(), lambda: main(Path(sys.argv[1]), *sys.argv[2:]))))
