"""What watch says about devices and about how a program ends is true, also where it saw only a part."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxperf
from jaxperf.chapter.run_sections import child_environment
from jaxperf.watch.observe import stuck
from jaxperf.watch.observe.sampler import IMPORT, PYTHON, WRITE, StackSample
from jaxperf.watch.observe.waits import Wait
from jaxperf.watch.observe.windows import ExecutedProgram, Seen
from jaxperf.watch.report.analysis import Analysis
from jaxperf.watch.report.top_programs import hottest_programs
from jaxperf.watch.session import Record

AT = jaxperf.watch.observe.source_location.Place("a.py", 3)


def record(
    program: ExecutedProgram,
    *,
    windows: list[tuple[float, float]],
    samples: list[StackSample],
    waits: list[Wait],
) -> Record:
    """A run of ten seconds."""
    return Record(
        "a", 0.0, 10.0, [], waits, samples, {}, [], [], Seen(windows, {program.name: program}),
    )  # fmt: skip


def test_devices_compute_no_longer_than_the_run_without_imports() -> None:
    program = ExecutedProgram("step", calls=5, devices={"cpu 0": [(9.0, 9.2)]})  # all of the only window
    imports = StackSample(IMPORT, AT, 0.0, 8.0)
    rest = StackSample(PYTHON, AT, 8.0, 10.0)
    shares = Analysis(record(program, windows=[(9.0, 9.2)], samples=[imports, rest], waits=[])).shares()
    assert 0.02 <= shares["devices compute"] <= 0.2


def test_a_device_computes_while_the_front_end_waits_though_the_profiler_has_no_event() -> None:
    program = ExecutedProgram("step", devices={"cpu 0": [(5.0, 5.05)]})
    wait = Wait("float", AT, 5.0, 6.0, 4)
    seen = record(program, windows=[(5.0, 5.5)], samples=[], waits=[wait])
    assert Analysis(seen).shares()["devices compute"] == pytest.approx(1.0)


def test_an_empty_window_within_a_wait_says_nothing() -> None:
    seen = Seen([(1.0, 1.2), (3.0, 3.2)], empty=[(1.0, 1.2), (3.0, 3.2)])
    seen.drop_unseen([(2.9, 4.0)])
    assert seen.windows == [(1.0, 1.2)]


@pytest.mark.parametrize(("whole", "longer"), [(0, True), (1, False)])
def test_a_program_that_no_window_saw_whole_has_a_bound(whole: int, longer: bool) -> None:
    program = ExecutedProgram(
        "step", calls=1, devices={"cpu 0": [(1.0, 1.25)]}, runs=2, whole=whole, longest_s=0.25
    )
    (hot,) = hottest_programs(Analysis(record(program, windows=[(1.0, 1.25)], samples=[], waits=[])))
    assert (hot.longer, hot.device_s) == (longer, 0.25)
    assert ("within a window" in hot.doubt) == longer


# a program as a process sees it


def run(path: Path, *arguments: str, within: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "jaxperf", "watch", str(path), *arguments]
    environment = child_environment() | {"JAX_PLATFORMS": "cpu"}
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=300, cwd=within, check=False
    )


def test_the_scripts_own_path_is_absolute(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print(__file__)\n")
    done = run(Path("train.py"), within=tmp_path)
    assert (done.stdout, done.returncode) == (f"{script}\n", 0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_child_ends_without_a_report(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import os, sys\n"
        "if not (child := os.fork()):\n"
        "    sys.exit(7)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    done = run(tmp_path / "train.py")
    assert (done.stdout, done.returncode, done.stderr.count("watch: train.py")) == ("7\n", 0, 1)


@pytest.mark.thorough
def test_a_thread_that_is_left_is_watched_until_it_ends(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import threading, time\n"
        "import jax\n"
        "def train():\n"
        "    time.sleep(1)\n"
        "    print(float(jax.jit(lambda x: x * 3)(2.0)))\n"
        "threading.Thread(target=train).start()\n"
        "print('main is done')\n"
    )
    done = run(tmp_path / "train.py")
    assert done.stdout == "main is done\n6.0\n"
    assert "train.py:5" in done.stderr and "other threads" not in done.stderr


@pytest.mark.thorough
def test_a_program_that_does_not_answer_sigterm_ends_with_its_line_and_report(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import signal, sys, threading, time\n"
        "import jax\n"
        "x, main = jax.numpy.ones(3), threading.get_ident()\n"
        "def say_so():\n"
        "    while sys._current_frames()[main].f_lineno != 13:\n"
        "        time.sleep(0.1)\n"
        "    time.sleep(1)\n"
        "    print('hangs', flush=True)\n"
        "lock = threading.Lock()\n"
        "lock.acquire()\n"
        "threading.Thread(target=say_so, daemon=True).start()\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])\n"  # another thread gets it
        "lock.acquire()\n"
    )
    command = [sys.executable, "-m", "jaxperf", "watch", str(tmp_path / "train.py")]
    environment = child_environment() | {"JAX_PLATFORMS": "cpu"}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout and process.stdout.readline() == "hangs\n"
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=120)
    assert process.returncode == 143
    assert "does not answer SIGTERM; it is at " in err and "train.py:13: lock.acquire()" in err
    assert err.count("watch: train.py") == 1 and "until SIGTERM ended it" in err


@pytest.mark.parametrize(("moves", "judged"), [(False, [True]), (True, [])])
def test_a_second_ctrl_c_counts_if_the_first_had_no_effect(
    moves: bool, judged: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    guard, positions, judgments = stuck.Guard(print), iter([(1, 2), (1, 3 if moves else 2)]), []
    monkeypatch.setattr(stuck, "AGAIN_S", -1.0)  # also for the first one, before which it was nowhere
    monkeypatch.setattr(guard, "_position", lambda: next(positions))
    monkeypatch.setattr(guard, "_judge", lambda number, at, again: judgments.append(again))
    reading, writing = os.pipe()
    os.write(writing, bytes([signal.SIGINT, signal.SIGINT]))
    os.close(writing)
    guard._listen(reading)
    for thread in threading.enumerate():
        if thread.daemon and thread.name.endswith("(<lambda>)"):
            thread.join()
    assert judgments == judged


def test_threads_are_told_apart_by_their_lines() -> None:
    stop = threading.Event()
    thread = threading.Thread(target=lambda: stop.wait(60))
    thread.start()
    time.sleep(0.05)
    where = stuck.where_it_is(threading.main_thread().ident)
    stop.set()
    thread.join()
    assert f"{Path(__file__).name}:" in where and "(in another thread): " in where


def test_listeners_that_the_program_removes_are_its_own() -> None:
    program = """
