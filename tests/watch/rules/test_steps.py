import pytest

from jaxperf.watch.log import (
    DISPATCH,
    EAGER,
    PYTHON,
    Compiled,
    DeviceActivity,
    ExecutedProgram,
    Log,
    StackSample,
    Wait,
)
from jaxperf.watch.observe.source_location import Place
from jaxperf.watch.observe.transfers import Put
from jaxperf.watch.report.analysis import Analysis
from jaxperf.watch.rules import eager, idle
from jaxperf.watch.rules.idle import find_python_work, find_repeated_puts, find_slow_dispatch, find_small_puts
from jaxperf.watch.rules.table import Finding, advice_for

AT, OTHER = Place("a.py", 8, "main"), Place("a.py", 9, "main")


def calls(kind, call, *, busy, took_s, **known):
    """Return what a watch saw of a hundred calls in 10 s; the device computes while `busy`."""
    activity = DeviceActivity(windows=[(0.0, 10.0)])
    program = activity.program(call.name)
    program.calls, program.devices["cpu:0"] = 100, busy
    for name, value in known.items():
        setattr(program, name, value)
    samples = [StackSample(kind, call.at, i / 10, i / 10 + took_s) for i in range(100)]
    return Analysis(Log("a", -1.0, 10.0, compiled=[call], samples=samples, activity=activity))


def compiled(name="step", at=AT, **known):
    return Compiled(name, at, {"compile": (-1.0, 0.0)}, explained=True, **known)


def record(*again):
    """Ten turns of 1 s: 0.1 s in `asarray`, 0.4 s more for its copy on the device, then 0.2 s of a step."""
    made = [Put(AT, i, i + 0.1, 1 << 24, again=a) for i, a in enumerate(again)]
    activity = DeviceActivity(windows=[(0.0, 10.0)])
    for name, copies, begin, end in (("stage", 10, 0.1, 0.5), ("step", 0, 0.5, 0.7), ("add", 0, 0.7, 0.8)):
        program = activity.program(name)
        program.calls, program.copies = 10, copies
        program.devices["cpu:0"] = [(i + begin, i + end) for i in range(10)]
    others = [Compiled(name, AT, {"compile": (-1.0, 0.0)}) for name in ("stage", "add")]
    return Log("a", -1.0, 10.0, compiled=[compiled(at=OTHER), *others], activity=activity, puts=made)


def test_an_array_put_again_costs_its_call_and_its_copy_on_the_device_but_no_other_program():
    (finding,) = find_repeated_puts(Analysis(record(False, *[True] * 9)))
    assert (finding.at, finding.seconds) == (AT, pytest.approx(9 * 0.1 + 10 * 0.4))
    # where most arrays are new, only the calls for the others are lost
    (finding,) = find_repeated_puts(Analysis(record(*[False] * 8, True, True)))
    assert finding.seconds == pytest.approx(2 * 0.1)
    assert not list(find_repeated_puts(Analysis(record(*[False] * 10))))


@pytest.mark.parametrize(
    ("through", "device_s", "dispatch_s", "findings"),
    [
        ("flax", 0.02, 0.01, [("module dispatch", 7.2)]),
        ("flax", 0.09, 0.01, [("module dispatch", 0.9)]),  # other programs delayed the device, too
        ("jax", 0.02, 0.01, []),  # the device takes longer
        ("flax", 0.02, 0.06, [("dispatch", 8.0)]),  # most of the call is JAX's own
    ],
)
def test_what_nnx_jit_does_in_python_is_what_binding_its_modules_saves(
    through, device_s, dispatch_s, findings
):
    signature = {"argument 0.w": "float32[2]", "argument 1.step": "int32[]", "argument 2": "float32[2]"}
    call = compiled(through=through, signature=signature)
    busy = [(i / 10, i / 10 + device_s) for i in range(100)]
    analysis = calls(DISPATCH, call, busy=busy, took_s=0.1, dispatch_s=[dispatch_s] * 100)
    reported = list(find_slow_dispatch(analysis))
    assert [(f.cause, pytest.approx(f.seconds)) for f in reported] == findings
    assert {f.argument for f in reported} <= {"argument 0, argument 1", ""}


def test_a_transformation_of_a_jitted_function_is_what_its_line_does_outside_jit(places):
    at = places("for row in rows:\n    d = jax.jacrev(model)(w, jnp.array(row))\n")(2, "")
    busy = [(i / 10, i / 10 + 0.001) for i in range(100)]
    analysis = calls(EAGER, compiled("model", at), busy=busy, took_s=0.09, dispatch_s=[0.01] * 100)
    assert not [*find_slow_dispatch(analysis)]
    (finding,) = eager.find_eager_operations(analysis)
    assert (finding.cause, finding.form) == ("eager", "transform")
    assert finding.seconds == pytest.approx(100 * 0.089, rel=0.1)


