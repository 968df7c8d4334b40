from pathlib import Path

import pytest
import scripts

from jaxperf.measure.other_load import other_load

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "known_durations.py"


@pytest.fixture
def known(monkeypatch):
    return scripts.load("known_durations", SCRIPT, monkeypatch)


@pytest.mark.thorough
def test_known_durations_are_measured_right(known):
    """Ticks are right under any load; what is counted or called back, where the machine is idle."""
    with other_load() as load:
        checked = {
            way: [way(s) for s in known.KNOWN_S if s >= known.SHORTEST_S.get(way, 0.0)] for way in known.WAYS
        }
    assert [c for c in checked[known.clocked] if c.right is False] == []
    if load.idle:
        assert [c for some in checked.values() for c in some if c.right is False] == []
