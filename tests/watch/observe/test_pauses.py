"""Hooks of single reads rest while there are thousands a second, and the report estimates the rest."""

from __future__ import annotations

import time

import jax
import jax.numpy as jnp
import pytest

from jaxperf.watch.observe import waits
from jaxperf.watch.observe.hooks import Replacements
from jaxperf.watch.observe.sampler import EAGER, NUMPY, StackSample
from jaxperf.watch.observe.source_location import Place
from jaxperf.watch.observe.waits import FIRST_WAITS, RATE, Pause, Pauses, Wait
from jaxperf.watch.report.analysis import Analysis
from jaxperf.watch.session import Record, Watcher

READS, ELSEWHERE = Place("a.py", 3, "reads"), Place("a.py", 9, "sorts")


class Array:
    def item(self) -> str:
        return "function"


def hook(self: Array) -> str:
    return "hook"


@pytest.fixture
def hooked(monkeypatch: pytest.MonkeyPatch) -> Pauses:
    """Return pauses with one hook, one wait before it may rest."""
    monkeypatch.setattr(Array, "item", Array.item)  # restores it
    hooks = Pauses(Replacements())
    hooks.replace(Array, "item", lambda _: hook)
    hooks.look(1.0, FIRST_WAITS - 1, False)
    return hooks


def test_hooks_rest_at_a_high_rate_of_waits_and_come_back(hooked: Pauses) -> None:
    assert Array().item() == "hook"
    hooked.look(1.1, FIRST_WAITS + RATE // 5, False)
    assert Array().item() == "function"
    hooked.look(1.95, FIRST_WAITS + RATE // 5, False)
    assert Array().item() == "function"
    hooked.look(2.05, FIRST_WAITS + RATE // 5, False)
    assert Array().item() == "hook"
    assert hooked.pauses == [Pause((1.0, 1.1), 1.1, 2.05)]


@pytest.mark.parametrize(("count", "needed"), [(FIRST_WAITS + RATE // 20, False), (FIRST_WAITS + RATE, True)])
def test_hooks_stay_at_a_low_rate_and_in_windows_of_the_profiler(
    hooked: Pauses, count: int, needed: bool
) -> None:
    hooked.look(1.1, count, needed)
    assert Array().item() == "hook"


def test_a_window_of_the_profiler_ends_a_pause(hooked: Pauses) -> None:
    hooked.look(1.1, FIRST_WAITS + RATE, False)
    hooked.look(1.2, FIRST_WAITS + RATE, True)
    assert Array().item() == "hook"


def test_a_method_that_the_program_replaced_in_a_pause_stays(hooked: Pauses) -> None:
    hooked.look(1.1, FIRST_WAITS + RATE, False)
    Array.item = lambda self: "program"  # type: ignore[method-assign]
    hooked.end(1.2)
    assert Array().item() == "program"


def analysis_with_pause(*samples: StackSample, others: tuple[Wait, ...] = ()) -> Analysis:
    """Return what was seen of ten reads of 10 ms in a second, before a pause from 1 to 5 s."""
    waits = [Wait("float", READS, t / 10, t / 10 + 0.01, 4) for t in range(10)]
    before = StackSample(EAGER, READS, 0.0, 1.0)
    return Analysis(
        Record("a", 0.0, 5.0, waits=[*waits, *others], samples=[before, *samples],
               pauses=[Pause((0.0, 1.0), 1.0, 5.0)])
    )  # fmt: skip


@pytest.mark.parametrize(
    ("samples", "count"),
    [
        ([StackSample(EAGER, READS, 1.0, 5.0)], 50),
        ([StackSample(EAGER, READS, 1.0, 3.0), StackSample(NUMPY, ELSEWHERE, 3.0, 5.0)], 30),
        ([StackSample(NUMPY, ELSEWHERE, 1.0, 5.0, callers=(READS,))], 50),
        ([StackSample(NUMPY, ELSEWHERE, 1.0, 5.0)], 10),
    ],
    ids=["all of the pause", "half of it", "called by it", "none of it"],
)
def test_waits_in_a_pause_are_estimated_where_samples_are_in_the_function_that_reads(
    samples: list[StackSample], count: int
) -> None:
    analysis = analysis_with_pause(*samples)
    (line,) = analysis.lines
    assert (line.count, line.nbytes) == (count, 4 * count)
    assert line.total_s == pytest.approx(0.01 * count)
    assert analysis.shares()["front end waits for devices"] == pytest.approx(0.002 * count)


def test_a_recorded_wait_in_a_pause_is_no_time_of_reads() -> None:
    blocked = Wait("block_until_ready", READS, 1.0, 3.0, 0)
    analysis = analysis_with_pause(StackSample(EAGER, READS, 1.0, 5.0), others=(blocked,))
    assert {line.kind: line.count for line in analysis.lines} == {"block_until_ready": 1, "float": 30}


def test_watch_pauses_its_hooks_in_a_program_of_reads_and_restores_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(waits, "FIRST_WAITS", 100)
    monkeypatch.setattr(waits, "RATE", 0)  # any rate is high
    values = jax.block_until_ready(jnp.ones(100))
    methods = {name: getattr(type(values), name) for name in ("__float__", "item")}
    reads, give_up = 0, time.monotonic() + 60
    watcher = Watcher("a", profile=False)
    watcher.open()
    try:
        while len(watcher.pauses.pauses) < 2 and time.monotonic() < give_up:
            float(values[reads % 100])
            reads += 1
    finally:
        record = watcher.close()
    assert len(record.pauses) >= 2
    assert len(record.waits) < reads
    assert any("their count and seconds are estimates" in line for line in record.remarks)
    assert {name: getattr(type(values), name) for name in methods} == methods