def test_an_execution_that_another_program_interrupted_does_not_hide_slow_dispatch():
    busy = [(0.0, 0.5), *((i / 10, i / 10 + 1e-4) for i in range(6, 100))]
    seconds = {"dispatch_s": [0.05] * 100, "run_s": [0.5, *[1e-4] * 99], "whole": 100}
    (finding,) = find_slow_dispatch(calls(DISPATCH, compiled(), busy=busy, took_s=0.1, **seconds))
    assert finding.cause == "dispatch" and "the device 100 us" in finding.reason


@pytest.mark.parametrize(("quick", "alone", "count"), [(10, 1.0, 1), (40, 1.0, 0), (10, 0.7, 0), (0, 0.7, 1)])
def test_calls_that_other_programs_delay_say_nothing_of_dispatch(quick, alone, count):
    """Of a hundred calls of a function that takes the device 20 ms, a part takes 1 ms and the rest 60 ms."""
    busy = [(i / 10, i / 10 + 0.02) for i in range(100)]
    dispatch_s = [0.001] * quick + [0.06] * (100 - quick)
    analysis = calls(DISPATCH, compiled(), busy=busy, took_s=0.1, dispatch_s=dispatch_s)
    analysis.alone = alone
    assert len(list(find_slow_dispatch(analysis))) == count


@pytest.mark.parametrize(
    ("begins", "lasts", "others_s", "seconds"),
    [
        (0.05, 0.04, 0.0, [4.0 + 2.0]),
        (0.05, 0.04, 3.0, [4.0 + 2.0 / 4]),  # others have three quarters of the cores, and delay each begin
        (0.0, 0.1, 0.0, []),  # the front end is ahead of the device
    ],
)
def test_a_short_step_begins_late_after_each_call_though_it_takes_longer_than_the_call(
    monkeypatch, begins, lasts, others_s, seconds
):
    """Of turns of 0.1 s, a call takes 0.03 s, and its execution begins 0.02 s later."""
    monkeypatch.setattr(idle, "SHORT_TURN_S", 1.0)
    busy = [(i / 10 + begins, i / 10 + begins + lasts) for i in range(100)]
    analysis = calls(DISPATCH, compiled(), busy=busy, took_s=0.1, dispatch_s=[0.03] * 100)
    analysis.log.activity.queued += [(i / 10 + 0.03, i / 10 + 0.05) for i in range(100)]
    analysis.log.closed_s, analysis.log.others_s = 1.0, others_s
    assert [f.seconds for f in idle.find_slow_dispatch(analysis)] == pytest.approx(seconds)


@pytest.mark.parametrize(("each", "count"), [(40, 1), (1, 0)])
def test_many_small_puts_per_step_are_one_finding(each, count):
    times = [1 + i / 100 / each for i in range(100 * each)]
    samples = [StackSample(EAGER, AT, 1 + i / 100, 1.01 + i / 100) for i in range(100)]
    program = ExecutedProgram("step", 100, [1e-4] * 100)
    program.devices["cpu 0"] = [(1.0, 1.1), (1.9, 2.0)]
    seen = {"samples": samples, "activity": DeviceActivity([(1.0, 2.0)], {"step": program})}
    record = Log("a", 0, 2, compiled=[compiled(at=OTHER)], small_puts={AT: times}, **seen)
    analysis = Analysis(record)
    findings = list(find_small_puts(analysis))
    assert [f.at for f in findings] == [AT] * count
    assert all(0 < f.seconds < 0.5 * analysis.idle_at(EAGER)[AT] for f in findings)  # one put takes long, too


@pytest.mark.parametrize(("call_s", "count"), [(0.05, 1), (0.01, 0)])
def test_a_call_that_is_a_small_part_of_its_turn_is_not_what_to_change(call_s, count):
    """A turn takes 100 ms, and the device 1 ms: Python does the rest."""
    busy = [(i / 10, i / 10 + 1e-3) for i in range(100)]
    seconds = {"dispatch_s": [call_s] * 100, "turns_s": [0.1] * 99}
    analysis = calls(DISPATCH, compiled(), busy=busy, took_s=call_s, **seconds)
    assert len(list(find_slow_dispatch(analysis))) == count


def test_a_call_that_a_while_tests_becomes_its_condition(places):
    at = places("while error(t) > limit(\n    t\n):\n    t = halve(t)\n")
    words = [advice_for(Finding("dispatch", at(line), 1.0, "", "f")).change for line in (1, 2, 4)]
    assert ["while_loop" in change for change in words] == [True, True, False]


