"""A run on a pretended GPU whose clock only starts and turns move: what starts, in which order, how often."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from jaxperf import frameworks
from jaxperf.frameworks import STARTS, Budget, Limits, Workload, run_study
from jaxperf.frameworks.device_workloads import DEVICE_SMOKE, DeviceSizes, device_workloads
from jaxperf.frameworks.worker import WorkerGoneError
from jaxperf.models.lenet import PARAM_SHAPES

BEFORE_S = 17.0  # until the first workload began on an H200 (27 November 2026)
WORKER_S = 6.0
CALL_S = {"resnet": 0.015, "lenet": 0.0015, "mlp": 6e-5}
MAIN = ["jax/jit", "torch/channels-last", "torch/CUDA graphs", "torch/eager"]
WITH_SCAN = [*MAIN, "jax/scan"]
COMPILED = ["torch/compiled", "torch/compiled, CUDA graphs"]
WITH_COMPILED = [*MAIN, *COMPILED]
ALL = [*WITH_SCAN, *COMPILED]
SMALL = ["jax/jit", "jax/scan", "torch/eager", "torch/CUDA graphs"]
EACH = ["jax/jit", "torch/eager"]
ALL_SMALL = [SMALL, SMALL, EACH, SMALL, EACH]


class Machine:
    """A pool of workers for JAX and PyTorch, and the clock that they move."""

    def __init__(self, scratch: Path, factor: float) -> None:
        self.scratch, self.factor, self.now = scratch, factor, 0.0
        self.systems, self.barred = {"jax": None, "torch": None}, dict[str, str]()
        self.live, self.nets = {("jax", "")}, dict[tuple[str, str], str]()
        self.starts: list[str] = []

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def side_by_side(self, *jobs: Callable[[], None]) -> None:
        began, ends = self.now, [self.now]
        for job in jobs:
            self.now = began
            job()
            ends.append(self.now)
        self.now = max(ends)

    def worker(self, system: str, devices: int, lane: str) -> Any:
        if (system, lane) not in self.live:
            self.live.add((system, lane))
            self.sleep(WORKER_S)
        return SimpleNamespace(call=partial(self.call, lane))

    def forget(self, system: str, devices: int, lane: str) -> None:
        self.live.remove((system, lane))

    def close(self, lane: str) -> None:
        self.live -= {worker for worker in self.live if worker[1] == lane}

    def threads(self, devices: int) -> int:
        return 1

    def call(self, lane: str, op: str, *, limit_s: float, key: str, **asked: Any) -> dict[str, float]:
        if op == "turn":
            call_s = CALL_S[self.nets[lane, key]]
            self.sleep((asked["calls"] + asked["lead"]) * call_s)
            return {"": call_s}
        settings = asked["settings"]
        self.starts.append(key)
        self.nets[lane, key] = settings["net"]
        kind = f"{settings['net']} {settings.get('precision', '')}".strip()
        seconds = STARTS[kind][asked["configuration"]] * self.factor
        self.sleep(min(limit_s, seconds))
        if seconds > limit_s:
            raise WorkerGoneError("no answer")
        np.savez(asked["answers"], loss=np.ones(3))
        return {"first_s": seconds}


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> list[Workload]:
    toy = {name: getattr(DEVICE_SMOKE, name) for name in ("batches", "square", "stages")}
    images, labels = np.zeros((64, 28, 28), np.uint8), np.arange(64) % 10
    sizes, folder = dataclasses.replace(DeviceSizes(), **toy), tmp_path_factory.mktemp("work")
    return list(device_workloads(sizes, folder, images, labels, lenet=PARAM_SHAPES, platform="gpu"))


@pytest.mark.parametrize(
    ("seconds", "factor", "expected"),
    [
        (130, 1.0, [WITH_SCAN, MAIN, WITH_COMPILED, *ALL_SMALL]),
        (130, 1.25, [MAIN, MAIN, WITH_COMPILED, *ALL_SMALL]),
        (130, 2.0, [MAIN, MAIN]),
        (200, 1.0, [ALL, ALL, ALL, *ALL_SMALL]),
        (200, 1.5, [ALL, WITH_COMPILED, WITH_COMPILED, *ALL_SMALL[:2]]),
    ],
)
def test_the_main_rows_come_first_and_the_rest_has_what_they_leave(
    seconds: float,
    factor: float,
    expected: list[list[str]],
    work: list[Workload],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All starts take `factor` times as long as expected; `expected` has what is timed, by workload.

    torch.compile starts for all workloads that train while the first of them does.
    """
    machine = Machine(tmp_path, factor)
    pool: Any = machine
    clock = SimpleNamespace(monotonic=lambda: machine.now, sleep=machine.sleep)
    monkeypatch.setattr(run_study, "time", clock)
    monkeypatch.setattr(run_study._Run, "in_threads", machine.side_by_side)
    budget = Budget(seconds - BEFORE_S, work, clock=clock.monotonic)
    for workload, names in itertools.zip_longest(work, expected, fillvalue=[]):
        machine.starts.clear()
        study = frameworks.study(workload, pool, limits=Limits(), budget=budget)
        in_order = [name for name in machine.starts if name not in COMPILED]
        assert in_order == [name for name in names if name not in COMPILED]
        assert {e.name for e in study.timed} == set(names)
        assert all(len(e.values[""]) >= 3 for e in study.timed)
    assert machine.now + BEFORE_S < seconds + 15
