import math
import random
from dataclasses import replace

import pytest
from cases import cases

from jaxperf.compare.results import IDENTICAL, ONCE, comparison_blocks, what_would_decide
from jaxperf.compare.results import compare as compare_runs
from jaxperf.errors import JaxperfError
from jaxperf.result import Environment, Heading, Measurement, Result, Table, ranks
from jaxperf.result.terminal import render_text

RESULT = Result("hybridize", "8.1", "Title", "Why?", {"size": 3}, Environment(cpu="one", cores=2))


def result(*measurements, **changes):
    return replace(RESULT, blocks=(Table("", measurements),), **changes)


def processes(run):
    """One result per value: each process has measured every row once, as the median of its own values."""

    def of_process(block, i):
        if not isinstance(block, Table):
            return block
        rows = (replace(m, values=m.values[i : i + 1]) for m in block.rows if i < len(m.values))
        return Table(block.title, tuple(rows))

    count = max(len(m.values) for table in run.of(Table) for m in table.rows)
    return [replace(run, blocks=tuple(of_process(block, i) for block in run.blocks)) for i in range(count)]


def compare(a, b, **options):
    return compare_runs(processes(a), processes(b), **options)


def render_comparison(comparison, *, width=100):
    return render_text(comparison_blocks(comparison), width=width)


def noisy(rng, n, *, median=1e-3, spread=0.03, memory=0.0):
    """Times with a stray slow value now and then; `memory` makes each resemble the one before."""
    values, state = [], rng.gauss(0, 1)
    for _ in range(n):
        state = memory * state + math.sqrt(1 - memory**2) * rng.gauss(0, 1)
        stray = rng.expovariate(2) if rng.random() < 0.05 else 0.0
        values.append(median * math.exp(spread * state) * (1 + stray))
    return tuple(values)


def timing(name, values, unit="s"):
    return Measurement(name, unit, values)


@pytest.mark.thorough
@pytest.mark.parametrize(("n", "least"), [(7, 0.0), (12, 0.0), (40, 0.02)])
def test_without_a_change_wrong_verdicts_are_as_rare_as_promised(n, least):
    """120 comparisons of 8 rows each; at 5 % six of them go wrong, and 13 or more in under 1 %."""
    rng, wrong = random.Random(n), 0
    for _ in range(120):
        a, b = (result(*(timing(f"m{i}", noisy(rng, n)) for i in range(8))) for _ in range(2))
        comparison = compare(a, b, least=least)
        wrong += any(row.verdict in ("faster", "slower") for row in comparison.rows)
    assert wrong <= 12


CHANGES = [(n, change, verdict) for n in (10, 40) for change, verdict in ((1.1, "slower"), (0.91, "faster"))]


@pytest.mark.parametrize(("n", "change", "verdict"), cases(CHANGES, lambda n, *_: n == 10))
def test_a_change_of_ten_percent_is_found_among_other_rows(n, change, verdict):
    rng, hits = random.Random(3), 0
    for _ in range(10):
        same = [timing(f"m{i}", noisy(rng, n, spread=0.015)) for i in range(9)]
        again = [timing(f"m{i}", noisy(rng, n, spread=0.015)) for i in range(9)]
        a = result(timing("changed", noisy(rng, n, spread=0.015)), *same)
        b = result(timing("changed", noisy(rng, n, spread=0.015, median=change * 1e-3)), *again)
        comparison = compare(a, b)
        hits += comparison.rows[0].verdict == verdict
        assert comparison.status == (verdict == "slower" and comparison.rows[0].verdict == "slower")
        assert abs(comparison.rows[0].ratio / change - 1) < 0.05
    assert hits >= 8


def test_the_interval_holds_the_true_ratio_as_often_as_it_says():
    rng, inside = random.Random(5), 0
    for _ in range(200):
        low, high = ranks.interval(noisy(rng, 9), noisy(rng, 9, median=1.3e-3), alpha=0.05)
        assert low <= high
        inside += low <= 1.3 <= high
    assert inside >= 182  # 190 expected; fewer than 182 in under 1 %


def test_a_change_below_the_minimum_does_not_count_and_one_above_does():
    a = result(timing("x", tuple(1 + i * 1e-6 for i in range(20))))
    b = result(timing("x", tuple(1.04 + i * 1e-6 for i in range(20))))
    assert compare(a, b, least=0.05).rows[0].verdict == "same"
    assert compare(a, b, least=0.05).status == 0
    assert compare(a, b, least=0.02).rows[0].verdict == "slower"
    assert compare(a, b, least=0.02).status == 1


def test_more_per_second_is_faster_and_other_units_only_change():
    few, many = tuple(100.0 + i for i in range(20)), tuple(200.0 + i for i in range(20))
    for unit, verdict in (("s", "slower"), ("images/s", "faster"), ("bytes", "changed")):
        comparison = compare(result(timing("x", few, unit)), result(timing("x", many, unit)))
        assert (comparison.rows[0].verdict, comparison.status) == (verdict, int(verdict == "slower"))


