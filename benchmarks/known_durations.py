"""Known durations, measured: work that lasts as long as another clock says, or under any load.

    python benchmarks/known_durations.py              # two minutes on an idle machine
    python benchmarks/known_durations.py --longest-s 1

A duration can be known in three ways, and each checks something else:

- *Counted*: a fixed number of steps of a loop in C. The scheduler's CPU clock says how long the calls of each
  value took on this thread; `measure` reads another clock. On a loaded machine such work takes longer, as any
  work does.
- *Clocked*: a function that returns when the clock reaches its next tick, so that the calls of a value last a
  fixed number of ticks, whatever else a call costs, and even if other programs take the core before the last
  of them. This duration is known under load.
- *Called back*: a compiled program that ends when its callback has waited for a fixed time. Only a clock that
  waits for the program's outputs can see that.
"""

from __future__ import annotations

if __name__ == "__main__":
    from jaxperf.process import end_at_once

    end_at_once()  # while all else is imported, Ctrl-C is no traceback

import itertools
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxperf import flags
from jaxperf.measure import measure
from jaxperf.measure.other_load import other_load
from jaxperf.measure.timing import MIN_VALUE_S, calls_per_value
from jaxperf.process import ended
from jaxperf.result import Decision, Measurement, Ratio, ratio_of

WITHIN = 0.01
CALIBRATION_S = 0.005
IDLE_CORES = 0.05  # used by others; the system's own services use less
LESS = "less an empty call"
LESS_END = "less what follows the last tick"
ONE_CALL: dict[str, Any] = {"warmup_calls": 1, "warmup_s": 0.0}  # one warm-up call, to tell values apart
# As many values as fit into so many seconds. The host of a virtual machine takes a percent of some of them.
ROUNDS, LEAST_ROUNDS, ROUNDS_S = 60, 12, 3.0
MANY: dict[str, Any] = {
    "min_values": LEAST_ROUNDS, "max_values": ROUNDS, "budget_s": ROUNDS_S, "target_rel_iqr": 0.0,
}  # fmt: skip


KNOWN_S = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1)


@dataclass(frozen=True)
class Config:
    """How long the longest work takes."""

    longest_s: float = 0.1


@dataclass(frozen=True)
class Checked:
    """A known duration, and what `measure` reported.

    Attributes:
      known_s: seconds of one call.
      measured: seconds per call, less what the same call takes without its work.
      empty_s: the seconds that were subtracted; of clocked work, only what follows a value's last tick.
    """

    known_s: float
    measured: Measurement
    empty_s: float = 0.0

    @property
    def ratio(self) -> Ratio:
        """Measured over known time: the median of the values, with its interval."""
        return ratio_of([value / self.known_s for value in self.measured.values])

    @property
    def right(self) -> Decision:
        """Return whether the median is within 1 % of the known duration."""
        return self.ratio.within(WITHIN)


def counted(seconds: float) -> Checked:
    """Check `measure` with steps of a loop in C, by the CPU clock's time for the very same calls.

    A core's speed varies by several percent within milliseconds (its clock rate, a neighbor on the host): on
    an idle machine, steps calibrated 5 ms before and after a value gave 0.88 to 1.13 times that value.
    """
    steps = max(1, round(seconds / step_s()))
    loops = calls_per_value(seconds, MIN_VALUE_S)
    ratios, empties = [], []
    for _ in range(_rounds(seconds)):
        empty, empty_cpu = _one_value(0, loops)
        value, cpu = _one_value(steps, loops)
        ratios.append((value - empty) / (cpu - empty_cpu))
        empties.append(empty)
    measured = Measurement(
        f"counted, {duration_text(seconds)}", "s", tuple(seconds * r for r in ratios), note=LESS
    )
    return Checked(seconds, measured, statistics.median(empties))


def _one_value(steps: int, loops: int) -> tuple[float, float]:
    """Return one value of `measure`, in seconds per call, and its calls' seconds of this thread's CPU."""
    work = Metered(steps, loops)
    return _value(work, loops), work.spent_s / loops


def _value(fn: Callable[[], object], loops: int) -> float:
    """Return one value of `measure`, after one call of warm-up."""
    return measure(fn, loops=loops, min_values=1, max_values=1, budget_s=0.0, **ONE_CALL).values[0]


def clocked(seconds: float) -> Checked:
    """Check `measure` with a function that returns at the next tick of the clock.

    One `measure` takes all values, as for a reader's function. When each value had a `measure` of its own and
    4 ms passed from one to the next, a scheduler that gives each program 4 ms paused every value of 100 us.
    What `measure` does after the last tick of a value takes 3 to 4 us, 0.2 % of a value of 2 ms.
    """
    loops, name = calls_per_value(seconds, MIN_VALUE_S), f"clocked, {duration_text(seconds)}"
    measured = measure(ticking(seconds, loops), name=name, loops=loops, **ONE_CALL, **MANY)
    end = statistics.median(_value(ending(), 1) for _ in range(LEAST_ROUNDS)) / loops
    return Checked(seconds, _less(measured, end, LESS_END), end)


