"""Known durations: ticks that hold whatever a call costs, counted steps, and what counts as right."""

from pathlib import Path
from types import ModuleType

import pytest
import scripts

from jaxperf.measure.other_load import other_load
from jaxperf.result import Measurement

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "known_durations.py"


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return scripts.load("known_durations", SCRIPT, monkeypatch)


class Clock:
    """Moves by 0.1 us per look, as a call of a clock does."""

    now = 100.0

    def __call__(self) -> float:
        self.now += 1e-7
        return self.now


def test_the_calls_of_a_value_last_as_many_ticks_whatever_else_happens_before_the_last(
    known: ModuleType,
) -> None:
    for pauses in ({}, dict.fromkeys(range(1000), 4e-7), {3: 1e-3, 500: 0.02}):
        clock = Clock()
        tick = known.ticking(5e-5, 1000, clock)
        tick()  # the warm-up's
        for _ in range(2):
            clock.now += 1.0  # between values, whose first call begins anew
            began = clock.now
            for i in range(1000):
                clock.now += pauses.get(i, 0.0)
                tick()
            assert clock.now - began == pytest.approx(1000 * 5e-5, abs=1e-6)


def test_counted_work_is_measured_less_the_empty_call_beside_it(
    known: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def one_value(steps: int, loops: int) -> tuple[float, float]:
        asked.append(steps)
        work = 5e-9 * steps
        return 4e-7 + work * (0.995, 1, 1.005)[len(asked) // 2 % 3], 3e-7 + work

    monkeypatch.setattr(known, "_one_value", one_value)
    monkeypatch.setattr(known, "step_s", lambda: 5e-9)
    checked = known.counted(1e-6)
    assert asked == [0, 200] * known.ROUNDS
    assert (checked.known_s, checked.empty_s) == pytest.approx((1e-6, 4e-7))
    assert checked.ratio.median == pytest.approx(1)
    assert checked.right


def test_right_is_within_a_hundredth(known: ModuleType) -> None:
    for values, right in (
        ((1.001, 1.002, 0.999) * 5, True),
        ((1.02, 1.021, 1.03) * 5, False),
        ((0.97, 0.98, 0.975) * 5, False),
        ((0.9, 1.0, 1.1) * 3, None),
        ((1.0, 1.0), None),  # too few to say
    ):
        assert known.Checked(2.0, Measurement("m", "s", tuple(2 * v for v in values))).right is right


@pytest.mark.thorough
def test_known_durations_are_measured_right(known: ModuleType) -> None:
    """Ticks are right under any load; what is counted or called back, where the machine is idle."""
    with other_load() as load:
        checked = {
            way: [way(s) for s in known.KNOWN_S if s >= known.SHORTEST_S.get(way, 0.0)] for way in known.WAYS
        }
    assert [c for c in checked[known.clocked] if c.right is False] == []
    if load.idle:
        assert [c for some in checked.values() for c in some if c.right is False] == []
