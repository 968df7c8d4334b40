"""One array on several devices: equal copies, and none where nothing was copied to."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from stories import begin

from jaxperf.chapter import replicas as part
from jaxperf.parallel import first_devices


@pytest.mark.usefixtures("several_devices")
def test_copies_are_read_where_they_are_and_nowhere_else() -> None:
    weight = jnp.arange(9.0).reshape(3, 3, 1, 1)
    devices = first_devices()
    copies = part.to_all({"w": weight}, devices[:-1])
    assert all((np.asarray(part.copy_on(copies["w"], d)) == weight).all() for d in devices[:-1])
    assert all(part.copy_on(copies["w"], d).devices() == {d} for d in devices[:-1])
    with pytest.raises(KeyError):
        part.copy_on(copies["w"], devices[-1])


def test_reading_where_no_copy_is_is_really_tried() -> None:
    for k, verdicts in ((2, ["holds", "holds"]), (1, ["cannot be measured here"] * 2)):
        devices = first_devices(k, platform="cpu")
        story = begin("8.5", devices=k)
        part.reading_copies(story, part.to_all(jnp.ones((3, 3, 1, 4)), devices), devices)
        assert [c.holds for c in story.result().claims] == verdicts
    assert "only one device" in story.result().claims[1].observed
