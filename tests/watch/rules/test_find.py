import pytest

from jaxperf.watch.log import IMPORT, PYTHON, Compiled, Log, StackSample
from jaxperf.watch.observe.source_location import NOWHERE, Place
from jaxperf.watch.report.analysis import Analysis
from jaxperf.watch.rules import table as find
from jaxperf.watch.rules.table import Finding

AT = Place("a.py", 3)


@pytest.fixture
def found(monkeypatch):
    def report(*findings, log=None):
        monkeypatch.setattr(find, "RULES", (lambda _: iter(findings),))
        return find.find_causes(Analysis(log or Log("a", 0.0, 10.0)))

    return report


@pytest.mark.parametrize(
    ("wall_s", "imports_s", "seconds", "memory_bytes", "reported"),
    [
        (10.0, 0.0, 0.6, 0, 0.6),
        (10.0, 0.0, 0.4, 0, None),
        (10.0, 4.0, 0.4, 0, None),  # imports are part of what a user waits for
        (0.2, 0.0, 0.015, 0, None),  # too short to read a line about
        (10.0, 0.0, 0.0, find.LARGE, 0.0),
        (10.0, 4.0, 50.0, 0, 6.0),  # never more than the run without imports
    ],
)
def test_a_finding_is_worth_a_twentieth_of_the_run(wall_s, imports_s, seconds, memory_bytes, reported, found):
    log = Log("a", 0.0, wall_s, samples=[StackSample(IMPORT, NOWHERE, 0.0, imports_s)])
    finding = Finding("wait", AT, seconds, "", memory_bytes=memory_bytes)
    assert [f.seconds for f in found(finding, log=log)] == ([] if reported is None else [reported])


@pytest.mark.parametrize(("costs_s", "reported"), [(1.0, [3.0]), (4.0, [])])
def test_what_two_findings_of_one_change_cost_counts_once(costs_s, reported, places, found):
    at = places("def turn(y):\n    return y * y + 1\n")(1, "turn")
    both = [Finding(cause, at, 2.0, "", costs_s=costs_s) for cause in ("eager", "eager recompiles")]
    assert [f.seconds for f in found(*both)] == reported


def test_a_run_whose_core_others_had_is_as_long_as_it_would_be_alone():
    """Of ten seconds, others had the core for four; a compiler's threads then waited for two more."""
    samples = [StackSample(PYTHON, AT, 0.0, 8.0, delayed_s=4.0), StackSample(PYTHON, AT, 8.0, 10.0)]
    compiled = Compiled("f", AT, {"compile": (5.0, 9.0)}, used_s={"compile": 0.5})
    log = Log("a", 0.0, 10.0, samples=samples, compiled=[compiled])
    assert Analysis(log).compiling_s([compiled]) == pytest.approx(0.5)
    assert find.least_saving_s(Analysis(log)) == pytest.approx(0.05 * (10 - 4 - 2))
    log.backend = "gpu"  # whose compiler may wait for the device
    assert Analysis(log).compiling_s([compiled]) == pytest.approx(0.6 * 4)


@pytest.mark.parametrize(("line", "first"), [(2, True), (5, False)])
def test_what_is_traced_again_in_a_function_is_to_change_before_that_is_jitted(line, first, places, found):
    at = places("def turn(y):\n    k = f(y)\n    return y + 0.1 * k\n\nz = f(w)\n")
    whole = Finding("eager recompiles", at(1, "turn"), 3.0, "", "turn", form="function", besides="And more.")
    findings = found(whole, Finding("weak type", at(line, "turn" if line == 2 else ""), 2.0, "", "f"))
    more = " First change line 2: what is traced again there would make all of this be traced again."
    assert findings[0].besides == "And more." + more * first


@pytest.mark.parametrize(("line", "goes"), [(2, True), (5, False)])
def test_one_program_of_many_turns_takes_what_is_dispatched_beside_its_step(line, goes, places, found):
    at = places("for n in turns:\n    noise = scale * n\n    w = step(w, noise)\n\nw = w / w.sum()\n")
    step = Finding("dispatch", at(3), 3.0, "", "step")
    findings = found(step, Finding("eager", at(line), 2.0, "", form="part"))
    words = "What is dispatched one by one at line 2 goes into the same program."
    expected = [(words, 5.0)] if goes else [("", 3.0), ("", 2.0)]
    assert [(f.besides, f.seconds) for f in findings] == expected


def test_what_a_function_that_is_to_be_jitted_calls_and_compiles_is_no_finding_of_its_own(places, found):
    at = places("def turn(y):\n    k = f(y)\n    return y + 0.1 * k\n\ny = turn(y)\nz = f(y)\n")
    findings = found(
        Finding("eager", at(1, "turn"), 3.0, "one by one", "turn", form="function"),
        Finding("dispatch", at(2, "turn"), 1.0, "calls", "f"),
        Finding("eager recompiles", at(3, "turn"), 0.5, "compiles", "turn"),
        Finding("new body", at(2, "turn"), 0.25, "loops"),
        Finding("library function", at(2, "turn"), 0.25, "a new jit"),
        Finding("dispatch", at(6, "<module>"), 1.0, "other calls", "f"),
        Finding("wait", at(2, "turn"), 1.0, "waits"),
    )
    assert [(f.cause, f.at.line, f.seconds) for f in findings] == [
        ("eager", 1, 5.0), ("wait", 2, 1.0), ("dispatch", 6, 1.0),
    ]  # fmt: skip
    assert set(findings[0].reason.split("; ")) == {"one by one", "compiles", "calls", "loops", "a new jit"}


def test_a_line_has_one_finding_for_each_cause_the_costliest(found):
    findings = [Finding("float64", AT, seconds, "") for seconds in (1.0, 3.0, 2.0)]
    other = Finding("donation", AT, 1.0, "")
    assert found(*findings, other) == [findings[1], other]
