"""Section 8.2.3's model: half of the sizes fit it, the other half judges it, and a wrong one is told."""

from __future__ import annotations

import pytest
from stories import begin

from jaxperf.chapter import dispatch_model as part
from jaxperf.measure.dispatch import Costs

T1, T2, T3 = 4e-6, 1e-10, 4e-5  # seconds; t2 for one element
SIZES = [1024 * 2**i for i in range(11)]


def swept(*, off: float = 1.0) -> dict[str, object]:
    """What a process that follows the model would have measured; held-out sizes took `off` times as long."""
    costs = Costs(t1_s=T1, t2_fixed_s=0.0, t2_per_unit_s=T2, t3_s=T3)
    rows = [
        {
            "size": n,
            "calls": part.CALLS,
            "sync_s": [costs.synchronous_s(n, part.CALLS) * (off if i % 2 else 1)] * 3,
            "async_s": [costs.asynchronous_s(n, part.CALLS) * (off if i % 2 else 1)] * 3,
        }
        for i, n in enumerate(SIZES)
    ]
    return {"jitted": rows, "eager": rows, "parts": 1, "t1_alone_s": {"jitted": T1, "eager": T1}}


@pytest.mark.parametrize(("off", "held"), [(1.0, True), (1.5, False)])
def test_held_out_sizes_judge_the_model(off: float, held: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part, "in_fresh_process", lambda *_, **__: swept(off=off))
    story = begin("8.2")
    part.the_model(story, sizes=SIZES, rounds=3)
    claim = next(c for c in story.claims if c.statement.startswith("n calls take about"))
    assert claim.held is held
    if held:
        assert story.facts["t1_s"] == pytest.approx(T1, rel=0.02)
        assert story.facts["t3_s"] == pytest.approx(T3, rel=0.02)
        assert story.facts["t2_s"] == pytest.approx(T2 * SIZES[-1], rel=0.02)
        assert story.facts["crossover_elements"] == pytest.approx(T1 / T2, rel=0.02)
    assert {s.name for s in story.series} == {
        f"{way}/{what}" for way in ("sync", "async") for what in ("measured", "predicted")
    }
