import re
import sys
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import psutil
import pytest

from jaxperf.watch.log import Compiled, DeviceActivity, ExecutedProgram, Log, Put, StackSample, Wait
from jaxperf.watch.observe.sampler import _in_numpy
from jaxperf.watch.observe.source_location import NOWHERE, Place
from jaxperf.watch.report.analysis import UFUNC, Analysis
from jaxperf.watch.rules import idle
from jaxperf.watch.rules.elements import takes_apart
from jaxperf.watch.rules.table import Finding, advice_for

AT = Place("a.py", 3)
COMPILED = Compiled("step", NOWHERE, {"compile": (-1.0, 0.0)}, explained=True)


def computing(spans, end, **events):
    """A record of windows from 0 to `end`, in which the device runs `step` in `spans`."""
    activity = DeviceActivity([(0.0, end)], {"step": ExecutedProgram("step", devices={"cpu 0": spans})})
    return Analysis(Log("a", 0.0, end, **{"compiled": [COMPILED], **events}, activity=activity))


@pytest.mark.parametrize(("waited_s", "count"), [(0.08, 0), (0.02, 1)])
def test_python_at_a_line_that_mostly_waits_is_not_found_beside_the_wait(waited_s, count, places):
    at = places("for turn in range(99):\n    w = step(w)\n    w.block_until_ready()\n")
    call, line = replace(COMPILED, at=at(2, "<module>")), at(3, "<module>")
    turns = [t / 5 for t in range(40)]  # each waits for long, then for a moment
    lasting = [(start, s) for t in turns for start, s in ((t, waited_s), (t + 0.1, 0.001))]
    waits = [Wait("block_until_ready", line, start, start + s, 0) for start, s in lasting]
    samples = [StackSample("python", line, t + 0.11, t + 0.17) for t in turns]
    spans = [(t, t + 0.1) for t in turns]
    analysis = computing(spans, 8.0, compiled=[call], waits=waits, samples=samples)
    assert len([*idle.find_python_work(analysis)]) == count


@pytest.mark.parametrize(
    ("computing_s", "inside", "words"),
    [
        (0.5, "", "compute for only 500 ms, and one thread that reads ahead saves no more"),
        (5.0, "", ""),
        (5.0, "yield self.queue.get()", "self.queue.get()"),  # a thread reads already
    ],
)
def test_reading_that_is_slower_than_the_steps_needs_more_than_one_thread(computing_s, inside, words, places):
    line = places(f"while True:\n    {inside}\n")(2, "") if inside else NOWHERE
    sample = StackSample("data", AT, computing_s, 10.0, inside=line)
    (finding,) = idle.find_data_waits(computing([(0.0, computing_s)], 10.0, samples=[sample]))
    assert finding.seconds == pytest.approx(10 - computing_s) and words in finding.reason
    assert ("compute for only" in finding.reason) == (computing_s < 1)
    assert advice_for(finding).change.startswith("Reading takes longer" if words else "Read the next batch")


@pytest.mark.parametrize(("dispatching", "count"), [(3, 0), (1, 1)])
def test_a_line_of_a_loader_that_mostly_dispatches_operations_is_no_data(dispatching, count, places):
    inside = places("def tasks(key):\n    while True:\n        yield jnp.sin(draw(key))\n")(3, "tasks")
    samples = [StackSample("data", AT, float(t), t + 0.5, inside=inside) for t in (1, 3)]
    samples += [StackSample("eager", inside, t + 0.5, t + 1.0) for t in range(dispatching)]
    found = [*idle.find_data_waits(computing([(0.0, 0.5)], 10.0, samples=samples))]
    assert len(found) == count


def test_a_full_queue_at_a_line_that_reads_elements_is_no_wait_of_its_own(places):
    at = places("for i in range(9):\n    best = max(best, float(x[i]))\n")(2, "")
    samples = [StackSample("eager", at, t, t + 0.1, blocked=True) for t in (1.0, 2.0, 3.0)]
    analysis = Analysis(Log("a", 0.0, 10.0, samples=samples))
    assert list(idle.find_waits(analysis)) == []
    assert [line.count for line in analysis.blocked_lines] == [3]


