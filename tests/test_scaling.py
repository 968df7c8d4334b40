"""What more devices gain: the model predicts what it was not fitted to, and says so where it does not."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import jax
import numpy as np
import pytest
from stories import begin

from jaxperf.chapter import scaling as part
from jaxperf.result import Claim, Lines, Measurement, Table

SIZES = (32, 64, 256)
BOOK = part.LOT


def times(compute_s: float, fixed_s: dict[int, float], *, wrong: float = 1.0) -> Callable[..., Any]:
    """What `_in_turns` would measure for T(k, n) = T(1, n / k) + c(k), or `wrong` times that."""

    def in_turns(make: Any, runs: Sequence[part.Run], cores: Any, rounds: int) -> Any:
        noise = 1 + 0.01 * np.random.default_rng(0).standard_normal(rounds)
        found = {}
        for k, n in runs:
            share = n / k * (1 + n / k / 512)  # a large share takes more than its part
            t = (compute_s * share + fixed_s[k]) * (wrong if k > 1 and n == SIZES[-1] else 1)
            found[k, n] = Measurement(f"{k} devices, batch {n}", "s", tuple(t * noise), rounds="r")
        return found

    return in_turns


def told(
    monkeypatch: pytest.MonkeyPatch, in_turns: Any, *, devices: int = 2, cores: int = 2, fake: bool = True,
    book: part.Sentence = BOOK,
) -> Any:  # fmt: skip
    monkeypatch.setattr(part, "available", lambda: tuple(range(cores)))
    monkeypatch.setattr(part, "_in_turns", in_turns)
    story = begin("8.4", devices=devices)
    story.environment = dataclasses.replace(story.environment, devices_are_fake=fake)
    part.scaling(story, never, network="LeNet", sizes=SIZES, at=64, book=book, rounds=9)
    return story


def never(devices: Sequence[jax.Device], n: int) -> Callable[[], Any]:
    raise AssertionError("nothing is to be made")


@pytest.mark.usefixtures("several_devices")
def test_times_that_follow_the_model_are_predicted_and_draw_its_curve(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    story = told(monkeypatch, times(1e-4, {1: 1e-3, 2: 3e-3}))
    model, book = story.result().claims
    assert (model.holds, model.prediction) == ("holds", "right")
    assert book.holds == "cannot be measured here" and "fake" in book.observed  # times of fake devices
    assert "2 devices at batch 64 train" in book.observed  # no larger batch is timed for what decides nothing
    assert story.facts["not_divided_s"] == pytest.approx(2e-3, rel=0.03)
    assert story.facts["gain_2_256"] == pytest.approx((38.4 + 1) / (16 + 3), rel=1e-3)
    assert story.facts["scaling_efficiency"] == story.facts["gain_2_256"] / 2
    [lines] = story.result().of(Lines)
    measured, model_curve = lines.curves
    assert measured.x == (32, 64, 256) and model_curve.x == (64, 256)
    assert model_curve.y == pytest.approx(measured.y[1:], rel=1e-3)
    [table] = story.result().of(Table)
    assert len(table.rows) == 5 + 3 + 2  # shares of 16, 32 and 128 images, and whole batches


def test_times_that_do_not_follow_the_model_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    story = told(monkeypatch, times(1e-4, {1: 1e-3, 2: 3e-3}, wrong=1.6))
    model = next(story.result().of(Claim))
    assert (model.holds, model.prediction) == ("does not hold", "wrong")


@pytest.mark.usefixtures("several_devices")
def test_real_devices_decide_the_books_sentence_at_the_batches_that_the_book_gives_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for book, fixed_s, seen, verdict in (
        (part.LITTLE, 3e-3, "2 devices at batch 64 train 1.28", "holds"),
        (part.LITTLE, 1e-3, "2 devices at batch 64 train 1.86", "does not hold"),
        (part.LOT, 3e-3, "2 devices at batch 128 train 1.61", "holds"),
        (part.LOT, 9e-3, "2 devices at batch 128 train 1.01", "does not hold"),
    ):
        story = told(monkeypatch, times(1e-4, {1: 1e-3, 2: fixed_s}), fake=False, book=book)
        _, claim = story.result().claims
        assert (claim.holds, claim.statement) == (verdict, book.words)
        assert claim.observed.startswith(seen) and claim.observed.endswith("of one at batch 64")
        assert "gain_2_128" not in story.facts  # the figure over batches stays the same


@pytest.mark.usefixtures("several_devices")
def test_without_devices_or_cores_to_compare_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for devices, cores, why in ((1, 4, "only one device"), (4, 1, "1 core for 4 fake devices")):
        story = told(monkeypatch, never, devices=devices, cores=cores)
        assert story.facts == {}
        assert [c.holds for c in story.result().of(Claim)] == ["cannot be measured here"] * 2
        assert all(why in c.observed for c in story.result().of(Claim))


@pytest.mark.usefixtures("several_devices")
def test_each_number_of_devices_gets_as_many_cores_before_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[int, ...]] = []
    monkeypatch.setattr(part, "on_cores", lambda cores: given.append(tuple(cores)) or nullcontext())
    made: list[tuple[int, int]] = []

    def make(devices: Sequence[jax.Device], n: int) -> Callable[[], Any]:
        made.append((len(devices), n))
        return lambda: np.zeros(1)

    rows = part._in_turns(make, [(1, 8), (1, 16), (4, 8), (4, 16)], (0, 1, 2, 3), 6)
    assert made == [(1, 8), (1, 16), (4, 8), (4, 16)] and set(rows) == set(made)
    assert set(given) == {(0,), (0, 1, 2, 3)}
    assert len({m.rounds for m in rows.values()}) == 1  # so that ratios may be formed
