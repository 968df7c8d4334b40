"""The runner's side: a live process per framework, asked in JSON, each answer before a deadline."""

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

START_S = 120  # that a process may take to import its framework


class TaskError(Exception):
    """Why a process did not do what it was asked, in one line; after some of these it has been ended."""


@dataclass(frozen=True)
class System:
    """A framework as a program: what runs which script, with environment variables of its own."""

    name: str  # "jax", "mxnet", "torch", or another name under which one of these runs
    python: Path
    script: Path
    variables: Mapping[str, str] = field(default_factory=dict)


class Process:
    """A live process of a system; `versions` is what it said about itself.

    Args:
      system: the framework that it runs.
      environment: its environment variables, to which the system's own are added.
      log: takes what the framework prints; the process works in the log's folder.

    Raises:
      TaskError: there is no such Python, or the framework cannot be imported.
    """

    def __init__(self, system: System, *, environment: Mapping[str, str], log: Path) -> None:
        self._log = log
        self._connection, theirs = Pipe()
        try:
            with theirs, log.open("wb") as output:
                self._process = subprocess.Popen(
                    [str(system.python), str(system.script), str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    cwd=log.parent,
                    env={**environment, **system.variables},
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,  # so that what it starts can be ended with it
                )
        except OSError as e:
            raise TaskError(f"{system.python.name} does not start: {e.strerror or e}") from None
        try:
            self.versions = self._answer(START_S)
        except BaseException:
            self.end()
            raise

    def ask(self, op: str, *, limit_s: float, **question: Any) -> dict[str, Any]:
        """Ask, and return the answer, which may take so many seconds; raises TaskError without one."""
        try:
            self._connection.send_bytes(json.dumps({"op": op, **question}).encode())
        except OSError:  # its end is closed, or ours, since it was ended
            raise self._lost(self._last_words()) from None
        return self._answer(limit_s)

    def end(self) -> None:
        """End it at once, with every process that it has started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._connection.close()

    def _answer(self, limit_s: float) -> dict[str, Any]:
        try:
            if not self._connection.poll(limit_s):
                raise self._lost(f"gave no answer within {limit_s:.0f} s")
            answer: dict[str, Any] = json.loads(self._connection.recv_bytes())
        except (EOFError, OSError):
            raise self._lost(self._last_words()) from None
        if "error" not in answer:
            return answer
        # After a CUDA error, all that a process asks of the device fails.
        if "cuda error" in answer["error"].lower().replace("_", " "):
            raise self._lost(f"broke its device: {answer['error']}")
        raise TaskError(answer["error"])

    def _last_words(self) -> str:
        try:
            status = self._process.wait(2)
        except subprocess.TimeoutExpired:
            return "closed its connection"
        lines = [line.strip() for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        how = f"ended by signal {-status}" if status < 0 else f"ended with status {status}"
        return f"{how}: {lines[-1][:200]}" if lines else how

    def _lost(self, what: str) -> TaskError:
        self.end()
        return TaskError(f"its process {what}")
