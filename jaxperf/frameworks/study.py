"""One workload on all systems: prepare, agree, and only then take turns; a failure is one reported line."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from jaxperf.frameworks.agree import Verdict, compare_answers, read_answers
from jaxperf.frameworks.pool import OVER, GivenUpError, Pool
from jaxperf.frameworks.worker import TaskError, WorkerGoneError
from jaxperf.frameworks.workloads import Workload
from jaxperf.result import Curve, Measurement, turns

BASE = "jax"  # as installed
EVENTS = "events"  # the quantity by a GPU's own clock, which PyTorch gives beside the host's


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


@dataclass
class Entry:
    """A configuration of a system in one workload, and its results so far.

    Attributes:
      system, configuration: their names.
      verdict: whether it agreed; None while it has not answered.
      first_s: seconds of its first call.
      warmup: values of the warm-up round, by quantity.
      values: values of the rounds, by quantity.
      cores: CPU seconds of its process per second, in each round, by quantity.
      losses: training losses: of the first steps, then of the last step of each turn; by step, from 0.
      calls: in one turn; after the warm-up round, those that last as long as the workload asks.
      lost: why it is not (or no longer) timed.
    """

    system: str
    configuration: str
    verdict: Verdict | None = None
    first_s: float = 0.0
    warmup: dict[str, float] = field(default_factory=dict)
    values: dict[str, list[float]] = field(default_factory=dict)
    cores: dict[str, list[float]] = field(default_factory=dict)
    losses: dict[int, float] = field(default_factory=dict)
    calls: int = 1
    lost: str = ""

    @property
    def name(self) -> str:
        """ "mxnet/static"."""
        return f"{self.system}/{self.configuration}"

    def measurement(self, workload: Workload, quantity: str) -> Measurement:
        """Return its raw values of one quantity; `values[i]` of a workload's entries are from one round."""
        return Measurement(
            f"{self.system} {self.configuration}",
            workload.unit,
            tuple(self.values[quantity]),
            warmup=(self.warmup[quantity],) if quantity in self.warmup else (),
            loops=self.calls,
            items=workload.items,
            note="devices are fake" if workload.devices > 1 else "",
            rounds=f"rounds of {workload.name}" if workload.rounds else "",
            system=self.system,
            workload=workload.name,
            configuration=self.configuration,
            quantity=quantity,
        )

    def curve(self, workload: Workload) -> Curve | None:
        """Return its loss over steps, if it trains."""
        if not self.losses:
            return None
        x, y = tuple(map(float, self.losses)), tuple(self.losses.values())
        label = f"{self.system} {self.configuration}"
        return Curve(label, x, y, dash=self.configuration, system=self.system, workload=workload.name)


@dataclass(frozen=True)
class Study:
    """The results of one workload; the timed `entries` have as many values as there were rounds.

    Attributes:
      workload: what was done.
      entries: the configurations of all systems.
      threads: that each device was given.
    """

    workload: Workload
    entries: Sequence[Entry]
    threads: int = 0

    @property
    def timed(self) -> list[Entry]:
        """Those that agreed and took every turn."""
        return [e for e in self.entries if not e.lost and e.values]

    def allotted(self, quantity: str) -> int:
        """Return the cores that each configuration was given; 0 if that is not known."""
        devices = self.workload.at_once.get(quantity, self.workload.devices)
        return self.threads * devices

    def used(self, entry: Entry, quantity: str) -> float:
        """Return the cores that a configuration used, by its CPU time; 0 if it did not say."""
        return float(np.median(entry.cores.get(quantity) or [0.0]))

    def fair(self, entry: Entry, quantity: str) -> bool:
        """Return whether a configuration used no more cores than it was given."""
        return self.used(entry, quantity) <= OVER * (self.allotted(quantity) or math.inf)

    def best(self, system: str, quantity: str) -> Entry | None:
        """Return the system's fastest configuration by median, of those that are judged; None for none."""
        mine = [e for e in self.timed if e.system == system and self.fair(e, quantity)]
        return min(mine, key=lambda e: float(np.median(e.values[quantity])), default=None)


def study(
    workload: Workload, pool: Pool, *, limits: Limits, say: Callable[[str], None] = lambda line: None
) -> Study:
    """Prepare every configuration, and let those that agree with JAX take turns round by round.

    Args:
      workload: what to do.
      pool: live workers of the systems; systems that are not in it are left out.
      limits: how long things may take.
      say: gets a line for each configuration that is lost.
    """
    run = _Run(workload, pool, limits, say)
    run.prepare_all()
    run.take_turns()
    pool.close()  # the next workload begins with processes that have done nothing yet
    return Study(workload, run.entries, pool.threads(workload.devices))