def _rounds(seconds: float) -> int:
    return max(LEAST_ROUNDS, min(ROUNDS, round(ROUNDS_S / seconds)))


def called_back(seconds: float) -> Checked:
    """Check `measure` with a compiled program whose callback waits."""
    x = jnp.float32(1)
    empty = measure(waiting_program(0.0), x, name="empty")
    measured = measure(waiting_program(seconds), x, name=f"called back, {duration_text(seconds)}")
    return Checked(seconds, _less(measured, empty.median), empty.median)


def duration_text(seconds: float) -> str:
    """Return a round duration as text: "10 us"."""
    scale, unit = next((s, u) for s, u in ((1, "s"), (1e-3, "ms"), (1e-6, "us")) if seconds >= s * 0.999)
    return f"{seconds / scale:g} {unit}"


def spin(steps: int) -> bool:
    """Run `steps` steps of a loop in C, 2 to 5 ns each, that touch no memory."""
    return any(itertools.repeat(False, steps))


class Metered:
    """`spin`, reading this thread's CPU clock when the first call of a value begins and when its last ends.

    The first call is the warm-up; a value is the `loops` calls that follow.
    """

    def __init__(self, steps: int, loops: int) -> None:
        self.steps, self.loops, self.calls, self.spent_s = steps, loops, 0, 0.0

    def __call__(self) -> None:
        """Make a call."""
        if self.calls == 1:
            self.spent_s = -time.thread_time()
        spin(self.steps)
        if self.calls == self.loops:
            self.spent_s += time.thread_time()
        self.calls += 1


def step_s() -> float:
    """Return the seconds of one step of `spin` by this thread's CPU clock, which stops while others run."""
    steps = 1000
    while (elapsed_s := _cpu_s(steps)) < CALIBRATION_S / 2:
        steps = round(steps * min(100.0, 1.2 * CALIBRATION_S / max(elapsed_s, 1e-6)))
    return elapsed_s / steps


def _cpu_s(steps: int) -> float:
    began = time.thread_time()
    spin(steps)
    return time.thread_time() - began


def ticking(seconds: float, loops: int, clock: Callable[[], float] = time.perf_counter) -> Callable[[], None]:
    """Return a function whose first call takes one tick of `seconds`, and each `loops` more `loops` ticks.

    Within these, a late call catches up: a pause shows only in a value if it comes at the value's end. So the
    median is right as long as this thread has the core for more than half of the time.
    """
    due, calls = 0.0, 0

    def tick() -> None:
        nonlocal due, calls
        if not calls or (calls - 1) % loops == 0:
            due = clock()
        calls += 1
        due += seconds
        while clock() < due:
            pass

    return tick


def ending() -> Callable[[], None]:
    """Return a function that only spins in its first call: a value of one more call is what follows a tick.

    Spinning leaves the caches as ticks do: right after another such value it takes 2 us and not 3.
    """
    tick, calls = ticking(MIN_VALUE_S, 1), itertools.count()
    return lambda: None if next(calls) else tick()


def waiting_program(seconds: float) -> Callable[[Any], jax.Array]:
    """Return a compiled program whose callback waits and returns the scalar that it was given."""

    def wait(x: Any) -> np.ndarray:
        ends = time.perf_counter() + seconds
        while time.perf_counter() < ends:
            pass
        return np.asarray(x)

    scalar = jax.ShapeDtypeStruct((), jnp.float32)
    return jax.jit(lambda x: jax.pure_callback(wait, scalar, x))


def _less(m: Measurement, seconds: float, note: str = LESS) -> Measurement:
    values, aside = (tuple(v - seconds for v in some) for some in (m.values, m.set_aside))
    return replace(m, values=values, set_aside=aside, note="; ".join(filter(None, (m.note, note))))


WAYS: tuple[Callable[[float], Checked], ...] = (counted, clocked, called_back)
# Below this, a call's own time is no longer much less than the work, or varies by 1 % of it: a tick has no
# room for a call of 1 us, and waking the thread that waits for a callback takes 0.1 to 0.3 ms.
SHORTEST_S: dict[Callable[[float], Checked], float] = {clocked: 1e-5, called_back: 0.1}
WORDS = {True: "right", False: "wrong", None: "undecided"}


def main(config: Config) -> int:
    """Print for each work what was measured over what is known; return 1 if an idle machine was wrong."""
    wrong = 0
    durations = sorted({*KNOWN_S, config.longest_s})
    with other_load() as load:
        for way in WAYS:
            for seconds in durations:
                if SHORTEST_S.get(way, 0.0) <= seconds <= config.longest_s:
                    checked = way(seconds)
                    wrong += checked.right is False
                    off = f"; {duration_text(checked.empty_s)} taken off" if checked.empty_s else ""
                    print(
                        f"{checked.measured.name}: {checked.ratio}, {WORDS[checked.right]} within 1 %{off}",
                        flush=True,
                    )
    print(load)
    return int(wrong and load.others + load.stolen <= IDLE_CORES)


if __name__ == "__main__":
    raise SystemExit(ended(lambda: main(flags.parse_config(Config, __doc__))))
