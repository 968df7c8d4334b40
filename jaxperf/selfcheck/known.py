"""Work whose duration is known without the clock that is checked, or by a promise that no load can break.

A duration can be known in three ways, and each checks something else:

- *Counted*: so many steps of a loop in C, whose cost per step the scheduler's CPU clock says, just before and
  after each value. `measure` reads another clock. On a loaded machine such work takes longer, as any does.
- *Clocked*: a function that returns when the clock reaches its next tick, so that many calls in a row last
  so many ticks, whatever else the call costs and whoever else wants the core. This one is known under load.
- *Called back*: a compiled program that ends when its callback has waited for so long. Only a clock that
  waits for the program's outputs can see that.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxperf.measure import measure
from jaxperf.measure.timing import MIN_VALUE_S, calls_per_value
from jaxperf.result import Decision, Measurement, Ratio, ratio_of

WITHIN = 0.01
SLACK_S = 2e-5  # a loop around a function comes back within this, with cold caches too
CALIBRATION_S = 0.005
LESS = "less an empty call"
ROUNDS, LEAST_ROUNDS, ROUNDS_S = 60, 7, 1.0  # of counted work: as many as go into so many seconds


@dataclass(frozen=True)
class Checked:
    """A duration that was known, and what `measure` said.

    Attributes:
      known_s: seconds of one call.
      measured: seconds per call, less what the same call takes without its work.
      empty_s: seconds of that call, which were taken off.
    """

    known_s: float
    measured: Measurement
    empty_s: float = 0.0

    @property
    def way(self) -> str:
        """How it was known: the measurement's name begins with it."""
        return self.measured.name.split(",")[0]

    @property
    def ratio(self) -> Ratio:
        """Measured over known: the median of the values, with its interval."""
        return ratio_of([value / self.known_s for value in self.measured.values])

    @property
    def right(self) -> Decision:
        """Whether the median is within 1 % of what is known."""
        return self.ratio.within(WITHIN)

    @property
    def inside(self) -> bool:
        """Whether the stated interval holds the known duration, or ends within 1 % of it."""
        return self.ratio.within(WITHIN) is not False


def counted(seconds: float) -> Checked:
    """Check `measure` with steps of a loop in C, calibrated by the CPU clock around every value.

    A core's speed moves by percents within milliseconds (its clock, a neighbor on the host), so each value is
    divided by what the steps cost next to it.
    """
    steps = max(1, round(seconds / step_s()))
    rounds = max(LEAST_ROUNDS, min(ROUNDS, round(ROUNDS_S / seconds)))
    loops = calls_per_value(seconds, MIN_VALUE_S)
    ratios, empties = [], []
    for _ in range(rounds):
        before, empty = step_s(), _one_value(0, loops)
        value, after = _one_value(steps, loops), step_s()
        ratios.append((value - empty) / (steps * (before + after) / 2))
        empties.append(empty)
    measured = Measurement(f"counted, {said(seconds)}", "s", tuple(seconds * r for r in ratios), note=LESS)
    return Checked(seconds, measured, statistics.median(empties))


def _one_value(steps: int, loops: int) -> float:
    """One value of `measure`, seconds per call."""
    found = measure(
        spin, steps, loops=loops, min_values=1, max_values=1, warmup_calls=1, warmup_s=0.0, budget_s=0.0
    )
    return found.values[0]


def clocked(seconds: float) -> Checked:
    """Check `measure` with a function that returns at the next tick of the clock."""
    return Checked(seconds, measure(ticking(seconds), name=f"clocked, {said(seconds)}"))


def called_back(seconds: float) -> Checked:
    """Check `measure` with a compiled program whose callback waits."""
    x = jnp.float32(1)
    empty = measure(waiting_program(0.0), x, name="empty")
    measured = measure(waiting_program(seconds), x, name=f"called back, {said(seconds)}")
    return Checked(seconds, _less(measured, empty.median), empty.median)


def said(seconds: float) -> str:
    """A round duration in words: "10 us"."""
    scale, unit = next((s, u) for s, u in ((1, "s"), (1e-3, "ms"), (1e-6, "us")) if seconds >= s * 0.999)
    return f"{seconds / scale:g} {unit}"


def spin(steps: int) -> bool:
    """Go through `steps` steps of a loop in C, about 5 ns each, that touch no memory."""
    return any(itertools.repeat(False, steps))


def step_s() -> float:
    """Seconds of one step of `spin` by this thread's CPU clock, which stands still while others run."""
    steps = 1000
    while (took := _cpu_s(steps)) < CALIBRATION_S / 2:
        steps = round(steps * min(100.0, 1.2 * CALIBRATION_S / max(took, 1e-6)))
    return took / steps


def _cpu_s(steps: int) -> float:
    began = time.thread_time()
    spin(steps)
    return time.thread_time() - began


def ticking(seconds: float, clock: Callable[[], float] = time.perf_counter) -> Callable[[], None]:
    """A function that returns `seconds` after its last return, or after its call if that is long ago."""
    due = -np.inf

    def tick() -> None:
        nonlocal due
        now = clock()
        due = (due if now - due < SLACK_S else now) + seconds
        while clock() < due:
            pass

    return tick


def waiting_program(seconds: float) -> Callable[[Any], jax.Array]:
    """A compiled program whose callback waits and hands back the scalar that it was given."""

    def wait(x: Any) -> np.ndarray:
        ends = time.perf_counter() + seconds
        while time.perf_counter() < ends:
            pass
        return np.asarray(x)

    scalar = jax.ShapeDtypeStruct((), jnp.float32)
    return jax.jit(lambda x: jax.pure_callback(wait, scalar, x))


def _less(m: Measurement, seconds: float) -> Measurement:
    return replace(m, values=tuple(v - seconds for v in m.values), note=LESS)
