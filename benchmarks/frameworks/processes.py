"""The runner's side: a live process per framework, asked in JSON, each answer before a deadline."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

START_S = 120  # that a process may take to import its framework
LONGEST = 1_000_000  # characters of an answer


class TaskError(Exception):
    """The process could not do what it was asked (one line says why); it stays alive."""


class LostError(Exception):
    """The process died, hung or sent an invalid answer (one line says which); it has been ended."""


@dataclass(frozen=True)
class System:
    """A framework as a program.

    Attributes:
      name: "jax", "mxnet", "torch", or another name under which one of these runs.
      python: the interpreter of its environment.
      script: what the interpreter runs.
      variables: its own environment variables.
    """

    name: str
    python: Path
    script: Path
    variables: Mapping[str, str] = field(default_factory=dict)


class Process:
    """A live process of a system; `versions` is what it said about itself.

    Args:
      system: the framework that it runs.
      start: what it is told on its command line: cores, threads, devices.
      environment: its environment variables, to which the system's own are added.
      log: takes what the framework prints.

    Raises:
      TaskError: the framework cannot be imported, or finds no device.
      LostError: no Python, or no answer.
    """

    def __init__(
        self, system: System, *, start: Mapping[str, Any], environment: Mapping[str, str], log: Path
    ) -> None:
        self.name, self._log = system.name, log
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        try:
            with log.open("wb") as errors:
                self._process = subprocess.Popen(
                    [str(system.python), str(system.script), json.dumps(start)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    cwd=log.parent,
                    env={**environment, **system.variables},
                    encoding="utf-8",
                    errors="replace",
                    start_new_session=True,  # so that what it starts can be ended with it
                )
        except OSError as e:
            raise LostError(f"{system.python} does not start: {e.strerror or e}") from None
        threading.Thread(target=self._read, daemon=True).start()
        try:
            self.versions = self._answer(START_S)
        except BaseException:
            self.end()
            raise

    def ask(self, op: str, *, limit_s: float, **question: Any) -> dict[str, Any]:
        """Ask, and return the answer, which may take so many seconds.

        Raises:
          TaskError: it could not do it.
          LostError: it cannot be used any more.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"op": op, **question}) + "\n")
            self._process.stdin.flush()
        except (OSError, ValueError):  # its end of the pipe is closed, or ours, since it was ended
            raise self._lost(self._last_words()) from None
        return self._answer(limit_s)

    def kill(self) -> None:
        """Kill it and every process that it has started; a thread that waits for its answer learns so."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def end(self) -> None:
        """End it at once, with every process that it has started."""
        self.kill()
        self._process.wait()
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def _read(self) -> None:
        """Queue the lines that it prints, and "" at the end."""
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for line in iter(lambda: output.readline(LONGEST), ""):
                self._lines.put(line)
        self._lines.put("")

    def _answer(self, limit_s: float) -> dict[str, Any]:
        try:
            line = self._lines.get(timeout=limit_s)
        except queue.Empty:
            raise self._lost(f"gave no answer within {limit_s:.0f} s") from None
        if not line:
            raise self._lost(self._last_words())
        try:
            answer = json.loads(line)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise self._lost(f"printed {line.strip()[:60]!r} instead of an answer")
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
            return "closed its output"
        lines = [line.strip() for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        how = f"ended by signal {-status}" if status < 0 else f"ended with status {status}"
        return f"{how}: {lines[-1][:200]}" if lines else how

    def _lost(self, what: str) -> LostError:
        self.end()
        return LostError(f"its process {what}")