@pytest.mark.parametrize(("spans", "lines"), [([(1.0, 1.1), (2.0, 2.1)], 0), ([(1.0, 2.1)], 1)])
def test_a_call_that_sleeps_once_or_twice_waits_for_a_queue_only_if_it_is_long(spans, lines):
    samples = [StackSample("eager", AT, *span, blocked=True) for span in spans]
    assert len(Analysis(Log("a", 0.0, 10.0, samples=samples)).blocked_lines) == lines


@pytest.mark.parametrize(("silent", "computes"), [([(1.0, 1.4)], True), ([(1.0, 1.05)], False), ([], False)])
def test_a_call_in_which_windows_see_nothing_computes_itself(silent, computes):
    """Windows see 1.2 s of calls at one line, but in silent ones neither an instruction nor a call's end."""
    call = Compiled("step", AT, {"compile": (0.5, 1.0)}, explained=True)
    activity = DeviceActivity([(1.0, 1.4), (2.0, 2.8)], silent=silent)
    samples = [StackSample("python", AT, 1.0, 5.0)]
    analysis = Analysis(Log("a", 0.0, 5.0, compiled=[call], samples=samples, activity=activity))
    rows = [(line.kind, line.total_s) for line in analysis.blocked_lines]
    assert rows == ([("a call that computes", pytest.approx(4.0))] if computes else [])
    shares = analysis.shares()
    assert (shares["devices compute"] > 0.7) == computes
    assert (shares["devices idle while the front end works"] > 0.7) != computes


def test_waits_lose_no_more_than_they_took_if_windows_saw_the_longest():
    long, brief = Wait("float", AT, 1.0, 1.5, 4), Wait("float", AT, 3.0, 3.001, 4, times=1000)
    activity = DeviceActivity([(0.5, 2.5)])
    activity.program("step").devices["gpu 0"] = [(0.5, 1.0), (2.0, 2.5)]
    (line,) = Analysis(Log("a", 0.0, 10.0, waits=[long, brief], activity=activity)).lines
    assert line.count == 1001 and line.lost_s == pytest.approx(1.5)


@pytest.mark.parametrize(
    ("device", "others_s", "each_s"),
    [("gpu 0", 0.0, 0.01), ("cpu 0", 0.0, 0.01 / 2), ("cpu 0", 3.0, 0.01 / 8)],
)
def test_of_a_few_waits_one_that_was_delayed_is_not_the_mean(monkeypatch, device, others_s, each_s):
    """After the third wait, the device is idle for long; a CPU shares its two cores, and with others, too."""
    monkeypatch.setattr(psutil.Process, "cpu_affinity", lambda self: [0, 1], raising=False)
    waits = [Wait("float", AT, start, start + 0.1, 4) for start in (1.0, 2.0, 3.0)]
    activity = DeviceActivity([(0.5, 4.0)])
    activity.program("step").devices[device] = [(0.5, 1.09), (1.1, 2.09), (2.1, 3.09), (3.6, 4.0)]
    record = Log("a", 0.0, 4.0, compiled=[COMPILED], waits=waits, activity=activity)
    record.closed_s, record.others_s = 1.0, others_s
    (line,) = Analysis(record).lines
    assert line.lost_s == pytest.approx(3 * each_s)


@pytest.mark.parametrize(("turns", "seconds"), [(10, 4.0), (50_000, 1.0)])
def test_a_thread_that_reads_ahead_has_to_hand_over_each_batch(turns, seconds, places):
    at = places("for order in orders:\n    x = rows[order]\n    w = step(w, x)\nshow(w)\n")
    call = replace(COMPILED, at=at(3, "<module>"))
    sample = StackSample("data", at(2, "<module>"), 6.0, 10.0)
    analysis = computing([(0.0, 6.0)], 10.0, compiled=[call], samples=[sample])
    analysis.log.activity.programs["step"].calls = turns
    (finding,) = idle.find_data_waits(analysis)
    assert finding.seconds == pytest.approx(seconds, abs=0.01) and not finding.form


