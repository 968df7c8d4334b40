"""The book's helpers with the book's numbers: the verdict is about what they return."""

from __future__ import annotations

import jax
import pytest
from stories import begin

from jaxperf.chapter import synchronizing as part
from jaxperf.parallel import first_devices
from jaxperf.result import Output
from jaxperf.story import Story


def printed(story: Story) -> str:
    return "\n".join(output.text for output in story.result().of(Output))


@pytest.fixture
def one_bias(monkeypatch: pytest.MonkeyPatch) -> None:
    """A network in place of LeNet, whose gradient is only printed here and takes seconds."""
    monkeypatch.setattr(part, "lenet", lambda X, params: params[1])


@pytest.mark.thorough
@pytest.mark.usefixtures("several_devices")
def test_the_sum_is_on_both_devices_and_the_batch_is_split() -> None:
    for devices in {2, jax.device_count()}:
        story = begin("8.4", devices=devices)
        part.synchronizing_data(story)
        [claim] = story.result().claims
        assert claim.holds == "holds"
        assert "b1 grad" in printed(story) and "before allreduce: [[1.0, 1.0]] on" in printed(story)


@pytest.mark.usefixtures("one_bias")
def test_one_device_stands_for_both_and_proves_nothing() -> None:
    story = begin("8.4", devices=1)
    part.synchronizing_data(story)
    [claim] = story.result().claims
    assert (claim.holds, claim.observed) == (
        "cannot be measured here",
        "only one device here, which stood for both",
    )
    [device] = first_devices(1)
    assert f"after allreduce:  [[3.0, 3.0]] on {device} [[3.0, 3.0]] on {device}" in printed(story)


@pytest.mark.usefixtures("several_devices", "one_bias")
def test_a_sum_that_stays_away_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part, "allreduce", lambda data: data)
    story = begin("8.4", devices=2)
    part.synchronizing_data(story)
    assert [c.holds for c in story.result().claims] == ["does not hold"]
