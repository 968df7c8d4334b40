"""Small operations: every way at every size, the reader's figures next to ours, and where calls cost."""

import jax
import pytest
from stories import begin

from jaxperf.chapter import small_operations
from jaxperf.chapter.small_operations import BATCH, CALLS, DEVICES, PROGRAM
from jaxperf.result import Grid, Lines, Ratio, Table

WAYS = ["each waited for", CALLS, PROGRAM, BATCH, DEVICES]


@pytest.fixture(scope="module")
def told():
    story = begin("auto_parallelism")
    small_operations.over_sizes(story, devices=jax.devices("cpu")[:2], sizes=(16, 8), products=4, rounds=3)
    return story.result()


def timed(told):
    return [table for table in told.of(Table) if table.base]


def test_every_way_is_timed_at_every_size_in_ascending_order(told):
    assert [table.title for table in timed(told)] == [f"4 products of {n} x {n}" for n in (8, 16)]
    for table in timed(told):
        assert [m.name for m in table.rows] == WAYS and table.base == CALLS
        assert {len(m.values) for m in table.rows} == {6}
        assert {m.rounds for m in table.rows} == {table.rows[0].rounds}
    [grid] = told.of(Grid)
    assert grid.heads == ("size", PROGRAM, BATCH, DEVICES)


def test_curves_hold_the_medians_over_the_sizes(told):
    [lines] = told.of(Lines)
    assert [curve.name for curve in lines.curves] == WAYS
    for curve in lines.curves:
        medians = [m.median for table in timed(told) for m in table.rows if m.name == curve.name]
        assert curve.x == (8.0, 16.0) and list(curve.y) == medians


def test_the_published_figures_are_next_to_ours_and_not_among_them(told):
    [table] = [table for table in told.of(Table) if table.references]
    assert [r.value for r in table.references] == [0.0006, 0.0]
    assert [r.beside for r in table.references] == ["called, not waited for, 8 x 8", ""]


def test_one_device_has_no_second_one(told):
    assert list(small_operations.ways(4, jax.devices("cpu")[:1], 2)) == WAYS[:-1]


def exactly(value):
    return Ratio(value, value, value, 30)


def test_the_smallest_size_decides_and_a_second_device_at_most_doubles():
    for small, large, holds, right, up_to in (
        ({PROGRAM: 4, BATCH: 8, DEVICES: 1}, {PROGRAM: 1, BATCH: 1, DEVICES: 1}, "holds", "right", 20),
        ({PROGRAM: 4, BATCH: 0.9, DEVICES: 1}, {PROGRAM: 1, BATCH: 2, DEVICES: 1}, "holds", "right", 50),
        ({PROGRAM: 4, BATCH: 1, DEVICES: 3}, {PROGRAM: 1, BATCH: 1, DEVICES: 1}, "holds", "wrong", 20),
        (
            {PROGRAM: 1, BATCH: 1, DEVICES: 1},
            {PROGRAM: 2, BATCH: 1, DEVICES: 1},
            "does not hold",
            "wrong",
            50,
        ),
        ({PROGRAM: 1, BATCH: 1}, {PROGRAM: 1, BATCH: 1}, "does not hold", "wrong", None),
    ):
        story = begin("auto_parallelism")
        against = {n: {way: exactly(r) for way, r in of.items()} for n, of in ((20, small), (50, large))}
        small_operations._claim_faster_than_calls(story, against)
        told = story.result()
        [claim] = told.claims
        assert (claim.holds, claim.prediction) == (holds, right)
        assert told.facts["calls_lose_up_to_size"] == up_to


def test_rounds_that_cannot_decide_leave_the_sentence_open():
    story = begin("auto_parallelism")
    unsure = Ratio(1.1, 0.9, 1.3, 30)
    small_operations._claim_faster_than_calls(story, {20: {PROGRAM: unsure, BATCH: exactly(0.9)}})
    [claim] = story.result().claims
    assert (claim.holds, claim.prediction) == ("undecided", "undecided")
