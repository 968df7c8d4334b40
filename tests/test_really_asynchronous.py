"""Section 8.2.1: asynchronous dispatch can be off, and then every call returns with its result."""

from __future__ import annotations

from jaxperf.chapter import really_asynchronous as part
from jaxperf.measure import in_fresh_process


def test_without_asynchronous_dispatch_every_call_returns_with_its_result() -> None:
    found = in_fresh_process(part.without_dispatch, 700, 0)
    assert found["ready"] == [True] * 7
    assert found["asynchronous"] is False


def test_this_process_answers_with_raw_times_of_every_call() -> None:
    found = part.asked_here(300, 0)
    assert len(found["ready"]) == len(found["queued_s"]) == len(found["finished_s"]) == 7
    assert found["asynchronous"] is (2 * sum(found["ready"]) < 7)
