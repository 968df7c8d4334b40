import contextlib
from pathlib import Path

import jax
import jax.numpy as jnp
import psutil
import pytest

import jaxperf
from jaxperf import cli
from jaxperf.result import Grid, Heading, Text
from jaxperf.result.store import load_result
from jaxperf.result.terminal import render_text
from jaxperf.watch.log import (
    PYTHON,
    Compiled,
    DeviceActivity,
    ExecutedProgram,
    LiveArrays,
    Log,
    StackSample,
    Wait,
)
from jaxperf.watch.observe.source_location import NOWHERE, Place
from jaxperf.watch.observe.windows import queued_intervals
from jaxperf.watch.report import text
from jaxperf.watch.report.analysis import Analysis
from jaxperf.watch.report.top_programs import hottest_programs
from jaxperf.watch.rules.table import Finding

AT = Place("a.py", 3)
COMPILED = Compiled("step", NOWHERE, {"compile": (-1.0, 0.0)}, explained=True)


def program(*spans, device="cpu 0", **fields):
    return ExecutedProgram("step", devices={device: [*spans]}, **fields)


def activity_of(ran, *windows, queued=()):
    return DeviceActivity([*windows], {ran.name: ran}, queued=[*queued])


def test_devices_compute_no_longer_than_the_run_without_imports():
    samples = [StackSample("import", AT, 0.0, 8.0), StackSample(PYTHON, AT, 8.0, 10.0)]
    ran = program((9.0, 9.2))  # all of the only window
    record = Log("a", 0.0, 10.0, samples=samples, activity=activity_of(ran, (9.0, 9.2)))
    assert 0.02 <= Analysis(record).shares()["devices compute"] <= 0.2


def test_a_device_computes_while_the_front_end_waits_though_the_profiler_has_no_event():
    wait = Wait("float", AT, 5.0, 6.0, 4)
    record = Log("a", 0.0, 10.0, waits=[wait], activity=activity_of(program((5.0, 5.05)), (5.0, 5.5)))
    assert Analysis(record).shares()["devices compute"] == pytest.approx(0.1)  # the wait; no more was seen


def test_devices_are_idle_for_no_more_than_the_front_end_works_beside_their_computing():
    """Of ten seconds, the front end waits for seven; the only window sees an idle device."""
    samples = [StackSample(PYTHON, AT, 0.0, 3.0), StackSample(PYTHON, AT, 3.0, 10.0)]
    waits = [Wait("float", AT, 3.0, 10.0, 4)]
    activity = activity_of(program((2.0, 2.01)), (2.0, 3.0))
    shares = Analysis(Log("a", 0.0, 10.0, samples=samples, waits=waits, activity=activity)).shares()
    computing, idle = shares["devices compute"], shares["devices idle while the front end works"]
    assert idle <= 0.3 + 1e-9 and computing + idle <= 1 + 1e-9


@pytest.mark.parametrize(("whole", "longer"), [(0, True), (1, False)])
def test_a_program_that_no_window_saw_whole_has_a_bound(whole, longer):
    ran = program((1.0, 1.25), calls=1, run_s=[0.25, 0.2], whole=whole)
    (hot,) = hottest_programs(Analysis(Log("a", 0.0, 10.0, activity=activity_of(ran, (1.0, 1.25)))))
    assert (hot.longer, hot.device_s) == (longer, 0.225 if longer else 0.25)


@pytest.mark.parametrize(("queued", "idle"), [((), 8.0), (((1.5, 4.0),), 6.0)])
def test_a_device_that_has_something_queued_does_not_wait_for_the_front_end(queued, idle):
    windows = activity_of(program((1.0, 2.0), (5.0, 6.0)), (0.0, 10.0), queued=queued)
    samples = [StackSample("between", NOWHERE, 0.0, 10.0)]
    analysis = Analysis(Log("a", 0.0, 10.0, compiled=[COMPILED], samples=samples, activity=windows))
    assert sum(analysis.idle_at("between").values()) == pytest.approx(idle)


@pytest.mark.parametrize(("itself", "idle"), [(False, 6.0), (True, 4.0)])
def test_idle_after_a_wait_is_the_waits_for_as_long_as_it_took(itself, idle):
    wait, sample = Wait("item", NOWHERE, 2.0, 4.0, 4), StackSample("between", NOWHERE, 4.0, 10.0)
    windows = activity_of(program((0.0, 3.0)), (0.0, 10.0))
    record = Log("a", 0.0, 10.0, compiled=[COMPILED], waits=[wait], samples=[sample], activity=windows)
    assert sum(Analysis(record).idle_at("between", itself=itself).values()) == pytest.approx(idle)


