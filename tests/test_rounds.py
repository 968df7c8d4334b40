"""Interleaved rounds: each part once a round, warm-up apart, inputs made outside the clock."""

import jax
import jax.numpy as jnp
import pytest

from jaxperf.errors import JaxperfError
from jaxperf.measure.guards import RetraceError
from jaxperf.measure.record import Measurement
from jaxperf.measure.rounds import Together, above_one, interleaved, per_round, spread, together


class Clock:
    """Time that passes only when a part says so."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def test_every_part_runs_once_a_round_in_turning_order_and_the_first_round_is_warm_up():
    clock, calls = Clock(), []

    def part(name, seconds):
        def run():
            calls.append(name)
            clock.now += seconds if len(calls) > 3 else 100.0

        return run

    parts = {"a": part("a", 1.0), "b": part("b", 2.0), "c": part("c", 4.0)}
    found = interleaved(parts, count=3, clock=clock)
    assert "".join(calls) == "abcbcacababc"
    assert {n: m.values for n, m in found.items()} == {"a": (1.0,) * 3, "b": (2.0,) * 3, "c": (4.0,) * 3}
    assert all(m.warmup == (100.0,) and m.unit == "s" for m in found.values())


def test_inputs_are_made_outside_the_clock_and_handed_over():
    clock, seen = Clock(), []

    def make():
        clock.now += 50.0
        return len(seen)

    def use(value):
        clock.now += 1.0
        seen.append(value)

    found = interleaved({"use": use, "other": lambda: None}, count=2, before={"use": make}, clock=clock)
    assert found["use"].values == (1.0, 1.0)
    assert seen == [0, 1, 2]


def test_every_output_is_waited_for(monkeypatch):
    waited = []
    monkeypatch.setattr("jaxperf.measure.rounds.block", lambda tree: waited.append(tree) or tree)
    interleaved({"two": lambda: ["first", "second"]}, count=1)
    assert waited == [["first", "second"]] * 2


def test_compiling_under_the_clock_is_refused():
    sizes = iter(range(1, 10))
    step = jax.jit(lambda x: x * 2)
    with pytest.raises(RetraceError, match="grows"):
        interleaved({"grows": lambda: step(jnp.ones(next(sizes)))}, count=3)


@pytest.mark.parametrize(
    ("options", "word"), [({"count": 0}, "0 rounds"), ({"count": 1, "before": {"x": list}}, "'x'")]
)
def test_mistakes_are_refused_in_one_line(options, word):
    with pytest.raises(JaxperfError, match=word) as e:
        interleaved({"a": lambda: None}, **options)
    assert "\n" not in str(e.value)


def seconds(name, *values):
    return Measurement(name, "s", values)


def test_together_is_the_sum_at_worst_and_the_longer_at_best():
    found = Together(
        "t", seconds("a", 3.0, 3.0, 3.0), seconds("b", 2.0, 2.0, 2.0), seconds("both", 5.0, 4.0, 3.0)
    )
    assert found.total.values == (5.0,) * 3
    assert found.best.values == (3.0,) * 3
    assert found.overlap.values == (0.0, 0.5, 1.0)
    assert found.ratio.values == (1.0, 1.25, 5 / 3)
    assert set(found.possible.values) == {5 / 3}
    assert len({m.name for m in found.rows()}) == len(found.rows()) == 7


def test_together_times_three_parts_under_names_of_its_own():
    given = []
    parts = {"run": lambda: 1, "copy": given.append, "both": lambda: 2}
    found = together("here", parts, count=2, before={"copy": lambda: "made"})
    assert (found.first.name, found.second.name, found.both.name) == ("here: run", "here: copy", "here: both")
    assert given == ["made"] * 3


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ((1.2, 1.3, 1.1, 1.4), True),
        ((0.9, 0.8, 1.0, 0.7), False),
        ((0.5, 0.9, 1.1, 1.5), None),
        ((1.1,), True),
    ],
)
def test_a_ratio_is_above_one_only_where_three_quarters_say_so(values, verdict):
    assert above_one(Measurement("r", "times", values)) is verdict


def test_per_round_combines_the_values_of_one_round_and_refuses_others():
    a, b = seconds("a", 1.0, 2.0), seconds("b", 10.0, 20.0)
    assert per_round("sum", lambda x, y: x + y, a, b).values == (11.0, 22.0)
    with pytest.raises(ValueError, match="zip"):
        per_round("sum", lambda x, y: x + y, a, seconds("c", 1.0))


def test_a_spread_in_words_is_the_median_between_its_quartiles():
    assert spread(Measurement("ratio", "times", (1.0, 2.0, 3.0, 4.0, 50.0))) == "3.00 (2.00 to 4.00)"
    assert spread(Measurement("ratio", "times", (1.25,))) == "1.25 (1.25 to 1.25)"
