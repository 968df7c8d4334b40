"""`jaxperf launch`: the first failure is named and passed on, and no process is left, however it ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from cases import cases

from jaxperf.chapter.run_sections import child_environment
from jaxperf.errors import JaxperfError
from jaxperf.processes.launcher import Plan, Process, _tell, command_of, free_port, patience_s, shares

NUMBER = "import os, sys, time, pathlib; number = os.environ['JAX_PROCESS_ID']\n"
PIDS = "pathlib.Path(f'pid{number}').write_text(str(os.getpid()))\n"


def start(folder: Path, program: str, *flags: str) -> subprocess.Popen[str]:
    (folder / "program.py").write_text(NUMBER + PIDS + program)
    words = [sys.executable, "-m", "jaxperf", "launch", "--logs", str(folder / "logs"), *flags]
    return subprocess.Popen(
        [*words, "--", "python", "program.py"],
        cwd=folder,
        env=child_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(folder: Path, program: str, *flags: str) -> tuple[int, str, str]:
    with start(folder, program, *flags) as process:
        said = process.communicate(timeout=60)
    return process.returncode, *said


def wait_for(path: Path) -> int:
    deadline = time.monotonic() + 30
    while not path.exists() or not path.read_text():
        assert time.monotonic() < deadline, f"{path} is missing"
        time.sleep(0.01)
    return int(path.read_text())


def gone(pid: int) -> bool:
    """Whether a process ends within a few seconds; the kernel may need a moment."""
    try:
        psutil.Process(pid).wait(10)
    except psutil.NoSuchProcess:
        return True
    except psutil.TimeoutExpired:
        return False
    return True


def test_each_process_knows_its_place_and_only_the_first_is_heard(tmp_path: Path) -> None:
    program = """
names = ("COORDINATOR_ADDRESS", "COORDINATOR_BIND_ADDRESS", "NUM_PROCESSES", "PROCESS_ID")
print(*(os.environ["JAX_" + name] for name in names), len(os.sched_getaffinity(0)))
print(f"err {number}", file=sys.stderr)
"""
    status, out, err = run(tmp_path, program)
    assert (status, err) == (0, "")
    logs = [(tmp_path / "logs" / f"process-{i}.log").read_text() for i in range(2)]
    address, bound, count, number, _ = logs[1].splitlines()[0].split()
    assert address == bound and address.startswith("127.0.0.1:") and (count, number) == ("2", "1")
    assert out == f"2 processes, logs in {tmp_path / 'logs'}\n{logs[0]}"
    assert logs[0].split()[0] == address and "err 1" in logs[1]


def test_the_first_failure_is_named_with_its_traceback_and_its_status(tmp_path: Path) -> None:
    program = """
if number == "1":
    time.sleep(0.3)
    raise SystemExit(7) if "status" in sys.argv else ValueError("broken here")
try:
    time.sleep(60)
finally:
    print("told to end")
"""
    status, _, err = run(tmp_path, "import signal; signal.signal(15, lambda *_: sys.exit(3))\n" + program)
    assert status == 1
    first, *rest = err.splitlines()
    assert first.startswith("error: process 1 failed first: exit status 1; its log is")
    assert rest[-1] == "  process 1: ValueError: broken here"
    assert "told to end" in (tmp_path / "logs" / "process-0.log").read_text()


def test_who_ignores_the_request_to_end_is_killed(tmp_path: Path) -> None:
    program = """
import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); pathlib.Path("deaf" + number).touch()
while number == "1" and not pathlib.Path("deaf0").exists(): time.sleep(0.01)
os.kill(os.getpid(), 9) if number == "1" else time.sleep(60)
"""
    status, _, err = run(tmp_path, program, "--grace-s", "0.2")
    assert status == 128 + signal.SIGKILL and "process 1 failed first: ended by signal 9" in err
    assert gone(wait_for(tmp_path / "pid0"))


def test_those_that_save_are_given_longer_unless_one_has_failed(tmp_path: Path) -> None:
    saves, plain = (Plan(("x.py", *words), 2, tmp_path) for words in (("--checkpoints", "saved"), ()))
    for on_request in ([None, None], [None, 128 + signal.SIGTERM], [-signal.SIGHUP, 0]):
        assert patience_s(saves, on_request) > patience_s(plain, on_request)
        assert patience_s(replace(saves, grace_s=0.5), on_request) == 0.5
    for failed in ([None, 1], [-signal.SIGKILL, None], [128 + signal.SIGTERM, 1]):
        assert patience_s(saves, failed) == patience_s(plain, failed)


def test_after_a_failure_all_start_again_as_often_as_allowed(tmp_path: Path) -> None:
    program = """
