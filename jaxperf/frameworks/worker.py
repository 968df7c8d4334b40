"""The host's side of the conversation with a live worker: questions with a deadline, answers of one line.

A worker that dies, hangs or sends invalid answers is ended, with all its children, and raises one
`WorkerGoneError`.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jaxperf.errors import not_on_windows
from jaxperf.frameworks.environments import last_line

PROGRAM = Path(__file__).resolve().parent / "workers" / "__main__.py"
LONGEST_ANSWER = 1_000_000  # bytes; a worker that sends more without an end of line is broken
_GOODBYE_S = 2.0


class TaskError(Exception):
    """The worker could not do what it was asked (one line says why); it stays alive."""


class WorkerGoneError(Exception):
    """The worker died, hung or sent an invalid answer (one line says which); it has been ended."""


class DeviceBrokenError(WorkerGoneError):
    """A CUDA error, after which all that a process asks of the device fails; the worker has been ended."""


@dataclass(frozen=True)
class System:
    """A framework as a program: `python program NAME START` becomes its worker.

    Attributes:
      name: "jax", "mxnet", "torch", or another that one of these three runs under.
      python: the interpreter of its environment.
      variables: its own environment variables.
      program: what the interpreter runs.
      runs: the framework that it runs; "" for the one of its name.
    """

    name: str
    python: Path
    variables: Mapping[str, str] = field(default_factory=dict)
    program: Path = PROGRAM
    runs: str = ""

    @property
    def side(self) -> str:
        """Return the framework that it runs."""
        return self.runs or self.name


class Worker:
    """A live worker; `greeting` is what it said about itself.

    Args:
      system: the framework that it runs.
      start: what the worker is told on its command line: cores, threads, devices.
      environment: its environment variables, to which the system's own are added.
      scratch: its working folder, which also takes its log.
      limit_s: how long it may take to import its framework and greet.

    Raises:
      TaskError: it says that it cannot work.
      WorkerGoneError: it does not start.
      JaxperfError: this is Windows, where pipes have no deadlines.
    """

    def __init__(
        self,
        system: System,
        *,
        start: Mapping[str, Any],
        environment: Mapping[str, str],
        scratch: Path,
        limit_s: float,
    ) -> None:
        not_on_windows("the comparison with other frameworks")
        self.name, self._number, self._buffer = system.name, 0, b""
        self._log = scratch / f"{system.name}-{time.monotonic_ns()}.log"
        command = [str(system.python), str(system.program), system.side, json.dumps(start)]
        with self._log.open("wb") as log:
            try:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    cwd=scratch,
                    env={**environment, **system.variables},
                    start_new_session=True,  # so that what it starts can be ended with it
                )
            except OSError as e:
                raise WorkerGoneError(
                    f"{self.name}: {system.python} does not start: {e.strerror or e}"
                ) from None
        try:
            self.greeting: dict[str, Any] = self._answer(0, limit_s)
        except BaseException:
            self.end()
            raise

    @property
    def pid(self) -> int:
        """Return the worker's process."""
        return self._process.pid

    def call(self, op: str, *, limit_s: float, **fields: Any) -> dict[str, Any]:
        """Ask, and return the answer.

        Args:
          op: what to do: "prepare" or "turn".
          limit_s: how long it may take.
          **fields: the rest of the question.

        Raises:
          TaskError: it could not do it.
          WorkerGoneError: it died, hung, broke its device or sent an invalid answer; it cannot be used any
            more.
        """
        self._number += 1
        question = json.dumps({"id": self._number, "op": op, **fields}) + "\n"
        try:
            assert self._process.stdin is not None
            self._process.stdin.write(question.encode())
            self._process.stdin.flush()
        except (OSError, ValueError):  # its end of the pipe is closed, or ours, since it was ended
            raise self._gone(self._epitaph()) from None
        return self._answer(self._number, limit_s)

    def close(self) -> None:
        """Close the connection: the worker then ends by itself, or is ended if it does not."""
        with contextlib.suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_GOODBYE_S)
        self.end()

    def kill(self) -> None:
        """Kill it and every process that it has started; a thread that waits for its answer learns so."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def end(self) -> None:
        """End it at once, with every process that it has started."""
        self.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                assert pipe is not None
                pipe.close()

    def _answer(self, number: int, limit_s: float) -> dict[str, Any]:
        line = self._line(time.monotonic() + limit_s, limit_s)
        try:
            answer = json.loads(line)
            if answer["id"] == number and answer["ok"] is True and isinstance(answer["value"], dict):
                return answer["value"]
            if answer["id"] == number and answer["ok"] is False:
                raise self._failed(str(answer["error"]))
        except (ValueError, KeyError, TypeError, RecursionError):
            pass
        raise self._gone(f"printed {line[:60]!r} instead of an answer")

    def _line(self, deadline: float, limit_s: float) -> str:
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise self._gone(f"gave no answer within {limit_s:.0f} s")
                if selector.select(left):
                    self._read(self._process.stdout.fileno())
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.decode("utf-8", "replace")

    def _read(self, pipe: int) -> None:
        data = os.read(pipe, 1 << 16)
        if not data:
            raise self._gone(self._epitaph())
        self._buffer += data
        if len(self._buffer) > LONGEST_ANSWER:
            raise self._gone(f"printed {self._buffer[:60]!r} and never an end of line")

    def _epitaph(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_GOODBYE_S)
        status = self._process.poll()
        if status is None:
            return "closed its output"
        message = last_line(self._log.read_text(errors="replace")[-10_000:]) if self._log.exists() else ""
        how = f"ended by signal {-status}" if status < 0 else f"ended with status {status}"
        return f"{how}: {message}" if message else how

    def _failed(self, error: str) -> Exception:
        """Return what the error means: PyTorch says "CUDA error", JAX "CUDA_ERROR_ILLEGAL_ADDRESS"."""
        if re.search("cuda[ _]error", error, re.IGNORECASE):
            self.end()
            return DeviceBrokenError(f"the {self.name} worker's device is broken: {error}")
        return TaskError(error)

    def _gone(self, what: str) -> WorkerGoneError:
        self.end()
        return WorkerGoneError(f"the {self.name} worker {what}")
