"""A worker's side of the conversation: a line of JSON in, a line of JSON out, one at a time.

    {"id": 1, "op": "prepare", "key": K, "settings": {...}, "configuration": C, "answers": PATH}
    {"id": 1, "ok": true, "value": {"first_s": 0.41}}          the answers are in PATH, an .npz
    {"id": 2, "op": "turn", "key": K, "calls": 100, "lead": 10}
    {"id": 2, "ok": true, "value": {"": 1.2e-05, "cores": 1.98}}    seconds per call, by quantity; "cores" is
                                                               the process's CPU time over wall time
    {"id": 3, "ok": false, "error": "one line"}                the worker stays alive

Before the first request it sends a greeting with id 0. It ends when its standard input or its parent ends.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import numpy as np


class Task(NamedTuple):
    """One workload in one configuration, ready to be timed.

    Attributes:
      first_s: seconds of its first call: tracing, compiling and running once.
      answers: arrays that the other systems must agree with.
      turn: `turn(calls)` does the work that often and gives seconds per call, by quantity.
    """

    first_s: float
    answers: dict[str, Any]
    turn: Callable[[int], dict[str, float]]


def serve(
    greet: Callable[[dict[str, Any]], dict[str, Any]], make: Callable[..., Task], start: dict[str, Any]
) -> None:
    """Answer until standard input ends.

    Args:
      greet: imports the framework; gives versions and threads.
      make: `make(settings, configuration, start)` builds a task.
      start: how the host started this worker.
    """
    out = _take_stdout()
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    tasks: dict[str, Task] = {}
    _reply(out, 0, greet, start)
    for line in iter(sys.stdin.readline, ""):
        request = json.loads(line)
        _reply(out, request["id"], _handle, request, tasks, make, start)


def _handle(
    request: dict[str, Any], tasks: dict[str, Task], make: Callable[..., Task], start: dict[str, Any]
) -> dict[str, float]:
    key = request["key"]
    if request["op"] == "prepare":
        tasks.pop(key, None)  # of an earlier workload: its arrays need not stay in a GPU's memory
    gc.collect()
    if request["op"] == "turn":
        if request["lead"]:
            tasks[key].turn(request["lead"])  # the last turn was another system's: warm the caches again
        timer = CpuTimer()
        with timer:
            value = tasks[key].turn(request["calls"])
        return {**value, "cores": timer.cores + value.get("cores", 0.0)}
    task = make(request["settings"], request["configuration"], start)
    answers: dict[str, Any] = {name: np.asarray(a) for name, a in task.answers.items()}
    np.savez(request["answers"], **answers)
    tasks[key] = task._replace(answers={})
    return {"first_s": task.first_s}


def timed_first(call: Callable[[], Any]) -> tuple[float, Any]:
    """Return the seconds of a first call, and what it returned; `call` waits for its own result."""
    began = time.perf_counter()
    output = call()
    return time.perf_counter() - began, output


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
    calls: int, shares: Sequence[Sequence[int]], alone: Callable[[int], Any], at_once: Callable[[], Any]
) -> dict[str, float]:
    """Return the seconds of work on several devices one after the other, and all at once.

    A device that works alone has its share of the cores, and no other.

    Args:
      calls: how often.
      shares: the cores of each device.
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
def on_cores(cores: Sequence[int]) -> Iterator[None]:
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


def _reply(out: Any, number: int, work: Callable[..., Any], *args: Any) -> None:
    try:
        answer = {"id": number, "ok": True, "value": work(*args)}
    except Exception as e:
        lines = str(e).strip().splitlines() or [""]
        answer = {"id": number, "ok": False, "error": f"{type(e).__name__}: {lines[0]}"[:300]}
    out.write(json.dumps(answer) + "\n")
    out.flush()


def _take_stdout() -> Any:
    """Reserve standard output for answers: whatever a library prints there goes to standard error."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return out


def _leave_with_parent() -> None:
    """End this process within a second of its parent, even in the middle of a long call."""
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)
