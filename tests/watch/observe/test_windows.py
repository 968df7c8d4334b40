import pytest

from jaxperf.watch.log import DeviceActivity, ExecutedProgram, Log, Wait
from jaxperf.watch.observe.hooks import Replacements
from jaxperf.watch.observe.profiler import Profiler
from jaxperf.watch.observe.source_location import NOWHERE
from jaxperf.watch.observe.windows import Execution, add_executions


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
