import math
import threading
import time
from unittest.mock import DEFAULT, Mock

import jax
import jax.numpy as jnp
import pytest

from jaxperf.watch import session, watch
from jaxperf.watch.log import DISPATCH, Compiled, Log, StackSample
from jaxperf.watch.observe import profiler
from jaxperf.watch.observe.hooks import Replacements
from jaxperf.watch.observe.source_location import NOWHERE, Place


@pytest.fixture
def waiting_threads(monkeypatch):
    threads = []
    waits = lambda: threads.append(threading.current_thread())  # noqa: E731
    monkeypatch.setattr(profiler, "_cuda_devices", lambda: [0])
    monkeypatch.setattr(profiler, "wait_for_cuda_devices", waits)
    return threads


def compute(until):
    step, x, windows = jax.jit(lambda x: x @ x / 100), jnp.ones((100, 100)), session._open_watch.profiler
    while not until(windows):
        x = step(x).block_until_ready()


def test_on_a_cuda_device_windows_begin_and_end_in_the_main_thread_while_it_is_idle(waiting_threads):
    with watch(show=False) as watched:
        compute(lambda profiler: len(profiler.windows_s) >= 2)
    windows = watched.log.activity.windows
    assert windows
    assert set(waiting_threads) == {threading.main_thread()}
    assert len(waiting_threads) >= 2 * len(windows)


@pytest.fixture
def windows(monkeypatch):
    """A profiler with a mock of JAX's sessions, which open a window when they are made."""
    session = Mock()
    monkeypatch.setattr(profiler.jax_internals, "get", lambda internal: session)
    made = profiler.Profiler(Log("a"), Replacements(), compiling=lambda: made.compiles)
    made.session, made.compiles = session, False
    return made


@pytest.mark.parametrize("slow", ["opening", "closing"])
def test_a_window_that_is_slow_is_followed_by_a_long_pause(slow, waiting_threads, windows):
    def work(*options):
        until = time.thread_time() + 0.2
        while time.thread_time() < until:
            pass
        return DEFAULT

    windows.session.return_value.stop.return_value = b""
    (windows.session if slow == "opening" else windows.session.return_value.stop).side_effect = work
    windows._open_window()
    before = time.perf_counter()
    windows._close_window()
    assert windows.windows_s[0] >= 0.2
    # the main thread's time on a GPU
    assert windows.log.overhead_s["profiler"] == pytest.approx(windows.windows_s[0])
    assert windows._next - before >= windows.windows_s[0] / profiler.COST_SHARE


def sample_at(*lines):
    """Return samples at these lines, which end after any window has begun."""
    return [StackSample(DISPATCH, Place("train.py", line, "f"), math.inf, math.inf) for line in lines]


def lengths_after(windows, *sizes):
    """Yield the planned length after each window of so many bytes, which was as long as planned."""
    windows.session.return_value.stop.side_effect = map(bytes, sizes)
    for _ in sizes:
        windows._open_window()
        windows._opened -= windows._length_s
        windows._close_window()
        yield windows._length_s


def test_windows_grow_while_they_see_almost_nothing(windows):
    lengths = [*lengths_after(windows, 100, 100, 100, 100, 500_000, 100)]
    assert lengths == pytest.approx([0.12, 0.48, 1.92, 2.0, 0.25, 1.0])


