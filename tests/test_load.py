"""What others use of the machine: all that is busy, less our own work."""

from __future__ import annotations

from types import SimpleNamespace
from typing import NamedTuple

import psutil
import pytest

from jaxperf.selfcheck import load
from jaxperf.selfcheck.load import watching


class Times(NamedTuple):
    user: float
    system: float
    idle: float
    iowait: float
    steal: float
    guest: float


def test_others_are_what_is_busy_less_ourselves(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([Times(10, 5, 100, 1, 2, 3), Times(14, 6, 190, 9, 3, 9)])  # 4 + 1 + 1 s were busy
    now, ours = iter([0.0, 4.0]), iter([0.0, 2.0])
    monkeypatch.setattr(psutil, "cpu_times", lambda: next(times))
    clock = SimpleNamespace(perf_counter=lambda: next(now), process_time=lambda: next(ours))
    monkeypatch.setattr(load, "time", clock)
    with watching() as watch:
        assert watch.others == 0
    assert watch.others == 1.0  # 6 s less our 2, in 4 s
    assert not watch.idle
    assert str(watch).startswith("other programs used 1.00 of ")


def test_it_ends_with_an_error_inside() -> None:
    with pytest.raises(ZeroDivisionError), watching() as watch:
        raise ZeroDivisionError
    assert watch.others >= 0
