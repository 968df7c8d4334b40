"""Kill one of two processes at random moments: `jaxperf launch` starts both again, to the same end.

The training of `kill_and_resume.py` runs in two processes with a device each. Soon after a new checkpoint one
of them, process 0 that writes it or process 1, gets SIGKILL. The launcher ends the other and starts both
again, and they go on from the newest checkpoint. What they end with must have the SHA-256 of two that were
left alone.

    python benchmarks/kill_one_of_two.py
    python benchmarks/kill_one_of_two.py --kills 20 --epochs 40
"""

from __future__ import annotations

if __name__ == "__main__":
    from jaxperf.process import end_at_once

    end_at_once()  # while all else is imported, Ctrl-C is no traceback

import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import psutil
from kill_and_resume import WITHIN_S, saved_training, train_once

from jaxperf import flags
from jaxperf.errors import JaxperfError
from jaxperf.process import child_environment, ended
from jaxperf.processes.distributed import Processes, together

ONE_OF_TWO = "--one-of-two"


@dataclass(frozen=True)
class Config:
    """How often, and how long a training."""

    kills: Annotated[int, flags.at_least(1)] = 5  # one after the other, of either process
    epochs: Annotated[int, flags.at_least(1)] = 12  # 8 steps each, a few of them for each kill
    seed: int = 0  # of the moments and of which process


def one_of_two(epochs: int, folder: str = "") -> int:
    """Train as one of two processes, which save where there is a folder; process 0 prints how it ended."""

    def work() -> int:
        print(saved_training("jit", epochs, Path(folder)) if folder else train_once("jit", epochs, None))
        return 0

    return ended(lambda: together(Processes(), work))


def launched(
    work: list[str], logs: str, kill: Callable[[subprocess.Popen[str]], Any], *, restarts: int
) -> str:
    """Start two processes, let `kill(launcher)` do as it likes, and return the last line of process 0."""
    launch = ["launch", "-n", "2", "--max-restarts", str(restarts), "--logs", logs, "--", "python", __file__]
    streams: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    command = [sys.executable, "-m", "jaxperf", *launch, ONE_OF_TWO, *work]
    with subprocess.Popen(command, env=child_environment(), **streams) as launcher:
        try:
            kill(launcher)
            output, _ = launcher.communicate()
        finally:
            launcher.terminate()
    if launcher.returncode:
        raise JaxperfError(f"jaxperf launch ended with status {launcher.returncode}")
    return str(output.splitlines()[-1])


def kill_some(launcher: subprocess.Popen[str], folder: Path, config: Config) -> None:
    """Kill one of the two so often, each time after a checkpoint of theirs, and wait until both are new."""
    moments, killed = random.Random(config.seed), set[psutil.Process]()

    def pair_of_now() -> set[Any]:
        return {*psutil.Process(launcher.pid).children()} - killed

    def saved() -> set[Any]:
        return {*folder.glob("*/step-*[0-9]")}

    def waited_for(members: Callable[[], set[Any]], count: int) -> set[Any]:
        while len(now := members()) < count:
            if launcher.poll() is not None:
                raise JaxperfError("the training ended before all kills; give more --epochs")
            time.sleep(0.002)
        return now

    for _ in range(config.kills):
        pair, before = waited_for(pair_of_now, 2), saved()
        waited_for(lambda before=before: saved() - before, 1)  # type: ignore[misc]
        time.sleep(moments.uniform(0, WITHIN_S))
        moments.choice(sorted(pair, key=lambda process: int(process.pid))).kill()
        killed.update(pair)


def main(config: Config) -> int:
    """Train once undisturbed, and once with kills."""
    with tempfile.TemporaryDirectory() as logs, tempfile.TemporaryDirectory() as name:
        expected = launched([str(config.epochs)], logs, lambda launcher: None, restarts=0)
        folder = Path(name)
        digest = launched(
            [str(config.epochs), name],
            logs,
            lambda launcher: kill_some(launcher, folder, config),
            restarts=config.kills,
        )
    print(f"equal: {int(digest == expected)}, kills: {config.kills}, trainings: 1")
    if digest != expected:
        raise JaxperfError("a training that was resumed ended with other parameters")
    return 0


if __name__ == "__main__":
    os.environ.update(JAX_PLATFORMS="cpu", JAX_NUM_CPU_DEVICES="1")
    if sys.argv[1:2] == [ONE_OF_TWO]:
        raise SystemExit(one_of_two(int(sys.argv[2]), *sys.argv[3:]))
    raise SystemExit(ended(lambda: main(flags.parse_argv(Config, __doc__ or ""))))
