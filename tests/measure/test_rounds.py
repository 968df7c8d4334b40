import math
import random

import jax
import jax.numpy as jnp
import pytest

from jaxperf.errors import JaxperfError
from jaxperf.measure.compile_log import RetraceError
from jaxperf.measure.rounds import PRECISE, TRIED_CALLS, interleaved, rounds_to_add
from jaxperf.result import ratio, ratio_of


class Clock:
    """Time that passes only when a part says so."""

    now = 0.0

    def __call__(self):
        return self.now


def test_every_part_takes_one_turn_per_round_and_what_comes_first_is_warm_up():
    clock, calls = Clock(), []

    def part(name, seconds):
        def run():
            calls.append(name)
            clock.now += seconds if calls.count(name) > 1 else 100.0

        return run

    parts = {"a": part("a", 1.0), "b": part("b", 2.0), "c": part("c", 4.0)}
    measurements = interleaved(parts, count=3, clock=clock)
    rounds = ["".join(calls)[i : i + 3] for i in range(6, 15, 3)]
    assert calls[:6] == list("aabbcc")
    assert [sorted(order) for order in rounds] == [list("abc")] * 3
    assert [measurements[name].values for name in "abc"] == [(1.0,) * 3, (2.0,) * 3, (4.0,) * 3]
    assert all(m.warmup == (100.0,) and m.unit == "s" and m.loops == 1 for m in measurements.values())
    assert len({m.rounds for m in measurements.values()}) == 1


def test_rounds_go_on_until_ratios_are_known_or_the_budget_is_spent():
    clock, draw = Clock(), random.Random(0)

    def part(noise):
        def run():
            clock.now += draw.lognormvariate(0, noise)

        return run

    steady, noisy = ({"a": part(noise), "b": part(noise)} for noise in (0.001, 0.1))
    options = {"count": 8, "loops": 1, "seed": 0, "clock": clock}
    assert len(interleaved(steady, budget_s=1e6, **options)["a"].values) == 8
    assert len(interleaved(noisy, **options)["a"].values) == 8
    many = interleaved(noisy, budget_s=1e6, **options)
    measured_ratio = ratio(many["b"], many["a"])
    assert 100 < measured_ratio.rounds < 2000
    assert measured_ratio.high - measured_ratio.low <= 3 * PRECISE * measured_ratio.median
    began = clock.now
    few = len(interleaved(noisy, budget_s=60.0, **options)["a"].values)
    assert 8 < few < 50
    assert clock.now - began < 2 * 60
    alone = {"a": part(0.1)}
    assert len(interleaved(alone, budget_s=1e6, **options)["a"].values) > 50
    assert interleaved({}, budget_s=1.0, **options) == {}
    for budget_s in (-1.0, math.nan, math.inf):
        with pytest.raises(JaxperfError, match=f"a budget of {budget_s} s is none"):
            interleaved(steady, budget_s=budget_s, **options)


PAIRS = 150


@pytest.mark.parametrize("noise", [0.05, pytest.param(0.1, marks=pytest.mark.thorough)])
def test_rounds_that_stop_call_equal_programs_different_as_rarely_as_promised_and_find_5_percent(noise):
    draw, differences = random.Random(1), {1.0: 0, 1.05: 0}
    for factor in differences:
        for _ in range(PAIRS):
            first, other, more = [], [], 15
            while more and len(first) < 1000:
                first += [draw.lognormvariate(0, noise) for _ in range(more)]
                other += [factor * draw.lognormvariate(0, noise) for _ in range(more)]
                more = rounds_to_add(first, other)
            differences[factor] += ratio_of([b / a for a, b in zip(first, other)]).word != "undecided"
    # 5 % promised at most; the margin of 1 % in a verdict leaves 0 to 0.5 %
    assert differences[1.0] / PAIRS < 0.02
    assert differences[1.05] / PAIRS > 0.93


def test_a_value_lasts_two_milliseconds_at_least():
    clock, calls = Clock(), {"short": 0, "long": 0}

    def part(name, seconds):
        def run():
            calls[name] += 1
            clock.now += seconds

        return run

    parts = {"short": part("short", 1e-4), "long": part("long", 1.0)}
    measurements = interleaved(parts, count=2, items=8, clock=clock)
    loops = measurements["short"].loops
    assert loops >= 20
    assert measurements["long"].loops == 1
    assert calls == {"short": 1 + TRIED_CALLS + 2 * loops, "long": 2 + 2}
    assert measurements["short"].values == pytest.approx((1e-4, 1e-4))
    assert measurements["short"].items_per_s == pytest.approx(8e4)
    assert interleaved(parts, count=1, loops=3, clock=clock)["short"].loops == 3


def test_calls_that_were_held_up_do_not_choose_how_many_make_a_value():
    clock = Clock()
    costs = iter([5.0, 0.02, 0.02, 1e-4, 0.02])  # the first compiles; then a busy machine

    def part():
        clock.now += next(costs, 1e-4)

    assert interleaved({"short": part}, count=1, clock=clock)["short"].loops >= 20


def test_inputs_are_made_outside_the_clock_and_handed_over():
    clock, seen = Clock(), []

    def make():
        clock.now += 50.0
        return len(seen)

    def use(value):
        clock.now += 1.0
        seen.append(value)

    parts = {"use": use, "other": lambda: None}
    measurements = interleaved(parts, count=2, before={"use": make}, clock=clock)
    assert measurements["use"].values == (1.0, 1.0)
    # An input may be one that can be used once only.
    assert (seen, measurements["use"].loops) == ([0, 1, 2], 1)


def test_interleaved_refuses_what_compiles_inside_the_clock():
    sizes = iter(range(1, 10))
    step = jax.jit(lambda x: x * 2)
    with pytest.raises(RetraceError, match="grows"):
        interleaved({"grows": lambda: step(jnp.ones(next(sizes)))}, count=3, loops=1)


def test_mistakes_are_refused_in_one_line():
    for options, word in (({"count": 0}, "0 rounds"), ({"count": 1, "before": {"x": list}}, "'x'")):
        with pytest.raises(JaxperfError, match=word) as e:
            interleaved({"a": lambda: None}, **options)
        assert "\n" not in str(e.value)
