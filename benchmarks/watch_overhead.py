"""What watching costs: the same program, watched and not watched, in turns.

    python benchmarks/watch_overhead.py                  # loops, in turns of half a second
    python benchmarks/watch_overhead.py --whole          # whole processes, from their start to their report
    python benchmarks/watch_overhead.py --programs train.py --runs 3

It runs where JAX runs by default: on a GPU if there is one. `--whole` counts the processor time of a process
and of its threads, which other programs of the machine change little. By default it runs programs as people
publish them, with Flax, Optax and plain JAX, and the conversion of a list of a million numbers.

For loops, the speed of a shared machine changes from one half minute to the next by more than watch costs.
So a watch alternates between two phases. In one it works. In the other its thread and its clock stand still,
its hooks of functions are removed, and threads switch as without it. The ratio of a run is the seconds of all
phases in which watch worked, over the seconds that their neighbors took for the same work. So it includes the
start of a program and all windows of the profiler, but not the report after its end.
"""

from __future__ import annotations

if __name__ == "__main__":
    from jaxperf.process import end_at_once

    end_at_once()  # while all else is imported, Ctrl-C is no traceback

import contextlib
import io
import json
import math
import os
import runpy
import shlex
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax

from jaxperf import flags
from jaxperf.errors import JaxperfError
from jaxperf.process import ended
from jaxperf.result.store import check_writable, write_whole
from jaxperf.watch import session, watch

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

from twins import PROGRAMS, write_repaired

REPAIRED = "steps without waiting"
WORK = {
    REPAIRED: "item_in_loop",
    "a wait per step": "item_in_loop",
    "a callback in a program": "callback_to_host",
    "op by op": "eager_loop",
    "element reads": "element_reads",
}
PUBLISHED = ("nnx_digits", "nnx_training", "optax_network", "scan_training", "sizes_and_snapshots")
LIST = """
import jax, jax.numpy as jnp
numbers = [i % 65 for i in range(1_000_000)]
for _ in range(5):
    jax.block_until_ready(jnp.array(numbers))
"""
ALONE_S = sys.getswitchinterval()  # before a watch shortens it
PHASE_S = 0.5
CALL_S = 0.05  # of the program, after which a phase may end


@dataclass(frozen=True)
class Config:
    """How often, how long, and which programs."""

    runs: int = 5  # of each program, without and with the profiler
    seconds: float = 10.0  # that watch works in each run; a run takes twice as long
    only: tuple[str, ...] = ()  # programs, by their titles; all of them if none are given
    profiler: Literal["both", "with", "without"] = "both"  # one of the two, or each in its runs
    json: Path | None = None  # the file that keeps the ratios
    whole: bool = False  # measure whole processes
    programs: tuple[str, ...] = ()  # files to measure as whole processes, in place of its own


class StoppableClock:
    """A clock in place of `time.perf_counter`, which can stand still, and threads with it."""

    def __init__(self) -> None:
        self.real = time.perf_counter
        self.going = threading.Event()
        self.going.set()
        self._lost, self._stopped_at = 0.0, 0.0

    def __call__(self) -> float:
        """Return the clock's seconds."""
        return (self.real() if self.going.is_set() else self._stopped_at) - self._lost

    def stop(self) -> None:
        """Let the clock stand still."""
        self._stopped_at = self.real()
        self.going.clear()

    def go_on(self) -> None:
        """Let the clock go on from where it stopped."""
        self._lost += self.real() - self._stopped_at
        self.going.set()


class Stop(threading.Event):
    """An event whose waits last until such a clock says that they are over."""

    def __init__(self, clock: StoppableClock) -> None:
        super().__init__()
        self._clock = clock

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the event, or for `timeout` seconds of the clock; return whether the event has come."""
        end = self._clock() + (timeout or 0.0)
        while True:
            self._clock.going.wait()
            left = end - self._clock()
            if left <= 0 or super().wait(left):
                return self.is_set()


class Phase(NamedTuple):
    """A stretch of calls of the program."""

    watched: bool
    calls: int
    seconds: float


class Turns:
    """The phases of one watch, with and without its work in turns."""

    def __init__(self, clock: StoppableClock, watcher: session.Watcher) -> None:
        self.clock, self.watcher = clock, watcher
        self.phases: list[Phase] = []
        watcher.sampler._stop = Stop(clock)

    def run(self, call: Callable[[], None], seconds: float) -> None:
        """Alternate until watch has worked for so many seconds."""
        began = self.clock()
        while self.clock() - began < seconds:
            self._run_phase(call, watched=True)
            with self._undone():
                self._run_phase(call, watched=False)
            self.clock.go_on()

    @contextlib.contextmanager
    def _undone(self) -> Iterator[None]:
        """Undo, for now, what the watch has changed in the program."""
        replaced = self.watcher.replacements.replaced
        hooks = [(owner, name, vars(owner)[name]) for owner, name, _ in replaced]
        watched_s = sys.getswitchinterval()
        sys.setswitchinterval(ALONE_S)
        for owner, name, function in reversed(replaced):
            setattr(owner, name, function)
        try:
            yield
        finally:
            for owner, name, hook in hooks:
                setattr(owner, name, hook)
            sys.setswitchinterval(watched_s)

    def _run_phase(self, call: Callable[[], None], *, watched: bool) -> None:
        start, calls = self.clock.real(), 0
        while self.clock.real() - start < PHASE_S or (watched and not self._stop_clock()):
            call()
            calls += 1
        self.phases.append(Phase(watched, calls, self.clock.real() - start))

    def _stop_clock(self) -> bool:
        """Stop the clock, unless a window of the profiler is open, or about to open or close."""
        profiler = self.watcher.profiler
        if profiler is None:
            self.clock.stop()
        elif profiler._lock.acquire(blocking=False):
            try:
                if profiler._session is None and not profiler._asked:
                    self.clock.stop()
            finally:
                profiler._lock.release()
        return not self.clock.going.is_set()

    @property
    def ratio(self) -> float:
        """Return the watched phases' seconds over those that their neighbors took for the same calls."""
        seconds = expected_s = 0.0
        for i, phase in enumerate(self.phases):
            near = [p for p in self.phases[max(0, i - 1) : i + 2] if not p.watched]
            if phase.watched and near:
                seconds += phase.seconds
                expected_s += phase.calls * sum(p.seconds for p in near) / sum(p.calls for p in near)
        return seconds / expected_s


