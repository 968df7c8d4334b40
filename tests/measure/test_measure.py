from functools import partial
from itertools import count, cycle, product

import pytest

from jaxperf.errors import JaxperfError
from jaxperf.measure import timing
from jaxperf.measure.timing import calls_per_value, measure, time_value

QUICK = {"warmup_calls": 3, "warmup_s": 0, "min_values": 5, "max_values": 5}


class Clock:
    """Moves by `tick` at each look and by whatever the tests say; stands for the module `time`."""

    def __init__(self, tick=0.0):
        self.now, self.tick = 0.0, tick

    def perf_counter(self):
        self.now += self.tick
        return self.now

    def program(self, costs):
        rest = iter(costs)

        def program():
            self.now += next(rest)
            return 0

        return program


def wind(clock, monkeypatch):
    monkeypatch.setattr(timing, "time", clock)
    monkeypatch.setattr(timing, "time_value", partial(time_value, clock=clock.perf_counter))
    return clock


@pytest.fixture
def clock(monkeypatch):
    return wind(Clock(), monkeypatch)


def test_a_core_that_is_taken_while_the_clock_is_timed_makes_no_value_longer(monkeypatch):
    reads = count()
    monkeypatch.setattr(timing.time, "perf_counter", lambda: 1e-7 * (n := next(reads)) + 0.03 * (n > 500))
    assert calls_per_value(1e-5, 2e-3) == 203  # of 9.9 us each


def test_every_call_is_counted_and_values_are_seconds_per_call(clock):
    waits = ("each", "end")
    for wait, loops in product(waits, (1, 4)):
        calls = count()
        m = measure(lambda calls=calls: next(calls), loops=loops, wait=wait, **QUICK)
        assert (len(m.warmup), len(m.values), m.loops) == (3, 5, loops)
        assert next(calls) == len(m.warmup) + m.loops * len(m.values)
    m = measure(clock.program([1.0] * 3 + [1.0, 2.0, 3.0] * 5), loops=3, name="p", items=10, **QUICK)
    assert m.values == (2.0,) * 5
    assert (m.name, m.unit, m.items_per_s) == ("p", "s", 5.0)


def test_warm_up_lasts_as_long_as_asked_but_no_more_than_a_hundred_calls(clock):
    for seconds, calls in ((1.0, 7), (1e-6, 100)):
        m = measure(clock.program(cycle([seconds])), **{**QUICK, "warmup_s": 7.0, "loops": 1})
        assert len(m.warmup) == calls


def test_reading_the_clock_is_under_a_thousandth_of_a_value(monkeypatch):
    for tick, cost in product((1e-8, 1e-7, 1e-5), (1e-6, 1e-5, 1e-3, 1.0)):
        clock = wind(Clock(tick), monkeypatch)
        m = measure(clock.program(cycle([cost])), min_value_s=2e-3, **QUICK)
        enough = max(2e-3, 1000 * 2 * tick)
        assert m.loops * cost >= 0.999 * enough
        assert m.loops == 1 or (m.loops - 1) * cost < 1.001 * enough  # and no more than it takes


def test_it_stops_when_the_spread_is_small_and_goes_on_while_it_is_large(clock):
    m = measure(clock.program([1.0] * 90), loops=1, min_values=7, max_values=50, budget_s=1e9)
    assert len(m.values) == 7
    costs = [1.0] * 2 + [1.0, 3.0] * 6 + [2.0] * 80  # settles only after twelve wild values
    options = {"warmup_calls": 2, "warmup_s": 0, "min_values": 5, "max_values": 80}
    m = measure(clock.program(costs), loops=1, target_rel_iqr=0.01, budget_s=1e9, **options)
    assert 24 <= len(m.values) < 80
    assert m.rel_iqr <= 0.01


def test_it_stops_when_the_budget_is_spent_within_the_bounds_of_the_number_of_values(clock):
    program = clock.program(cycle([1.0, 3.0]))
    m = measure(program, loops=1, min_values=3, max_values=500, budget_s=11.0)
    assert sum(m.values[:-1]) < 11.0 <= sum(m.values)
    for least, most, budget_s, expected in ((6, 200, 0.0, 6), (2, 9, 1e9, 9)):
        m = measure(program, loops=1, min_values=least, max_values=most, budget_s=budget_s)
        assert len(m.values) == expected


def test_options_out_of_range_are_one_line():
    calls = count()
    wrong = (
        {"min_values": 0},
        {"min_values": 5, "max_values": 4},
        {"loops": 0},
        {"loops": -1},
        {"warmup_calls": 0},
        {"wait": "last"},
        {"items": -1},
        {"warmup_s": -0.1},
        {"min_value_s": float("inf")},
        {"target_rel_iqr": -1},
        {"budget_s": float("nan")},
    )
    for options in wrong:
        with pytest.raises(JaxperfError, match=r"^measure\(f\): [^\n]+$"):
            measure(lambda: next(calls), name="f", **options)
    assert next(calls) == 0
