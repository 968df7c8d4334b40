"""What watching costs: programs alone, watched without the profiler, and watched with it, taking turns.

    python scripts/watch_overhead.py [ROUNDS]

All in one process, compiled before. A value is the seconds of the program in its block, without the report
that follows. The overhead that each watch printed for itself stands next to it.
"""

from __future__ import annotations

import contextlib
import io
import os
import runpy
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

import jaxperf
from jaxperf.result import Measurement, ratio

PROGRAMS = Path(__file__).resolve().parents[1] / "tests" / "slow_programs"
# steps that take a few seconds each on two cores
WORK = {"steps without waiting": ("fixed/item_in_loop", 1500), "a wait per step": ("item_in_loop", 800),
        "op by op": ("eager_loop", 4000)}  # fmt: skip


def timed(run: Callable[[], Any], profile: bool | None) -> tuple[float, float]:
    """Seconds of a run, watched unless `profile` is None, and the share that the watch says it cost."""
    block = contextlib.nullcontext() if profile is None else jaxperf.watch(profile=profile, show=False)
    with block as watched:
        began = time.perf_counter()
        jax.block_until_ready(run())
        taken = time.perf_counter() - began
    record = watched.record if watched else None
    return taken, sum(record.overhead_s.values()) / record.wall_s if record else 0.0


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 9
    ways = {"alone": None, "watched, profiler off": False, "watched": True}
    for title, (name, steps) in WORK.items():
        program = runpy.run_path(str(PROGRAMS / f"{name}.py"), run_name="program")["main"]
        with contextlib.redirect_stdout(io.StringIO()):
            program(20)
        values: dict[str, list[float]] = defaultdict(list)
        said: dict[str, list[float]] = defaultdict(list)
        for i in range(rounds):
            for way in list(ways)[i % 3 :] + list(ways)[: i % 3]:
                taken, share = timed(lambda: program(steps), ways[way])  # noqa: B023
                values[way].append(taken)
                said[way].append(share)
        rows = {way: Measurement(way, "s", tuple(v), rounds=title) for way, v in values.items()}
        for way, row in rows.items():
            own = "" if way == "alone" else f"   it said {statistics.median(said[way]):.1%}"
            print(f"{title:<24} {way:<24} {row.median:6.2f} s   {ratio(row, rows['alone'])}{own}", flush=True)


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    main()
