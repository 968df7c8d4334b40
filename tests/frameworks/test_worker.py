"""Workers: whatever one does, the host gets an answer or one line in time, and no process stays."""

from __future__ import annotations

import ast
import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from jaxperf.frameworks.worker import System, TaskError, Worker, WorkerGoneError
from jaxperf.frameworks.workers import turns, wire


def wire_cores() -> list[int]:
    """The cores that this process may use, where it can choose among them."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


FAKE = Path(__file__).parents[1].joinpath("fake_peer.py")
ROOT = Path(__file__).parents[2]


def start(scratch: Path, *, program: Path = FAKE, limit_s: float = 30, **settings: object) -> Worker:
    system = System("fake", Path(sys.executable), program=program)
    return Worker(system, start=settings, environment=dict(os.environ), scratch=scratch, limit_s=limit_s)


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    worker = start(tmp_path, threads=2)
    yield worker
    worker.end()


def prepare(worker: Worker, configuration: str, scratch: Path, *, limit_s: float = 30) -> dict[str, float]:
    return worker.call(
        "prepare",
        limit_s=limit_s,
        key=f"fake/{configuration}",
        settings={"answer": [1.0, 2.0]},
        configuration=configuration,
        answers=str(scratch / "answers.npz"),
    )


def gone(pid: int) -> bool:
    """Whether a process ends within a few seconds."""
    ends = time.monotonic() + 10
    while time.monotonic() < ends:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.05)
    return False


def test_it_greets_answers_and_leaves_when_it_is_let_go(worker: Worker, tmp_path: Path) -> None:
    assert worker.greeting["threads"] == 2
    assert prepare(worker, "good", tmp_path) == {"first_s": 0.25}
    assert worker.call("turn", limit_s=30, key="fake/good", calls=1, lead=0)[""] == 1.0
    worker.close()
    assert gone(worker.pid)


def test_what_it_cannot_do_is_one_line_and_it_lives_on(worker: Worker, tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"^RuntimeError: no compiler here$"):
        prepare(worker, "refuses", tmp_path)
    assert prepare(worker, "good", tmp_path)


@pytest.mark.parametrize(
    ("how", "line"),
    [
        ("dies", "the fake worker ended with status 3: Segmentation fault, nearly"),
        ("junk", "the fake worker printed 'WARNING: something happened' instead of an answer"),
        ("wrong id", 'the fake worker printed \'{"id": 99, "ok": true, "value": {}}\' instead of an answer'),
        ("floods", "the fake worker printed b'xxx"),
        ("hangs", "the fake worker gave no answer within 1 s"),
    ],
)
def test_one_that_fails_is_ended_with_one_line(worker: Worker, how: str, line: str, tmp_path: Path) -> None:
    with pytest.raises(WorkerGoneError) as caught:
        prepare(worker, how, tmp_path, limit_s=1 if how == "hangs" else 20)
    assert str(caught.value).startswith(line)
    assert "\n" not in str(caught.value)
    assert gone(worker.pid)
    with pytest.raises(WorkerGoneError):
        prepare(worker, "good", tmp_path)
    children = [line for line in (tmp_path / "said.log").read_text().splitlines() if " child " in line]
    assert len(children) == (how == "hangs")
    assert all(gone(int(line.split()[-1])) for line in children)


def test_one_that_cannot_start_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(WorkerGoneError, match=r"^the fake worker ended with status 1: ImportError: no such"):
        start(tmp_path, fails="import")
    missing = System("mxnet", tmp_path / "bin" / "python")
    with pytest.raises(WorkerGoneError, match=r"^mxnet: .*python does not start: No such file"):
        Worker(missing, start={}, environment={}, scratch=tmp_path, limit_s=5)


# --- the workers' own side of the conversation

SERVE = """
import os, sys
sys.path.insert(0, {root!r})
from jaxperf.frameworks.workers import turns, wire

def greet(start):
    print("a framework says hello"); os.system("echo so does its library")
    return {{"start": start}}

def make(settings, configuration, start):
    if configuration == "fails":
        raise ValueError("first line\\nsecond line")
    calls = []
    def turn(n):
        calls.append(n)
        return {{"": float(sum(calls)), "turns": len(calls)}}
    return wire.Task(0.5, {{"output": [1, 2]}}, turn)

if __name__ == "__main__":
    wire.serve(greet, make, {{}})
