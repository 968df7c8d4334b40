from pathlib import Path

import pytest
import scripts

from jaxperf.measure.other_load import other_load

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "known_durations.py"


@pytest.mark.thorough
def test_known_durations_are_measured_right(monkeypatch):
    known = scripts.load("known_durations", SCRIPT, monkeypatch)
    with other_load() as load:
        lasting = {
            way: [s for s in known.KNOWN_S if s >= known.SHORTEST_S.get(way, 0.0)] for way in known.WAYS
        }
        checked = {way: [way(s) for s in seconds] for way, seconds in lasting.items()}
    idle = load.others + load.stolen <= known.IDLE_CORES
    clocked = [c for c in checked[known.clocked] if idle or not c.measured.disturbed]
    assert [c for c in clocked if c.right is False] == []
    if idle:
        assert [c for some in checked.values() for c in some if c.right is False] == []
