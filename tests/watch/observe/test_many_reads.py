"""Of thousands of brief reads a second, about every fiftieth is recorded, and stands for the others."""

from __future__ import annotations

import gc
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from jaxperf.watch.log import Log, Wait
from jaxperf.watch.observe import waits
from jaxperf.watch.observe.hooks import Replacements
from jaxperf.watch.observe.source_location import Place
from jaxperf.watch.observe.waits import FIRST_WAITS, RATE, Waits
from jaxperf.watch.report.analysis import Analysis
from jaxperf.watch.session import Watcher

READS = Place("a.py", 3, "reads")


def test_all_waits_are_recorded_until_there_are_many_a_second() -> None:
    reads = Waits(Log("a"), Replacements())
    for count, seconds, often in (
        (FIRST_WAITS - 1, 0.1, False),  # the first ones, at any rate
        (RATE, 2.0, False),
        (RATE, 0.5, True),
        (RATE, 2.0, False),
    ):
        reads._count += count
        reads.look(reads._moment + seconds)
        assert reads._often == often


def test_a_recorded_wait_stands_for_the_brief_ones_before_it_and_long_ones_are_all_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0

    class Scalar:
        nbytes = 4

        def read(self, seconds: float = 1e-6) -> float:
            nonlocal now
            now += seconds
            return 1.0

    monkeypatch.setattr(waits, "time", SimpleNamespace(perf_counter=lambda: now))
    log = Log("a")
    reads = Waits(log, Replacements())
    read = reads._method(Scalar.read, "tobytes")
    scalar, reads._often = Scalar(), True
    for _ in range(1000):
        read(scalar)
    for _ in range(3):
        read(scalar, 0.002)
    reads.close()
    long = [wait for wait in log.waits if wait.end - wait.start > 0.001]
    brief = [wait for wait in log.waits if wait not in long]
    assert [wait.times for wait in long] == [1] * 3
    assert 900 <= sum(wait.times for wait in brief) <= 1000 and len(brief) < 50
    assert any("stands for the others" in remark for remark in log.remarks)


def test_a_recorded_wait_is_no_object_for_the_garbage_collector() -> None:
    """Such objects would let it run more often, in the middle of the program."""
    log, x = Log("a"), jnp.float32(2)
    reads = Waits(log, Replacements())
    read = reads._method(lambda array: 2.0, "float")
    read(x)
    before = len(gc.get_objects())
    for _ in range(1000):
        read(x)
    assert len(gc.get_objects()) - before < 100
    reads.close()
    assert len(log.waits) == 1001 and {wait.nbytes for wait in log.waits} == {4}


def test_count_seconds_and_bytes_of_a_line_are_of_all_waits_that_the_recorded_ones_stand_for() -> None:
    recorded = [Wait("float", READS, float(t), t + 0.01, 4, times=10) for t in range(5)]
    analysis = Analysis(Log("a", 0.0, 5.0, waits=recorded))
    (line,) = analysis.lines
    assert (line.count, line.nbytes) == (50, 200)
    assert line.total_s == pytest.approx(0.5)
    assert analysis.shares()["front end waits for devices"] == pytest.approx(0.1)


def test_a_program_of_reads_is_counted_and_its_methods_are_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waits, "FIRST_WAITS", 100)
    monkeypatch.setattr(waits, "RATE", 0)  # any rate is high
    monkeypatch.setattr(waits, "BRIEF_S", 1e9)  # and any wait brief
    values = jax.block_until_ready(jnp.ones(100))
    methods = {name: getattr(type(values), name) for name in ("__float__", "item")}
    reads = 0
    watcher = Watcher("a", profile=False)
    watcher.open()
    try:
        while not watcher.waits._often:  # type: ignore[union-attr]
            float(values[reads % 100])
            reads += 1
        for _ in range(1000):
            float(values[reads % 100])
            reads += 1
    finally:
        log = watcher.close()
    assert len(log.waits) < reads - 900
    assert abs(sum(wait.times for wait in log.waits) - reads) <= 100
    assert {name: getattr(type(values), name) for name in methods} == methods
