import gc

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxperf.watch.log import EAGER, Log, StackSample, Wait
from jaxperf.watch.observe import waits
from jaxperf.watch.observe.hooks import Replacements
from jaxperf.watch.observe.source_location import Place
from jaxperf.watch.observe.waits import Waits
from jaxperf.watch.report.analysis import Analysis
from jaxperf.watch.rules.idle import find_waits
from jaxperf.watch.session import Watcher

READS = Place("a.py", 3, "reads")


def test_a_recorded_wait_is_no_object_for_the_garbage_collector():
    log, x = Log("a"), jnp.float32(2)
    reads = Waits(log, Replacements())
    read = reads._method(lambda array: 2.0, "float")
    read(x)
    before = len(gc.get_objects())
    for _ in range(1000):
        read(x)
    assert len(gc.get_objects()) - before < 100
    reads.close()
    assert len(log.waits) == 1001 and sum(wait.nbytes for wait in log.waits) == 4  # it comes once


def test_an_element_that_a_statement_converts_twice_counts_once_and_arrays_of_numpy_have_none():
    labels, counts, shown = np.arange(37) % 3, np.zeros((3, 37), int), jnp.arange(37)
    watcher = Watcher("a", profile=False)
    watcher.open()
    for i in range(37):
        counts[labels[i], shown[i]] += 1
    (reads,) = find_waits(Analysis(watcher.close()))
    assert reads.cause == "element reads" and reads.reason.startswith("37 elements of shown come")


def test_an_index_that_is_an_array_is_no_number_that_comes_to_the_host():
    rows, order, last = np.arange(12.0).reshape(4, 3), jnp.argsort(jnp.array([3, 1, 2, 0])), jnp.int32(3)
    watcher = Watcher("a", profile=False)
    watcher.open()
    assert rows[order].shape == (4, 3) and rows[last].shape == (3,)
    assert [wait.kind for wait in watcher.close().waits] == ["int"]


def test_the_lines_of_a_loop_that_read_elements_are_one_finding(places):
    at = places(
        "for i in range(9):\n    a = float(best[i])\n    b, c = int(low[i]), float(high[i])\nprint(best[0])\n"
    )
    read = [("float", 2, 0.1), ("int", 3, 0.1), ("float", 3, 0.3)]
    waits = [Wait(kind, at(line), t, t + s, 4) for t in range(9) for kind, line, s in read]
    samples = [StackSample(EAGER, at(line), t, t + 4e-4) for t in range(10, 19) for line in (2, 3)]
    (finding,) = find_waits(Analysis(Log("a", 0.0, 99.0, waits=waits, samples=samples)))
    assert (finding.at, finding.argument) == (at(3), "low, high, best")
    assert finding.seconds == pytest.approx(9 * 0.5 + 18 * 4e-4)
    assert finding.reason.startswith(
        "27 elements of low, high, best come to the host one by one, here and at line 2"
    )


def test_count_seconds_and_bytes_of_a_line_are_of_all_waits_that_the_recorded_ones_stand_for():
    recorded = [Wait("float", READS, float(t), t + 0.01, 4, times=10) for t in range(5)]
    analysis = Analysis(Log("a", 0.0, 5.0, waits=recorded))
    (line,) = analysis.lines
    assert (line.count, line.nbytes) == (50, 200)
    assert line.total_s == pytest.approx(0.5)
    assert analysis.shares()["front end waits for devices"] == pytest.approx(0.1)


def test_a_program_of_reads_is_counted_and_its_methods_are_restored(monkeypatch, watched):
    monkeypatch.setattr(waits, "FIRST_WAITS", 100)
    monkeypatch.setattr(waits, "BRIEF_S", 1e9)  # any wait is brief
    values = jax.block_until_ready(jnp.ones(100))
    methods = {name: getattr(type(values), name) for name in ("__float__", "item")}
    recorded = watched(lambda: [float(values[i % 100]) for i in range(1200)]).log.waits
    assert len(recorded) < 300 and abs(sum(wait.times for wait in recorded) - 1200) <= 100
    assert {name: getattr(type(values), name) for name in methods} == methods
