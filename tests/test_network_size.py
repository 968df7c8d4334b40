"""Op by op against compiled over sizes: every net both ways in the same rounds, and curves of it."""

import pytest
from stories import begin

from jaxperf.chapter import network_size
from jaxperf.models import SMALL_STAGES
from jaxperf.result import Measurement, Table


@pytest.fixture
def clock(monkeypatch):
    """Seconds by the measurement's name, a second where none is given; nothing is timed."""
    seconds = {}

    def measured(parts, *, count, **_):
        return {n: Measurement(n, "s", (seconds.get(n, 1.0),) * count, rounds="same") for n in parts}

    monkeypatch.setattr(network_size, "interleaved", measured)
    return seconds


def over_sizes(widths, batches, rounds=6):
    story = begin("hybridize")
    network_size.widths_and_batches(story, widths, batches, rounds, 0)
    return story.result()


@pytest.mark.thorough
def test_every_net_is_timed_both_ways_in_the_same_rounds():
    told = over_sizes((8, 4), (2,), rounds=2)
    names = [m.name for m in told.measurements]
    assert names == [f"{way}, width {w}, batch 2" for w in (4, 8) for way in network_size.WAYS]
    assert len({m.rounds for m in told.measurements}) == 1
    assert all(m.median > 0 for m in told.measurements)


def test_curves_hold_the_medians_over_the_widths(clock):
    for i, width in enumerate((4, 8, 16)):
        clock[f"op by op, width {width}, batch 1"] = 10.0 + i
        clock[f"hybridize, width {width}, batch 2"] = 20.0 + i
    told = over_sizes((16, 4, 8), (1, 2))
    assert {c.name: dict(zip(c.x, c.y)) for c in told.curves} == {
        "op by op, batch 1": {4.0: 10.0, 8.0: 11.0, 16.0: 12.0},
        "hybridize, batch 1": {4.0: 1.0, 8.0: 1.0, 16.0: 1.0},
        "op by op, batch 2": {4.0: 1.0, 8.0: 1.0, 16.0: 1.0},
        "hybridize, batch 2": {4.0: 20.0, 8.0: 21.0, 16.0: 22.0},
    }
    assert {(c.color, c.dash) for c in told.curves if c.name.startswith("op by op")} == {
        ("batch 1", "op by op"),
        ("batch 2", "op by op"),
    }


def test_the_gain_of_the_smallest_net_is_compared_with_that_of_the_largest(clock):
    clock["op by op, width 4, batch 1"] = 30.0
    for largest_s, verdicts in (
        (2.0, [("holds", "right"), ("holds", "right")]),
        (20.0, [("holds", "wrong"), ("holds", "right")]),
        (40.0, [("does not hold", "wrong"), ("holds", "right")]),
        (0.5, [("holds", "right"), ("does not hold", "wrong")]),  # compiled, the largest net is slower
    ):
        clock["op by op, width 8, batch 2"] = largest_s
        told = over_sizes((4, 8), (1, 2))
        assert told.facts == {
            "eager_over_hybridize_smallest_net": 30.0,
            "eager_over_hybridize_largest_net": largest_s,
        }
        assert [(claim.holds, claim.prediction) for claim in told.claims] == verdicts


def test_a_single_net_cannot_show_a_trend(clock):
    claims = over_sizes((4,), (1,)).claims
    assert claims[0].holds == "cannot be measured here" and claims[1].holds == "holds"


def test_few_rounds_decide_nothing(clock):
    clock["op by op, width 4, batch 1"] = 30.0
    assert {claim.holds for claim in over_sizes((4, 8), (1,), rounds=3).claims} == {"undecided"}


@pytest.mark.thorough
def test_earlier_networks_give_the_same_output_compiled(clock):
    clock["op by op, LeNet"] = 7.0
    clock["op by op, ResNet-18"] = 2.0
    story = begin("hybridize")
    network_size.earlier_networks(story, SMALL_STAGES, 2, 6, 0)
    told = story.result()
    assert told.facts["eager_over_hybridize_lenet"] == 7.0
    assert told.facts["eager_over_hybridize_resnet18"] == 2.0
    for name in ("lenet", "resnet18"):
        assert told.facts[f"outputs_max_abs_diff_{name}"] <= 1e-4
    assert [(claim.holds, claim.prediction) for claim in told.claims] == [("holds", "right")]
    (table,) = told.of(Table)
    assert [m.name for m in table.rows] == [
        f"{w}, {n}" for n in ("LeNet", "ResNet-18") for w in network_size.WAYS
    ]
