"""Section 8.2.4: trainings agree however they wait, and their batches are the book's."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from stories import begin

from jaxperf.chapter import training_memory as part


def batches(count: int) -> list[tuple[jax.Array, jax.Array]]:
    held: list[int] = []
    made: list[float] = []
    found = list(part.data_iter("host", batches=count, batch_size=8, seed=3, produced=made, held=held))
    assert len(made) == len(held) == count
    assert made == sorted(made)
    return found


def test_losses_are_equal_and_in_order_however_they_are_waited_for() -> None:
    step, params = part.make_step(0)
    losses = {
        wait: part.train(step, params, iter(batches(5)), wait=wait) for wait in ("each", "end", "window")
    }
    assert len(losses["each"]) == 5
    assert losses["each"] == losses["end"] == losses["window"]
    assert len(set(losses["each"])) == 5


def test_the_step_is_gluons_sgd_on_half_the_squared_error() -> None:
    step, params = part.make_step(0)
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
    found = list(part.data_iter(feed, batches=3, batch_size=16, seed=1, produced=[], held=[]))
    assert [(X.shape, y.shape) for X, y in found] == [((16, 512), (16,))] * 3
    assert all((y == 1).all() for _, y in found)
    assert abs(float(found[0][0].std()) - 1) < 0.1
    assert not np.array_equal(found[0][0], found[1][0])


@pytest.mark.parametrize("beside_book", [True, False])
def test_the_books_figures_stand_beside_rows_that_are_there_and_only_when_asked_for(
    beside_book: bool,
) -> None:
    run = {
        "produced_s": [0.1, 0.2, 0.3, 0.4],
        "total_s": 0.5,
        "increase_bytes": 10,
        "live_bytes": 5,
        "device": {},
    }
    story = begin("8.2")
    part.show_runs(story, dict.fromkeys(part.RUNS, run), beside_book=beside_book)
    beside = [reference.beside for reference in story.references]
    assert len(beside) == len(set(beside)) == (6 if beside_book else 0)  # two batches and a peak, twice
    assert set(beside) <= {m.name for m in story.measurements}
