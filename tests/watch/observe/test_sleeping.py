import threading
import time

import pytest

from jaxperf.watch.observe.sampler import Sleep


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / str(threading.get_native_id())
    folder.mkdir()
    return folder


def account(folder, state, ran_ms, waited_ms):
    (folder / "schedstat").write_text(f"{ran_ms * 1_000_000} {waited_ms * 1_000_000} 7\n")
    (folder / "stat").write_text(f"12 (python (3)) {state} 1 12\n")


def test_a_thread_sleeps_since_it_last_ran_or_was_ready_to_run(folder):
    account(folder, "R", 5000, 0)
    sleep, start = Sleep(folder.parent), time.perf_counter()
    for ms, state, ran_ms, waited_ms, slept_ms in (
        (100, "R", 5090, 0, 0),
        (200, "S", 5091, 0, 100),
        (300, "S", 5092, 0, 200),
        (400, "R", 5092, 0, 0),  # ready to run, which the account does not know yet
        (500, "S", 5093, 90, 0),  # another program had the core
        (600, "S", 5093, 90, 100),
        (700, "D", 5093, 90, 200),
    ):
        account(folder, state, ran_ms, waited_ms)
        assert sleep.until(start + ms / 1000) == pytest.approx(slept_ms / 1000, abs=1e-9)
        assert sleep.delayed_s == pytest.approx(0.09 if ms == 500 else 0.0)