def test_too_few_values_are_undecided_and_cost_the_other_rows_nothing():
    slow, quick = tuple(2 + i / 1e4 for i in range(7)), tuple(1 + i / 1e4 for i in range(7))
    lone, others = ([timing(f"single {i}", (v,)) for i in range(200)] for v in (1.0, 1.001))
    comparison = compare(result(timing("x", quick), *lone), result(timing("x", slow), *others))
    assert comparison.rows[0].verdict == "slower"
    assert {row.verdict for row in comparison.rows[1:]} == {"undecided"}
    assert "too few runs: 1 and 1" in comparison.rows[1].remark


def test_what_has_no_ratio_or_stands_alone_is_named():
    x, zero = timing("x", (1.0,)), timing("zero", (0.0, -1.0))
    a = result(x, timing("unit", (1.0,), "s"), zero, timing("old", (1.0,)))
    b = result(x, timing("unit", (1.0,), "bytes"), timing("zero", (0.0, 1.0)), timing("new", (1.0,)))
    comparison = compare(a, b)
    remarks = {row.key.name: row.remark for row in comparison.rows}
    assert remarks["unit"] == "units differ: s and bytes"
    assert "no ratio" in remarks["zero"]
    assert (comparison.only_a, comparison.only_b) == (("hybridize: old",), ("hybridize: new",))
    assert comparison.status == 0
    text = render_comparison(comparison)
    assert "only in A: hybridize: old" in text
    assert "only in B: hybridize: new" in text
    assert "units differ: s and bytes" in text.replace("\n", " ") or "units differ" in text


def test_values_that_no_float_holds_the_ratios_of_are_named_and_the_other_rows_judged():
    """Found by fuzzing: NumPy warned of an overflow, and made objects of integers of 2^64 and more."""
    for odd in (1.7e308, 5e-324, 1e300, 2.0**64):
        a, b = (timing("odd", (v, 1.0, v, v, 1.0, v)) for v in (odd, odd / 4 or odd))
        comparison = compare(result(a, timing("x", (1.0,) * 6)), result(b, timing("x", (1.0,) * 6)))
        assert [row.verdict for row in comparison.rows][1] == "same"
        assert (comparison.rows[0].remark == "values beyond 1e+75 have no ratio") is (odd != 2.0**64)


def test_differing_circumstances_are_named_in_the_output():
    other = Environment(cpu="two", cores=2, versions={"jax": "0.12"}, flags={"OMP_NUM_THREADS": "1"})
    a = result(timing("x", (1.0,)))
    b = result(timing("x", (1.0,)), environment=other, config={"size": 4, "seed": 1})
    text = render_comparison(compare(a, b))
    for line in (
        "config size: 3 and 4",
        "config seed: unset and 1",
        "cpu: one and two",
        "versions jax: unset and 0.12",
        "flags OMP_NUM_THREADS: unset and 1",
    ):
        assert f"differs: {line}" in text
    assert "differs" not in render_comparison(compare(a, a))


def test_rows_are_matched_within_their_table_or_part_and_else_by_their_order():
    def run(*titles):
        seconds = {"copy": 1.0, "sum": 2.0}
        return replace(RESULT, blocks=tuple(Table(t, (timing("x", (seconds[t],) * 9),)) for t in titles))

    rows = compare(run("copy", "sum"), run("sum", "copy")).rows
    assert [(row.key.title, row.key.name, row.ratio) for row in rows] == [("copy", "x", 1), ("sum", "x", 1)]
    x = (timing("x", (1.0,) * 9),)
    parts = replace(RESULT, blocks=(Heading("One"), Table("", x), Heading("Two"), Table("", x), Table("", x)))
    titles = [(row.key.title, row.key.name) for row in compare(parts, parts).rows]
    assert titles == [("One", "x"), ("Two", "x"), ("Two", "x (2)")]


def test_several_experiments_are_compared_each_with_its_own_and_judged_together():
    quick, slow = (tuple(s + i * 1e-6 for i in range(8)) for s in (1.0, 2.0))
    other = replace(result(timing("x", slow)), experiment="other")
    alone = replace(result(timing("a", quick), timing("b", quick)), experiment="alone")
    alike = processes(other)
    before, after = (processes(result(timing("x", values))) for values in (quick, slow))
    comparison = compare_runs([*before, *alike, *processes(alone)], [*alike, *after])
    verdicts = [(row.key.experiment, row.verdict) for row in comparison.rows]
    assert verdicts == [("hybridize", "slower"), ("other", "same")]
    assert (comparison.only_a, comparison.only_b, comparison.status) == (("alone",), (), 1)
    single = compare(result(timing("x", quick)), result(timing("x", slow)))
    assert comparison.rows[0].p == pytest.approx(2 * single.rows[0].p)  # Holm over both


