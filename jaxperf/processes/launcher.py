"""`jaxperf launch`: one command in several processes on this machine, started, watched and ended together.

Nothing is reachable from outside: the coordinator listens on the loopback address only. A cluster has its own
launcher (docs/several-machines.md).
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import psutil

from jaxperf.chapter import catalogue, run_sections
from jaxperf.errors import JaxperfError, not_on_windows, plain

LOOPBACK = "127.0.0.1"
TRAIN = "train"  # the program of experiments/ that several processes run together
_POLL_S = 0.05
_PRINTED_S = 5.0  # in which a process prints where it is; one that is stopped never does
_SHOWN = 25  # last lines of a failed process's log
# The child-to-be: it asks the kernel to be killed when the launcher dies, limits its cores, and becomes the
# command. Both survive `exec`, so any command can be launched.
_BECOME = """
import os, sys
parent, cores, command = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
if sys.platform == "linux":
    import ctypes
    ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL
    if cores:
        os.sched_setaffinity(0, map(int, cores.split(",")))
if os.getppid() != parent:
    os._exit(1)  # it died before we asked
try:
    os.execvp(command[0], command)
except OSError as e:
    sys.exit(f"error: cannot start {command[0]}: {e.strerror}")
"""


@dataclass(frozen=True)
class Plan:
    """What to start and how long to wait.

    Attributes:
      command: the words of each process.
      processes: how many.
      logs: folder of the logs.
      port: the coordinator's; 0 for a free one.
      max_restarts: how often all are started again after a failure.
      grace_s: seconds between TERM and KILL; None for 10 s, or 60 s to save a step if that is requested.
      idle_s: all are ended once none has computed for this long; 0 for never.
      split_cores: whether each process has its own share of the cores; otherwise each has all of them.
    """

    command: tuple[str, ...]
    processes: int
    logs: Path
    port: int = 0
    max_restarts: int = 0
    grace_s: float | None = None
    idle_s: float = 120.0
    split_cores: bool = True


@dataclass
class Process:
    """A running process, and how far its log has been read."""

    number: int
    running: subprocess.Popen[bytes]
    log: Path
    began_at: int


def command_of(words: Sequence[str]) -> tuple[str, ...]:
    """Return the command that `words` name: the words themselves; `train` is experiments/train.py.

    Raises:
      JaxperfError: no words, or a section, which is a program for one process.
    """
    if not words:
        raise JaxperfError("nothing to launch; give a command after --, e.g. -- train --way jit")
    if words[0] == TRAIN:
        return (sys.executable, str(catalogue.folder() / f"{TRAIN}.py"), *words[1:])
    if words[0] in {name for s in catalogue.SECTIONS for name in (s.name, s.number) if name}:
        raise JaxperfError(f"section {words[0]} runs in one process; `{TRAIN}` trains in several")
    return (sys.executable, *words[1:]) if words[0] == "python" else run_sections.startable(words)


def run(plan: Plan) -> int:
    """Run all processes to their end, and again after a failure if the plan says so; return the exit status.

    It is 0 if all succeeded, otherwise that of the process that failed first. Whatever ends the launcher
    (Ctrl-C, SIGTERM and SIGHUP through `exits.ended`, SIGKILL) also ends the processes.

    Raises:
      JaxperfError: the port is taken, or the logs cannot be written; or this is Windows.
    """
    not_on_windows("`jaxperf launch`")
    run_sections.make_folder(plan.logs, flag="--logs")
    for attempt in range(plan.max_restarts + 1):
        status = _attempt(plan)
        if not status or attempt == plan.max_restarts:
            break
        print(f"starting all again, {attempt + 1} of {plan.max_restarts}", file=sys.stderr, flush=True)
    return status


def free_port(wanted: int = 0) -> int:
    """Return a free port of the loopback address, or `wanted` if it is free.

    Raises:
      JaxperfError: it is taken.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, wanted))
        except OSError as e:
            raise JaxperfError(f"port {wanted} cannot be used: {e.strerror}; leave --port out") from None
        return int(probe.getsockname()[1])


