"""Run one workload on all systems: prepare, agree, and only then take turns; a failure is one line."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from jaxperf.frameworks.agree import compare_answers, read_answers
from jaxperf.frameworks.budget import Budget
from jaxperf.frameworks.device_workloads import COMPILED
from jaxperf.frameworks.pool import GivenUpError, Pool
from jaxperf.frameworks.study import BASE, Entry, Study
from jaxperf.frameworks.worker import DeviceBrokenError, TaskError, Worker, WorkerGoneError
from jaxperf.frameworks.workloads import Workload
from jaxperf.result import turns

LEAST_START_S = 10.0  # what a start that is not torch.compile's may take, however little a budget has left


@dataclass(frozen=True)
class Limits:
    """How long things may take, in seconds.

    Attributes:
      prepare_s: building, compiling and checking one configuration.
      turn_s: one turn.
      budget_s: rounds of one workload; once it is spent, no further round begins after the sixth.
      settle_s: pause between turns, in which the last system's threads stop spinning.
    """

    prepare_s: float = 180
    turn_s: float = 60
    budget_s: float = 30
    settle_s: float = 0.02


def study(
    workload: Workload,
    pool: Pool,
    *,
    limits: Limits,
    budget: Budget | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Study:
    """Prepare every configuration, and let those that agree with JAX take turns round by round.

    Args:
      workload: what to do.
      pool: live workers of the systems; systems that are not in it are left out.
      limits: how long things may take.
      budget: the seconds of all workloads together; None for none. With a budget, the workers live on, since
        their start would use much of it, and torch.compile starts for all main workloads with the first one.
      say: gets a line for each configuration that is lost.
    """
    run = _Run(workload, pool, limits, budget, say)
    run.prepare_all()
    run.judge_all()
    run.take_turns()
    pool.close(lane=run.lane if budget else None)  # without: the next workload begins with new processes
    return Study(workload, run.entries, pool.threads(workload.devices))


def _finite_number(value: Mapping[str, Any], name: str) -> float:
    """Return a finite number from a worker's answer.

    Raises:
      TaskError: it is not one.
    """
    figure = value.get(name)
    if isinstance(figure, bool) or not isinstance(figure, int | float) or not math.isfinite(figure):
        raise TaskError(f"its {name or 'time'} is {str(figure)[:40]!r}")
    return float(figure)


class _Run:
    def __init__(
        self,
        workload: Workload,
        pool: Pool,
        limits: Limits,
        budget: Budget | None,
        say: Callable[[str], None],
    ) -> None:
        self.workload, self.pool, self.limits, self.budget, self.say = workload, pool, limits, budget, say
        self.keep_s = 0.0  # what this workload needs of a budget once an optional configuration has started
        self.lane = f"compile {workload.name}"
        self.entries = budget.early.pop(workload.name, []) if budget else []
        self.entries = self.entries or [
            Entry(system, name, calls=workload.calls, lane=self.lane if budget and name in COMPILED else "")
            for system, configurations in workload.configurations.items()
            if system in pool.systems
            for name in configurations
        ]

    def alive(self) -> list[Entry]:
        return [e for e in self.entries if not e.lost and e.answers is not None]

    def prepare_all(self) -> None:
        if not self.budget:
            self.start(self.entries)
            return
        self.budget.begin(self.workload)
        systems = self.pool.systems
        if not self.workload.main and self.budget.needs(self.workload, systems) > self.budget.left:
            self.refuse(self.entries)
        else:
            self.start_in_order(self.budget)
        if refused := [e.name for e in self.entries if e.refused]:
            self.say(f"{self.workload.name}: no time to start {', '.join(refused)}")

    def start_in_order(self, budget: Budget) -> None:
        """Start what is not optional, beginning with JAX; then the rest, if there are seconds to spare.

        JAX and torch.compile need the processor to start, and hardly the GPU: they do so side by side, while
        the other systems' workers start. So does torch.compile for later workloads, since one after the other
        would take too long. Eager PyTorch, which times cuDNN's algorithms, starts alone.
        """
        optional = [e for e in self.entries if self.is_optional(e) and not e.lane]
        jax = [e for e in self.entries if e.system == BASE and e not in optional]
        others = [e for e in self.entries if not e.lane and e not in (*optional, *jax)]
        starts_s = sum(budget.start_s(self.workload, e.configuration) for e in (*others, *optional))
        later = [_Run(w, self.pool, self.limits, budget, self.say) for w in budget.later_main()]
        for run in (self, *later):
            run.keep_s = self.workload.rounds_s + starts_s
        compilers = [partial(run.start, run.not_compiled()) for run in (self, *later)]
        workers = [partial(self.attempt, e, partial(self.worker, e)) for e in others[:1]]
        self.in_threads(partial(self.start, jax), *compilers, *workers)
        budget.early |= {run.workload.name: run.entries for run in later}
        self.start(others)
        self.keep_s = self.workload.rounds_s
        self.start(optional)

    def not_compiled(self) -> list[Entry]:
        """Return torch.compile's configurations that have not been tried yet."""
        return [e for e in self.entries if e.lane and e.answers is None and not e.lost]

    def is_optional(self, entry: Entry) -> bool:
        return entry.configuration in self.workload.optional

    def in_threads(self, *jobs: Callable[[], None]) -> None:
        with ThreadPoolExecutor(max(1, len(jobs))) as threads:
            futures = [threads.submit(job) for job in jobs]
            try:
                for future in futures:
                    future.result()
            except BaseException:
                self.pool.abort()  # else Ctrl-C would wait for what the workers are doing
                raise

    def start(self, entries: Sequence[Entry]) -> None:
        """Start these in order, until there is no time for the next one.

        Args:
          entries: those of one worker; a later one's start is short where an earlier one has started.
        """
        for i, entry in enumerate(entries):
            if not self.has_time(entry):
                self.refuse(entries[i:])
                return
            if reason := self.pool.barred.get(entry.name):
                self.lose(entry, reason)
            elif not entry.lost:
                self.attempt(entry, partial(self.prepare, entry))

    def has_time(self, entry: Entry) -> bool:
        if not self.budget:
            return True
        if not self.is_optional(entry):
            return self.budget.left > 0
        needs_s = self.budget.start_s(self.workload, entry.configuration) + self.keep_s
        return needs_s <= self.budget.spare(self.pool.systems)

    def refuse(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            entry.refused, entry.lost = True, "there was no time to start it"
            entry.values.clear()

    def prepare(self, entry: Entry) -> None:
        worker, began, limit_s = self.worker(entry), time.monotonic(), self.limits.prepare_s
        if self.budget and entry.lane:
            limit_s = min(limit_s, max(0.0, self.budget.spare(self.pool.systems) - self.keep_s))
        elif self.budget:  # a call that is late costs the rows of its worker
            limit_s = min(limit_s, max(LEAST_START_S, self.budget.left))
        path = self.pool.scratch / f"answers-{entry.system}{entry.lane}.npz"
        path.unlink(missing_ok=True)  # so that another configuration's answers are never read instead
        try:
            value = worker.call(
                "prepare",
                limit_s=limit_s,
                key=entry.name,
                settings=dict(self.workload.settings),
                configuration=entry.configuration,
                answers=str(path),
            )
        finally:
            if self.budget:
                self.budget.started(self.workload, entry.configuration, time.monotonic() - began)
        entry.first_s = _finite_number(value, "first_s")
        entry.answers = read_answers(path)

    def worker(self, entry: Entry) -> Worker:
        return self.pool.worker(entry.system, self.workload.devices, entry.lane)

    def judge_all(self) -> None:
        """Compare answers: the first is JAX's, and all others, including JAX's own, are compared with it."""
        base = next((e.answers for e in self.entries if e.system == BASE and e.answers is not None), None)
        for entry in self.alive():
            if base is None:
                self.lose(entry, "there is no answer of JAX's to agree with")
                continue
            assert entry.answers is not None
            entry.verdict = compare_answers(base, entry.answers, rtol=self.workload.rtol)
            if not entry.verdict.agrees:
                self.lose(entry, f"not timed: {entry.verdict.trouble}")

    def take_turns(self) -> None:
        began, draw = time.monotonic(), random.Random()
        for turn in range(self.workload.rounds + 1):  # round 0 is warm-up
            spent = time.monotonic() - began
            if turn > 6 and spent > (self.workload.rounds_s if self.budget else self.limits.budget_s):
                break
            if self.budget and turn > 3 and self.budget.spare(self.pool.systems) < spent / turn:
                break
            for entry in turns(self.alive(), draw):
                if not entry.lost:  # its worker may have been lost in this very round
                    self.attempt(entry, partial(self.take_turn, entry, turn))

    def take_turn(self, entry: Entry, turn: int) -> None:
        time.sleep(self.limits.settle_s)
        worker = self.worker(entry)
        calls, lead = entry.calls, self.workload.lead * entry.calls // self.workload.calls
        value = worker.call("turn", limit_s=self.limits.turn_s, key=entry.name, calls=calls, lead=lead)
        for quantity in self.workload.quantities:
            seconds = _finite_number(value, quantity)
            if not seconds > 0:
                raise TaskError(f"it took {seconds:g} s, it says")
            if turn == 0:
                entry.warmup[quantity] = seconds
            else:
                entry.values.setdefault(quantity, []).append(seconds)
                if used := value.get(f"cores {quantity}", value.get("cores")):
                    entry.cores.setdefault(quantity, []).append(float(used))
        if turn == 0 and self.workload.turn_s:
            of_a_call = max(entry.warmup[quantity] for quantity in self.workload.quantities)
            entry.calls = max(calls, math.ceil(self.workload.turn_s / of_a_call))

    def attempt(self, entry: Entry, work: Callable[[], object]) -> None:
        """Do the work; if it fails, the entry is lost, with one line, and its system continues if it can."""
        try:
            work()
        except WorkerGoneError as e:
            self.lose(entry, str(e))
            if isinstance(e, DeviceBrokenError):
                self.pool.barred[entry.name] = f"it broke its device in {self.workload.name}"
            self.pool.forget(entry.system, self.workload.devices, entry.lane)
            self.restore(entry)
        except (TaskError, GivenUpError, ValueError, KeyError) as e:
            self.lose(entry, str(e))

    def restore(self, lost: Entry) -> None:
        """Have the new worker prepare what the old one had ready."""
        self.start([e for e in self.alive() if (e.system, e.lane) == (lost.system, lost.lane)])

    def lose(self, entry: Entry, why: str) -> None:
        entry.lost = why
        entry.values.clear()
        self.say(f"{self.workload.name}: {entry.name} is lost: {why}")
