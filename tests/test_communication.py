"""Bytes summed per operation: counted in the program, the same on one device and on two."""

from __future__ import annotations

import pytest
from stories import begin

from jaxperf.chapter import communication as part
from jaxperf.chapter.equality import lenet_step
from jaxperf.models.lenet import PARAM_SHAPES
from jaxperf.parallel import first_devices
from jaxperf.result import Grid

VALUES = 129_088
LARGE = part.Traffic("ResNet-18", 44_700_000, 2.7e9)


@pytest.mark.thorough
def test_lenet_sums_its_parameters_and_computes_10_million_operations_per_image() -> None:
    import math

    assert sum(map(math.prod, PARAM_SHAPES.values())) == pytest.approx(VALUES, abs=100)
    steps = (lenet_step("pmap", first_devices(k, platform="cpu")) for k in (1, 2))
    one, two = (part.traffic_of("LeNet", step, 16) for step in steps)
    parameters = 4 * sum(map(math.prod, PARAM_SHAPES.values()))
    assert one.summed_bytes == parameters
    assert two.summed_bytes == parameters + 8  # the loss and the hits travel with the gradients
    assert one.flop_per_image == pytest.approx(two.flop_per_image, rel=0.02)
    assert 9e6 < two.flop_per_image < 12e6


def test_the_network_that_computes_more_per_byte_is_found() -> None:
    small = part.Traffic("LeNet", 516_280, 13.4e6)
    for large, verdict in ((LARGE, "holds"), (part.Traffic("ResNet-18", 10**10, 2.7e9), "does not hold")):
        story = begin("8.5")
        part.compare_traffic(story, small, large, batches=(256, 512), also=(32,))
        assert [c.holds for c in story.result().claims] == [verdict]
        [grid] = story.result().of(Grid)
        assert [row[:2] for row in grid.rows] == [("LeNet", "256"), ("ResNet-18", "512"), ("ResNet-18", "32")]
    assert small.bytes_per_mflop(256) == pytest.approx(150, rel=0.02)
    assert LARGE.bytes_per_mflop(512) == pytest.approx(32, rel=0.02)