@pytest.mark.parametrize(("begins", "saved_s"), [(2.0, 1.5), (2.5, 1.75), (4.0, 2.0)])
def test_what_compiles_while_devices_work_off_their_queue_saves_less(begins, saved_s):
    """Calls end at 2 s, and devices have work for one more second."""
    analysis = computing([(0.0, 3.0)], 10.0, samples=[StackSample("dispatch", AT, 0.0, 2.0)])
    analysis.log.activity.queued, analysis.beside = [(0.5, 1.5)], 0.5
    again = replace(COMPILED, stages={"compile": (begins, begins + 2.0)})
    assert analysis.compiling_s([again]) == pytest.approx(saved_s)


def test_while_other_programs_have_the_core_no_change_would_save_time():
    call = Compiled("step", NOWHERE, {"compile": (0.0, 1.0)}, explained=True, used_s={"compile": 0.5})
    delayed = (("eager", 0.0, 2.0, 1.0), ("data", 6.0, 10.0, 3.0))
    samples = [StackSample(kind, AT, start, end, delayed_s=s) for kind, start, end, s in delayed]
    analysis = computing([(1.0, 6.0)], 10.0, compiled=[call], samples=samples)
    assert analysis.compiling_s([call]) == pytest.approx(1 / 3)  # others had the core for 4 of 6 s
    assert analysis.compiling_s([]) == 0.0
    assert [finding.seconds for finding in idle.find_data_waits(analysis)] == [pytest.approx(1.0)]


@pytest.mark.parametrize(("delayed_s", "lost_s"), [(0.0, 0.0), (2.0, 0.75)])
@pytest.mark.parametrize("find", [idle.find_list_conversions, idle.find_repeated_puts])
def test_arrays_that_are_made_beside_a_device_cost_what_its_threads_wait_for_a_core(
    monkeypatch, find, delayed_s, lost_s
):
    """Three conversions or copies of a second; a device computes all the time, on the two cores."""
    monkeypatch.setattr(psutil.Process, "cpu_affinity", lambda self: [0, 1], raising=False)
    numbers, nbytes = (4096, 0) if find is idle.find_list_conversions else (0, 1 << 20)
    puts = [Put(AT, t, t + 1.0, nbytes, again=True, numbers=numbers) for t in (1.0, 3.0, 5.0)]
    samples = [StackSample("dispatch", NOWHERE, 0.0, 8.0, delayed_s=delayed_s)]
    (finding,) = find(computing([(0.0, 8.0)], 8.0, puts=puts, samples=samples, closed_s=16.0))
    assert finding.seconds == pytest.approx(lost_s)


def test_a_ufunc_that_sleeps_waits_for_an_array_and_computes_nothing(places):
    call, at = map(places("for i in range(9):\n    y = step(y)\n    s += np.sin(y)\n"), (2, 3))
    step = Compiled("step", call, {"compile": (-1.0, 0.0)}, explained=True)
    for blocked, count in ((True, 0), (False, 1)):
        samples = [StackSample("numpy", at, t, t + 1.0, blocked=blocked) for t in (1.0, 2.0, 3.0)]
        # no window saw an instruction, as of a program that is longer than a window
        activity = DeviceActivity([(0.0, 5.0)])
        analysis = Analysis(Log("a", 0.0, 5.0, compiled=[step], samples=samples, activity=activity))
        assert len(list(idle.find_numpy_work(analysis))) == count
        assert [line.kind for line in analysis.blocked_lines] == ([UFUNC] if blocked else [])


