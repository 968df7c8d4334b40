"""How often equal programs are called different by `Ratio`, as `jaxperf measure` applies it.

    python benchmarks/equal_pairs.py
    python benchmarks/equal_pairs.py --loaded
    python benchmarks/equal_pairs.py --percent 5 --pairs 100

The program is one compiled loop. How many steps it takes is an argument, so 1050 steps instead of 1000 are a
true difference of 5 % in the same machine code. The exit status is 1 where so many pairs of equal programs
were told apart that a chance of 5 % is ruled out.
"""

from __future__ import annotations

if __name__ == "__main__":
    from jaxperf.process import end_at_once

    end_at_once()  # while all else is imported, Ctrl-C is no traceback

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import jax

    from jaxperf.result import Decision

REPORT = 50  # pairs between two lines
STEPS = 1000  # a millisecond; a call costs 40 us besides, so 5 % more steps than 100 take 3.5 % more time
WRONG = 0.05  # the rule states this chance of a wrong verdict


@dataclass(frozen=True)
class Config:
    """How many pairs, of what."""

    pairs: int = 400
    percent: int = 0  # how much more work the second program does
    loaded: bool = False  # beside a busy program on each core


@dataclass(frozen=True)
class Share:
    """How many of how many trials, and the 95 % interval of the true share (exact binomial)."""

    count: int
    trials: int

    def below(self, share: float) -> Decision:
        """Return whether it is; undecided if it exceeds `share` by no more than chance allows."""
        if self.count < share * self.trials:
            return True
        return False if self._ends()[0] >= share else None

    def __str__(self) -> str:
        low, high = self._ends()
        return f"{self.count} of {self.trials} ({low:.1%} to {high:.1%})"

    def _ends(self) -> tuple[float, float]:
        from scipy.stats import binomtest

        ends = binomtest(self.count, self.trials).proportion_ci(0.95)
        return float(ends.low), float(ends.high)


def programs(percent: int) -> dict[str, Callable[[], jax.Array]]:
    """Return two programs, of which the second takes `percent` more steps; a call takes about 1 ms."""
    import jax
    import jax.numpy as jnp

    x = jnp.eye(32)

    @jax.jit
    def loop(x: jax.Array, steps: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, steps, lambda _, y: jnp.tanh(y @ x), x)

    counts = {"base": STEPS, "other": round(STEPS * (1 + percent / 100))}
    return {name: partial(loop, x, jax.device_put(jnp.int32(count))) for name, count in counts.items()}


def main(config: Config) -> int:
    """Print, every so many pairs, how many were told apart so far; 1 if `Ratio` breaks its promise."""
    os.environ |= {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1"}  # before JAX is imported
    from jaxperf.measure import interleaved
    from jaxperf.measure.other_load import other_load
    from jaxperf.result import ratio
    from jaxperf.result.machine import cores

    pair = programs(config.percent)
    busy_program = [sys.executable, "-c", "while True: pass"]
    apart, rounds = 0, 0
    with contextlib.ExitStack() as ends, other_load() as watch:
        for _ in range(cores() if config.loaded else 0):
            ends.callback(subprocess.Popen(busy_program).kill)
        for number in range(1, config.pairs + 1):
            rows = interleaved(pair, count=15, budget_s=5.0)
            apart += ratio(rows["other"], rows["base"]).word in ("slower", "faster")
            rounds += len(rows["base"].values)
            if number % REPORT == 0 or number == config.pairs:
                share = Share(apart, number)
                print(f"told apart: {share}, {rounds / number:.0f} rounds per pair", flush=True)
    print(watch)
    return int(share.below(WRONG) is False and not config.percent)


if __name__ == "__main__":
    from jaxperf import flags
    from jaxperf.process import ended

    raise SystemExit(ended(lambda: main(flags.parse_config(Config, __doc__))))