def shares(cores: Sequence[int], processes: int) -> list[tuple[int, ...]]:
    """Return each process's own cores; all of them for each if there are fewer cores than processes."""
    if len(cores) < processes:
        return [tuple(cores)] * processes
    size = len(cores) // processes
    return [tuple(cores[i * size : (i + 1) * size]) for i in range(processes)]


def variables(number: int, processes: int, port: int) -> dict[str, str]:
    """Return variables that tell process `number` where the others are, and give it its own GPU, if any."""
    address = f"{LOOPBACK}:{port}"
    return {
        "JAX_COORDINATOR_ADDRESS": address,
        "JAX_COORDINATOR_BIND_ADDRESS": address,
        "JAX_NUM_PROCESSES": str(processes),
        "JAX_PROCESS_ID": str(number),
        "JAX_LOCAL_DEVICE_IDS": str(number),
        "PYTHONFAULTHANDLER": "1",  # SIGABRT and crashes then leave a traceback in the log
        "PYTHONUNBUFFERED": "1",
    }


def _attempt(plan: Plan) -> int:
    """Start all processes and wait for them; after the first failure, end the others and name it."""
    ended: queue.SimpleQueue[Process] = queue.SimpleQueue()
    with _started(plan, ended) as processes:
        first = _first_failure(plan, processes, ended)
        if first is None:
            return 0
        stopped = [p.number for p in processes if p is not first and _is_stopped(p)]
    _tell(first, stopped)
    return run_sections.shell_status(first.running.returncode)


@contextlib.contextmanager
def _started(plan: Plan, ended: queue.SimpleQueue[Process]) -> Iterator[list[Process]]:
    """All processes, each with a thread that reports its end; none is left when the block ends."""
    splits = plan.split_cores and hasattr(os, "sched_getaffinity")
    cores = sorted(os.sched_getaffinity(0)) if splits else []
    port, processes = free_port(plan.port), []
    try:
        for number, own in enumerate(shares(cores, plan.processes)):
            log = plan.logs / f"process-{number}.log"
            process = _start(plan, number, own, log, variables(number, plan.processes, port))
            processes.append(process)
            threading.Thread(target=_report, args=(process, ended), daemon=True).start()
        yield processes
    finally:
        _end(processes, patience_s(plan, [p.running.poll() for p in processes]))


def patience_s(plan: Plan, statuses: Sequence[int | None]) -> float:
    """How long the processes may take to end: longer to save, unless one has failed, since saving needs all.

    Args:
      plan: its `grace_s` applies if it is given.
      statuses: of the processes, as in `returncode`.
    """
    if plan.grace_s is not None:
        return plan.grace_s
    asked = {run_sections.shell_status(s) for s in statuses if s} <= {128 + s for s in run_sections.SIGNALS}
    return run_sections.patience_s(plan.command if asked else ())


def _start(plan: Plan, number: int, cores: Sequence[int], log: Path, own: Mapping[str, str]) -> Process:
    with log.open("ab") as out:
        began_at = out.tell()
        words = [sys.executable, "-P", "-c", _BECOME, str(os.getpid()), ",".join(map(str, cores))]
        running = subprocess.Popen(
            [*words, *plan.command],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**run_sections.child_environment(), **own},
            start_new_session=True,  # the terminal's Ctrl-C is for us; and its children end with it
        )
    return Process(number, running, log, began_at)


def _report(process: Process, ended: queue.SimpleQueue[Process]) -> None:
    process.running.wait()
    ended.put(process)


def _first_failure(
    plan: Plan, processes: Sequence[Process], ended: queue.SimpleQueue[Process]
) -> Process | None:
    """Wait until all have succeeded or one has failed; meanwhile show the output of process 0."""
    idle, left = Idle(processes, plan.idle_s), len(processes)
    with processes[0].log.open("rb") as log:
        log.seek(processes[0].began_at)
        while left:
            _show(log)
            try:
                process = ended.get(timeout=_POLL_S)
            except queue.Empty:
                if idle.too_long():
                    print(f"error: {idle.message()}", file=sys.stderr)
                    _say_where(processes)
                continue
            left -= 1
            if process.running.returncode:
                break
        _show(log, all_of_it=True)
        return process if process.running.returncode else None


