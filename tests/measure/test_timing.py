import threading
from types import SimpleNamespace

import jax.numpy as jnp
import pytest
from late import FAR, Late

from jaxperf.measure import timing
from jaxperf.measure.timing import Benchmark


@pytest.fixture
def clock(monkeypatch):
    hand = SimpleNamespace(now=100.0)
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: hand.now))
    return hand


def test_benchmark_prints_the_books_line(clock, capsys):
    with Benchmark("Workloads are queued.") as bench:
        clock.now += 0.12344
    with Benchmark():
        clock.now += 2
    assert capsys.readouterr().out == "Workloads are queued. time: 0.1234 sec\ntime: 2.0000 sec\n"
    assert bench.seconds == pytest.approx(0.12344)


def test_benchmark_prints_nothing_and_hides_nothing_on_an_error(capsys):
    bench = Benchmark("x")
    with pytest.raises(KeyError, match="ours"), bench:
        bench.wait_for(object())  # could not be waited for, which must not hide the error
        raise KeyError("ours")
    assert capsys.readouterr().out == ""


def test_benchmark_waits_for_all_that_it_was_handed():
    late, lines = Late(), list[str]()

    def run():
        with Benchmark("x", show=lines.append) as bench:
            assert bench.wait_for(slow) is slow
            bench.wait_for([jnp.ones(3)])

    slow = late.array()
    timed = threading.Thread(target=run)
    timed.start()
    timed.join(0.1)
    assert not lines, "the clock stopped while work was pending"
    late.gate.set()
    timed.join(FAR)
    assert len(lines) == 1