@pytest.mark.parametrize(("times", "seconds"), [(100, [1.9]), (3, [])])
def test_what_a_line_calls_in_each_turn_besides_its_function_is_dispatch_too(times, seconds):
    """A turn takes 100 ms, of which a call takes 15 ms, and the copy of its argument 4 ms."""
    busy, turns = [(i / 10, i / 10 + 1e-3) for i in range(100)], {"turns_s": [0.07] * 99}
    analysis = calls(DISPATCH, compiled(), busy=busy, took_s=0.05, dispatch_s=[0.015] * 100, **turns)
    copies = analysis.log.activity.programs["stage"] = ExecutedProgram("stage", times, [0.004] * times, times)
    copies.devices["cpu:0"] = [(0.0, 0.0)]
    analysis.log.compiled.append(Compiled("stage", AT, {"compile": (-1.0, 0.0)}))
    assert [f.seconds for f in find_slow_dispatch(analysis)] == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("slices", "elsewhere_s", "seconds"), [(200, 0.0, [9.0]), (200, 0.9, []), (50, 0.0, [])]
)
def test_what_a_line_runs_outside_of_jit_in_each_turn_goes_into_the_same_program(
    slices, elsewhere_s, seconds, places
):
    """A call takes 4 of 100 ms in each turn, and slices of its arguments most of the rest."""
    at = places("for i in range(100):\n    w = step(w, x[i], y[i])\n    show(i)\n")
    line, busy = at(2), [(i / 10, i / 10 + 5e-3) for i in range(100)]
    turns = {"dispatch_s": [0.004] * 100, "turns_s": [0.1] * 99}
    analysis = calls(DISPATCH, compiled(at=line), busy=busy, took_s=0.095, **turns)
    log = analysis.log
    log.samples = [s._replace(start=s.start + 0.005, end=s.end - elsewhere_s / 10) for s in log.samples]
    log.samples += [StackSample(PYTHON, at(3), s.end, s.end + elsewhere_s / 10) for s in log.samples]
    log.activity.programs["gather"] = ExecutedProgram("gather", slices, [1e-3] * slices)
    log.compiled.append(Compiled("gather", line, {"compile": (-1.0, 0.0)}))
    assert [f.seconds for f in find_slow_dispatch(analysis)] == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("turn_s", "turns_s", "took_s", "seconds"),
    [
        (0.002, [], 0.1, 9.0),
        (0.002, [], 0.6, 4.0),
        (1.0, [], 0.1, 4.05),  # what takes long is seen where it runs
        (1.0, [0.002], 0.1, 8.3),  # each sample stands for 500 turns
    ],
)
def test_python_that_the_sampler_sees_only_at_the_next_call_counts(turn_s, turns_s, took_s, seconds, places):
    """Of each turn, samples see Python for 0.4 and its call for 0.6."""
    at = places("def main():\n    for t in range(99):\n        n = work(t)\n        w = step(w)\n")
    activity = DeviceActivity(windows=[(0.0, 10 * turn_s)])
    times = [took_s] * 9 + [0.8]  # the sampler holds up a call
    activity.program("step").turns_s = turns_s
    activity.program("step").dispatch_s = [each * turn_s for each in times]
    seen = [("python", at(3), 0.0, 0.4), (DISPATCH, at(4), 0.4, 1.0)]
    samples = [
        StackSample(kind, place, (i + begin) * turn_s, (i + end) * turn_s)
        for kind, place, begin, end in seen
        for i in range(10)
    ]
    log = Log("a", -1.0, 10 * turn_s, compiled=[compiled(at=at(4))], samples=samples, activity=activity)
    (finding,) = find_python_work(Analysis(log))
    assert (finding.at, finding.seconds) == (at(3), pytest.approx(seconds * turn_s))


@pytest.mark.parametrize(("statement", "seconds"), [("if limit(w):", 6.0), ("last = limit(w)", 1.0)])
def test_an_if_saves_what_it_dispatches_for_its_test_too(statement, seconds, places):
    """A hundred turns: 0.05 s of small operations at a line, which then waits for 0.01 s of the device."""
    at = places(f"for i in range(100):\n    {statement}\n        break\n")(2, "<module>")
    busy = [(i / 10 + 0.05, i / 10 + 0.06) for i in range(100)]
    less = Compiled("less", at, {"compile": (-1.0, 0.0)})
    analysis = calls(EAGER, less, busy=busy, took_s=0.05)
    analysis.log.compiled.append(compiled(at=OTHER))
    analysis.log.waits[:] = [Wait("if", at, i / 10 + 0.05, i / 10 + 0.06, 1) for i in range(100)]
    (finding,) = idle.find_waits(analysis)
    assert finding.seconds == pytest.approx(seconds, abs=0.5)
