import re
from types import SimpleNamespace
from typing import NamedTuple

import psutil
import pytest

from jaxperf.measure import other_load as load
from jaxperf.measure.other_load import other_load


class Times(NamedTuple):
    user: float
    system: float
    idle: float
    iowait: float
    steal: float
    guest: float


def test_others_are_what_is_busy_less_ourselves(monkeypatch):
    times = iter([Times(10, 5, 100, 1, 2, 3), Times(14, 6, 190, 9, 3, 9)])  # 4 + 1 s were busy, 1 was stolen
    now, cpu_s = iter([0.0, 4.0]), iter([0.0, 2.0])
    monkeypatch.setattr(psutil, "cpu_times", lambda: next(times))
    clock = SimpleNamespace(perf_counter=lambda: next(now), process_time=lambda: next(cpu_s))
    monkeypatch.setattr(load, "time", clock)
    with other_load() as other:
        assert other.others == 0
    assert other.others == pytest.approx(0.75)  # 5 s less our 2, in 4 s
    assert other.stolen == pytest.approx(0.25)
    assert other.busy
    assert re.fullmatch(r"other programs used 0.75 of \d+ cores, and its host took 0.25", str(other))
