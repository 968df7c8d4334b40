"""An error of an asynchronous computation surfaces in the call or in block; a NaN only when looked for."""

from __future__ import annotations

from jaxperf.chapter import surfacing
from jaxperf.measure import in_fresh_process


def test_errors_surface_in_the_call_or_in_block_and_nan_only_when_looked_for() -> None:
    where = {title: step for title, step, _ in in_fresh_process(surfacing.errors_child)}
    assert where["callback, argument there"] in ("call", "block")
    assert where["callback, argument pending"] in ("call", "block")
    assert where["work that depends on it"] in ("call", "block")
    assert where["NaN"] == "nowhere"
    assert where["NaN, jax_debug_nans on"] == "call"


def test_what_raises_nothing_surfaces_nowhere() -> None:
    assert surfacing.surfaces("fine", lambda: 1.0) == ("fine", "nowhere", "")
