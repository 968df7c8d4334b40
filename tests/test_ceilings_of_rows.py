"""The script that puts each row of the peers under this machine's roofline counts what a call must do."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from test_trust_scripts import script

from jaxperf.models.lenet import PARAM_SHAPES
from jaxperf.peers.sizes import SMOKE
from jaxperf.peers.workloads import Workload, workloads

PARAMETERS = sum(int(np.prod(shape)) for shape in PARAM_SHAPES.values())
MLP_PARAMETERS = 512 * 256 + 256 * 128 + 128 * 2 + 256 + 128 + 2


@pytest.fixture(scope="module")
def rows() -> ModuleType:
    return script("ceilings_of_rows")


@pytest.fixture
def every(tmp_path: Path) -> dict[str, Workload]:
    images, labels = np.zeros((64, 28, 28), np.uint8), np.zeros(64, np.int32)
    return {w.name: w for w in workloads(SMOKE, tmp_path, images, labels, lenet=PARAM_SHAPES)}


def test_bytes_are_those_that_come_in_and_go_out(rows: ModuleType, every: dict[str, Workload]) -> None:
    n = SMOKE.square**2
    assert rows.work_of(every["8.1 MLP"]).nbytes == 4 * (MLP_PARAMETERS + 512 + 2)
    assert rows.work_of(every["8.2 loop"]).nbytes == 4 * (n + n)
    assert rows.work_of(every["8.2 dot"]).nbytes == 4 * (n + 1)
    assert rows.work_of(every["LeNet forward, batch 8"]).nbytes == 4 * (PARAMETERS + 8 * (784 + 10))


def test_work_grows_with_the_batch_and_a_step_is_about_three_forwards(
    rows: ModuleType, every: dict[str, Workload]
) -> None:
    one, eight = (rows.work_of(every[f"LeNet forward, batch {n}"]).flops for n in (1, 8))
    assert eight == pytest.approx(8 * one, rel=0.01)
    step = rows.work_of(every["8.4 LeNet, 1 device"]).flops
    assert 2 < step / (SMOKE.lenet_batch * one) < 4


def test_what_is_not_one_program_has_no_ceiling(rows: ModuleType, every: dict[str, Workload]) -> None:
    for name in ("8.1 export", "8.3 products", "8.4 LeNet, 2 devices"):
        assert rows.work_of(every[name]) is None


def test_the_largest_bound_is_the_ceiling(rows: ModuleType) -> None:
    @dataclasses.dataclass
    class Roofline:
        queueing_s: float

        def bandwidth(self, size: int) -> float:
            return 1e9

    for work, queueing_s, limit in (
        (rows.Work(1e9, 8), 1e-6, "arithmetic"),
        (rows.Work(1, 10**9), 1e-6, "memory"),
        (rows.Work(1, 8), 1.0, "dispatch"),
    ):
        words = rows.line("row", "jit", 2.0, work, Roofline(queueing_s), 1e9)
        assert f"by {limit}" in words and "50%" in words
