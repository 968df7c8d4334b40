"""Two devices alone and together: on their cores, with finished outputs, judged against what is possible."""

import jax
import jax.numpy as jnp
import pytest
from stories import begin

from jaxperf.chapter import devices_together as part
from jaxperf.measure import Together
from jaxperf.measure.cores import available
from jaxperf.result import Grid, Measurement, Span, Timeline


def made_up(possible, ratio):
    """A comparison with `possible` at best and `ratio` in fact, in each of six rounds."""
    seconds = {"first": 1.0, "second": possible - 1.0, "both": possible / ratio}
    rows = {name: Measurement(name, "s", (value,) * 6, rounds="r") for name, value in seconds.items()}
    return Together("made up", **rows)


@pytest.mark.skipif(not available(), reason="this system cannot choose cores")
def test_limited_runs_on_the_cores_given_and_hands_over_finished_outputs():
    seen = []

    def work():
        seen.append(available())
        return [jnp.ones((200, 200)) @ jnp.ones((200, 200))]

    core = available()[0]
    (y,) = part.limited(work, [core])()
    assert seen == [(core,)]
    assert y.is_ready()
    assert part.limited(work, None) is work


def test_both_clocks_are_told_and_the_tag_names_the_facts(tmp_path):
    story = begin("auto_parallelism", json=tmp_path / "r.json")
    devices = jax.devices("cpu")[:2]
    xs = [jax.device_put(jnp.ones((64, 64)), d) for d in devices]
    alone = {f"cpu {x.device.id}": lambda x=x: [x @ x for _ in range(3)] for x in xs}
    found, recorded = part.alone_and_together(
        story, alone, lambda: [[x @ x for _ in range(3)] for x in xs], tag="a b", rounds=6, recordings=2
    )
    told = story.result()
    assert told.facts["share_saved_a_b"] == part.share(found).median
    assert 0 <= told.facts["spans_overlap_a_b"] <= 1 and told.facts["spans_over_clock_a_b"] > 0
    assert [m.name for m in told.measurements] == [m.name for m in found.rows()]
    assert len(recorded) == 2 and recorded[0].trace and not recorded[1].trace
    assert set(alone) <= set(recorded[0].lanes)


def test_the_share_is_of_what_is_possible():
    for possible, ratio, share in ((2.0, 1.0, 0.0), (2.0, 2.0, 1.0), (1.5, 1.2, 0.5), (2.0, 0.8, -0.5)):
        assert part.share(made_up(possible, ratio)).median == pytest.approx(share)


def test_little_is_saved_up_to_a_quarter():
    for ratio, holds in ((1.0, "holds"), (1.1, "holds"), (1.4, "does not hold")):
        story = begin("auto_parallelism")
        part.claim_about_cores(story, made_up(2.0, ratio), cannot="")
        [claim] = story.result().claims
        assert claim.holds == holds


def test_the_sentence_asks_for_less_time_and_the_prediction_for_half_of_what_is_possible():
    for possible, ratio, holds, right in (
        (1.2, 1.15, "holds", "right"),  # little is possible, most of it is saved
        (2.0, 1.15, "holds", "wrong"),
        (2.0, 0.9, "does not hold", "wrong"),
    ):
        story = begin("auto_parallelism")
        part.claim_saved(story, made_up(possible, ratio), fake=True, cannot="")
        ours, book = story.result().claims
        assert (ours.holds, ours.prediction) == (holds, right)
        assert book.holds == "cannot be measured here"  # CPU devices say nothing about a GPU
        story = begin("auto_parallelism")
        part.claim_saved(story, made_up(possible, ratio), fake=False, cannot="")
        [book] = story.result().claims
        assert (book.holds, book.prediction, book.source) == (holds, right, "section 8.3")


def test_a_loop_is_parallel_if_the_devices_work_at_the_same_time_in_the_recorded_runs():
    at_once = Timeline("t", (Span("a", "x", 0.0, 1.0), Span("b", "x", 0.1, 1.1)), 1.1)
    in_turn = Timeline("t", (Span("a", "x", 0.0, 1.0), Span("b", "x", 1.0, 2.0)), 2.0)
    for runs, holds in (
        ([at_once] * 6, "holds"),
        ([in_turn] * 6, "does not hold"),
        ([at_once] * 3, "undecided"),
        ([at_once, in_turn] * 3, "undecided"),
    ):
        story = begin("auto_parallelism")
        part.claim_loop(story, runs, ("a", "b"), cannot="")
        [claim] = story.result().claims
        assert claim.holds == holds


def test_the_overview_has_a_row_per_comparison():
    story = begin("auto_parallelism")
    part.overview(story, [made_up(2.0, 1.5)] * 2, title="t")
    [grid] = story.result().of(Grid)
    assert grid.rows == (("made up", "2 s", "1.33 s", "1 s", "0.667 (0.667 to 0.667)"),) * 2