@pytest.mark.parametrize(
    ("call_idle_s", "delayed_s", "saved_s"),
    [(1.0, 0.0, 3.0), (4.0, 0.0, 5.0), (1.0, 1.0, 2.0)],  # at last, other programs delay the call
)
def test_work_beside_devices_costs_what_the_next_call_comes_late(call_idle_s, delayed_s, saved_s):
    """Work of 5 s: devices compute for 3 s of it, and are idle for 2 s and during the next call."""
    end = 5.0 + call_idle_s
    samples = [
        StackSample("write", AT, 0.0, 5.0), StackSample("dispatch", NOWHERE, 5.0, end, delayed_s=delayed_s)
    ]  # fmt: skip
    windows = activity_of(program((0.0, 3.0), device="gpu 0"), (0.0, end))
    analysis = Analysis(Log("a", 0.0, end, compiled=[COMPILED], samples=samples, activity=windows))
    assert analysis.saved_at(samples[:1]) == {AT: pytest.approx(saved_s)}
    # a call itself delays no call
    assert analysis.saved_at(samples)[AT] == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("device", "delayed_s", "others_s", "lost_s"),
    [
        ("cpu 0", 0.0, 0.0, 0.0),  # there was a core for it
        ("cpu 0", 2.0, 0.0, 2.0),
        ("cpu 0", 2.0, 30.0, 0.5),  # of the processor time, three quarters were of other programs
        ("cpu 0", 8.0, 0.0, 1.0),  # half of what it ran, since it needs no more than one core of the two
        ("gpu 0", 2.0, 0.0, 0.0),
    ],
)
def test_work_beside_a_cpu_device_costs_its_wait_for_a_core(monkeypatch, device, delayed_s, others_s, lost_s):
    monkeypatch.setattr(psutil.Process, "cpu_affinity", lambda self: [0, 1], raising=False)
    sample = StackSample("write", AT, 0.0, 10.0, delayed_s=delayed_s)
    windows = activity_of(program((0.0, 10.0), device=device), (0.0, 10.0))
    record = Log(
        "a", 0.0, 10.0, compiled=[COMPILED], samples=[sample], activity=windows, closed_s=10.0,
        others_s=others_s,
    )  # fmt: skip
    analysis = Analysis(record)
    assert sum(analysis.saved_at([sample], needless=True).values()) == pytest.approx(lost_s)
    assert analysis.saved_at([sample]) == {}  # another thread or another line would need the core as well


@pytest.mark.parametrize(("others_s", "saved_s"), [(0.0, 8.0), (10.0, 6.0), (None, 4.0)])
def test_a_wait_for_a_core_is_no_loss_where_other_programs_had_it(others_s, saved_s):
    """Devices are idle for eight of ten seconds, for half of which the front end has no core."""
    sample = StackSample("python", AT, 0.0, 10.0, delayed_s=5.0)
    windows = activity_of(program((0.0, 2.0)), (0.0, 10.0))
    used_s = 0.0 if others_s is None else 10.0
    record = Log(
        "a", 0.0, 10.0, compiled=[COMPILED], samples=[sample], activity=windows, closed_s=used_s,
        others_s=others_s or 0.0,
    )  # fmt: skip
    assert Analysis(record).saved_at([sample]) == {AT: pytest.approx(saved_s)}


@pytest.mark.parametrize(
    ("calls", "starts", "spans"),
    [
        ([(0, 1), (2, 3)], [4, 6], [(1, 4), (3, 6)]),
        ([(0, 5), (6, 7)], [4, 9], [(7, 9)]),  # a CPU may begin before the call has ended
        ([(2, 3), (4, 5)], [0, 1, 6, 9], [(3, 6), (5, 9)]),  # the first two were called before the window
        ([(2, 3), (4, 5)], [1, 3.5, 9], [(3, 3.5), (5, 9)]),
        ([(0, 1), (2, 3), (4, 5)], [6], [(1, 6)]),  # two have not begun when the window ends
        ([], [1], []),
    ],
)
def test_an_execution_belongs_to_the_call_that_came_as_many_calls_before(calls, starts, spans):
    assert queued_intervals(calls, starts) == spans


# the result


def titles_and_rows(*compiled):
    result = text.make_result(Analysis(Log("a", 0.0, 9.0, compiled=[*compiled])))
    (grid,) = (g for g in result.of(Grid) if g.title.startswith("Traced"))
    return grid.title, [str(cell) for cell in grid.rows[0]]


