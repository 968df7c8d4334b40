"""Run the steps one after the other, each with its limit, and write what they decide.

A step that fails or does not end is a line in the summary, and the next one runs. The summary and the archive
are written after each step, so that they are there if the machine goes away.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from jaxperf.errors import JaxperfError
from tools.gpu_check.steps import Run, Step, steps

GRACE_S = 10.0  # after Ctrl-C, before a step is killed
HOLDS, DOES_NOT, UNDECIDED, NOT_REACHED = "holds", "does not hold", "undecided", "not reached"
COMPILES = "Compiling "  # begins what JAX logs before it compiles, with JAX_LOG_COMPILES=1


def main(out: Path, *, seconds: float, only: Sequence[str] = (), rehearse: bool = False) -> int:
    """Run what is not decided yet, in order of importance, for `seconds` at most; return 0.

    Raises:
      JaxperfError: `only` holds a name that no step has.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background has it ignored
    out = out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    there = steps(out, rehearse=rehearse)
    if unknown := set(only) - {step.name for step in there}:
        names = ", ".join(step.name for step in there)
        raise JaxperfError(f"no step {unknown.pop()!r}; there are {names}")
    ends = time.monotonic() + seconds
    summary = Summary(out, there, rehearse=rehearse)
    for step in there:
        left = ends - time.monotonic() - GRACE_S
        if summary.is_decided(step) or (only and step.name not in only) or left < step.least_s:
            continue
        print(f"[{seconds - (ends - time.monotonic()):.0f} s] {step.name}", flush=True)
        summary.add(step, run_step(step, out, min(step.limit_s, left)))
    print(summary.as_markdown())
    print(f"archive: {summary.pack()}")
    return 0


class Summary:
    """The statements and what was seen, also of an earlier call with the same folder."""

    def __init__(self, out: Path, there: Sequence[Step], *, rehearse: bool) -> None:
        self.out, self.rehearse = out, rehearse
        self.rows: dict[str, dict[str, Any]] = {
            step.name: {"statement": step.statement, "verdict": NOT_REACHED, "figures": ""} for step in there
        }
        with contextlib.suppress(OSError, ValueError, KeyError):
            earlier = json.loads((out / "summary.json").read_text(encoding="utf-8"))
            if earlier["rehearsal"] == rehearse:
                self.rows |= {name: row for name, row in earlier["steps"].items() if name in self.rows}

    def is_decided(self, step: Step) -> bool:
        """Return whether an earlier call has decided this."""
        return self.rows[step.name]["verdict"] in (HOLDS, DOES_NOT)

    def add(self, step: Step, run: Run) -> None:
        """Judge a step, and write the summary and the archive anew."""
        try:
            holds, figures = step.judge(run)
        except (KeyError, TypeError, ValueError, LookupError) as e:  # the output is not what it should be
            holds, figures = None, f"{run.ending}; {type(e).__name__}: {e}"
        verdict = UNDECIDED if holds is None else HOLDS if holds else DOES_NOT
        self.rows[step.name] |= {"verdict": verdict, "figures": figures, "seconds": round(run.seconds, 1)}
        print(f"  {verdict}: {step.statement}: {figures}", flush=True)
        summary = {"rehearsal": self.rehearse, "card": card(), "steps": self.rows}
        (self.out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
        (self.out / "summary.md").write_text(self.as_markdown() + "\n", encoding="utf-8")
        self.pack()

    def as_markdown(self) -> str:
        """Return the statements as a table."""
        about = "a rehearsal at toy size: the figures mean nothing" if self.rehearse else card()
        lines = [f"GPU check, {about}", "", "| statement | verdict | figures |", "| --- | --- | --- |"]
        for row in self.rows.values():
            figures = " ".join(str(row["figures"]).split()).replace("|", "/")
            lines.append(f"| {row['statement']} | {row['verdict']} | {figures} |")
        return "\n".join(lines)

    def pack(self) -> Path:
        """Write everything into one archive next to it; returns its path."""
        path, new = self.out / "gpu_check.tar.gz", self.out / ".gpu_check.part"
        with tarfile.open(new, "w:gz") as archive:
            for item in sorted(self.out.iterdir()):
                if item not in (path, new):
                    archive.add(item, item.name)
        new.replace(path)
        return path


def card() -> str:
    """Return the first GPU and its driver, or that there is none."""
    arguments = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.SubprocessError):
        return "no GPU"
    return done.stdout.splitlines()[0] if done.returncode == 0 and done.stdout else "no GPU"


def run_step(step: Step, out: Path, limit_s: float) -> Run:
    """Run a step's command to its end or its limit; its output goes to a log of its name.

    With `step.interrupt`, Ctrl-C comes in its first compilation, and `seconds` count from then.
    """
    log, began, status = out / f"{step.name}.log", time.monotonic(), None
    variables = {**os.environ, "JAX_LOG_COMPILES": "1"} if step.interrupt else None
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, *step.command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=variables,
            start_new_session=True,
        )
        try:
            if step.interrupt and _wait_for(lambda: _is_compiling(log), process, limit_s):
                began = time.monotonic()
                os.killpg(process.pid, signal.SIGINT)
            status = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_S)
        finally:
            seconds = time.monotonic() - began
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return Run(status, seconds, log.read_text(encoding="utf-8", errors="replace"), out)


def _is_compiling(log: Path) -> bool:
    """Return whether the last line about a program says that it is being compiled."""
    lines = [line for line in log.read_text(errors="replace").splitlines() if "ompil" in line]
    return bool(lines) and COMPILES in lines[-1]


def _wait_for(condition: Callable[[], bool], process: subprocess.Popen[bytes], limit_s: float) -> bool:
    """Wait until it holds twice, a third of a second apart; False if the process or the time ends before."""
    ends, times = time.monotonic() + limit_s, 0
    while process.poll() is None and time.monotonic() < ends:
        times = times + 1 if condition() else 0
        if times == 2:
            return True
        time.sleep(0.3)
    return False
