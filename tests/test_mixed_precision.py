"""bfloat16 computes, float32 remembers: decided by the loss and by the dtypes of what is kept."""

import pytest
from stories import begin

from jaxperf.chapter.mixed_precision import mixed_precision
from jaxperf.data import fashion_mnist


@pytest.mark.thorough
def test_the_loss_is_near_and_nothing_narrow_is_kept():
    story = begin("8.5")
    mixed_precision(story, fashion_mnist(source="mini"), seed=0)
    [claim] = story.result().claims
    assert claim.holds == "holds" and claim.observed.endswith("kept as float32")
    assert 0 < story.facts["bfloat16_loss_difference"] < 0.05  # it was computed in something else