def test_windows_stay_short_while_a_longer_one_would_hold_more_than_is_read(windows):
    windows._length_s = profiler.SHORT_S
    dense = int(1.1 * profiler.READ_BYTES * profiler.SHORT_S / profiler.LONG_S)
    assert [*lengths_after(windows, dense, dense // 2)] == [profiler.SHORT_S, profiler.LONG_S]


def test_windows_become_shorter_while_they_hold_more_than_is_read(windows):
    """And the pause after one is for what the next one will cost."""
    windows._length_s, dense = profiler.SHORT_S, 2 * profiler.READ_BYTES
    lengths = [*lengths_after(windows, dense, dense, 20 * dense)]
    assert lengths == pytest.approx([0.05, 0.025, profiler.SHORTEST_S], rel=0.1)
    windows._length_s = profiler.SHORT_S
    cost_s, before = 0.2, time.perf_counter()
    windows._opening_s, windows._session = cost_s, windows.session()
    windows._opened = before - profiler.SHORT_S
    windows.session.return_value.stop.side_effect = [bytes(dense)]
    windows._close_window()
    pause_s = windows.windows_s[-1] / profiler.COST_SHARE
    assert 0.5 * pause_s <= windows._next - before < 0.9 * pause_s


def test_of_too_many_bytes_that_window_goes_that_has_most_of_them(windows):
    small, large = profiler.KEPT_BYTES // 10, profiler.KEPT_BYTES
    list(lengths_after(windows, large, small, small))
    assert [len(profile) for profile, *_ in windows.windows] == [small, small]
    list(lengths_after(windows, *[small] * 9))  # and where they are alike, every second one
    assert len(windows.windows) == 6


def test_windows_do_not_grow_while_the_front_end_goes_from_line_to_line(windows):
    windows.log.samples = sample_at(3, 4)
    assert [*lengths_after(windows, 100, 100)] == [profiler.SHORT_S] * 2


def test_a_window_that_was_shorter_than_planned_counts_as_long_as_it_was(windows):
    windows._length_s = profiler.LONGEST_S
    windows._open_window()
    windows._opened -= profiler.SHORT_S
    windows.session.return_value.stop.side_effect = [bytes(5 * profiler.READ_BYTES)]
    windows._close_window()
    assert windows._length_s == pytest.approx(profiler.SHORT_S / 5, rel=0.1)


def test_a_large_window_is_read_as_far_as_small_ones_leave_room(windows, monkeypatch):
    shares = list[float]()
    monkeypatch.setattr(profiler, "read_window", lambda profile, *_, share: shares.append(share))
    windows._first = time.perf_counter()
    list(lengths_after(windows, 1000, 2 * profiler.READ_BYTES, 1000))
    windows.close()
    assert shares == pytest.approx([1.0, 0.5, 1.0], rel=0.1)


@pytest.mark.parametrize(("cost_s", "opens"), [(0.0, True), (10.0, False)])
def test_a_function_that_is_new_has_a_window_unless_windows_were_dear(windows, cost_s, opens):
    windows.begin_anew(Compiled("step", NOWHERE, explained=True, defined="a.py:1"), None)
    list(lengths_after(windows, 100))
    windows._first -= 100
    windows.windows_s.append(cost_s)
    later = windows._next = time.perf_counter() + 1000
    windows.begin_anew(Compiled("step", NOWHERE, explained=True, defined="a.py:1"), None)
    windows.begin_anew(Compiled("add", NOWHERE), None)  # an operation outside of jit
    assert windows._next == later
    windows.begin_anew(Compiled("evaluate", NOWHERE, explained=True, defined="a.py:9"), None)
    assert (windows._next < later) is opens


def test_a_long_window_ends_when_the_front_end_goes_on(windows):
    windows.log.samples = sample_at(3, 3)
    assert [*lengths_after(windows, 100, 100)][-1] > profiler.LONG_S
    assert windows._planned_s() > profiler.LONG_S
    windows.log.samples += sample_at(4)
    assert windows._planned_s() == profiler.SHORT_S


@pytest.mark.parametrize(("age_s", "close"), [(0.5, True), (1.5, False)])  # of a long window, in `LONG_S`
def test_samples_are_close_in_a_window_until_it_is_long(windows, age_s, close):
    windows._session, windows._length_s = windows.session(), profiler.LONGEST_S
    windows._opened = time.perf_counter() - age_s * profiler.LONG_S
    assert windows.look() is close and windows._session is not None


def test_windows_are_short_again_after_one_that_compiling_ended(windows):
    assert [*lengths_after(windows, 100, 100)][-1] > profiler.LONG_S
    windows.compiles = True
    windows.session.return_value.stop.side_effect = [b""]
    windows._session = windows.session()
    windows._close_window()
    assert windows._length_s == profiler.FIRST_S


def test_on_a_cuda_device_a_program_in_another_thread_has_no_windows_and_a_note(waiting_threads):
    records = []

    def program():
        with watch(show=False) as watched:
            compute(lambda profiler: profiler._ended)
        records.append(watched.log)

    thread = threading.Thread(target=program)
    thread.start()
    thread.join()
    assert not records[0].activity.windows and not waiting_threads
    assert any("main thread" in remark for remark in records[0].remarks)


def test_a_driver_without_that_device_is_not_waited_for(monkeypatch):
    calls = []

    class Driver:
        def __getattr__(self, name):
            return lambda *arguments: calls.append(name) or int(name == "cuDevicePrimaryCtxRetain")

    monkeypatch.setattr(profiler, "cuda_driver", Driver)
    monkeypatch.setattr(profiler, "_cuda_devices", lambda: [0])
    profiler.wait_for_cuda_devices()
    assert calls == ["cuDevicePrimaryCtxRetain"]
