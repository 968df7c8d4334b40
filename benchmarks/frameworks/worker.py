"""A framework's side: answer the runner's questions with lines of JSON, and read the clock alike everywhere.

    {"op": "prepare", "key": K, "settings": {...}, "configuration": C, "answers": PATH}
    {"first_s": 0.41}                              the answers are in PATH, an .npz
    {"op": "turn", "key": K, "calls": 100, "lead": 10}
    {"": 1.2e-05, "cores": 1.98}                   seconds of a call by quantity; CPU time over wall time
    {"error": "one line"}                          the process stays alive

Before the first question it sends its versions. It ends when its standard input or the runner ends. It needs
only the standard library and NumPy, and runs on Python 3.8, as MXNet does.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:  # Python 3.8 cannot evaluate these
    Turn = Callable[[int], dict[str, float]]
    Call = Callable[[], Any]
    Wait = Callable[[Any], object]


class Task(NamedTuple):
    """One workload in one configuration, ready to be timed.

    Attributes:
      first_s: seconds of its first call: tracing, compiling and running once.
      answers: arrays that must be those of JAX.
      turn: `turn(calls)` does the work that often and returns the seconds of a call, by quantity.
    """

    first_s: float
    answers: dict[str, Any]
    turn: Turn


def serve(greet: Callable[..., dict[str, str]], tasks: dict[str, Callable[..., Task]]) -> None:
    """Answer until standard input ends; without an argument, only print the versions.

    Args:
      greet: imports the framework and returns its versions; takes what the runner says about cores.
      tasks: what each `settings["task"]` names; called with the settings, to which what the runner says about
        cores is added, and the configuration.
    """
    if len(sys.argv) < 2:
        print(", ".join(f"{name} {version}" for name, version in greet({}).items()))
        return
    start = json.loads(sys.argv[1])
    if start.get("cores") and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, start["cores"])  # before a framework counts them
    # Whatever a library prints on standard output goes to standard error, which is a log.
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    turns: dict[str, Turn] = {}
    _reply(out, greet, start)
    for line in iter(sys.stdin.readline, ""):
        question = json.loads(line)
        question["settings"] = {**start, **question.get("settings", {})}
        _reply(out, _answer, question, turns, tasks)


def _answer(
    question: dict[str, Any], turns: dict[str, Turn], tasks: dict[str, Callable[..., Task]]
) -> dict[str, float]:
    key = question["key"]
    gc.collect()
    if question["op"] == "turn":
        turn = turns[key]
        if question["lead"]:
            turn(question["lead"])  # the last turn was another system's: fill the caches again
        cpu = CpuTimer()
        with cpu:
            value = turn(question["calls"])
        return {**value, "cores": cpu.cores + value.get("cores", 0.0)}
    task = tasks[question["settings"]["task"]](question["settings"], question["configuration"])
    np.savez(question["answers"], **{name: np.asarray(a) for name, a in task.answers.items()})  # type: ignore[arg-type]
    turns[key] = task.turn
    return {"first_s": task.first_s}


def _reply(out: Any, work: Callable[..., Any], *args: Any) -> None:
    try:
        answer = work(*args)
    except Exception as e:
        first = (str(e).strip().splitlines() or [""])[0]
        answer = {"error": f"{type(e).__name__}: {first}"[:300]}
    out.write(json.dumps(answer) + "\n")
    out.flush()


def _end_with(parent: int) -> None:
    """End this process within a second of its parent, even in the middle of a long call."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


# --- files


def arrays(path: str) -> dict[str, np.ndarray]:
    """Return all arrays of an .npz file by name, in the order written."""
    with np.load(path) as file:
        return {name: file[name] for name in file.files}