with open("starts" + number, "a") as f: f.write("x")
while number == "0" and not pathlib.Path("enough").exists(): time.sleep(0.01)
if number == "1" and len(pathlib.Path("starts1").read_text()) < 3: sys.exit(4)
pathlib.Path("enough").touch()
"""
    status, _, err = run(tmp_path, program, "--max-restarts", "2")
    assert status == 0 and err.count("starting all again") == 2
    assert (tmp_path / "starts1").read_text() == "xxx"
    assert run(tmp_path, "sys.exit(5)", "--max-restarts", "1")[0] == 5


@pytest.mark.parametrize(
    "sent",
    cases([(signal.SIGINT,), (signal.SIGTERM,), (signal.SIGHUP,), (signal.SIGKILL,)], lambda n: n in (15, 9)),
)
def test_no_process_outlives_the_launcher(tmp_path: Path, sent: int) -> None:
    with start(tmp_path, "time.sleep(60)", "--grace-s", "1") as process:
        pids = [wait_for(tmp_path / f"pid{i}") for i in range(2)]
        process.send_signal(sent)
        process.communicate(timeout=30)
    assert process.returncode in (-sent, 128 + sent)
    assert all(map(gone, pids))


@pytest.mark.thorough
def test_processes_that_wait_for_each_other_are_ended_and_say_where(tmp_path: Path) -> None:
    """Also the one that takes longer to say it than the other takes to end."""
    program = """
import faulthandler, signal
late = lambda *_: (time.sleep(1), faulthandler.dump_traceback(), os._exit(134))
if number == "0": signal.signal(signal.SIGABRT, late)
def waits_here(): time.sleep(60)
waits_here()
"""
    status, _, err = run(tmp_path, program, "--idle-s", "4")
    assert status == 128 + signal.SIGABRT and "no process has computed for 4 s" in err
    for i in range(2):
        assert "in waits_here" in (tmp_path / "logs" / f"process-{i}.log").read_text()


def test_a_mistake_is_one_line(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        status, _, err = run(tmp_path, "", "--port", port)
        assert (
            status == 2
            and err == f"error: port {port} cannot be used: Address already in use; leave --port out\n"
        )
    with pytest.raises(JaxperfError, match="nothing to launch"):
        command_of([])
    (tmp_path / "file").touch()
    status, _, err = run(tmp_path, "", "--logs", str(tmp_path / "file"))
    assert status == 2 and "give another --logs" in err and len(err.splitlines()) == 1
    command = [sys.executable, "-m", "jaxperf", "launch", "--", "no-such-program"]
    done = subprocess.run(command, env=child_environment(), capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 1 and "cannot start no-such-program: No such file" in done.stderr + done.stdout


def test_train_and_any_command_are_launched_and_a_section_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = str(Path(__file__).parents[2] / "experiments" / "train.py")
    assert command_of(["train", "--smoke"]) == (sys.executable, program, "--smoke")
    assert command_of(["python", "x.py"]) == (sys.executable, "x.py")
    assert command_of(["./tool", "x"]) == ("./tool", "x")
    for name in ("8.4", "multiple_gpus"):
        with pytest.raises(JaxperfError, match=f"^section {name} runs in one process; `train` trains in"):
            command_of([name, "--smoke"])
    monkeypatch.setenv("PATH", str(tmp_path))
    assert command_of(["jaxperf", "doctor"]) == (sys.executable, "-m", "jaxperf", "doctor")


def test_cores_are_shared_out_and_a_port_is_free() -> None:
    assert shares(range(5), 2) == [(0, 1), (2, 3)]
    assert shares(range(2), 3) == [(0, 1)] * 3
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", free_port()))
    assert os.environ.get("JAX_PROCESS_ID") is None


def test_a_failed_processs_log_commands_no_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "\x1b[31m.log"
    log.write_text("\x1b[31mbroken\n")
    failed = subprocess.Popen(["false"])
    failed.wait()
    _tell(Process(1, failed, log, 0), [])
    said = capsys.readouterr().err
    assert "exit status 1; its log is" in said and "  process 1: \\x1b[31mbroken\n" in said
    assert "\x1b" not in said
