"""An error of an asynchronous computation surfaces in the call or in block; a NaN only when looked for."""

from __future__ import annotations

import pytest
from stories import begin

from jaxperf.chapter import surfacing
from jaxperf.measure import in_fresh_process


@pytest.mark.parametrize("asynchronous", [True, False])
def test_errors_surface_in_the_call_or_in_block_and_nan_only_when_looked_for(
    asynchronous: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = in_fresh_process(surfacing.errors_child, asynchronous)
    where = {title: step for title, step, _ in rows}
    assert where["callback, argument there"] in ("call", "block")
    for title in (surfacing.PENDING, surfacing.DEPENDENT):
        assert where[title] in (("call", "block") if asynchronous else ("call",))
    assert where["NaN"] == "nowhere"
    assert where["NaN, jax_debug_nans on"] == "call"

    monkeypatch.setattr(surfacing, "in_fresh_process", lambda *_: rows)  # the part works with either answer
    story = begin("8.2")
    surfacing.errors(story)
    [claim] = story.result().claims
    late = where[surfacing.PENDING] == where[surfacing.DEPENDENT] == "block"
    assert claim.holds == ("holds" if late else "does not hold")


def test_what_raises_nothing_surfaces_nowhere() -> None:
    assert surfacing.surfaces("fine", lambda: 1.0) == ("fine", "nowhere", "")
