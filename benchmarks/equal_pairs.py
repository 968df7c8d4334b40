"""How often equal programs are called different, by the rules as `jaxperf measure` and `compare` apply them.

    python benchmarks/equal_pairs.py
    python benchmarks/equal_pairs.py --loaded
    python benchmarks/equal_pairs.py --percent 5 --pairs 100
    python benchmarks/equal_pairs.py --rules compare

Both programs are the compiled loop of verdicts.py. The exit status is 1 where `Ratio` told so
many pairs of equal programs apart that a chance of 5 % is ruled out. The share of `compare` is only shown. It
judges two runs, one after the other, and no rule can know that a shared host changed its speed between them.
"""

from __future__ import annotations

if __name__ == "__main__":
    from jaxperf.process import end_at_once

    end_at_once()  # while all else is imported, Ctrl-C is no traceback

import contextlib
import os
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import Literal

REPORT = 50  # pairs between two lines


@dataclass(frozen=True)
class Config:
    """How many pairs, of what."""

    pairs: int = 400
    percent: Literal[0, 2, 5, 10, 20] = 0  # how much more work the second program does
    loaded: bool = False  # beside a busy program on each core
    rules: tuple[Literal["Ratio", "compare"], ...] = ("Ratio", "compare")


def main(config: Config) -> int:
    """Print, every so many pairs, how many were told apart so far; 1 if `Ratio` breaks its promise."""
    os.environ |= {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1"}  # before JAX is imported
    import verdicts

    from jaxperf.measure.keep_awake import cores_busy
    from jaxperf.measure.other_load import other_load
    from jaxperf.result.machine import cores

    parts, other = verdicts.programs(config.percent), f"{config.percent} %" if config.percent else "equal"
    pair = {name: parts[name] for name in (verdicts.BASE, other)}
    trial = {
        "Ratio": partial(verdicts.in_rounds, pair, rounds=15, budget_s=5.0),
        "compare": partial(verdicts.in_runs, pair),
    }
    judge = {"Ratio": verdicts.by_ratio, "compare": verdicts.by_ranks}
    counters = {rule: Counter[str]() for rule in config.rules}
    load = cores_busy(cores()) if config.loaded else contextlib.nullcontext()
    shares = dict[str, verdicts.Share]()
    with load, other_load() as watch:
        for number in range(1, config.pairs + 1):
            for rule, count in counters.items():
                values = trial[rule]()
                decision = judge[rule](values[verdicts.BASE], values[other])
                count["apart"] += decision in ("slower", "faster")
                count["values"] += len(values[other].values)
            if number % REPORT == 0 or number == config.pairs:
                shares = {rule: verdicts.Share(count["apart"], number) for rule, count in counters.items()}
                statements = (
                    f"{rule} in {shares[rule]}, {count['values'] / number:.0f} values per program"
                    for rule, count in counters.items()
                )
                print(f"told apart: {'; '.join(statements)}", flush=True)
    print(watch)
    broken = "Ratio" in shares and shares["Ratio"].below(verdicts.WRONG) is False
    return int(broken and not config.percent)


if __name__ == "__main__":
    from jaxperf import flags
    from jaxperf.process import ended

    raise SystemExit(ended(lambda: main(flags.parse_config(Config, __doc__))))
