import contextlib
import os

import psutil
import pytest

from jaxperf.measure.keep_awake import cores_awake


def spinning():
    found = []
    for process in psutil.Process().children():
        with contextlib.suppress(psutil.Error):  # another test's, which has ended
            if "getppid" in " ".join(process.cmdline()):
                found.append(process)
    return found


@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="no idle priority here")
def test_each_core_has_a_program_of_idle_priority_that_stops_when_told_and_ends_at_the_end():
    with cores_awake() as keep:
        programs = spinning()
        assert len(programs) == len(os.sched_getaffinity(0))
        assert {os.sched_getscheduler(p.pid) for p in programs} == {os.SCHED_IDLE}
        keep(False)
        while {p.status() for p in programs} != {psutil.STATUS_STOPPED}:
            pass
        keep(True)
        while psutil.STATUS_STOPPED in {p.status() for p in programs}:
            pass
        keep(False)  # a stopped program ends, too
    assert not any(p.is_running() for p in programs)
