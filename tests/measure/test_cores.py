"""Limiting cores: every thread obeys, and everything is as before afterwards."""

import os
import threading

import pytest

from jaxperf.errors import JaxperfError
from jaxperf.measure import cores

pytestmark = pytest.mark.skipif(not cores.available(), reason="this system cannot choose cores")


def limits():
    return {frozenset(os.sched_getaffinity(thread)) for thread in cores._threads()}


@pytest.fixture
def sleeper():
    """A thread that only waits, as those of a pool do."""
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    yield thread
    done.set()
    thread.join()


def test_every_thread_keeps_to_the_cores_and_gets_its_own_back(sleeper):
    before = limits()
    one = cores.available()[-1]
    with cores.on_cores({one}):
        assert limits() == {frozenset({one})}
        assert cores.available() == (one,)
    assert limits() == before


def test_the_cores_come_back_after_an_error():
    before = limits()
    with pytest.raises(ZeroDivisionError), cores.on_cores(cores.available()[:1]):
        raise ZeroDivisionError
    assert limits() == before


def test_a_thread_started_inside_is_set_free_with_the_others():
    before, done = limits(), threading.Event()
    with cores.on_cores(cores.available()[:1]):
        thread = threading.Thread(target=done.wait)
        thread.start()
    try:
        assert limits() == before
    finally:
        done.set()
        thread.join()


def test_cores_that_are_not_ours_are_refused_in_one_line():
    for wanted in ([], [10**6], [-1]):
        with pytest.raises(JaxperfError, match="may choose from") as e, cores.on_cores(wanted):
            pass
        assert "\n" not in str(e.value)
