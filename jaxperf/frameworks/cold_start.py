"""Measurements that need a fresh process: reading an export without its code, and memory in use."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psutil

from jaxperf.frameworks.agree import Verdict, compare_answers, read_answers
from jaxperf.frameworks.pool import GivenUpError, Pool
from jaxperf.frameworks.study import Entry, Limits, Study, finite_number
from jaxperf.frameworks.worker import TaskError, Worker, WorkerGoneError
from jaxperf.result import Curve

Say = Callable[[str], None]


@dataclass(frozen=True)
class Reload:
    """An export read by a process that has never seen the network.

    Attributes:
      name: "mxnet/hybridized".
      seconds: from the file to the first output, with the framework already imported.
      verdict: whether the output equals JAX's; `verdict.trouble` is "" if it does.
    """

    name: str
    seconds: float
    verdict: Verdict


def reload(study: Study, pool: Pool, *, limits: Limits, say: Say) -> list[Reload]:
    """Have a fresh worker of each system read its live worker's export, and compare the first outputs."""
    reloads: list[Reload] = []
    base: dict[str, Any] = {}
    settings = {**study.workload.settings, "task": "reload"}
    for system in dict.fromkeys(e.system for e in study.timed):
        mine = [e for e in study.timed if e.system == system]
        with _telling(mine[0], study, say), _fresh(pool, system) as worker:
            for entry in mine:
                seconds, answers = _prepare(worker, entry, settings, pool, limits)
                base = base or answers  # JAX's own, which comes first
                verdict = compare_answers(base, answers, rtol=study.workload.rtol)
                reloads.append(Reload(entry.name, seconds, verdict))
    return reloads


@dataclass(frozen=True)
class MemoryRun:
    """Section 8.2.4's training in a separate process.

    Attributes:
      entry: the system and configuration.
      mode: "synchronous" or "asynchronous".
      increase: the largest resident set during the run less that before it, in bytes.
      curve: bytes above the start, over seconds.
      handed_out_s: seconds until the front end had queued all work.
      finished_s: seconds until it was done.
    """

    entry: Entry
    mode: str
    increase: int
    curve: Curve
    handed_out_s: float
    finished_s: float


def memory(study: Study, pool: Pool, *, limits: Limits, say: Say) -> list[MemoryRun]:
    """Run the training that the systems have agreed on, once each way, and watch each process from outside.

    The increases become the entries' values. They are those of the C library as it comes: it may keep memory
    that was freed.
    """
    runs = []
    for mode in study.workload.quantities:
        for entry in [e for e in study.entries if not e.lost]:
            with _telling(entry, study, say), _fresh(pool, entry.system) as worker:
                run = _memory_run(worker, entry, mode, study, pool, limits)
                entry.values.setdefault(mode, []).append(run.increase)
                runs.append(run)
    return runs


def _memory_run(
    worker: Worker, entry: Entry, mode: str, study: Study, pool: Pool, limits: Limits
) -> MemoryRun:
    workload, process = study.workload, psutil.Process(worker.pid)
    settings = {**workload.settings, "steps": 1, "synchronous": mode == "synchronous"}
    _prepare(worker, entry, settings, pool, limits)  # one batch first, as in the book
    before, began = process.memory_info().rss, time.monotonic()
    times, above = [0.0], [0]

    def watch() -> None:
        times.append(time.monotonic() - began)
        above.append(process.memory_info().rss - before)

    value = worker.call(
        "turn", limit_s=limits.turn_s, watch=watch, key=entry.name, calls=workload.calls, lead=0
    )
    watch()
    curve = Curve(
        f"{entry.system} {mode}",
        *_thinned(times, above),
        dash=mode,
        system=entry.system,
        workload=workload.name,
        configuration=entry.configuration,
        quantity=mode,
    )
    return MemoryRun(
        entry, mode, max(above), curve, finite_number(value, "handed_out"), finite_number(value, "finished")
    )


def _thinned(x: list[float], y: list[int], *, most: int = 400) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """At most `most` points, each the highest of its stretch, so that the peak stays."""
    size = -(-len(x) // most)
    picks = [max(range(i, min(i + size, len(x))), key=y.__getitem__) for i in range(0, len(x), size)]
    return tuple(x[i] for i in picks), tuple(float(y[i]) for i in picks)


def _prepare(
    worker: Worker, entry: Entry, settings: Mapping[str, Any], pool: Pool, limits: Limits
) -> tuple[float, dict[str, Any]]:
    path = pool.scratch / f"fresh-{entry.system}.npz"
    path.unlink(missing_ok=True)
    value = worker.call(
        "prepare",
        limit_s=limits.prepare_s,
        key=entry.name,
        settings=dict(settings),
        configuration=entry.configuration,
        answers=str(path),
    )
    return finite_number(value, "first_s"), read_answers(path)


@contextmanager
def _fresh(pool: Pool, system: str) -> Iterator[Worker]:
    worker = pool.fresh(system)
    try:
        yield worker
    finally:
        worker.close()


@contextmanager
def _telling(entry: Entry, study: Study, say: Say) -> Iterator[None]:
    """A failure is reported in one line, and loses only this measurement."""
    try:
        yield
    except (TaskError, WorkerGoneError, GivenUpError, ValueError, psutil.Error) as e:
        say(f"{study.workload.name}: {entry.name} in a fresh process: {e}")