def test_what_threads_compile_at_the_same_time_counts_once():
    threads = [Compiled("step", AT, {"trace": (0, 1), "compile": (1 + i, 5 + i)}) for i in range(3)]
    title, row = titles_and_rows(*threads)
    assert title == "Traced and compiled: 3 times, 7 s"
    assert row[:5] == ["step", "3", "1 s", "0 s", "6 s"]


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"explained": True, "defined": "a.py:1"}, "a new function object"),
        # of pmap, JAX does not say more
        ({"explained": True, "defined": "a.py:1", "label": "f"}, "a new function object or placement"),
        ({}, "new shapes or constants, not in jit"),
    ],
)
def test_why_again_says_what_is_known(how, why):
    compiled = Compiled("step", AT, {"compile": (0.0, 1.0)}, **how)
    assert titles_and_rows(compiled, compiled)[1][-1] == why


@pytest.mark.parametrize(
    ("seconds", "saves"), [(0.0, "saves at most 67.1 MB"), (2.0, "saves at most 2 s and 67.1 MB")]
)
def test_no_seconds_are_promised_where_none_are_saved(seconds, saves, monkeypatch):
    finding = Finding("donation", AT, seconds, "reason", "step", 1 << 26)
    monkeypatch.setattr(text, "find_causes", lambda analysis: [finding])
    result = text.make_result(Analysis(Log("a", 0.0, 9.0, compiled=[COMPILED])))
    assert any(f"{saves} of memory. Reason." in b.text for b in result.of(Text))


def test_the_report_is_a_result_that_every_renderer_takes(tmp_path):
    path = tmp_path / "watch.json"
    with jaxperf.watch("a block", show=False, json=path) as outcome:
        for n in range(3, 30):
            jax.jit(lambda x, n=n: x * 101)(jnp.float32(n))
    stored = load_result(path)
    assert stored == outcome.result
    shown = render_text([stored])
    assert "new function" in shown and Path(__file__).name in shown
    titles = [b.title for b in stored.blocks if isinstance(b, Grid | Heading)]
    assert titles[0] == "Shares of the time" and titles[-1].startswith("Findings: ")
    assert len(shown.splitlines()) < 70
    assert cli.main(["report", str(path)]) == 0


@pytest.mark.parametrize(("error", "end"), [
    (None, "s. Watching took"), (ZeroDivisionError, "until it failed with ZeroDivisionError"),
    (KeyboardInterrupt, "until it was interrupted"),
])  # fmt: skip
def test_a_block_is_reported_under_pytest_however_it_ends(error, end, capsys):
    expected = pytest.raises(error) if error else contextlib.nullcontext()
    with expected, jaxperf.watch("a block", profile=False):
        float(jax.jit(lambda x: x / 7)(1.0))
        if error:
            raise error
    err = capsys.readouterr().err
    assert "watch: a block" in err and f"{Path(__file__).name}:" in err and end in err
    assert "Findings: none" in err.partition("note: no window saw devices")[0]  # with the other notes


def test_arrays_that_hardly_matter_for_the_peak_are_not_listed():
    arrays = [LiveArrays("float32[9,9]", 2, 10_000_000, AT), LiveArrays("int32[2]", 1, 8, AT)]
    log = Log("a", 0.0, 1.0, peaks={"resident": 500_000_000}, live_arrays=arrays)
    assert [f.value for f in text._memory(Analysis(log))][1:] == ["2 x float32[9,9], 10 MB, made at a.py:3"]


@pytest.mark.parametrize(("name", "reason", "begins"), [
    ("d", "devices are idle here", "Devices are idle"),
    ("rows[mask, 0]", "rows[mask, 0] is taken apart", "rows[mask, 0] is"),
])  # fmt: skip
def test_a_sentence_begins_with_a_capital_unless_it_begins_with_a_name(name, reason, begins):
    finding = Finding("iterated array", Place("a.py", 1), 1.0, reason, name, argument=name)
    summary, *_ = text._finding(1, finding, ())
    assert f". {begins}" in str(summary)


def test_a_window_stands_for_the_time_until_half_way_to_the_next_one():
    """Windows come more often at first, when one program computes, than later, when another one does."""
    activity = DeviceActivity(windows=[(0.0, 1.0), (2.0, 3.0), (4.0, 5.0), (14.0, 15.0)])
    activity.program("warm").devices["cpu:0"] += [(0.0, 1.0), (2.0, 3.0)]
    activity.program("train").devices["cpu:0"] += [(4.0, 4.5), (14.0, 14.5)]
    compiled = Compiled("train", Place("a.py", 3), {"compile": (5.0, 7.0)}, explained=True)
    step = Compiled("warm", Place("a.py", 2), {"compile": (-1.0, 0.0)}, explained=True)
    analysis = Analysis(Log("a", -1.0, 20.0, compiled=[step, compiled], activity=activity))
    seconds = {n: p.busiest_s * analysis.scale(p) for n, p in activity.programs.items()}
    # without the two seconds in which XLA compiles
    assert seconds == {"warm": pytest.approx(3.5), "train": pytest.approx(((9.5 - 3.5 - 2) + (20 - 9.5)) / 2)}
