"""What `python docs/gallery.py` runs for `record` and `measure`, each program in a process of its own."""

from __future__ import annotations

import contextlib
import datetime
import gc
import io
import multiprocessing
import os
import random
import re
import runpy
import sys
import textwrap
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from twins import marked

from jaxperf.errors import JaxperfError
from jaxperf.result import Code, Text, turns

ROOT = Path(__file__).resolve().parents[1]
RUNS = 5  # of a slow program under watch
LEAST, MOST = 6, 15  # rounds of a pair


def record(path: Path, cause: str, line: int, steps: int | None, devices: int) -> dict[str, Any]:
    """Return what watch says about the cause at a line, in how many runs, and all findings of each run.

    Raises:
      JaxperfError: no run names it.
    """
    runs = [in_child(watch_program, path, cause, line, steps, devices) for _ in range(RUNS)]
    said = [text for text, _, _ in runs if text]
    if not said:
        raise JaxperfError(f"watch does not name {cause!r} at {path.name}:{line} in {RUNS} runs")
    return {
        "cause": cause, "line": line, "text": said[0], "named": len(said), "runs": RUNS,
        "found": [found for _, found, _ in runs], "at": runs[0][2],
    }  # fmt: skip


def measure(pair: list[Path], steps: int | None, devices: int, budget_s: float) -> dict[str, Any]:
    """Return the seconds of a slow and a repaired program in rounds, at least six, for `budget_s` seconds.

    The seconds of processors come along, which other programs of the machine hardly change.

    Args:
      pair: the two programs.
      steps: given to `main`; None leaves its default.
      devices: how many CPU devices.
      budget_s: seconds after which no round begins.
    """
    (slow, repaired), processors, at = in_child(take_turns, pair, steps, devices, budget_s)
    return {"slow": slow, "repaired": repaired, "processors": processors, "at": at, "steps": steps}


def in_child(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of this module in a new process and return what it returns."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def set_up_jax(devices: int) -> None:
    """Set what JAX reads when it is imported."""
    os.environ["JAX_NUM_CPU_DEVICES"] = str(devices)
    os.environ.pop("JAX_COMPILATION_CACHE_DIR", None)
    sys.argv = ["program"]  # a program with flags would read them


def place() -> str:
    """Describe the day, the machine and the versions in one line."""
    from jaxperf.measure.environment import current_environment

    e = current_environment()
    return f"{datetime.date.today()}, {e.machine}, Python {e.python}, JAX {e.versions['jax']}"


def watch_program(
    path: Path, cause: str, line: int, steps: int | None, devices: int
) -> tuple[str, list[tuple[str, int, float]], str]:
    """Watch a program; return what watch says about the cause at a line, its findings, and where it ran.

    A finding is a cause, a line and the seconds that a change saves.
    """
    set_up_jax(devices)
    import jax

    import jaxperf
    from jaxperf.watch.report.analysis import Analysis
    from jaxperf.watch.rules import find_causes

    with contextlib.redirect_stdout(io.StringIO()), jaxperf.watch(path.name, show=False) as outcome:
        main = runpy.run_path(str(path), run_name="program")["main"]
        jax.block_until_ready(main(*([steps] if steps else [])))
    assert outcome.log and outcome.result
    findings = [(f.cause, f.at.line, round(f.seconds, 4)) for f in find_causes(Analysis(outcome.log))]
    numbers = [n for n, found in enumerate(findings, start=1) if found[:2] == (cause, line)]
    if not numbers:
        return "", findings, place()
    number, parts = numbers[0], []
    for block in outcome.result.blocks:
        if isinstance(block, Text) and (parts or block.text.startswith(f"{number}. ")):
            if parts and re.match(r"\d+\. ", block.text):
                break
            parts.append(block.text.removeprefix(f"{number}. "))
        elif isinstance(block, Code) and parts:
            parts.append(textwrap.indent(block.source, "    "))
        elif parts:
            break
    text = "\n".join(marked(line)[1] for line in "\n".join(parts).splitlines())  # without the program's marks
    return text.replace(f"{path.parent.relative_to(ROOT)}/", ""), findings, place()


def take_turns(
    paths: list[Path], steps: int | None, devices: int, budget_s: float
) -> tuple[list[list[float]], list[list[float]], str]:
    """Run programs in turns; return the seconds of `main()` in each round, by program, and where they ran.

    The second result has the seconds of processors. Every run compiles anew. The first round does not count,
    since it imports what the programs import.
    """
    set_up_jax(devices)
    import jax

    values: list[list[float]] = [[] for _ in paths]
    processors: list[list[float]] = [[] for _ in paths]
    draw, until = random.Random(), time.perf_counter() + budget_s
    while len(values[0]) <= LEAST or (len(values[0]) <= MOST and time.perf_counter() < until):
        for number in turns(range(len(paths)), draw):
            jax.clear_caches()
            gc.collect()
            jax.config.update("jax_enable_x64", False)  # the other program may have set it
            with contextlib.redirect_stdout(io.StringIO()):
                main = runpy.run_path(str(paths[number]), run_name="program")["main"]
                began, worked = time.perf_counter(), time.process_time()
                jax.block_until_ready(main(*([steps] if steps else [])))
            values[number].append(round(time.perf_counter() - began, 5))
            processors[number].append(round(time.process_time() - worked, 5))
    return [rounds[1:] for rounds in values], [rounds[1:] for rounds in processors], place()
