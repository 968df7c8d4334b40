from dataclasses import dataclass
from types import SimpleNamespace

import jax
import pytest

from jaxperf.measure.timeline import Event, TraceLine
from jaxperf.watch.log import DeviceActivity, ExecutedProgram, Log, Wait
from jaxperf.watch.observe.hooks import Replacements
from jaxperf.watch.observe.profiler import Profiler
from jaxperf.watch.observe.source_location import NOWHERE
from jaxperf.watch.observe.windows import FEW_CALLS, MARK, Execution, add_executions, dispatches, read_window


@pytest.mark.parametrize(("last", "tail"), [((0.8, "dot.1"), [(0.8, 1.0)]), ((0.8, "add.2"), [])])
def test_the_tail_of_a_window_computes_if_the_last_execution_lacks_its_last_instruction(last, tail):
    activity = DeviceActivity(programs={"step": ExecutedProgram("step")})
    executions = [Execution("cpu 0", "step", 0.1, 0.4, "add.2"), Execution("cpu 0", "step", 0.5, *last)]
    add_executions(activity, executions, {}, (0.0, 1.0))
    assert activity.program("step").devices["cpu 0"] == tail


def test_where_no_execution_was_seen_to_end_the_tail_is_not_known():
    activity = DeviceActivity(programs={"step": ExecutedProgram("step")})
    add_executions(activity, [Execution("cpu 0", "step", 0.1, 0.4, "dot.1")], {}, (0.0, 1.0))
    assert activity.devices == []


@pytest.mark.parametrize(("waited_s", "seen"), [(1e9, 0), (0.0, 1)])
def test_an_empty_window_within_a_wait_says_nothing(waited_s, seen):
    log = Log("a", waits=[Wait("float", NOWHERE, 0.0, waited_s, 4)])
    windows = Profiler(log, Replacements(), compiling=lambda: False)
    windows._open_window()
    windows.close()
    assert len(log.activity.windows) == seen


def test_what_a_device_computes_in_the_thread_that_calls_is_no_dispatch():
    """A call of 100 ns, in which two instructions take 30 and 20; the loop's own is inside of the first."""
    call = Event("PjitFunction(step)", 0.0, 100.0, {})
    ran = [("while.1", 10.0, 40.0), ("add.2", 15.0, 20.0), ("dot.3", 60.0, 80.0), ("dot.4", 110.0, 190.0)]
    stats = {"hlo_op": "x", "device_ordinal": 0, "hlo_module": "jit_step"}
    after = Event("PjitFunction(other)", 200.0, 250.0, {})
    events = [call, *(Event(name, start, end, stats) for name, start, end in ran), after]
    first, second = dispatches(TraceLine("", "python", events))
    assert (first.program, first.computed, second.computed) == ("step", 50.0, 0.0)
    # on a GPU, an event of an instruction in this thread is its launch
    launched = Event("while.1", 10.0, 40.0, {**stats, "_src": "xla/service/gpu/x.cc"})
    (only,) = dispatches(TraceLine("", "python", [call, launched]))
    assert only.computed == 0.0


@dataclass
class Recorded:
    """An event of a profile; times in nanoseconds."""

    name: str
    start_ns: float
    duration_ns: float
    stats: tuple = ()


def profile_of(*events):
    thread = SimpleNamespace(name="python", events=events)
    return SimpleNamespace(planes=[SimpleNamespace(name="/host:CPU", lines=[thread])])


@pytest.mark.parametrize(("steps", "share", "seen_s"), [(100, 0.3, 0.3), (10, 0.3, 0.9), (100, 1.0, 1.0)])
def test_a_part_of_a_window_is_read_and_more_of_it_where_calls_are_few(monkeypatch, steps, share, seen_s):
    """A window of a second. A step has a call, and another one inside of it; a device executes it at once."""
    of_step = {"hlo_op": "dot.1", "hlo_module": "jit_step", "device_ordinal": 0}
    events, step_ns = [Recorded(MARK, 0.0, 1.0)], 1e9 / steps
    for i in range(steps):
        began = i * step_ns
        events += [
            Recorded("PjitFunction(step)", began, step_ns / 2),
            Recorded("PjitFunction(step)", began + 1, step_ns / 4),
            Recorded("dot.1", began, step_ns / 2, tuple({**of_step, "run_id": i}.items())),
        ]
    recorded = SimpleNamespace(from_serialized_xspace=lambda profile: profile_of(*events))
    monkeypatch.setattr(jax.profiler, "ProfileData", recorded)
    log = Log("a")
    read_window(b"", 5.0, 6.0, log, share)
    step = log.activity.programs["step"]
    assert log.activity.windows == [pytest.approx((5.0, 5.0 + seen_s), abs=2 / steps)]
    assert step.calls == pytest.approx(seen_s * steps, abs=1) and step.calls >= min(steps, FEW_CALLS / 2)
    assert sum(b - a for a, b in step.spans) == pytest.approx(seen_s / 2, abs=1 / steps)
    events[:] = [e for e in events if not e.name.startswith("Pjit")]
    read_window(b"", 7.0, 8.0, log, share)
    assert log.activity.windows[1] == pytest.approx((7.0, 7.0 + share), abs=2 / steps)
