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
from jaxperf.frameworks.worker import TaskError, Worker, WorkerGoneError
from jaxperf.frameworks.workloads import Workload
from jaxperf.result import turns

LEAST_START_S = 5.0  # what a start may take, however little is left of a budget


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
        their start would use much of it.
      say: gets a line for each configuration that is lost.
    """
    run = _Run(workload, pool, limits, budget, say)
    run.prepare_all()
    run.judge_all()
    run.take_turns()
    if not budget:
        pool.close()  # the next workload begins with processes that have done nothing yet
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
        self.net = str(workload.settings.get("net", ""))
        self.entries = [
            Entry(system, name, calls=workload.calls, lane="compile" if budget and name in COMPILED else "")
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
        self.in_threads(*[partial(self.attempt, e, partial(self.worker, e)) for e in self.one_of_each()])
        self.budget.begin()
        with_jax = [e for e in self.entries if e.system == BASE]
        slow = [e for e in self.entries if e.lane]
        first = with_jax[0].configuration if with_jax else ""
        self.start([e for e in self.entries if e not in with_jax and e not in slow], after=first)
        # JAX and torch.compile need the processor to start, and hardly the GPU: they do so side by side.
        self.in_threads(partial(self.start, with_jax), partial(self.start, slow))
        if refused := [e.name for e in self.entries if e.refused]:
            self.say(f"{self.workload.name}: no time to start {', '.join(refused)}")

    def one_of_each(self) -> list[Entry]:
        """An entry of each worker that is needed."""
        return list({(e.system, e.lane): e for e in self.entries}.values())

    def in_threads(self, *jobs: Callable[[], None]) -> None:
        with ThreadPoolExecutor(max(1, len(jobs))) as threads:
            futures = [threads.submit(job) for job in jobs]
            try:
                for future in futures:
                    future.result()
            except BaseException:
                self.pool.abort()  # else Ctrl-C would wait for what the workers are doing
                raise

    def start(self, entries: Sequence[Entry], after: str = "") -> None:
        """Start these in order, until there is no time for the next one.

        Args:
          entries: those of one worker; a later one's start is short where an earlier one has started.
          after: a configuration for which there must still be time then; "" for none.
        """
        for i, entry in enumerate(entries):
            if self.budget and not self.budget.allows(self.net, entry.configuration, after):
                for late in entries[i:]:
                    late.refused, late.lost = True, "there was no time to start it"
                    late.values.clear()
                return
            if not entry.lost:
                self.attempt(entry, partial(self.prepare, entry))

    def prepare(self, entry: Entry) -> None:
        worker, began = self.worker(entry), time.monotonic()
        path = self.pool.scratch / f"answers-{entry.system}{entry.lane}.npz"
        path.unlink(missing_ok=True)  # so that another configuration's answers are never read instead
        limit_s = self.limits.prepare_s
        value = worker.call(
            "prepare",
            limit_s=min(limit_s, max(LEAST_START_S, self.budget.left)) if self.budget else limit_s,
            key=entry.name,
            settings=dict(self.workload.settings),
            configuration=entry.configuration,
            answers=str(path),
        )
        entry.first_s = _finite_number(value, "first_s")
        entry.answers = read_answers(path)
        if self.budget:
            self.budget.started(self.net, entry.configuration, time.monotonic() - began)

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
            round_s = (time.monotonic() - began) / max(1, turn)
            if self.budget and turn > 1 and self.budget.left < round_s:
                break
            if not self.budget and turn > 6 and time.monotonic() - began > self.limits.budget_s:
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
