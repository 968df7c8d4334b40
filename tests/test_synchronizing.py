"""The book's helpers with the book's numbers: the verdict is about what they return."""

from __future__ import annotations

import pytest
from stories import begin

from jaxperf.chapter import synchronizing as part
from jaxperf.result import Output


@pytest.mark.thorough
@pytest.mark.usefixtures("several_devices")
def test_the_sum_is_on_both_devices_and_the_batch_is_split() -> None:
    for devices in (1, 2, 3):
        story = begin("8.4", devices=devices)
        part.synchronizing_data(story)
        [claim] = story.result().claims
        assert claim.holds == ("holds" if devices > 1 else "cannot be measured here")
        printed = "\n".join(o.text for o in story.result().of(Output))
        assert "b1 grad" in printed and "before allreduce: [[1.0, 1.0]] on" in printed


@pytest.mark.usefixtures("several_devices")
def test_a_sum_that_stays_away_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part, "allreduce", lambda data: data)
    story = begin("8.4", devices=2)
    part.synchronizing_data(story)
    assert [c.holds for c in story.result().claims] == ["does not hold"]
