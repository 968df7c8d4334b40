"""Op by op against hybridized over sizes: every net both ways, curves of what was measured, equal outputs."""

import pytest
from stories import begin

from jaxperf.chapter import network_size
from jaxperf.measure import Measurement


@pytest.fixture
def clock(monkeypatch):
    """Seconds by the measurement's name, a second where none is given; nothing is timed."""
    seconds = {}

    def measured(*_, name, **__):
        return Measurement(name, "s", (seconds.get(name, 1.0),))

    monkeypatch.setattr(network_size, "measure", measured)
    return seconds


def over_sizes(widths, batches):
    story = begin("hybridize")
    network_size.widths_and_batches(story, widths=widths, batches=batches, seed=0)
    return story.result()


def test_every_net_is_timed_both_ways():
    told = over_sizes((8, 4), (2,))
    names = [m.name for m in told.measurements]
    assert names == [f"{way}, width {w}, batch 2" for w in (8, 4) for way in ("eager", "hybridize")]
    assert all(m.median > 0 for m in told.measurements)


def test_curves_hold_the_medians_over_the_widths(clock):
    for i, width in enumerate((4, 8, 16)):
        clock[f"eager, width {width}, batch 1"] = 10.0 + i
        clock[f"hybridize, width {width}, batch 2"] = 20.0 + i
    curves = {c.name: dict(zip(c.x, c.y)) for c in over_sizes((4, 8, 16), (1, 2)).series}
    assert curves == {
        "eager, batch 1": {4.0: 10.0, 8.0: 11.0, 16.0: 12.0},
        "hybridize, batch 1": {4.0: 1.0, 8.0: 1.0, 16.0: 1.0},
        "eager, batch 2": {4.0: 1.0, 8.0: 1.0, 16.0: 1.0},
        "hybridize, batch 2": {4.0: 20.0, 8.0: 21.0, 16.0: 22.0},
    }


@pytest.mark.parametrize(("largest_s", "held"), [(2.0, True), (40.0, False)])
def test_the_first_net_is_compared_with_the_last(clock, largest_s, held):
    clock["eager, width 4, batch 1"] = 30.0
    clock["eager, width 8, batch 2"] = largest_s
    told = over_sizes((4, 8), (1, 2))
    assert told.facts == {
        "eager_over_hybridize_smallest_net": 30.0,
        "eager_over_hybridize_largest_net": largest_s,
    }
    assert [claim.held for claim in told.claims] == [held]


def test_earlier_networks_give_the_same_output_compiled(clock):
    clock["eager, LeNet, batch 2"] = 7.0
    story = begin("hybridize")
    network_size.earlier_networks(story, batch=2, seed=0)
    told = story.result()
    assert told.facts["eager_over_hybridize/LeNet"] == 7.0
    assert told.facts["eager_over_hybridize/ResNet-18"] == 1.0
    for name in ("LeNet", "ResNet-18"):
        assert told.facts[f"outputs_max_abs_diff/{name}"] <= 1e-4
    bases = [m.base for m in told.measurements]
    assert bases == ["hybridize, LeNet, batch 2"] * 2 + ["hybridize, ResNet-18, batch 2"] * 2