def finite_number(value: Mapping[str, Any], name: str) -> float:
    """Return a finite number from a worker's answer.

    Raises:
      TaskError: it is not one.
    """
    figure = value.get(name)
    if isinstance(figure, bool) or not isinstance(figure, int | float) or not math.isfinite(figure):
        raise TaskError(f"its {name or 'time'} is {str(figure)[:40]!r}")
    return float(figure)


class _Run:
    def __init__(self, workload: Workload, pool: Pool, limits: Limits, say: Callable[[str], None]) -> None:
        self.workload, self.pool, self.limits, self.say = workload, pool, limits, say
        self.base: dict[str, np.ndarray] | None = None
        self.entries = [
            Entry(system, configuration, calls=workload.calls)
            for system, configurations in workload.configurations.items()
            if system in pool.systems
            for configuration in configurations
        ]

    def alive(self) -> list[Entry]:
        return [e for e in self.entries if not e.lost and e.verdict]

    def prepare_all(self) -> None:
        for entry in self.entries:
            self.attempt(entry, partial(self.prepare, entry))

    def prepare(self, entry: Entry) -> None:
        worker = self.pool.worker(entry.system, self.workload.devices)
        path = self.pool.scratch / f"answers-{entry.system}.npz"
        path.unlink(missing_ok=True)  # so that another configuration's answers are never read instead
        value = worker.call(
            "prepare",
            limit_s=self.limits.prepare_s,
            key=entry.name,
            settings=dict(self.workload.settings),
            configuration=entry.configuration,
            answers=str(path),
        )
        entry.first_s = finite_number(value, "first_s")
        self.judge(entry, read_answers(path))

    def judge(self, entry: Entry, answers: Mapping[str, np.ndarray]) -> None:
        """Compare answers: the first is JAX's, and all others, including JAX's own, are compared with it."""
        if self.base is None:
            if entry.system != BASE:
                raise TaskError("there is no answer of JAX's to agree with")
            self.base = dict(answers)
        entry.verdict = compare_answers(self.base, answers, rtol=self.workload.rtol)
        if not entry.verdict.agrees:
            raise TaskError(f"not timed: {entry.verdict.trouble}")
        if "loss" in answers:
            entry.losses = dict(enumerate(np.asarray(answers["loss"], float).tolist()))

    def take_turns(self) -> None:
        began, draw = time.monotonic(), random.Random()
        for turn in range(self.workload.rounds + 1 if self.workload.rounds else 0):  # round 0 is warm-up
            if turn > 6 and time.monotonic() - began > self.limits.budget_s:
                break
            for entry in turns(self.alive(), draw):
                if not entry.lost:  # its worker may have been lost in this very round
                    self.attempt(entry, partial(self.take_turn, entry, turn))

    def take_turn(self, entry: Entry, turn: int) -> None:
        time.sleep(self.limits.settle_s)
        worker = self.pool.worker(entry.system, self.workload.devices)
        calls, lead = entry.calls, self.workload.lead * entry.calls // self.workload.calls
        value = worker.call("turn", limit_s=self.limits.turn_s, key=entry.name, calls=calls, lead=lead)
        for quantity in (*self.workload.quantities, *({EVENTS} & value.keys())):
            seconds = finite_number(value, quantity)
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
        if "loss" in value:
            last = max(entry.losses, default=-1)
            entry.losses[last + calls] = finite_number(value, "loss")

    def attempt(self, entry: Entry, work: Callable[[], None]) -> None:
        """Do the work; if it fails, the entry is lost, with one line, and its system continues if it can."""
        try:
            work()
        except WorkerGoneError as e:
            self.lose(entry, str(e))
            self.pool.forget(entry.system, self.workload.devices)
            self.restore(entry.system)
        except (TaskError, GivenUpError, ValueError, KeyError) as e:
            self.lose(entry, str(e))

    def restore(self, system: str) -> None:
        """Have the system's new worker prepare what the old one had ready; curves would have a gap."""
        for other in [e for e in self.alive() if e.system == system]:
            self.attempt(other, partial(self.prepare, other))

    def lose(self, entry: Entry, why: str) -> None:
        entry.lost = why
        entry.values.clear()
        self.say(f"{self.workload.name}: {entry.name} is lost: {why}")
