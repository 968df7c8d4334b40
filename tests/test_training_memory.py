"""Section 8.2.4's programs: trainings agree however they wait, and their batches are the book's."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from jaxperf.chapter import training_memory as part
from jaxperf.measure import MemorySampler


@pytest.fixture(scope="module")
def programs() -> tuple[object, object, list[jax.Array]]:
    return part.make_step(0)


def batches(count: int) -> list[tuple[jax.Array, jax.Array]]:
    held: list[int] = []
    made: list[float] = []
    found = list(part.data_iter("host", batches=count, batch_size=8, seed=3, produced=made, held=held))
    assert len(made) == len(held) == count
    assert made == sorted(made)
    return found


def test_losses_are_equal_and_in_order_however_they_are_waited_for(programs) -> None:
    step, _, params = programs
    ways: tuple[part.Wait, ...] = ("each", "end", "window")
    losses = {wait: part.train(step, params, iter(batches(5)), wait=wait) for wait in ways}
    assert len(losses["each"]) == 5
    assert losses["each"] == losses["end"] == losses["window"]
    assert len(set(losses["each"])) == 5


def test_the_step_is_gluons_sgd_on_half_the_squared_error(programs) -> None:
    step, mean, params = programs
    ((X, y),) = batches(1)
    changed, loss = step(params, X, y)
    assert sorted(p.shape for p in params) == sorted(
        [(512, 2048), (2048,), (2048, 512), (512,), (512, 1), (1,)]
    )
    W = {p.shape: np.asarray(p, np.float64) for p in params}
    h = np.maximum(np.asarray(X, np.float64) @ W[512, 2048] + W[2048,], 0)
    h = np.maximum(h @ W[2048, 512] + W[512,], 0)
    out = (h @ W[512, 1] + W[1,])[:, 0]
    wrong = out - np.asarray(y)
    assert float(loss) == pytest.approx(0.5 * np.mean(wrong**2), rel=1e-5)
    assert float(mean(params, X)) == pytest.approx(out.mean(), rel=1e-4, abs=1e-5)
    new = {p.shape: np.asarray(p) for p in changed}
    np.testing.assert_allclose(new[1,], W[1,] - 0.005 * wrong.mean(), rtol=1e-4, atol=1e-7)
    last = W[512, 1] - 0.005 * h.T @ wrong[:, None] / len(wrong)
    np.testing.assert_allclose(new[512, 1], last, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("feed", ["device", "host"])
def test_batches_are_the_books_random_and_each_their_own(feed: str) -> None:
    found = list(part.data_iter(feed, batches=3, batch_size=16, seed=1, produced=[], held=[]))
    assert [(X.shape, y.shape) for X, y in found] == [((16, 512), (16,))] * 3
    assert all((y == 1).all() for _, y in found)
    assert abs(float(found[0][0].std()) - 1) < 0.1
    assert not np.array_equal(found[0][0], found[1][0])


def test_the_peak_is_the_devices_own_where_it_keeps_one() -> None:
    sampled = MemorySampler()
    sampled.resident_bytes[:] = [100, 150, 120]
    assert part.most_held(sampled, {}) == 50
    assert part.most_held(sampled, {"bytes_in_use": 120, "peak_bytes_in_use": 190}) == 90  # between two looks


def test_every_way_passes_once_per_round_and_says_what_it_held() -> None:
    ways = {"training": ["train", "end", 3], "predicting": ["predict", "each", 2]}
    found = part.watch_child({"host": [8, ways]}, seed=0, rounds=3)["host"]
    assert {name: len(runs) for name, runs in found.items()} == dict.fromkeys(ways, 3)
    for name, (_, _, count) in ways.items():
        for run in found[name]:
            assert len(run["produced_s"]) == len(run["outputs"]) == count
            assert 0 <= run["peak_bytes"] >= run["change_bytes"]
            assert run["total_s"] > run["produced_s"][-1]
            assert run["live_bytes"] > 4 * 2 * 512 * 2048
    assert len({tuple(run["outputs"]) for run in found["training"]}) == 1  # every pass starts anew
