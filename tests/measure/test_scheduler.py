import threading
from pathlib import Path

import pytest

from jaxperf.measure import scheduler
from jaxperf.measure.rounds import interleaved
from jaxperf.measure.scheduler import Account, Scheduler, lost_s, set_aside
from jaxperf.result import Measurement

NONE = Account(0.0, dict.fromkeys("abcd", (0.0, 0.0)))


def values(*of, note=""):
    return Measurement("m", "s", of, note=note)


def test_what_a_thread_waited_beyond_what_its_process_ran_others_took():
    for used, threads, lost in (
        (2.0, {"a": (2.0, 0.0)}, 0.0),
        (2.0, {"a": (2.0, 4.0)}, 4.0),
        (2.0, {"a": (1.0, 1.0), "b": (1.0, 1.0)}, 0.0),  # they took turns on one core
        (4.0, {"a": (1.0, 3.0), "b": (1.0, 3.0), "c": (1.0, 3.0), "d": (1.0, 3.0)}, 0.0),
        (2.0, {"a": (1.0, 3.0), "b": (1.0, 0.0)}, 2.0),  # a second of the three may be due to b
        (2.0, {"a": (0.5, 0.0), "b": (0.0, 2.5)}, 0.5),  # woken while a thread that has ended ran, too
        (1.0, {"a": (1.1, 0.0)}, 0.0),  # it ran on while the account was read
        (1.0, {"a": (1.1, 0.3)}, 0.3),
        (1.0, {}, 0.0),
    ):
        assert lost_s(NONE, Account(used, threads)) == pytest.approx(lost), threads
    before = Account(10.0, {"a": (6.0, 50.0), "b": (4.0, 0.0)})  # only what came since counts
    assert lost_s(before, Account(12.0, {"a": (8.0, 50.0), "b": (4.0, 0.0)})) == 0
    assert lost_s(before, Account(12.0, {"a": (8.0, 51.5), "b": (4.0, 0.0)})) == 1.5


def thread_folder(folder, **accounts):
    for thread, account in accounts.items():
        (folder / thread).mkdir(parents=True, exist_ok=True)
        (folder / thread / "schedstat").write_text(account)
    return folder


def test_the_account_is_read_for_every_thread_in_seconds(tmp_path):
    folder = thread_folder(tmp_path, a="1500000000 2 7\n", b="0 3000000000 1\n")
    with Scheduler(folder, used=lambda: 2.5) as threads:
        assert threads.account() == Account(2.5, {"a": (1.5, 2e-9), "b": (0.0, 3.0)})
        thread_folder(tmp_path, a="1600000000 1000000000 8\n")
        assert threads.account().threads["a"] == (1.6, 1.0)


@pytest.mark.skipif(not scheduler.THREADS.is_dir(), reason="no threads are listed here")
def test_a_thread_that_ends_is_left_out():
    go = threading.Event()
    thread = threading.Thread(target=go.wait)
    thread.start()
    with Scheduler() as threads:
        before = threads.account()
        go.set()
        thread.join()
        while Path(scheduler.THREADS, str(thread.native_id)).exists():
            pass  # it has been joined a moment before it is gone
        after = threads.account()
    assert before.threads.keys() - after.threads.keys() == {str(thread.native_id)}
    assert lost_s(before, after) >= 0


def test_disturbed_values_are_set_aside_where_enough_others_remain():
    taken = values(1.0, 9.0, 2.0, 8.0, 3.0, note="devices are fake")
    assert set_aside(taken, [False] * 5, 7) == taken
    m = set_aside(taken, [False, True, False, True, False], 3)
    assert (m.values, m.set_aside, m.disturbed, m.trusted) == ((1.0, 2.0, 3.0), (9.0, 8.0), 0, True)
    assert m.note == "devices are fake; 2 of 5 values set aside: another program had the core"


def test_where_too_few_others_remain_all_are_kept_and_the_note_says_so():
    for disturbed, note in (
        ([True, False, True], "not to be trusted: another program had the core in 2 of 3 values"),
        ([True, False, False], "another program had the core in 1 of 3 values"),  # the median is another's
    ):
        m = set_aside(values(1.0, 2.0, 3.0), disturbed, 3)
        assert (m.values, m.set_aside, m.disturbed) == ((1.0, 2.0, 3.0), (), sum(disturbed))
        assert m.note == note
        assert m.trusted is ("trusted" not in note)


def test_values_of_rounds_are_never_set_aside(monkeypatch):
    waited = iter(range(10**6))
    monkeypatch.setattr(Scheduler, "account", lambda self: Account(0.0, {"1": (0.0, float(next(waited)))}))
    for m in interleaved(dict.fromkeys("ab", int), count=8, loops=1).values():
        assert (len(m.values), m.set_aside, m.note) == (8, (), "")
