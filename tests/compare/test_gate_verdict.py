import random
from collections import Counter
from dataclasses import replace

import jax.numpy as jnp
import pytest
from cases import cases

from jaxperf.compare.gate_verdict import headline, judge, summary_blocks
from jaxperf.errors import JaxperfError
from jaxperf.measure.stages import build_program
from jaxperf.result import Environment, Measurement, Result, Table
from jaxperf.result.terminal import render_text

RESULT = Result("measure", "", "Title", "Why?", {}, Environment(cpu="one", cores=2, backend="cpu"))


def processes(rng, *, count=7, median=1e-3, spread=0.005, unit="s"):
    results = []
    for _ in range(count):
        level = median * rng.lognormvariate(0, spread)
        values = tuple(level * rng.lognormvariate(0, spread / 3) for _ in range(15))
        once = Table("Once", (Measurement("step: compile", "s", (rng.uniform(0.5, 2.0),)),))
        results.append(replace(RESULT, blocks=(once, Table("Times", (Measurement("step", unit, values),)))))
    return results


def decided(judgement):
    return [row.verdict for row in judgement.judged]


def shown(judgement):
    return render_text(summary_blocks(judgement, machine="one"), width=1000)


def test_a_function_with_twice_the_work_is_slower():
    """Twice by count: its recorded times are the FLOPs that its program has, at one rate."""
    w = x = jnp.ones((16, 16))
    few, many = (build_program(f, w, x).program.flops for f in (lambda w, x: x @ w, lambda w, x: x @ w @ w))
    assert many == pytest.approx(2 * few, rel=1e-3)
    rng, rate = random.Random(0), 1e9
    sides = [processes(rng, median=flops / rate, spread=0.1) for flops in (few, many)]
    judgement = judge(*sides)
    assert (decided(judgement), judgement.status) == (["slower"], 1)
    assert headline(judgement) == "Slower: step" and "slower" in shown(judgement)
    assert judge(*reversed(sides)).status == 0


def test_equal_programs_on_a_quiet_machine_are_not_slower():
    rng = random.Random(1)
    judgement = judge(processes(rng), processes(rng))
    assert (decided(judgement), judgement.status) == (["not slower"], 0)
    assert judgement.judged[0].high <= 1 + judgement.size
    # what is taken once beside what is taken often is shown, and not judged
    assert [row.key.name for row in judgement.not_judged] == ["step: compile"]
    assert "Shown, not judged" in shown(judgement)


def test_a_machine_that_could_hide_the_slowdown_is_called_too_noisy():
    rng = random.Random(2)
    judgement = judge(processes(rng, spread=0.2), processes(rng, spread=0.2))
    assert (decided(judgement), judgement.status) == (["undecided"], 3)
    [row] = judgement.judged
    assert row.low <= 1 + judgement.comparison.least and row.high > 1 + judgement.size
    assert "this machine is too noisy to decide on 1 of 1 measurements" in headline(judgement)
    assert "too noisy: it may take up to" in shown(judgement)
    assert judge(processes(rng, spread=0.2), processes(rng, spread=0.2), size=3.0).status == 0


def test_what_is_known_to_be_faster_is_not_slower_however_wide_the_interval():
    rng = random.Random(3)
    judgement = judge(processes(rng, median=2e-3, spread=0.2), processes(rng, spread=0.2))
    assert (decided(judgement), judgement.judged[0].remark, judgement.status) == (["not slower"], "faster", 0)


@pytest.mark.parametrize(("repeats",), cases([(25,), (400,)], lambda repeats: repeats == 25))
def test_wrong_verdicts_are_as_rare_as_stated(repeats):
    """Of equal programs few are called slower; of those slower by the size asked for, few are let pass."""
    rng = random.Random(4)
    wrong = Counter()
    for _ in range(repeats):
        spread = rng.choice((0.01, 0.04, 0.1))
        base = processes(rng, spread=spread)
        wrong["slower"] += judge(base, processes(rng, spread=spread)).status == 1
        wrong["passed"] += judge(base, processes(rng, spread=spread, median=1.1e-3)).status == 0
    assert wrong["slower"] <= 0.05 * repeats and wrong["passed"] <= 0.05 * repeats


def test_too_few_processes_decide_nothing():
    rng = random.Random(5)
    judgement = judge(processes(rng, count=2), processes(rng, count=2))
    assert (decided(judgement), judgement.status) == (["undecided"], 3)
    assert "too little is known" in headline(judgement) and "too few runs: 2 and 2" in shown(judgement)


def test_of_a_rate_less_is_slower():
    rng = random.Random(7)
    fast, slow = (processes(rng, median=m, unit="images/s") for m in (100.0, 50.0))
    assert (judge(fast, slow).status, judge(slow, fast).status, judge(fast, fast).status) == (1, 0, 0)


def test_a_measurement_that_went_missing_is_not_passed_over():
    rng = random.Random(8)
    run = processes(rng)
    extra = Table("Times", (Measurement("eval", "s", (1.0, 1.1)),))
    base = [replace(r, blocks=(*r.blocks, extra)) for r in run]
    judgement = judge(base, run)
    assert judgement.comparison.only_a == ("measure: Times: eval",) and judgement.status == 3
    assert "only the baseline has" in shown(judgement)
    assert judge(run, base).status == 0  # a new one is no trouble


def test_results_without_times_are_refused_in_one_line():
    sizes = [replace(RESULT, blocks=(Table("", (Measurement("x", "bytes", (1.0, 2.0)),)),))] * 4
    with pytest.raises(JaxperfError, match=r"^nothing measured is a time or a rate[^\n]*$"):
        judge(sizes, sizes)
