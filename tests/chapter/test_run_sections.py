import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys

import psutil
import pytest

from jaxperf import process
from jaxperf.chapter import catalogue, run_sections

WRITES = """
import json, os, pathlib, sys
path = next(a.removeprefix("--json=") for a in sys.argv if a.startswith("--json="))
pathlib.Path(path).write_text(json.dumps({"argv": sys.argv[1:], "env": dict(os.environ)}))
"""


@pytest.fixture
def scripts(tmp_path, monkeypatch):
    folder = tmp_path / "experiments"
    folder.mkdir()
    numbers = {"first": "9.1", "second": "9.2"}
    sections = tuple(catalogue.SectionEntry(n, numbers[n], n.title(), f"What is {n}?", 1) for n in numbers)
    monkeypatch.setattr(catalogue, "SECTIONS", sections)
    monkeypatch.setattr(catalogue, "folder", lambda: folder)
    for section in sections:
        (folder / f"{section.name}.py").write_text(WRITES)
    return folder


def run(name, out, *words):
    out.mkdir(exist_ok=True)
    return run_sections.run_section(catalogue.find(name), out, words)


# --- running


def test_the_script_gets_the_options_and_the_words_meant_for_it(scripts, tmp_path):
    out = tmp_path / "out"
    outcome = run("first", out, "--size", "7", "--smoke")
    assert (outcome.error, outcome.status, outcome.path) == ("", 0, out / "first.json")
    argv = json.loads(outcome.path.read_text())["argv"]
    files = [f"--json={outcome.path}", f"--notebook={outcome.path.with_suffix('.ipynb')}"]
    assert argv == ["--size", "7", "--smoke", *files]
    assert len(json.loads(run("first", out).path.read_text())["argv"]) == 2  # all else is the script's choice


def test_every_bad_end_is_named_and_has_a_status(scripts, tmp_path):
    for source, status, error in (
        ("raise SystemExit(3)", 3, "exit status 3"),
        ("import os; os.abort()", 134, "ended by signal 6"),
        ("import os; os.kill(os.getpid(), 9)", 137, "out of memory?"),
        ("pass", 1, "wrote no result"),
    ):
        (scripts / "first.py").write_text(source)
        outcome = run("first", tmp_path / "out")
        assert (outcome.status, error in outcome.error) == (status, True), outcome


def test_an_older_result_is_not_taken_for_this_runs(scripts, tmp_path):
    assert not run("first", tmp_path / "out").error
    (scripts / "first.py").write_text("pass")
    assert "from an earlier run" in run("first", tmp_path / "out").error


# --- ending

PARENT = """
import pathlib, signal, sys
from jaxperf.chapter import catalogue, run_sections as launch
from jaxperf.process import ended
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs inherit an ignored one
section = catalogue.SectionEntry("first", "9.1", "First", "?", 1)
catalogue.SECTIONS, catalogue.folder = (section,), lambda: pathlib.Path(sys.argv[1])
print("before")
raise SystemExit(ended(lambda: launch.run_section(section, pathlib.Path(sys.argv[2]), ()).status))
"""
# A section with a process of its own, which ends as `script.parse` and `script.run` have it, but has no JAX.
WAITS = """
import hashlib, os, signal, subprocess, sys, time
from jaxperf.process import PARENT, end_at_once, ended, follow_parent, forced_end
signal.signal(signal.SIGINT, signal.default_int_handler)
follow_parent()
end_at_once()
follows = "from jaxperf.process import follow_parent; follow_parent(); import time; time.sleep(600)"
def main():
    child = subprocess.Popen([sys.executable, "-c", follows], env={**os.environ, PARENT: str(os.getpid())})
    with forced_end():
        print(os.getpid(), child.pid, flush=True)
        time.sleep(600)
raise SystemExit(ended(main))
"""
IN_C = WAITS.replace("time.sleep(600)\nraise", "hashlib.pbkdf2_hmac('sha256', b'', b'', 2**31 - 1)\nraise")


def parent(scripts, out):
    command = [sys.executable, "-c", PARENT, str(scripts), str(out)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    return subprocess.Popen(command, env=process.child_environment(), start_new_session=True, **pipes)


@pytest.mark.thorough
@pytest.mark.parametrize("source", [WAITS, IN_C], ids=["in Python", "in C"])
def test_whatever_ends_a_run_ends_its_section_and_what_that_has_started(source, scripts, tmp_path):
    """A terminal's Ctrl-C and its end reach all processes, `kill` only the parent, and `kill -9` unheard."""
    (scripts / "first.py").write_text(source)
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    ends = [*itertools.product(numbers, (os.killpg, os.kill)), (signal.SIGKILL, os.kill)]
    with contextlib.ExitStack() as stack:
        parents = [stack.enter_context(parent(scripts, tmp_path)) for _ in ends]
        started = []
        for process in parents:
            assert process.stdout.readline() == "before\n"
            started += [psutil.Process(int(pid)) for pid in process.stdout.readline().split()]
        for process, (number, send) in zip(parents, ends):
            send(process.pid, number)
        statuses = [process.wait() for process in parents]
    assert statuses == [130, 130, 143, 143, 129, 129, -9]
    assert len(started) == 2 * len(ends)
    assert not psutil.wait_procs(started)[1]


@pytest.mark.thorough
def test_a_section_that_is_killed_takes_what_it_has_started_along(scripts, tmp_path):
    (scripts / "first.py").write_text(WAITS)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGKILL):
        with parent(scripts, tmp_path) as process:
            process.stdout.readline()
            section, grandchild = (psutil.Process(int(pid)) for pid in process.stdout.readline().split())
            section.send_signal(number)
            assert process.wait() == 128 + number
            assert not psutil.wait_procs([grandchild])[1]


def test_a_child_that_ignores_signals_is_killed(monkeypatch):
    monkeypatch.setattr(process, "OWN_END_S", 0.1)
    monkeypatch.setattr(process, "PATIENCE_S", 0.1)
    deaf = "import signal, time\nfor n in (2, 15): signal.signal(n, signal.SIG_IGN)\nprint(1, flush=True)\n"
    child = subprocess.Popen([sys.executable, "-c", deaf + "time.sleep(600)"], stdout=subprocess.PIPE)
    with child:
        child.stdout.readline()
        process._end(child)
        assert child.returncode == -signal.SIGKILL


def test_a_command_that_path_lacks_is_the_one_that_runs_here(tmp_path):
    is_this = ["python", "-c", "import sys; sys.exit(sys.prefix != sys.argv[1])", sys.prefix]
    assert process.run_child(is_this, {"PATH": str(tmp_path)}) == 0
    (tmp_path / "python").write_text("#!/bin/sh\nexit 7\n")
    (tmp_path / "python").chmod(0o755)
    assert process.run_child(is_this, {"PATH": str(tmp_path)}) == 7


# --- the environment


def test_a_script_of_the_checkout_finds_this_very_package(scripts, tmp_path):
    script = f"import jaxperf\n{WRITES.replace('dict(os.environ)', 'jaxperf.__file__')}"
    (scripts / "first.py").write_text(script)
    written = json.loads(run("first", tmp_path / "out").path.read_text())
    assert written["env"] == sys.modules["jaxperf"].__file__