def batches(settings: dict[str, Any]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the batches that training cycles through: X (n, 1, 28, 28) in 0..1, y (n,) int32."""
    data, n = arrays(settings["images"]), settings["batch"]
    X = data["X"].astype(np.float32).reshape(-1, 1, 28, 28) / 255
    return [(X[i : i + n], data["y"][i : i + n]) for i in range(0, len(X) - n + 1, n)]


def rows(settings: dict[str, Any]) -> np.ndarray:
    """Return the rows of the images in each batch, in random order: (batches, batch) int32."""
    order, n = arrays(settings["images"])["order"], settings["batch"]
    return order[: len(order) // n * n].reshape(-1, n)


# --- the clock: `call` starts the work and returns its output, `wait` returns when that output is finished


def timed_first(call: Call) -> tuple[float, Any]:
    """Return the seconds of a first call, which waits for its own result, and what it returned."""
    began = time.perf_counter()
    output = call()
    return time.perf_counter() - began, output


def nothing(output: Any) -> None:
    """Wait for an output that is finished already, as PyTorch's are on a CPU."""


def waiting_each_time(call: Call, wait: Wait, *, quantity: str) -> Turn:
    """Make the calls one after the other, and wait for the output of each."""

    def turn(calls: int) -> dict[str, float]:
        began = time.perf_counter()
        for _ in range(calls):
            output = call()
            wait(output)
        return {quantity: (time.perf_counter() - began) / calls}

    return turn


def waiting_once(call: Call, wait: Wait, *, each: int = 1, quantity: str = "") -> Turn:
    """Make the calls one after the other, and wait for the last output; a call does the work `each` times."""

    def turn(calls: int) -> dict[str, float]:
        number = max(1, round(calls / each))
        began = time.perf_counter()
        for _ in range(number):
            output = call()
        wait(output)
        return {quantity: (time.perf_counter() - began) / (number * each)}

    return turn


def one_after_the_other(*turns: Turn) -> Turn:
    """Return the turn that takes each of these, which measure different quantities."""

    def turn(calls: int) -> dict[str, float]:
        seconds: dict[str, float] = {}
        for each in turns:
            seconds.update(each(calls))
        return seconds

    return turn


def queued_and_finished(call: Call, wait: Wait) -> Turn:
    """Time each call until it returns, and until its output is finished, both from its start."""

    def turn(calls: int) -> dict[str, float]:
        queued = finished = 0.0
        for _ in range(calls):
            began = time.perf_counter()
            output = call()
            queued += time.perf_counter() - began
            wait(output)
            finished += time.perf_counter() - began
        return {"queued": queued / calls, "finished": finished / calls}

    return turn


def synchronous_and_asynchronous(call: Call, wait: Wait, wait_once: Wait) -> Turn:
    """Make the calls twice: `wait` for each one's output, and then call `wait_once` after the last.

    Both loops keep an output until the next one is there, so that they need the same memory.
    """
    return one_after_the_other(
        waiting_each_time(call, wait, quantity="synchronous"),
        waiting_once(call, wait_once, quantity="asynchronous"),
    )


def training(step: Call, loss_of: Callable[[Any], float], finish: Call, steps: int) -> Task:
    """Take the first steps, whose losses are the answers, and return the task that takes more of them.

    Args:
      step: takes a step.
      loss_of: returns the loss of what `step` returned.
      finish: waits for all steps, on all devices.
      steps: how many answers there are.
    """

    def one() -> float:
        loss = loss_of(step())
        finish()
        return loss

    first_s, first = timed_first(one)
    losses = [first, *(one() for _ in range(steps - 1))]
    turn = waiting_once(step, lambda _: finish())
    return Task(first_s, {"loss": np.array(losses)}, turn)


class CpuTimer:
    """Adds up the time that blocks take: of the clock, and of all threads of this process on a processor."""

    def __init__(self) -> None:
        self.wall = self.cpu = 0.0

    def __enter__(self) -> None:
        self._began = time.perf_counter(), time.process_time()

    def __exit__(self, *_: object) -> None:
        self.cpu += time.process_time() - self._began[1]
        self.wall += time.perf_counter() - self._began[0]

    @property
    def cores(self) -> float:
        """CPU seconds per second."""
        return self.cpu / self.wall if self.wall else 0.0


def apart_and_together(
    calls: int, shares: Sequence[Sequence[int]], alone: Callable[[int], Any], at_once: Call
) -> dict[str, float]:
    """Return the seconds of work on several devices one after the other, and all at once.

    Args:
      calls: how often.
      shares: the cores of each device, to which it is limited where it works alone.
      alone: `alone(i)` works on device i, and waits.
      at_once: works on all devices, and waits.
    """
    apart, together = CpuTimer(), CpuTimer()
    for _ in range(calls):
        for i, cores in enumerate(shares):
            with on_cores(cores), apart:
                alone(i)
    with together:
        for _ in range(calls):
            at_once()
    used = {"cores apart": apart.cores, "cores together": together.cores}
    return {"apart": apart.wall / calls, "together": together.wall / calls, **used}


@contextmanager
def on_cores(cores: Sequence[int]) -> Any:
    """Let all threads of this process run on these cores alone, where the system can do that."""
    if not hasattr(os, "sched_setaffinity") or not os.path.isdir("/proc/self/task"):  # noqa: PTH112
        yield
        return
    everywhere = os.sched_getaffinity(0)
    _limit(set(cores))
    try:
        yield
    finally:
        _limit(everywhere)


def _limit(cores: set[int]) -> None:
    for thread in os.listdir("/proc/self/task"):  # noqa: PTH208
        with suppress(OSError):  # it has ended since
            os.sched_setaffinity(int(thread), cores)