def run_once(
    call: Callable[[], None], clock: StoppableClock, profile: bool, seconds: float
) -> tuple[float, float, list[float]]:
    """Return the ratio of one run, the overhead that watch reported, and each window's seconds."""
    with watch(profile=profile, show=False) as watched:
        watcher = session._open_watch
        assert watcher is not None
        turns = Turns(clock, watcher)
        turns.run(call, seconds)
    log = watched.log
    assert log is not None
    windows_s = watcher.profiler.windows_s if watcher.profiler else []
    return turns.ratio, sum(log.overhead_s.values()) / log.wall_s, windows_s


def processor_s(command: list[str]) -> float:
    """Return the seconds of processor time of a command, which must succeed."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise JaxperfError(f"{shlex.join(command)} ended with status {process.returncode}; run it by itself")
    return used.ru_utime + used.ru_stime


def measure_whole(path: Path, config: Config) -> dict[str, Any]:
    """Return the ratios of processor time of a program with and without watch, in turns."""
    watching = [sys.executable, "-m", "jaxperf", "watch"]
    if config.profiler == "without":
        watching.append("--no-profile")
    ratios = []
    for i in range(config.runs):
        commands = [[sys.executable, str(path)], [*watching, str(path)]]
        order = (0, 1) if i % 2 else (1, 0)
        seconds = dict(zip(order, [processor_s(commands[which]) for which in order]))
        ratios.append(seconds[1] / seconds[0])
    mean, low, high = interval(ratios)
    print(f"{path.stem}, whole process: {mean:.3f} ({low:.3f} to {high:.3f})", flush=True)
    return {"program": path.stem, "ratios": ratios, "mean": mean, "low": low, "high": high}


def whole(config: Config) -> list[dict[str, Any]]:
    """Measure whole processes: the given programs, or those as people publish them and a long list."""
    if config.programs:
        return [measure_whole(Path(program), config) for program in config.programs]
    with tempfile.TemporaryDirectory() as folder:
        long_list = Path(folder) / "list_of_a_million.py"
        long_list.write_text(LIST)
        fast = PROGRAMS.parent / "fast_programs"
        return [measure_whole(path, config) for path in [*(fast / f"{n}.py" for n in PUBLISHED), long_list]]


def interval(ratios: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean of the runs' ratios, and the ends two standard errors below and above it."""
    mean = statistics.mean(ratios)
    error = statistics.stdev(ratios) / len(ratios) ** 0.5 if len(ratios) > 1 else math.inf
    return mean, mean - 2 * error, mean + 2 * error


def main(config: Config) -> int:
    """Print a line for each program, without and with the profiler.

    Raises:
      JaxperfError: the file of `--json` cannot be written.
    """
    if config.json:
        check_writable(config.json)
    if config.whole or config.programs:
        rows = whole(config)
        if config.json:
            write_whole(config.json, json.dumps({"rows": rows}, indent=1) + "\n")
        return 0
    clock, rows = StoppableClock(), []
    time.perf_counter = clock  # type: ignore[assignment]
    ways = {"both": (False, True), "with": (True,), "without": (False,)}[config.profiler]
    for title, name in WORK.items():
        if config.only and title not in config.only:
            continue
        with tempfile.TemporaryDirectory() as folder:
            path = write_repaired(name, Path(folder)) if title == REPAIRED else PROGRAMS / f"{name}.py"
            program = runpy.run_path(str(path), run_name="program")["main"]

        def call(steps: int = 20) -> None:
            with contextlib.redirect_stdout(io.StringIO()):
                jax.block_until_ready(program(steps))  # noqa: B023

        call()
        start = clock.real()
        call()
        steps = max(1, round(20 * CALL_S / (clock.real() - start)))
        for profile in ways:
            runs = [run_once(lambda: call(steps), clock, profile, config.seconds) for _ in range(config.runs)]  # noqa: B023
            ratios, reported, windows_s = zip(*runs, strict=True)
            mean, low, high = interval(ratios)
            way = "with the profiler" if profile else "without the profiler"
            print(
                f"{title}, {way}: {mean:.3f} ({low:.3f} to {high:.3f}); "
                f"watch reported {statistics.median(reported):.1%}",
                flush=True,
            )
            figures = {"ratios": ratios, "mean": mean, "low": low, "high": high, "windows_s": windows_s}
            rows.append({"program": title, "profiler": profile, **figures})
            if config.json:
                write_whole(config.json, json.dumps({"rows": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(ended(lambda: main(flags.parse_config(Config, __doc__))))
