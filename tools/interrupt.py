"""Stop runs at random moments, by every signal, and count what they leave behind.

The runs are `jaxperf run` with a section, and experiments/train.py, in turns. A run may be stopped while
Python starts, while its flags are read, while JAX is imported, while it computes or while it writes. It must
then end soon, without a traceback, leave no process and no half-written file, and whatever result it has left
must load, marked incomplete unless it was over. Ctrl-C and the end of a terminal reach every process of the
run, `kill` reaches one. Until our first lines have run, Python itself answers Ctrl-C, with a traceback: such
trials are counted apart.

    python tools/interrupt.py --times 100
"""

from __future__ import annotations

if __name__ == "__main__":
    from jaxperf.process import end_at_once

    end_at_once()  # while all else is imported, Ctrl-C is no traceback

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from jaxperf import flags
from jaxperf.chapter import catalogue
from jaxperf.errors import JaxperfError
from jaxperf.process import child_environment, ended
from jaxperf.result import load_result

MARK = "JAXPERF_TRIAL"  # in the environment of every process of a trial
PATIENCE_S = 30.0
# How a run is stopped: by which signal, and whether all its processes get it or the first alone.
WAYS = {
    "Ctrl-C": (signal.SIGINT, True),
    "kill -INT": (signal.SIGINT, False),
    "kill": (signal.SIGTERM, False),
    "terminal closed": (signal.SIGHUP, True),
    "kill -HUP": (signal.SIGHUP, False),
    "kill -9": (signal.SIGKILL, False),
}
# Where Python is before `end_at_once` is called: in its own library, or in one of these.
LIBRARY = Path(os.__file__).parent
FIRST = {
    *(("jaxperf", name) for name in ("__init__", "__main__", "errors", "process")),
    ("experiments", "train"),
}


@dataclass(frozen=True)
class Config:
    """How many trials, of what, when."""

    times: int = 20  # runs that are stopped
    section: str = "use_gpu"  # that `jaxperf run` runs
    latest_s: float = 0.0  # after the start; 0: as long as a whole run takes
    seed: int = 0


@dataclass(frozen=True)
class Trial:
    """One run that was stopped: how, when, and all that was wrong afterwards."""

    way: str
    by_hand: bool
    delay_s: float
    trouble: tuple[str, ...]
    results: str
    output: str


def start(config: Config, out: Path, *, by_hand: bool, mark: str = "") -> subprocess.Popen[str]:
    """Start a run at toy size in a session of its own: the training program, or `jaxperf run`."""
    arguments = [str(catalogue.folder() / "train.py"), f"--json={out / 'train.json'}"]
    if not by_hand:
        arguments = ["-m", "jaxperf", "run", config.section, f"--out={out}"]
    return subprocess.Popen(
        [sys.executable, *arguments, "--smoke"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**child_environment(), "JAX_PLATFORMS": "cpu", MARK: mark},
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a background job ignores it
    )


def stopped(config: Config, way: str, delay_s: float, *, by_hand: bool) -> Trial:
    """Start a run, stop it after a while, and look at everything it has left."""
    number, everyone = WAYS[way]
    mark = uuid.uuid4().hex
    with tempfile.TemporaryDirectory() as folder:
        process = start(config, Path(folder), by_hand=by_hand, mark=mark)
        time.sleep(delay_s)
        with contextlib.suppress(ProcessLookupError):
            (os.killpg if everyone else os.kill)(process.pid, number)
        trouble = [f"process left: {line}" for line in left_alone(mark)]
        output, _ = process.communicate()
        too_early = by_python(output)
        if "Traceback" in output and not too_early:
            trouble.append("traceback")
        if process.returncode not in (0, -number, 128 + number) and not too_early:
            trouble.append(f"exit status {process.returncode}")
        trouble += wrong_files(Path(folder), over=process.returncode == 0)
        kept = sorted(p.name.partition(".")[2] for p in Path(folder).glob("*.json"))
        files = " and ".join(kept) or "nothing"
        if too_early:
            files += ", before our first lines"
    return Trial(way, by_hand, delay_s, tuple(trouble), files, output)


def by_python(output: str) -> bool:
    """Return whether a traceback is Python's answer to Ctrl-C before our first lines, which end that, run."""
    files = [Path(name) for name in re.findall(r'File "([^<"][^"]*)"', output)]
    return "KeyboardInterrupt" in output and all(
        path.is_relative_to(LIBRARY) or (path.parent.name, path.stem) in FIRST for path in files
    )


def left_alone(mark: str) -> list[str]:
    """Return what still runs of a trial after a while, and end it."""
    deadline = time.monotonic() + PATIENCE_S
    while (running := list(of_trial(mark))) and time.monotonic() < deadline:
        time.sleep(0.05)
    commands = []
    for process in running:
        with contextlib.suppress(psutil.Error):
            commands.append(" ".join(process.cmdline())[:200])
            process.kill()
    return commands


def of_trial(mark: str) -> Iterator[psutil.Process]:
    """Yield every process that has the mark in its environment and is not merely waiting to be forgotten."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                yield process


def wrong_files(folder: Path, *, over: bool) -> Iterator[str]:
    """Return what a stopped run must not leave."""
    for path in folder.iterdir():
        if path.suffix == ".ipynb":
            if not is_whole(path):
                yield f"half of {path.name}"
            continue
        if path.suffix != ".json":
            yield f"left {path.name}"
            continue
        try:
            result = load_result(path)
        except JaxperfError as e:
            yield str(e)
        else:
            if result.incomplete is not path.stem.endswith(".incomplete") or (over and result.incomplete):
                yield f"{path.name} says incomplete={result.incomplete}"


def is_whole(path: Path) -> bool:
    """Return whether a file holds JSON, not a part of it."""
    try:
        json.loads(path.read_text())
    except ValueError:
        return False
    return True


def whole_run_s(config: Config) -> float:
    """Return seconds that a run takes if nobody stops it."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        process = start(config, Path(folder), by_hand=False)
        output, _ = process.communicate()
        if process.returncode:
            raise JaxperfError(f"the run fails even if it is left alone:\n{output}")
        return time.monotonic() - began


def main(config: Config) -> int:
    """Run all trials one after the other, every way in turn, and print what came of them."""
    rng = random.Random(config.seed)
    latest_s = config.latest_s or whole_run_s(config)
    counts: dict[str, Counter[str]] = {way: Counter() for way in WAYS}
    for i in range(config.times):
        way, by_hand = list(WAYS)[i % len(WAYS)], i // len(WAYS) % 2 == 1
        trial = stopped(config, way, rng.uniform(0, latest_s), by_hand=by_hand)
        counts[way].update(["trials", f"kept {trial.results}"])
        if trial.trouble:
            counts[way]["FAILED"] += 1
            print(trial.output)
            print(
                f"FAILED: {way}, {'train.py' if by_hand else 'run'}, {trial.delay_s:.2f} s: {trial.trouble}"
            )
    for way, counted in counts.items():
        print(f"{way:<16} {', '.join(f'{n} {outcome}' for outcome, n in counted.items())}")
    failed = sum(counted["FAILED"] for counted in counts.values())
    if failed:
        raise JaxperfError(f"{failed} of {config.times} stopped runs left something behind")
    return 0


if __name__ == "__main__":
    raise SystemExit(ended(lambda: main(flags.parse_config(Config, __doc__))))
