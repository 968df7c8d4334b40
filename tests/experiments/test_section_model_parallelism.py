"""Splitting the model: every way computes what one device computes, and what it sends is counted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import chex
import jax
import numpy as np
import pytest

from jaxperf.chapter import cells

SCRIPT = Path(__file__).parents[2] / "experiments" / "model_parallelism.py"


@pytest.fixture(scope="module")
def section() -> ModuleType:
    """The names of the section, with toy sizes and without its timings."""
    return cells.load(SCRIPT, "--smoke")


def test_every_claim_that_needs_no_clock_holds(section: ModuleType) -> None:
    verdicts = {claim.statement: claim.verdict for claim in section.s.result().claims}
    assert len(verdicts) == 4
    assert set(verdicts.values()) == {"holds"}


@pytest.mark.parametrize("m", [1, 2, 16])
def test_the_pipeline_computes_the_step_for_any_number_of_micro_batches(section: ModuleType, m: int) -> None:
    new = section.pipeline_step(section.stages, section.X, section.y, m)
    chex.assert_trees_all_close(*jax.device_get((new, section.one_device)), atol=1e-6)
    for weights, device in zip(new, section.devices):
        assert {w.device for w in jax.tree.leaves(weights)} == {device}


def test_each_device_holds_the_part_that_the_plan_says(section: ModuleType) -> None:
    k, (A, B) = section.k, section.params[0]
    for plan, shapes in {
        "data": (A.shape, B.shape),
        "tensor": ((A.shape[0], A.shape[1] // k), (B.shape[0] // k, B.shape[1])),
        "FSDP": ((A.shape[0] // k, A.shape[1]), (B.shape[0] // k, B.shape[1])),
    }.items():
        params, _, _ = section.place(plan, section.params, section.X, section.y)
        assert tuple(w.addressable_shards[0].data.shape for w in params[0]) == shapes, plan
        assert [w.sharding.spec for w in jax.tree.leaves(section.new[plan])] == jax.tree.leaves(
            section.plans[plan][0]
        )


def test_tensor_parallelism_has_one_sum_per_block_each_way_but_for_the_input(section: ModuleType) -> None:
    for step in (section.step, section.tensor_step):
        kinds, moved = section.sent("tensor", step, 8)
        assert kinds == f"{2 * section.k - 1} all-reduce"
        assert moved == (2 * section.k - 1) * 8 * section.s.width * 4


def test_lenets_cuts_are_of_the_books_lenet(section: ModuleType) -> None:
    from jaxperf.models.lenet import PARAM_SHAPES

    by_hand = [multiplications for _, multiplications, _ in section.lenet]
    kernels = [int(np.prod(shape)) for name, shape in PARAM_SHAPES.items() if "W" in name]
    assert by_hand == [k * places for k, places in zip(kernels, (26 * 26, 9 * 9, 1, 1))]


@pytest.mark.thorough
@pytest.mark.parametrize("devices", ["2", "4"])
def test_it_runs_as_a_script_and_keeps_its_claims(devices: str, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    command = [sys.executable, str(SCRIPT), "--smoke", "--answers", "--json", str(path)]
    done = subprocess.run([*command, "--devices", devices], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    result = json.loads(path.read_text())
    assert not result["failed"]
    verdicts = {claim["statement"]: claim["verdict"] for claim in result["claims"]}
    assert verdicts["A step takes less time with more micro-batches"] == "not measurable here"
    assert list(verdicts.values()).count("holds") >= 4