"""


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Worker]:
    program = tmp_path / "served.py"
    program.write_text(SERVE.format(root=str(ROOT)))
    worker = start(tmp_path, program=program)
    yield worker
    worker.end()


def test_what_a_framework_prints_is_kept_out_of_the_answers(served: Worker, tmp_path: Path) -> None:
    assert served.greeting == {"start": {}}
    log = "".join(path.read_text() for path in tmp_path.glob("*.log"))
    assert "a framework says hello" in log
    assert "so does its library" in log


def test_a_turn_leads_in_uncounted_and_then_counts(served: Worker, tmp_path: Path) -> None:
    answers = str(tmp_path / "answers.npz")
    ask = {"key": "k", "settings": {}, "answers": answers, "limit_s": 30}
    assert served.call("prepare", configuration="good", **ask) == {"first_s": 0.5}
    for lead, expected in ((2, {"": 7.0, "turns": 2}), (0, {"": 12.0, "turns": 3})):
        value = served.call("turn", key="k", calls=5, lead=lead, limit_s=30)
        assert value.pop("cores") >= 0
        assert value == expected
    with pytest.raises(TaskError, match=r"^KeyError: 'other'$"):
        served.call("turn", key="other", calls=1, lead=0, limit_s=30)
    with pytest.raises(TaskError, match=r"^ValueError: first line$"):
        served.call("prepare", configuration="fails", **ask)


def test_turns_make_the_calls_and_wait_as_their_names_say(monkeypatch: pytest.MonkeyPatch) -> None:
    events, now = [], [0.0]

    def does(event: str, seconds: float) -> str:
        events.append(event)
        now[0] += seconds
        return "output"

    def call() -> str:
        return does("call", 1.0)

    def wait(output: str) -> str:
        assert output == "output"
        return does("wait", 3.0)

    monkeypatch.setattr(turns.time, "perf_counter", lambda: now[0])
    assert turns.waiting_once(call, wait)(3) == {"": 2.0}
    assert turns.waiting_once(call, wait, each=2)(3) == {"": 5 / 4}  # two calls do the work four times
    assert events == ["call"] * 3 + ["wait"] + ["call"] * 2 + ["wait"]
    assert turns.queued_and_finished(call, wait)(2) == {"queued": 1.0, "finished": 4.0}
    both = turns.synchronous_and_asynchronous(call, wait, wait)
    assert both(3) == {"synchronous": 4.0, "asynchronous": 2.0}
    task = turns.training(call, len, lambda: wait("output"), 2)
    assert (task.first_s, task.answers["loss"].tolist()) == (4.0, [6, 6])
    assert task.turn(3) == {"": 2.0}


@pytest.mark.skipif(len(wire_cores()) < 2, reason="one core here, or the system cannot choose")
def test_a_device_that_works_alone_has_its_share_of_the_cores_and_the_cpu_time_shows_it() -> None:
    with ThreadPoolExecutor(2) as pool:  # two threads that compute all the time, as in a pool of a framework

        def busy(_: object = None) -> list[str]:
            data = [b"x" * 2_000_000] * 2  # hashing lets the other thread run
            return list(pool.map(lambda b: hashlib.sha256(b * 8).hexdigest(), data))

        cores = wire_cores()[:2]
        value = wire.apart_and_together(2, [cores[:1], cores[1:]], alone=busy, at_once=busy)
        assert value["cores apart"] <= 1.1
        assert value.keys() == {"apart", "together", "cores apart", "cores together"}
    assert wire_cores()[:2] == cores  # as before


PARENT = """
import json, subprocess, sys, time
command = [sys.executable, sys.argv[1], "x", "{}"]
worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
worker.stdout.readline()
prepare = {"op": "prepare", "settings": {}, "configuration": "c", "answers": "a.npz"}
for question in (prepare, {"op": "turn", "calls": 1, "lead": 0}):
    worker.stdin.write(json.dumps({"id": 1, "key": "k", **question}) + "\\n")
    worker.stdin.flush()
worker.stdout.readline()
print(worker.pid, flush=True)
time.sleep(600)
"""


def test_a_worker_leaves_with_its_parent_even_in_the_middle_of_a_call(tmp_path: Path) -> None:
    program = tmp_path / "served.py"
    endless = SERVE.replace("calls.append(n)", "import time; time.sleep(600)")
    program.write_text(endless.format(root=str(ROOT)))
    command = [sys.executable, "-c", PARENT, str(program)]
    host = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path)
    assert host.stdout is not None
    with host.stdout:
        pid = int(host.stdout.readline())
    assert psutil.pid_exists(pid)
    host.kill()
    host.wait()
    assert gone(pid)


def test_the_workers_of_peers_keep_to_the_oldest_python_that_mxnet_runs_on() -> None:
    for path in (ROOT / "jaxperf/frameworks/workers").glob("*.py"):
        if not path.name.startswith(("jax_", "torch_")):
            ast.parse(path.read_text(), feature_version=(3, 8))
