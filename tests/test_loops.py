"""Section 8.2.3's loops: gains of the same rounds are judged on both sides of the crossover."""

from __future__ import annotations

import pytest
from stories import begin

from jaxperf.chapter import loops as part
from jaxperf.measure.dispatch import Costs, Sample
from jaxperf.result import Measurement, Ratio

T1, T2, T3 = 4e-6, 1e-10, 4e-5  # seconds; t2 for one element
SIZES = [1024.0 * 2**i for i in range(11)]


def swept(*, off: float = 1.0, gain: float | None = None) -> part.Swept:
    """What a process that follows the model would have measured.

    Args:
      off: how many times as long held-out sizes took.
      gain: how many times as long the synchronous loop took, in place of what the model says.
    """
    costs = Costs(t1_s=T1, t2_fixed_s=0.0, t2_per_unit_s=T2, t3_s=T3)
    samples = []
    for i, n in enumerate(SIZES):
        asynchronous = costs.asynchronous_s(n, part.CALLS) * (off if i % 2 else 1)
        synchronous = costs.synchronous_s(n, part.CALLS) * (off if i % 2 else 1)
        synchronous = gain * asynchronous if gain else synchronous
        samples.append(Sample(n, part.CALLS, (synchronous,) * 9, (asynchronous,) * 9))
    awake, asleep = (
        Measurement(name, "s", (value,) * 9, rounds="r")
        for name, value in (("awake", 1e-3), ("asleep", 1e-2))
    )
    floor = Measurement("empty program", "s", (T1,) * 7)
    return part.Swept(samples, awake, asleep, {"eager": T1, "compiled": T1 / 3}, floor)


@pytest.mark.parametrize(
    ("gain", "at_book", "holds", "prediction"),
    [
        (None, Ratio(1.02, 1.0, 1.05, 15), "holds", "right"),
        (None, Ratio(1.3, 1.2, 1.4, 15), "holds", "right"),
        (None, Ratio(2.3, 2.2, 2.4, 15), "holds", "wrong"),
        (0.9, Ratio(1.02, 1.0, 1.05, 15), "does not hold", "wrong"),
    ],
)
def test_a_gain_is_judged_where_the_model_says_most_and_at_the_books_size(
    gain: float | None, at_book: Ratio, holds: str, prediction: str
) -> None:
    story = begin("8.2")
    part.the_gain(story, swept(gain=gain), at_book, size=2000)
    [claim] = story.result().claims
    cannot = story.environment.cores == 1
    assert claim.holds == ("cannot be measured here" if cannot else holds)
    assert claim.prediction == ("undecided" if cannot else prediction)


@pytest.mark.thorough
def test_a_sweep_in_its_own_process_keeps_raw_values_of_the_same_rounds() -> None:
    sizes = [1024 * 2**i for i in range(6)]
    found = part.sweep_loops(sizes=sizes, rounds=2)
    assert [s.size for s in found.samples] == sizes
    assert all(s.calls == part.CALLS and len(s.sync_s) == len(s.async_s) == 2 for s in found.samples)
    assert found.awake.rounds == found.asleep.rounds != ""
    assert found.t1_s["compiled"] > 0 and found.t1_s["eager"] > 0 and found.floor.median > 0


def test_the_timelines_show_both_loops() -> None:
    story = begin("8.2")
    part.loops_as_timelines(story, elements=2**14)
    assert [t.name for t in story.result().timelines] == ["synchronous loop", "asynchronous loop"]


def test_rows_are_doubled_until_the_product_lasts() -> None:
    assert part.rows_that_last(0.0) == 256
    assert part.rows_that_last(1e-3) in (256, 512, 1024, 2048)