def test_mistakes_are_one_line():
    x = result(timing("x", (1.0,)))
    other_unit = result(timing("x", (1.0,), "bytes"))
    mistakes = [
        ([RESULT], [RESULT], {}, "no measurement is in both: A has none"),
        ([x], [replace(x, experiment="other")], {}, "A has 'hybridize: x', B has 'other: x'"),
        ([], [RESULT], {}, "no result to compare on one side"),
        ([x, other_unit], [x], {}, "results of hybridize on one side have different units"),
    ]
    for a, b, options, message in mistakes:
        with pytest.raises(JaxperfError, match=message) as caught:
            compare_runs(a, b, **options)
        assert "\n" not in str(caught.value)


def test_one_process_per_side_decides_nothing_however_far_they_lie_apart():
    """Of each, the median is compared, whatever its values are."""
    quick, slow = (result(timing("x", tuple(s + i * 1e-6 for i in range(50)))) for s in (1.0, 400.0))
    comparison = compare_runs([quick], [slow])
    [row] = comparison.rows
    assert (row.verdict, row.remark, comparison.status) == ("undecided", "too few runs: 1 and 1", 0)
    assert row.ratio == pytest.approx(400, rel=1e-3) and math.isnan(row.low)
    assert "What would decide: 4 results per side instead of 1 and 1" in render_comparison(comparison)
    assert compare_runs([quick] * 4, [slow] * 4).status == 1


def test_processes_that_others_disturbed_decide_nothing():
    slow, quick = (1.0,) * 12, (0.5,) * 12
    busy = [result(replace(timing("m", quick), disturbed=n)) for n in (6, 6, 0, 0)]  # half of their values
    row = compare_runs([result(timing("m", slow))] * 4, busy).rows[0]
    assert row.verdict == "undecided"
    assert row.remark == "too noisy: other programs had the core in 2 of 4 processes"
    assert compare_runs([result(timing("m", slow))] * 4, busy[1:]).rows[0].verdict == "undecided"  # 4 and 3
    assert compare_runs([result(timing("m", slow))] * 5, [*busy[1:], *busy[2:]]).rows[0].verdict == "faster"


def test_what_each_process_measures_once_counts_only_if_both_sides_took_turns():
    """The values are compile times of unchanged code, on a machine with five times the load of its cores."""
    values = ((132, 120, 152, 137, 139), (214, 200, 192, 176, 223))

    def side(name, number, starts, often=1):
        rows = [timing(name, (v / 1e3,) * often) for v in values[number]]
        return [replace(result(m), started_at=f"2026-11-27T00:{s:02}") for m, s in zip(rows, starts)]

    after = compare_runs(side("compile", 0, range(5)), side("compile", 1, range(5, 10))).rows[0]
    assert (after.verdict, after.remark) == ("undecided", ONCE)
    in_turns = compare_runs(side("compile", 0, range(0, 10, 2)), side("compile", 1, range(1, 10, 2)))
    assert in_turns.rows[0].verdict == "slower"
    often = compare_runs(side("step", 0, range(5), often=4), side("step", 1, range(5, 10), often=4))
    assert often.rows[0].verdict == "slower"


def test_a_result_compared_with_itself_is_the_same_in_every_row():
    rows = [timing("once", (1.0,)), timing("few", (1.0, 3.0)), timing("noisy", (1.0, 9.0) * 9)]
    for least in (0.0, 0.02):
        comparison = compare(result(*rows), result(*rows), least=least)
        assert {(row.verdict, row.remark, row.ratio) for row in comparison.rows} == {("same", IDENTICAL, 1.0)}
        assert list(what_would_decide(comparison)) == []


def test_undecided_rows_are_counted_by_reason_and_the_number_of_results_that_decides_is_named():
    rng = random.Random(3)
    names = [f"m{i}" for i in range(20)]

    def side(count):
        return [result(*(timing(n, (rng.uniform(1, 2),)) for n in names)) for _ in range(count)]

    lines = list(what_would_decide(compare_runs(side(1), side(1))))
    assert lines[0] == "undecided, too few runs: 20 of 20"
    enough = int(lines[1].split(" results per side")[0].rpartition(" ")[2])
    assert ranks.smallest_p(enough, enough) <= 0.05 / 20 < ranks.smallest_p(enough - 1, enough - 1)
    slower = [result(*(timing(n, (rng.uniform(5, 9),)) for n in names)) for _ in range(enough)]
    assert {row.verdict for row in compare_runs(side(enough), slower).rows} == {"slower"}
    assert "does nothing else" in list(what_would_decide(compare_runs(side(40), side(40))))[-1]
