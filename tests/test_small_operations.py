"""Small operations: five ways at every size, the reader's figures beside, and what calls lose."""

import jax
import pytest
from stories import begin

from jaxperf.chapter import small_operations
from jaxperf.measure import Measurement

WAYS = ("each awaited", "queued", "one program", "vmap", "two devices")


@pytest.fixture(scope="module")
def told():
    story, (device, other) = begin("auto_parallelism"), jax.devices()[:2]
    small_operations.over_sizes(story, device=device, other=other, sizes=(16, 8), products=4, rounds=2)
    return story.result()


def test_every_way_is_timed_at_every_size_in_ascending_order(told):
    timed = [m for m in told.measurements if m.base]
    assert [m.name for m in timed] == [f"{way}, {n}" for n in (8, 16) for way in WAYS]
    assert [m.base for m in timed] == [f"queued, {n}" for n in (8, 16) for _ in WAYS]
    assert {len(m.values) for m in timed} == {6}


def test_curves_hold_the_medians_over_the_sizes(told):
    medians = {m.name: m.median for m in told.measurements}
    for way, curve in zip(WAYS, told.series, strict=True):
        assert curve.name == f"small products, {way}"
        assert dict(zip(curve.x, curve.y)) == {float(n): medians[f"{way}, {n}"] for n in (8, 16)}


def test_the_published_figures_stand_beside_and_not_among_the_measured(told):
    assert [r.value for r in told.references] == [0.0006, 0.0]
    kind = jax.devices()[0].platform
    assert {r.name.split()[-1]: r.beside for r in told.references}[kind] == "called, not awaited, 8"
    assert {r.beside for r in told.references} == {"", "called, not awaited, 8"}


def made_up(n, **factors):
    """Rows of one size: `queued` takes a second, the others that divided by their factor."""
    rows = {way: Measurement(f"{way}, {n}", "s", (1 / factors.get(way[:3], 1),)) for way in WAYS}
    return {n: rows}


@pytest.mark.parametrize(
    ("small", "large", "held", "up_to"),
    [
        ({"one": 4, "vma": 8}, {}, True, 20),
        ({"one": 4, "two": 2}, {"vma": 2}, False, 50),  # two devices gain as well
        ({}, {"one": 2}, False, 50),  # nothing gained where operations are smallest
        ({}, {}, False, None),
    ],
)
def test_calls_lose_where_one_program_or_one_batch_is_a_fifth_faster(small, large, held, up_to):
    story = begin("auto_parallelism")
    small_operations._claim_faster_than_calls(story, {**made_up(20, **small), **made_up(50, **large)})
    told = story.result()
    assert told.facts["calls_lose_up_to_size"] == up_to
    assert told.facts["times_as_fast_as_calls/one program, 20"] == small.get("one", 1)
    assert [claim.held for claim in told.claims] == [held]
