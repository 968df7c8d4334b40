"""`jaxperf launch`: one command in several processes on this machine, started and ended together.

Nothing is reachable from outside: the coordinator listens on the loopback address only. A cluster has its own
launcher (docs/several-machines.md).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import psutil

from jaxperf.chapter import catalogue
from jaxperf.errors import JaxperfError, not_on_windows
from jaxperf.process import (
    PATIENCE_S,
    SIGNALS,
    child_environment,
    how_it_ended,
    patience_s,
    say,
    shell_status,
    signal_descendants,
    startable_command,
)
from jaxperf.result.store import make_folder

LOOPBACK = "127.0.0.1"
TRAIN = "train"  # the program of experiments/ that several processes run together
_POLL_S = 0.05  # between two looks at the log of process 0
_TAIL = 25  # last lines of a failed process's log
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else lambda option, value: 0


@dataclass(frozen=True)
class LaunchPlan:
    """What to start and how long to wait."""

    command: tuple[str, ...]  # of each process
    processes: int
    logs: Path  # their folder
    port: int = 0  # of the coordinator; 0 for a free one
    max_restarts: int = 0  # how often all are started again after a failure
    grace_s: float | None = None  # from SIGTERM to SIGKILL; None for 10 s, or 60 s to save a step on request
    split_cores: bool = True  # give each its own share of the cores; otherwise each has all (Linux)


@dataclass(frozen=True)
class LaunchedProcess:
    """A process, and its log from where the launcher has not read it."""

    number: int
    popen: psutil.Popen
    log: BinaryIO


def command_of(arguments: Sequence[str]) -> tuple[str, ...]:
    """Return the command that `arguments` name: themselves; `train` is experiments/train.py.

    Raises:
      JaxperfError: no arguments, or a section, which is a program for one process.
    """
    if not arguments:
        raise JaxperfError("nothing to launch; give a command after --, e.g. -- train --way jit")
    if arguments[0] == TRAIN:
        return (sys.executable, str(catalogue.folder() / f"{TRAIN}.py"), *arguments[1:])
    if arguments[0] in {name for s in catalogue.SECTIONS for name in (s.name, s.number) if name}:
        raise JaxperfError(f"section {arguments[0]} runs in one process; `{TRAIN}` trains in several")
    return (sys.executable, *arguments[1:]) if arguments[0] == "python" else startable_command(arguments)


def run(plan: LaunchPlan) -> int:
    """Run all processes to their end, and again after a failure if the plan says so; return the exit status.

    It is 0 if all succeeded, otherwise that of the process that failed first. Whatever ends the launcher
    (Ctrl-C, SIGTERM and SIGHUP through `exit_status.ended`, SIGKILL) also ends the processes. It ends all
    children of the calling process, which should have no others.

    Raises:
      JaxperfError: the port is taken, the command does not start, the logs cannot be written, or Windows.
    """
    not_on_windows("`jaxperf launch`")
    make_folder(plan.logs, flag="--logs")
    _check_logs(plan)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)  # children of a process that has ended become ours, and end with all
    status = _run_once(plan)
    for restart in range(1, plan.max_restarts + 1):
        if status:
            say(f"starting all again, {restart} of {plan.max_restarts}")
            status = _run_once(plan)
    return status


def _log_path(plan: LaunchPlan, number: int) -> Path:
    return plan.logs / f"process-{number}.log"


def _check_logs(plan: LaunchPlan) -> None:
    """Check, before anything starts, that each process's log can be written and read; create it."""
    for path in (_log_path(plan, number) for number in range(plan.processes)):
        try:
            path.open("a+b").close()
        except OSError as e:
            raise JaxperfError(f"cannot write {path}: {e.strerror or e}; give another --logs") from None


