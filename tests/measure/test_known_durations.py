"""Known durations: ticks that hold whatever a call costs, counted steps, and what counts as right."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import pytest
from studies import study

from jaxperf.measure.other_load import other_load
from jaxperf.result import Measurement

known = study("known_durations")
Checked, duration_text, ticking = known.Checked, known.duration_text, known.ticking


class Clock:
    """Moves by 0.1 us per look, as a call of a clock does."""

    now = 100.0

    def __call__(self) -> float:
        self.now += 1e-7
        return self.now


def test_the_calls_of_a_value_last_as_many_ticks_whatever_else_happens_before_the_last() -> None:
    for pauses in ({}, dict.fromkeys(range(1000), 4e-7), {3: 1e-3, 500: 0.02}):
        clock = Clock()
        tick = ticking(5e-5, 1000, clock)
        tick()  # the warm-up's
        for _ in range(2):
            clock.now += 1.0  # between values, whose first call begins anew
            began = clock.now
            for i in range(1000):
                clock.now += pauses.get(i, 0.0)
                tick()
            assert clock.now - began == pytest.approx(1000 * 5e-5, abs=1e-6)


def test_a_value_of_one_call_is_one_tick_from_its_beginning() -> None:
    clock = Clock()
    tick = ticking(5e-5, 1, clock)
    for _ in range(3):
        clock.now += 1.0
        began = clock.now
        tick()
        assert clock.now - began == pytest.approx(5e-5, abs=4e-7)


def test_clocked_work_is_measured_at_once_less_what_follows_the_last_tick_of_a_value(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[dict[str, Any]] = []

    def measured(fn: object, **options: Any) -> Measurement:
        asked.append(options)
        value = 1e-5 + 2e-5 / 200
        return Measurement(options["name"], "s", (value,) * 7, note="a remark", set_aside=(value + 3e-5,))

    monkeypatch.setattr(known, "measure", measured)
    monkeypatch.setattr(known, "_value", lambda fn, loops: 2e-5 * loops)
    monkeypatch.setattr(known, "calls_per_value", lambda call_s, value_s: 200)
    checked = known.clocked(1e-5)
    (options,) = asked
    assert (options["loops"], options["warmup_calls"]) == (200, 1)  # ticks begin anew after these
    assert options["min_values"] < options["max_values"]  # or nothing could be set aside
    assert (checked.known_s, checked.empty_s) == pytest.approx((1e-5, 1e-7))
    assert checked.measured.values == pytest.approx((1e-5,) * 7)
    assert checked.measured.set_aside == pytest.approx((4e-5,))
    assert checked.measured.note == f"a remark; {known.LESS_END}"


def test_an_ending_spins_before_it_is_timed_and_then_not(monkeypatch: pytest.MonkeyPatch) -> None:
    spun: list[float] = []
    monkeypatch.setattr(known, "ticking", lambda seconds, loops: lambda: spun.append(seconds))
    end = known.ending()
    for _ in range(3):
        end()
    assert spun == [known.MIN_VALUE_S]


def test_a_step_is_found_whatever_a_reading_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known, "_cpu_s", lambda steps: 5e-9 * steps + 1e-8)
    assert known.step_s() == pytest.approx(5e-9, rel=1e-4)


def test_counted_work_is_measured_less_the_empty_call_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_core_that_changes_its_speed_is_divided_out(monkeypatch: pytest.MonkeyPatch) -> None:
    speeds = iter((5e-9, 9e-9, 3e-9, 4e-9, 6e-9, 8e-9, 7e-9) * 2)

    def one_value(steps: int, loops: int) -> tuple[float, float]:
        return (steps * next(speeds),) * 2 if steps else (0.0, 0.0)

    monkeypatch.setattr(known, "step_s", lambda: 5e-9)
    monkeypatch.setattr(known, "_one_value", one_value)
    checked = known.counted(1.0)
    assert checked.measured.values == pytest.approx((1.0,) * known.LEAST_ROUNDS)


def test_the_cpu_clock_is_read_around_the_calls_of_a_value_and_not_the_warm_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]

    def spin(steps: int) -> None:
        now[0] += steps

    monkeypatch.setattr(known, "spin", spin)
    monkeypatch.setattr(known.time, "thread_time", lambda: now[0])
    value, cpu = known._one_value(3, 7)
    assert (now[0], cpu) == (3 * 8, 3)  # a call of warm-up, then seven
    assert value > 0


def test_right_is_within_a_hundredth() -> None:
    for values, right in (
        ((1.001, 1.002, 0.999) * 5, True),
        ((1.02, 1.021, 1.03) * 5, False),
        ((0.97, 0.98, 0.975) * 5, False),
        ((0.9, 1.0, 1.1) * 3, None),
        ((1.0, 1.0), None),  # too few to say
    ):
        assert Checked(2.0, Measurement("m", "s", tuple(2 * v for v in values))).right is right


def test_the_callback_hands_back_what_it_was_given() -> None:
    program = known.waiting_program(0.0)
    assert float(program(jnp.float32(3))) == 3


def test_durations_are_said_in_their_unit() -> None:
    texts = ["1 s", "100 ms", "10 ms", "1 ms", "100 us", "10 us", "1 us"]
    assert [duration_text(10.0**-n) for n in range(7)] == texts


@pytest.mark.thorough
def test_known_durations_are_measured_right() -> None:
    """Ticks are right under any load; what is counted or called back, where the machine is idle."""
    with other_load() as load:
        checked = {
            way: [way(s) for s in known.KNOWN_S if s >= known.SHORTEST_S.get(way, 0.0)] for way in known.WAYS
        }
    assert [c for c in checked[known.clocked] if c.right is False] == []
    if load.idle:
        assert [c for some in checked.values() for c in some if c.right is False] == []
