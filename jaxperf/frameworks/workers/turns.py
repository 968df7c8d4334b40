"""The turns that all systems take alike: how often a call is made, and where the clock is read.

`call` starts the work and returns its output. `wait` takes that output and returns when it is finished.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from .wire import Task

if TYPE_CHECKING:  # Python 3.8, on which MXNet runs, cannot evaluate these
    Turn = Callable[[int], dict[str, float]]
    Call = Callable[[], Any]
    Wait = Callable[[Any], object]


def nothing(output: Any) -> None:
    """Wait for an output that is finished already, as PyTorch's are on a CPU."""


def waiting_once(call: Call, wait: Wait, *, each: int = 1) -> Turn:
    """Make the calls one after the other, and wait for the last output; a call does the work `each` times."""

    def turn(calls: int) -> dict[str, float]:
        number = -(-calls // each)
        began = time.perf_counter()
        for _ in range(number):
            output = call()
        wait(output)
        return {"": (time.perf_counter() - began) / (number * each)}

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
    """Make the calls twice: `wait` for each one's output, and then call `wait_once` after the last."""

    def turn(calls: int) -> dict[str, float]:
        began = time.perf_counter()
        for _ in range(calls):
            wait(call())
        middle = time.perf_counter()
        for _ in range(calls):
            output = call()
        wait_once(output)
        end = time.perf_counter()
        return {"synchronous": (middle - began) / calls, "asynchronous": (end - middle) / calls}

    return turn


def training(step: Call, loss_of: Callable[[Any], float], finish: Call, steps: int) -> Task:
    """Take the first steps, whose losses are the answers, and return the task that takes more of them.

    Args:
      step: takes a step.
      loss_of: returns the loss of what `step` returned.
      finish: waits for all steps, on all devices.
      steps: how many answers there are.
    """
    began, losses, first_s = time.perf_counter(), [], 0.0
    for _ in range(steps):
        losses.append(loss_of(step()))
        finish()
        first_s = first_s or time.perf_counter() - began

    def turn(calls: int) -> dict[str, float]:
        finish()
        return waiting_once(step, lambda _: finish())(calls)

    return Task(first_s, {"loss": np.array(losses)}, turn)
