import os
import runpy
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxperf.watch import log as events
from jaxperf.watch.log import Log
from jaxperf.watch.observe import memory, sampler, source_location
from jaxperf.watch.observe.sampler import Sleep

LIBRARY = """\
import jax
import jax.numpy as jnp

def python(look, x):
    look()
    return x

def sampled(look, x):
    return jax.vmap(look)(x)

def inside(look, x):
    return jnp.vectorize(lambda y: look() or y)(x)
"""


@pytest.fixture
def library(site_packages):
    path = site_packages / "jaxlike_53.py"
    path.write_text(LIBRARY)
    return SimpleNamespace(**runpy.run_path(str(path), run_name="jaxlike_53"))


def test_jaxs_operations_in_another_library_are_eager(library):
    kinds = []

    def look():
        frame = sys._getframe(1)  # the library's
        while source_location.library_of(frame.f_code.co_filename) == "":
            frame = frame.f_back
        kinds.append(sampler._sample_of(frame, 0.0, 1.0).kind)

    library.inside(look, jnp.ones(2))
    library.python(look, jnp.ones(2))
    assert kinds == [events.EAGER, events.PYTHON]


@pytest.mark.parametrize(("array", "kind"), [(np.ones(3), events.NUMPY), (jnp.ones(3), events.EAGER)])
def test_numpy_that_gives_its_call_to_an_array_of_jax_does_not_compute(array, kind):
    kinds = []

    def look(frame, event, argument):
        if event == "call":
            kinds.append(sampler._sample_of(frame, 0.0, 1.0).kind)

    np.sum(array)
    sys.setprofile(look)
    try:
        np.sum(array)
    finally:
        sys.setprofile(None)
    assert kinds[-1] == kind


def test_what_vmap_or_grad_transforms_has_the_line_that_calls_the_transformed_function(library):
    lines = []

    def look(x):
        lines.append(source_location.transformed_at(sys._getframe()).line)
        return x.sum()

    def energy(x):
        return jax.grad(look)(x)

    here = sys._getframe().f_lineno
    jax.vmap(energy)(jnp.ones((2, 3)))  # the outermost one, in which `grad` runs
    jax.tree.map(look, [jnp.ones(2)])
    look(jnp.ones(2))
    library.sampled(look, jnp.ones((2, 3)))  # which transforms it in code of its own
    assert lines == [here + 1, 0, 0, 0]


def test_a_readers_own_module_may_begin_with_jax():
    class Environment:
        def reset(self): ...

    Environment.__module__ = "jaxrl.environments"
    environment = Environment()
    assert sampler._kind_of_callee(environment) == events.PYTHON
    Environment.__module__ = "numpyro_models"
    assert sampler._kind_of_callee(environment) == events.PYTHON
    assert sampler._kind_of_callee(jnp.sin) == sampler._kind_of_callee(jax.grad) == events.EAGER
    assert sampler._kind_of_callee(jnp.ones(1)) == events.EAGER
    assert sampler._kind_of_callee(np.random.default_rng(0)) == events.NUMPY
    assert sampler._kind_of_callee(jax.jit(lambda x: x)) == events.DISPATCH


def test_a_program_that_keeps_pythons_lock_is_seen_again_soon_after_a_sample_lost_it(monkeypatch):
    sample_of, intervals = sampler._sample_of, []

    def slow(*args):
        intervals.append(sys.getswitchinterval())
        end = time.perf_counter() + 0.02  # the program asks for the lock after 5 ms, and is given it here
        while time.perf_counter() < end:
            pass
        return sample_of(*args)

    monkeypatch.setattr(sampler, "_sample_of", slow)
    looking = sampler.Sampler(Log("a"))
    looking.open()
    while len(looking.log.samples) < 5:
        pass
    looking.close()
    assert max(intervals) < 1  # seconds after which the sampler asks for the lock that it has lost


def test_a_sample_is_of_the_line_at_which_the_program_was_before_a_file_was_read(monkeypatch):
    """Reading a file releases the GIL, so that the program goes on."""

    def program():
        yield "first line"
        yield "second line"

    running, sample = program(), sampler.Sampler(Log("a"))
    sample.open()
    sample.close()
    sample.log.samples.clear()
    next(running)
    monkeypatch.setattr(sample, "_bytes_written", lambda: len(next(running)))
    sample._sample(running.gi_frame, time.perf_counter())
    (seen,) = sample.log.samples
    assert "first line" in seen.at.source
    assert running.gi_frame.f_lineno == seen.at.line + 1


