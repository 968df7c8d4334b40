"""A framework's side: answer the runner's questions in JSON, and read the clock alike everywhere.

    {"op": "prepare", "key": K, "settings": {...}, "configuration": C}
    {"first_s": 0.41, "answers": {"loss": [2.3, 2.1]}}
    {"op": "turn", "key": K, "calls": 100, "lead": 10}
    {"": 1.2e-05, "cores": 1.98}                   seconds of a call by quantity; CPU time over wall time
    {"error": "one line"}                          the process stays alive

Before the first question it sends its versions. It ends when its connection or the runner ends. It needs only
the standard library and NumPy, and runs on Python 3.8, as MXNet does.
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
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:  # Python 3.8 cannot evaluate these
    Turn = Callable[[int], dict[str, float]]
    Call = Callable[[], Any]
    Wait = Callable[[Any], object]


class Task(NamedTuple):
    """One workload in one configuration, ready to be timed."""

    first_s: float  # of its first call: tracing, compiling and running once
    answers: dict[str, Any]  # arrays that must be those of JAX
    turn: Turn  # does the work so often, and returns the seconds of a call, by quantity


def serve(versions: dict[str, str], tasks: dict[str, Callable[..., Task]]) -> None:
    """Answer until the connection ends; without one, only print the versions.

    `tasks` holds what each `settings["task"]` names; it is called with the settings and the configuration.
    """
    if len(sys.argv) < 2:
        print(", ".join(f"{name} {version}" for name, version in versions.items()))
        return
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    turns: dict[str, Turn] = {}
    with Connection(int(sys.argv[1])) as runner, suppress(EOFError):
        runner.send_bytes(json.dumps(versions).encode())
        while True:
            question = json.loads(runner.recv_bytes())
            try:
                answer = _answer(question, turns, tasks)
            except Exception as e:
                first = (str(e).strip().splitlines() or [""])[0]
                answer = {"error": f"{type(e).__name__}: {first}"[:300]}
            runner.send_bytes(json.dumps(answer).encode())


def _answer(
    question: dict[str, Any], turns: dict[str, Turn], tasks: dict[str, Callable[..., Task]]
) -> dict[str, Any]:
    gc.collect()
    if question["op"] == "prepare":
        settings = question["settings"]
        task = tasks[settings["task"]](settings, question["configuration"])
        turns[question["key"]] = task.turn
        answers = {name: np.asarray(answer).tolist() for name, answer in task.answers.items()}
        return {"first_s": task.first_s, "answers": answers}
    turn = turns[question["key"]]
    if question["lead"]:
        turn(question["lead"])  # the last turn was another system's: fill the caches again
    cpu = CpuTimer()
    with cpu:
        value = turn(question["calls"])
    return {**value, "cores": cpu.cores + value.get("cores", 0.0)}


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
    return lambda calls: {quantity: s for turn in turns for quantity, s in turn(calls).items()}


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
    """Take `steps` steps, whose losses are the answers, and return the task that takes more of them.

    `loss_of` returns the loss of what `step` returned; `finish` waits for all steps, on all devices.
    """

    def one() -> float:
        loss = loss_of(step())
        finish()
        return loss

    first_s, first = timed_first(one)
    losses = [first, *(one() for _ in range(steps - 1))]
    return Task(first_s, {"loss": losses}, waiting_once(step, lambda _: finish()))


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


def apart_and_together(shares: Sequence[Sequence[int]], alone: Callable[[int], Any], at_once: Call) -> Turn:
    """Work on several devices, one after the other and then all at once.

    Args:
      shares: the cores of each device, to which it is limited where it works alone.
      alone: `alone(i)` works on device i, and waits.
      at_once: works on all devices, and waits.
    """

    def turn(calls: int) -> dict[str, float]:
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

    return turn


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