def free_port(port: int = 0) -> int:
    """Return a free port of the loopback address, or `port` if it is free.

    Raises:
      JaxperfError: it is taken.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError as e:
            raise JaxperfError(f"port {port} cannot be used: {e.strerror}; leave --port out") from None
        return int(probe.getsockname()[1])


def _run_once(plan: LaunchPlan) -> int:
    """Start all processes, wait for the first failure or the last end, and end all; return the status."""
    address, status = f"{LOOPBACK}:{free_port(plan.port)}", 0
    grace_s = patience_s(plan.command) if plan.grace_s is None else plan.grace_s
    processes: list[LaunchedProcess] = []
    try:
        for number in range(plan.processes):
            processes.append(_start(plan, number, address))
        if failed := _first_failure(processes):
            status = shell_status(failed.popen.returncode)
            _report(failed)
            if plan.grace_s is None and status - 128 not in SIGNALS:
                grace_s = PATIENCE_S  # nothing to wait for: to save takes all processes
    finally:
        _end([process.popen for process in processes], grace_s)
        for process in processes:
            process.log.close()
    return status


def _start(plan: LaunchPlan, number: int, address: str) -> LaunchedProcess:
    variables = {
        "JAX_COORDINATOR_ADDRESS": address,
        "JAX_COORDINATOR_BIND_ADDRESS": address,
        "JAX_NUM_PROCESSES": str(plan.processes),
        "JAX_PROCESS_ID": str(number),
        "JAX_LOCAL_DEVICE_IDS": str(number),  # its own GPU, if there are any
        "PYTHONFAULTHANDLER": "1",  # SIGABRT and crashes then leave a traceback in the log
        "PYTHONUNBUFFERED": "1",
    }
    cores = sorted(os.sched_getaffinity(0)) if plan.split_cores and hasattr(os, "sched_getaffinity") else []
    size = len(cores) // plan.processes  # 0: too few to share
    share, launcher = cores[number * size : (number + 1) * size], os.getpid()

    def prepare() -> None:  # in the child, before the command: the kernel ends it with the launcher (Linux)
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != launcher:
            os._exit(1)  # the launcher died before that
        if share:
            os.sched_setaffinity(0, share)

    path = _log_path(plan, number)
    with path.open("ab") as output:
        begin = output.tell()  # an earlier attempt may have written to it
        streams = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.STDOUT}
        environment = child_environment() | variables
        try:  # in a session of its own, since the terminal's Ctrl-C is for the launcher
            popen = psutil.Popen(
                plan.command, env=environment, start_new_session=True, preexec_fn=prepare, **streams
            )
        except OSError as e:
            raise JaxperfError(f"cannot start {plan.command[0]}: {e.strerror}; check the command") from None
    log = path.open("rb")
    log.seek(begin)
    return LaunchedProcess(number, popen, log)


def _first_failure(processes: Sequence[LaunchedProcess]) -> LaunchedProcess | None:
    """Wait until all have succeeded or one has failed; meanwhile pass on what process 0 writes to its log."""
    ended: queue.SimpleQueue[tuple[int, LaunchedProcess]] = queue.SimpleQueue()
    for process in processes:
        threading.Thread(target=lambda p=process: ended.put((p.popen.wait(), p)), daemon=True).start()
    status, running = 0, len(processes)
    while running and not status:
        with contextlib.suppress(queue.Empty):
            status, process = ended.get(timeout=_POLL_S)
            running -= 1
        shutil.copyfileobj(processes[0].log, sys.stdout.buffer)
        sys.stdout.buffer.flush()
    return process if status else None


def _report(failed: LaunchedProcess) -> None:
    """Name the process that failed first, with the end of its log; process 0's has been printed already."""
    how = how_it_ended(failed.popen.returncode)
    say(f"error: process {failed.number} failed first: {how}; its log is {failed.log.name}")
    for line in deque(failed.log, maxlen=_TAIL):
        say(f"  process {failed.number}: {line.decode('utf-8', 'replace').rstrip()}")


def _end(processes: Sequence[psutil.Popen], grace_s: float) -> None:
    """Send SIGTERM to all processes and their children, and SIGKILL to those left after `grace_s` seconds."""
    try:
        signal_descendants(signal.SIGTERM)
        psutil.wait_procs(processes, timeout=grace_s)
    finally:  # also after a second Ctrl-C
        signal_descendants(signal.SIGKILL)
        psutil.wait_procs(processes)
        signal_descendants(signal.SIGKILL)  # what they started meanwhile