def test_while_memory_grows_listing_the_live_arrays_takes_at_most_one_percent_of_the_time(monkeypatch):
    now, listed = 0.0, 0

    def list_them(jax, held_by):
        nonlocal now, listed
        now, listed = now + 0.04, listed + 1
        return []

    readings = memory.MemoryReadings(Log("a"), started=lambda: True)
    monkeypatch.setattr(memory.time, "perf_counter", lambda: now)
    device = SimpleNamespace(memory_stats=lambda: {"bytes_in_use": round(1e6 * 2**now)})
    monkeypatch.setattr(jax, "local_devices", lambda: [device])
    monkeypatch.setattr(memory, "list_live_arrays", list_them)
    while now < 40:
        readings.read()
        now += 0.25
    assert 8 <= listed <= 10


def test_a_thread_sleeps_since_it_last_ran_or_was_ready_to_run(tmp_path):
    thread = tmp_path / str(threading.get_native_id())
    thread.mkdir()

    def account(state, ran_ms, waited_ms):
        (thread / "schedstat").write_text(f"{ran_ms * 1_000_000} {waited_ms * 1_000_000} 7\n")
        (thread / "stat").write_text(f"12 (python (3)) {state} 1 12\n")

    account("R", 5000, 0)
    sleep, start = Sleep(tmp_path), time.perf_counter()
    for ms, state, ran_ms, waited_ms, slept_ms, since_last_ms in (
        (100, "R", 5090, 0, 0, 10),
        (200, "S", 5091, 0, 100, 99),
        (300, "S", 5092, 0, 200, 99),
        (400, "R", 5092, 0, 0, 0),  # ready to run, which the account does not know yet
        (500, "S", 5093, 90, 0, 9),  # another program had the core
        (600, "S", 5093, 90, 100, 100),
        (700, "D", 5093, 90, 200, 100),
        (800, "S", 5133, 90, 0, 60),
    ):
        account(state, ran_ms, waited_ms)
        assert sleep.until(start + ms / 1000) == pytest.approx(slept_ms / 1000, abs=1e-9)
        assert sleep.slept_s == pytest.approx(since_last_ms / 1000, abs=1e-3)
        assert sleep.delayed_s == pytest.approx(0.09 if ms == 500 else 0.0)


def test_what_the_kernel_counts_is_read_anew_until_its_file_is_closed(tmp_path):
    path = tmp_path / "io"
    path.write_text("wchar: 7\n")
    file = sampler.KernelFile(path)
    assert file.read() == b"wchar: 7\n"
    path.write_text("wchar: 90\n")
    assert file.read() == b"wchar: 90\n"
    file.close()
    assert file.read() == b""
    other = sampler.KernelFile(path)
    os.close(other._file)
    programs = os.open(tmp_path / "programs", os.O_CREAT | os.O_WRONLY)
    assert programs == other._file
    other.close()
    os.close(programs)  # which is still open
    absent = sampler.KernelFile(tmp_path / "absent")
    assert absent.read() == b""
    absent.close()


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="this system does not list open files")
def test_a_sampler_that_is_closed_leaves_no_file_open():
    def opened():
        return sorted(os.listdir("/proc/self/fd"))  # noqa: PTH208

    before, sample = opened(), sampler.Sampler(Log("a"))
    sample.open()
    during = opened()
    sample.close()
    assert len(during) > len(before)
    assert opened() == before


def test_values_of_later_calls_are_seen_where_one_call_lasts_for_many_samples():
    log = Log("a")
    sampling = sampler.Sampler(log)

    def anneal(turn):
        for _ in range(2 * sampler.LOOKS_AT_VALUES):
            sampling._note_parameters(sys._getframe())

    for turn in (7, 8, 9):
        anneal(turn)
    (known,) = (names for (_, function), names in log.parameters.items() if function == "anneal")
    assert known["turn"] == {"7", "8", "9"}
