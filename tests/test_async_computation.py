"""Section 8.2: asynchronous dispatch can be off, a whole pass keeps its promises, mistakes are one line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from experiments import async_computation as section
from jaxperf.chapter.training_memory import RUNS
from jaxperf.errors import JaxperfError
from jaxperf.measure import in_fresh_process, load_result
from jaxperf.measure.record import Result

SCRIPT = Path(section.__file__)
ROOT = SCRIPT.parents[1]
ENVIRONMENT = {
    **{k: v for k, v in os.environ.items() if k != "JAX_NUM_CPU_DEVICES"},
    "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")])),
}


def test_without_asynchronous_dispatch_every_call_returns_with_its_result() -> None:
    found = in_fresh_process(section.dispatch_child, 700, 0, False)
    assert found["ready"] == [True] * 7
    assert found["asynchronous"] is False


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        ({"size": 3}, "--size is 3; give at least 64"),
        ({"points": 5}, "--points is 5; give at least 11"),
        ({"batch_size": 0}, "--batch-size is 0; give at least 1"),
        ({"largest": 2048}, "--largest is 2048; give at least 65536, or 0 to have one chosen"),
    ],
)
def test_a_flag_out_of_range_is_refused_in_one_line(flags: dict[str, int], line: str) -> None:
    with pytest.raises(JaxperfError) as caught:
        section.Config(**flags)
    assert str(caught.value) == line


@pytest.mark.parametrize(
    ("flags", "books"), [({}, True), ({"rounds": 3}, True), ({"size": 1000}, False), ({"batches": 99}, False)]
)
def test_the_books_figures_stand_beside_the_books_sizes_only(flags: dict[str, int], books: bool) -> None:
    assert section.Config(**flags).is_the_books is books


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Result]:
    """What a whole pass prints, and its result."""
    path = tmp_path_factory.mktemp("smoke") / "async.json"
    command = [sys.executable, str(SCRIPT), "--smoke", "--json", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=240)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"result: {path}"
    return done.stdout, load_result(path)


def test_a_whole_pass_keeps_every_fact_that_the_section_promises(smoke: tuple[str, Result]) -> None:
    _, result = smoke
    facts = ("t1_s", "t2_s", "t3_s", "prediction_error_median", "inflight_depth", "inflight_depth_donated")
    assert all(isinstance(result.facts[name], float | int) for name in facts)
    assert result.facts["asynchronous_with_dispatch_off"] is False
    assert result.facts["losses_equal_however_waited_for"] is True
    assert result.facts["pending_behind_the_last_on_one_device"] == 0


def test_a_whole_pass_draws_the_models_and_the_memorys_curves(smoke: tuple[str, Result]) -> None:
    _, result = smoke
    curves = {s.name: s for s in result.series}
    for way in ("sync", "async"):
        for what in ("measured", "predicted"):
            curve = curves[f"{way}/{what}"]
            assert (curve.x_unit, curve.y_unit, len(curve.x)) == ("elements", "s", 11)
            assert all(y and y > 0 for y in curve.y)
    assert {f"{part}/{name}" for part in ("memory", "produced") for name in RUNS} <= curves.keys()
    assert len(curves["produced/synchronous"].x) == 6
    assert len(curves["produced/host window"].x) == 3
    assert {t.name for t in result.timelines} == {"synchronous loop", "asynchronous loop"}


def test_a_whole_pass_judges_every_sentence_once(smoke: tuple[str, Result]) -> None:
    printed, result = smoke
    statements = [claim.statement for claim in result.claims]
    assert len(statements) == len(set(statements)) == 13
    assert result.claims[0].source == "section 8.2"
    assert "contradict its text" in printed
    assert result.references == ()  # toy sizes stand beside no figure of the book's
    assert len({m.name for m in result.measurements}) == len(result.measurements)
