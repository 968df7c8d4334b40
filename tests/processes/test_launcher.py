"""`jaxperf launch`: the first failure is named and passed on, and no process is left, however it ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from cases import cases

from jaxperf.cli import command_line
from jaxperf.errors import JaxperfError
from jaxperf.process import PATIENCE_S, SAVING_S, child_environment
from jaxperf.processes import launcher
from jaxperf.processes.launcher import command_of

NUMBER = "import os, sys, time, pathlib; number = os.environ['JAX_PROCESS_ID']\n"
PIDS = "pathlib.Path(f'pid{number}').write_text(str(os.getpid()))\n"


def start(folder: Path, program: str, *flags: str) -> subprocess.Popen[str]:
    (folder / "program.py").write_text(NUMBER + PIDS + program)
    command = [sys.executable, "-m", "jaxperf", "launch", "--logs", str(folder / "logs"), *flags]
    return subprocess.Popen(
        [*command, "--", "python", "program.py"],
        cwd=folder,
        env=child_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(folder: Path, program: str, *flags: str) -> tuple[int, str, str]:
    with start(folder, program, *flags) as process:
        out, err = process.communicate(timeout=60)
    return process.returncode, out, err


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
print(*(os.environ["JAX_" + name] for name in names))
print(f"err {number}", file=sys.stderr)
"""
    status, out, err = run(tmp_path, program)
    assert (status, err) == (0, "")
    logs = [(tmp_path / "logs" / f"process-{i}.log").read_text() for i in range(2)]
    address, bind_address, count, number = logs[1].splitlines()[0].split()
    assert address == bind_address and address.startswith("127.0.0.1:") and (count, number) == ("2", "1")
    assert out == f"2 processes, logs in {tmp_path / 'logs'}\n{logs[0]}"
    assert logs[0].split()[0] == address and "err 1" in logs[1]


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="cores are shared out on Linux")
@pytest.mark.parametrize("flags", cases([((),), (("--no-split-cores",),)], quick=lambda flags: not flags))
def test_each_process_has_its_own_cores_or_all_of_them(tmp_path: Path, flags: tuple[str, ...]) -> None:
    assert run(tmp_path, "print(*os.sched_getaffinity(0))", *flags)[0] == 0
    shares = [{*map(int, (tmp_path / "logs" / f"process-{i}.log").read_text().split())} for i in range(2)]
    cores = os.sched_getaffinity(0)
    if flags or len(cores) == 1:
        assert shares == [cores, cores]
    else:
        assert {len(share) for share in shares} == {len(cores) // 2} and not shares[0] & shares[1]
        assert shares[0] | shares[1] <= cores


def test_the_first_failure_is_named_with_its_traceback_and_its_status(tmp_path: Path) -> None:
    """And a log commands no terminal."""
    program = """
import signal
if number == "1":
    while not pathlib.Path("ready").exists(): time.sleep(0.01)
    raise ValueError("broken \x1b[31mhere")
signal.signal(signal.SIGTERM, lambda *_: sys.exit(print("told to end") or 3))
pathlib.Path("ready").touch()
time.sleep(60)
"""
    status, _, err = run(tmp_path, program)
    assert status == 1
    first, *tail = err.splitlines()
    log = tmp_path / "logs" / "process-1.log"
    assert first == f"error: process 1 failed first: exit status 1; its log is {log}"
    assert tail[0] == "  process 1: Traceback (most recent call last):"
    assert tail[-1] == "  process 1: ValueError: broken \\x1b[31mhere"
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


PATIENCE = """
import sys
from pathlib import Path
from jaxperf.processes import launcher
launcher._end = lambda processes, grace_s: print(grace_s)
for status in (0, 143, 1):
    for flags in (("--checkpoints", "saved"), ()):
        command = (sys.executable, "-c", f"raise SystemExit({status})", *flags)
        assert launcher.run(launcher.LaunchPlan(command, 1, Path(sys.argv[1]))) == status
"""


def test_those_that_save_are_given_longer_unless_one_has_failed(tmp_path: Path) -> None:
    """What is printed is how long the launcher would wait: after success, SIGTERM and a failure."""
    command = [sys.executable, "-c", PATIENCE, str(tmp_path)]
    out = subprocess.run(command, env=child_environment(), stdout=subprocess.PIPE, text=True).stdout
    assert [*map(float, out.split())] == [SAVING_S, PATIENCE_S, SAVING_S, PATIENCE_S, PATIENCE_S, PATIENCE_S]


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


def test_the_last_failure_is_the_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    statuses = iter([4, 5])
    monkeypatch.setattr(launcher, "_prctl", lambda option, value: 0)
    monkeypatch.setattr(launcher, "_run_once", lambda plan: next(statuses))
    assert launcher.run(launcher.LaunchPlan(("x",), 2, tmp_path, max_restarts=1)) == 5


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


@pytest.mark.skipif(sys.platform != "linux", reason="the system gives such children to another process")
def test_children_of_a_failed_process_end_too(tmp_path: Path) -> None:
    """Also one in a session of its own, whose parent is gone already."""
    program = """
import subprocess
child = "import os, time; open('child', 'w').write(str(os.getpid())); time.sleep(60)"
if number == "1":
    subprocess.Popen([sys.executable, "-c", child], start_new_session=True)
    while not (pathlib.Path("child").exists() and pathlib.Path("child").read_text()): time.sleep(0.01)
    os._exit(6)
time.sleep(60)
"""
    assert run(tmp_path, program)[0] == 6
    assert gone(wait_for(tmp_path / "child"))


def test_a_mistake_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(launcher, "_prctl", lambda option, value: 0)
    monkeypatch.setattr(
        launcher, "_end", lambda processes, grace_s: None
    )  # it ends all children of this process
    (tmp_path / "file").touch()
    log = tmp_path / "logs" / "process-1.log"
    log.mkdir(parents=True)
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        for arguments, line in (
            (
                f"--logs {log.parent} -- touch {tmp_path}/started",
                f"cannot write {log}: Is a directory; give another --logs",
            ),
            (f"--port {port} -- x", f"port {port} cannot be used: Address already in use; leave --port out"),
            (f"--logs {tmp_path}/file -- x", "give another --logs"),
            ("-- no-such-program", "cannot start no-such-program: No such file"),
            ("-n 0 -- x", "--processes is 0; give at least 1"),
            ("", "nothing to launch"),
        ):
            assert command_line.main(["launch", *arguments.split()]) == 2
            err = capsys.readouterr().err
            assert err.startswith("error: ") and line in err and err.count("\n") == 1, err
    assert not (tmp_path / "started").exists()


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
