"""Section 8.2.3's model: half of the sizes fit it, the other half judges it, and a wrong one is told."""

from __future__ import annotations

import pytest
from stories import begin
from test_loops import SIZES, T1, T2, T3, swept

from jaxperf.chapter import dispatch_model as part
from jaxperf.result import Table


@pytest.mark.parametrize(("off", "holds"), [(1.0, "holds"), (1.5, "does not hold")])
def test_held_out_sizes_judge_the_model(off: float, holds: str) -> None:
    story = begin("8.2")
    part.the_model(story, swept(off=off))
    claims = story.result().claims
    model = next(c for c in claims if c.statement.startswith("n calls take about"))
    assert model.holds == ("cannot be measured here" if story.environment.cores == 1 else holds)
    assert {c.name for c in story.result().curves} == {
        f"{loop}, {what}" for loop in ("synchronous", "asynchronous") for what in ("measured", "predicted")
    }
    assert all(len(c.x) == len(SIZES) for c in story.result().curves)
    assert story.facts["asleep_over_awake"] == pytest.approx(10)
    assert ("prediction_error_synchronous" in story.facts) and (
        "prediction_error_asynchronous" in story.facts
    )
    [table] = story.result().of(Table)
    assert table.rows[-1].name == "200 empty programs, cores kept awake"
    assert table.rows[-1].median == pytest.approx(200 * T1)
    if off == 1:
        assert story.facts["t1_s"] == pytest.approx(T1, rel=0.02)
        assert story.facts["t3_s"] == pytest.approx(T3, rel=0.02)
        assert story.facts["t2_s"] == pytest.approx(T2 * SIZES[-1], rel=0.02)
        assert story.facts["crossover_elements"] == pytest.approx(T1 / T2, rel=0.02)
        assert (
            story.facts["plateau_ends_after_elements"]
            <= story.facts["crossover_elements"]
            <= story.facts["plateau_ends_before_elements"]
        )
        exercise = next(c for c in claims if "exercise 1" in c.statement)
        assert exercise.holds in ("holds", "cannot be measured here")


def test_a_model_without_a_crossover_cannot_answer_the_exercise(monkeypatch: pytest.MonkeyPatch) -> None:
    from jaxperf.measure.dispatch import Costs, Fit

    flat = swept()
    never = Costs(T1, T3, 0.0, 0.0)
    story = begin("8.2")
    part.why_999(story, Fit(never, never, 0.0), flat.samples)
    [claim] = story.result().claims
    assert claim.holds == "cannot be measured here"