def _say_where(processes: Sequence[Process]) -> None:
    """Let each process print where it is and end; TERM, which the first to end brings, would prevent it."""
    for process in processes:
        _signal(process, signal.SIGABRT)
    _wait(processes, _PRINTED_S)


class Idle:
    """Notices within twice `limit_s` that processes wait for each other: they use no processor time.

    A sum waits forever for a process that sleeps, and so would we.
    """

    def __init__(self, processes: Sequence[Process], limit_s: float) -> None:
        self.limit_s = limit_s
        self._pids = [p.running.pid for p in processes]
        self._used, self._since = 0.0, time.monotonic()

    def too_long(self) -> bool:
        """Whether they used less than 3 % of a core each for the last `limit_s` seconds.

        Two that sleep in a sum use 0.5 to 0.7 % each, for JAX's heartbeats and for watching their parent.
        """
        now = time.monotonic()
        if not 0 < self.limit_s < now - self._since:
            return False
        used, before = sum(map(_cpu_s, self._pids)), self._used
        self._used, self._since = used, now
        return abs(used - before) < 0.03 * self.limit_s * len(self._pids)

    def message(self) -> str:
        """Return the line for the user."""
        return f"no process has computed for {self.limit_s:.0f} s; each log ends with where it waited"


def _cpu_s(pid: int) -> float:
    """Seconds of processor time of a process and all its children."""
    try:
        process = psutil.Process(pid)
        times = [each.cpu_times() for each in (process, *process.children(recursive=True))]
    except psutil.Error:  # one of them has just ended
        return 0.0
    return float(sum(t.user + t.system for t in times))


def _show(log: BinaryIO, *, all_of_it: bool = False) -> None:
    """Print the lines that have been written since the last time."""
    text = log.read()
    whole = len(text) if all_of_it else text.rfind(b"\n") + 1
    log.seek(whole - len(text), os.SEEK_CUR)
    if whole:
        sys.stdout.write(text[:whole].decode("utf-8", "replace"))
        sys.stdout.flush()


def _is_stopped(process: Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return bool(psutil.Process(process.running.pid).status() == psutil.STATUS_STOPPED)
    return False


def _end(processes: Sequence[Process], grace_s: float) -> None:
    """Send TERM to all that still run, then KILL; also to their children."""
    try:
        for process in processes:
            _signal(process, signal.SIGTERM)
            _signal(process, signal.SIGCONT)  # lets a stopped process handle TERM now
        _wait(processes, grace_s)
    finally:  # also runs after a second Ctrl-C
        for process in processes:
            _signal(process, signal.SIGKILL)
        for process in processes:
            process.running.wait()


def _wait(processes: Sequence[Process], limit_s: float) -> None:
    """Until all have ended, or `limit_s` seconds are over."""
    deadline = time.monotonic() + limit_s
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.running.wait(max(0.0, deadline - time.monotonic()))


def _signal(process: Process, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.running.pid, number)


def _tell(first: Process, stopped: Sequence[int]) -> None:
    """Name the process that failed first, with the end of its log."""
    with first.log.open("rb") as log:
        log.seek(first.began_at)
        lines = log.read().decode("utf-8", "replace").splitlines()
    how = run_sections.how_it_ended(first.running.returncode)
    print(
        plain(f"error: process {first.number} failed first: {how}; its log is {first.log}"), file=sys.stderr
    )
    for number in stopped:
        print(f"error: process {number} was stopped (SIGSTOP) and gave no sign of life", file=sys.stderr)
    for line in lines[-_SHOWN:] if first.number else []:  # process 0's log has been shown
        print(plain(f"  process {first.number}: {line}"), file=sys.stderr)
