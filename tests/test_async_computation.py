"""Section 8.2: ways to wait do wait, trainings agree however they wait, a whole pass keeps its promises."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import async_computation as section
from jaxperf.errors import JaxperfError
from jaxperf.measure import load_result
from jaxperf.measure.fresh import in_fresh_process
from jaxperf.measure.record import Result
from jaxperf.measure.run_ahead import pending

SCRIPT = Path(section.__file__)
ROOT = SCRIPT.parents[1]
ENVIRONMENT = {
    **{k: v for k, v in os.environ.items() if k != "JAX_NUM_CPU_DEVICES"},
    "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")])),
}
WAITING = [way for way in section.WAYS if way not in section.NO_WAIT]


@pytest.mark.parametrize("way", WAITING)
def test_after_every_way_that_asks_for_a_value_the_value_is_there(way: str) -> None:
    kind, wait = section.WAYS[way]
    dot, norm = jax.jit(lambda x: x @ x), jax.jit(lambda x: jnp.linalg.norm(x @ x))
    x = jnp.ones((700, 700))
    y = {"matrix": lambda: dot(x), "scalar": lambda: norm(x), "tree": lambda: (dot(x), norm(x))}[kind]()
    wait(y)
    assert pending(y) == 0


def batches(count: int) -> list[tuple[jax.Array, jax.Array]]:
    held: list[int] = []
    made: list[float] = []
    found = list(section.data_iter("host", batches=count, batch_size=8, seed=3, produced=made, held=held))
    assert len(made) == len(held) == count
    assert made == sorted(made)
    return found


def test_losses_are_equal_and_in_order_however_they_are_waited_for() -> None:
    step, params = section.make_step(0)
    losses = {
        wait: section.train(step, params, iter(batches(5)), wait=wait) for wait in ("each", "end", "window")
    }
    assert len(losses["each"]) == 5
    assert losses["each"] == losses["end"] == losses["window"]
    assert len(set(losses["each"])) == 5


def test_the_step_is_gluons_sgd_on_half_the_squared_error() -> None:
    step, params = section.make_step(0)
    ((X, y),) = batches(1)
    changed, loss = step(params, X, y)
    assert sorted(p.shape for p in params) == sorted(
        [(512, 2048), (2048,), (2048, 512), (512,), (512, 1), (1,)]
    )
    W = {p.shape: np.asarray(p, np.float64) for p in params}
    h = np.maximum(np.asarray(X, np.float64) @ W[512, 2048] + W[2048,], 0)
    h = np.maximum(h @ W[2048, 512] + W[512,], 0)
    wrong = (h @ W[512, 1] + W[1,])[:, 0] - np.asarray(y)
    assert float(loss) == pytest.approx(0.5 * np.mean(wrong**2), rel=1e-5)
    new = {p.shape: np.asarray(p) for p in changed}
    np.testing.assert_allclose(new[1,], W[1,] - 0.005 * wrong.mean(), rtol=1e-4, atol=1e-7)
    last = W[512, 1] - 0.005 * h.T @ wrong[:, None] / len(wrong)
    np.testing.assert_allclose(new[512, 1], last, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("feed", ["device", "host"])
def test_batches_are_the_books_random_and_each_their_own(feed: str) -> None:
    found = list(section.data_iter(feed, batches=3, batch_size=16, seed=1, produced=[], held=[]))
    assert [(X.shape, y.shape) for X, y in found] == [((16, 512), (16,))] * 3
    assert all((y == 1).all() for _, y in found)
    assert abs(float(found[0][0].std()) - 1) < 0.1
    assert not np.array_equal(found[0][0], found[1][0])


def test_without_asynchronous_dispatch_every_call_returns_with_its_result() -> None:
    found = in_fresh_process(section.dispatch_child, 700, 0, False)
    assert found["ready"] == [True] * 7
    assert found["asynchronous"] is False


def test_errors_surface_in_the_call_or_in_block_and_nan_only_when_looked_for() -> None:
    where = {title: step for title, step, _ in in_fresh_process(section.errors_child)}
    assert where["callback, argument there"] in ("call", "block")
    assert where["callback, argument pending"] in ("call", "block")
    assert where["work that depends on it"] in ("call", "block")
    assert where["NaN"] == "nowhere"
    assert where["NaN, jax_debug_nans on"] == "call"


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


def test_the_books_figures_stand_beside_the_books_sizes_only() -> None:
    figure = section.book("queued", 0.0014, "8.2.1", "jax queued")
    assert section.as_in_book(section.Config(), figure) == (figure,)
    assert section.as_in_book(section.Config(size=1000), figure) == ()
    assert section.as_in_book(section.Config(rounds=3), figure) == (figure,)


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
    assert {f"{part}/{name}" for part in ("memory", "produced") for name in section.RUNS} <= curves.keys()
    assert len(curves["produced/synchronous"].x) == 6
    assert len(curves["produced/host window"].x) == 3
    assert {t.name for t in result.timelines} == {"synchronous loop", "asynchronous loop"}


def test_a_whole_pass_judges_every_sentence_once(smoke: tuple[str, Result]) -> None:
    printed, result = smoke
    statements = [claim.statement for claim in result.claims]
    assert len(statements) == len(set(statements)) == 13
    assert result.claims[0].source == "section 8.2"
    assert "contradict its text" in printed
    assert len({m.name for m in result.measurements}) == len(result.measurements)