def test_what_brings_values_to_numpy_costs_as_numpy_does(places):
    source = (
        "import numpy as np\nfor i in range(9):\n    g = np.asarray(step(w))\n    w = w - np.clip(g, 0, 1)\n"
    )
    brought, at = map(places(source), (3, 4))
    step = Compiled("step", brought, {"compile": (-1.0, 0.0)}, explained=True)
    # of each turn of a second, the device computes for half, for which NumPy waits
    waits = [Wait("np.asarray", brought, i, i + 0.5, 4) for i in range(9)]
    samples = [
        StackSample("numpy", p, i + a, i + a + 0.2) for i in range(9) for p, a in ((brought, 0.5), (at, 0.7))
    ]
    activity = DeviceActivity([(0.0, 9.0)])
    activity.program("step").devices["cpu 0"] = [(i, i + 0.5) for i in range(9)]
    analysis = Analysis(Log("a", 0.0, 9.0, compiled=[step], samples=samples, waits=waits, activity=activity))
    (finding,) = idle.find_numpy_work(analysis)
    assert (finding.at, finding.seconds) == (at, pytest.approx(9 * 0.4))


def test_a_line_in_a_function_of_numpys_is_told_from_others():
    class Array:
        def __array__(self, dtype=None, copy=None):
            seen.append(_in_numpy(sys._getframe(1)))
            return np.ones(3)

    seen = []
    np.sin(Array())
    np.where(Array())
    np.zeros(3)[:] = Array()
    np.asarray(Array())
    assert seen == [True, True, True, False]


def test_numbers_and_weak_arrays_get_a_dtype_by_what_the_advice_prints():
    finding = Finding("weak type", AT, 1.0, "", "step", argument="state", form="tree")
    code = re.search(r"(jax\.tree\.map\(.*\))\.$", advice_for(finding).change)
    assert code
    state = {"best": 0.5, "turns": 3, "loss": jnp.full(2, 0.1), "w": jnp.ones(2, jnp.float32)}
    made = eval(code[1], {"jax": jax, "jnp": jnp, "state": state})
    assert made["turns"] is state["turns"]
    assert [made[name].weak_type for name in ("best", "loss", "w")] == [False] * 3
    assert [made[name].dtype for name in ("best", "loss", "w")] == [jnp.float32] * 3


def test_an_iterator_that_splits_keys_gives_no_data(places, tmp_path):
    at = places("for t in range(9000):\n    a = act(w, next(keys))\n")(2, "")
    library = tmp_path / "keyseq.py"
    library.write_text("self.key, sub = jax.random.split(self.key)\n")
    small = [
        Compiled(name, at, {"compile": (-1.0, 0.0)}, inner=Place(str(library), 1))
        for name in ("threefry_split", "unstack")
    ]
    events = {"compiled": [COMPILED, *small], "samples": [StackSample("data", at, 0.5, 10.0)]}
    assert list(idle.find_data_waits(computing([(0.0, 0.5)], 10.0, **events))) == []
    assert not takes_apart(small[1]) and takes_apart(replace(small[1], inner=NOWHERE))
    events["compiled"][1] = replace(small[0], name="normal")  # it makes data as well
    assert len(list(idle.find_data_waits(computing([(0.0, 0.5)], 10.0, **events)))) == 1


@pytest.mark.parametrize("find", [idle.find_list_conversions, idle.find_repeated_puts])
def test_arrays_that_are_made_before_the_first_step_cost_all_their_seconds(find):
    step = Compiled("step", AT._replace(line=9), {"compile": (4.0, 5.0)}, explained=True)
    numbers, nbytes = (4096, 0) if find is idle.find_list_conversions else (0, 1 << 20)
    puts = [Put(AT, t, t + 0.5, nbytes, again=True, numbers=numbers) for t in (0.0, 1.0, 2.0)]
    (finding,) = find(Analysis(Log("a", 0.0, 9.0, compiled=[step], puts=puts)))
    assert (finding.at, finding.seconds) == (AT, pytest.approx(1.5))