import jax, jax.numpy as jnp, jaxperf
with jaxperf.watch(show=False, profile=False) as found:
    jax.monitoring.clear_event_listeners()
    jax.jit(lambda x: x * 59)(jnp.ones(59))
print("<lambda>" in [c.name for c in found.record.compiled], found.record.remarks)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    assert done.stdout == "True []\n", done.stderr


@pytest.mark.thorough
def test_pytest_finds_no_plugin_imported_already(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text("def test_a(): pass\n")
    options = ("--no-profile", "-m", "pytest", "-W", "error", "-p", "no:cacheprovider", "test_a.py")
    done = run(Path(options[0]), *options[1:], within=tmp_path)
    assert done.returncode == 0 and "1 passed" in done.stdout and "warning" not in done.stdout


def test_the_line_that_made_the_largest_arrays_is_named() -> None:
    with jaxperf.watch(show=False, profile=False) as outcome:
        table = jnp.ones((1021, 1023)) * 2
        outcome_sampler = jaxperf.watch.session._open_watch.sampler
        outcome_sampler._listed_at = 0.0
        outcome_sampler._weigh()
    assert outcome.record is not None and table.size
    (live,) = (live for live in outcome.record.held if live.kind == "float32[1021,1023]")
    assert live.at.source == "table = jnp.ones((1021, 1023)) * 2"


def test_what_waits_for_a_disk_is_a_write() -> None:
    read, write = os.pipe()
    with jaxperf.watch(show=False, profile=False) as outcome:
        samples = jaxperf.watch.session._open_watch.sampler.samples
        while len(samples) < 20:
            with contextlib.suppress(OSError):
                os.fsync(write)
    for end in (read, write):
        os.close(end)
    assert outcome.record is not None
    assert WRITE in {s.kind for s in outcome.record.samples if "fsync" in s.at.source}


def test_what_a_callback_converts_is_no_wait_of_the_front_end() -> None:
    def half(x: jax.Array) -> np.ndarray:
        return np.asarray(x) / 2

    step = jax.jit(lambda x: jax.pure_callback(half, jax.ShapeDtypeStruct(x.shape, x.dtype), x))
    with jaxperf.watch(show=False, profile=False) as outcome:
        for _ in range(3):
            value = step(jnp.ones(3)).block_until_ready()
    assert outcome.record is not None and value[0] == 0.5
    assert {w.kind for w in outcome.record.waits} == {"block_until_ready"}
