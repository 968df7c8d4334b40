"""What watching costs: programs alone, watched without the profiler, and watched with it, taking turns.

    python benchmarks/watch_overhead.py --rounds 9

All in one process, compiled before. A value is the seconds of the program in its block, without the report
that follows. The overhead that each watch printed for itself stands next to it.
"""

from __future__ import annotations

if __name__ == "__main__":
    from jaxperf.processes.exit_status import end_at_once

    end_at_once()  # while all else is imported, Ctrl-C is no traceback

import contextlib
import io
import os
import runpy
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import jax

from jaxperf.cli import flags
from jaxperf.cli.flags import at_least
from jaxperf.processes.exit_status import ended
from jaxperf.result import Measurement, ratio
from jaxperf.watch import watch

PROGRAMS = Path(__file__).resolve().parents[1] / "tests" / "slow_programs"
# steps that take a few seconds each on two cores
WORK = {"steps without waiting": ("fixed/item_in_loop", 1500), "a wait per step": ("item_in_loop", 1000),
        "op by op": ("eager_loop", 5000)}  # fmt: skip


def timed(run: Callable[[], Any], profile: bool | None) -> tuple[float, float, float]:
    """Return a run's wall and processor seconds, and the watch's cost; no watch if `profile` is None."""
    block = contextlib.nullcontext() if profile is None else watch(profile=profile, show=False)
    with block as watched:
        began, worked = time.perf_counter(), time.process_time()
        jax.block_until_ready(run())
        taken, work = time.perf_counter() - began, time.process_time() - worked
    record = watched.record if watched else None
    return taken, work, sum(record.overhead_s.values()) / record.wall_s if record else 0.0


@dataclass(frozen=True)
class Config:
    """How often."""

    rounds: Annotated[int, at_least(6)] = 9  # turns of each program, each way


def main(config: Config) -> int:
    """Print a line for each program and way."""
    ways = {"alone": None, "watched, profiler off": False, "watched": True}
    for title, (name, steps) in WORK.items():
        program = runpy.run_path(str(PROGRAMS / f"{name}.py"), run_name="program")["main"]
        with contextlib.redirect_stdout(io.StringIO()):
            program(20)
        values: dict[str, list[float]] = defaultdict(list)
        works: dict[str, list[float]] = defaultdict(list)
        reported: dict[str, list[float]] = defaultdict(list)
        for i in range(config.rounds):
            for way in list(ways)[i % 3 :] + list(ways)[: i % 3]:
                taken, work, share = timed(lambda: program(steps), ways[way])  # noqa: B023
                values[way].append(taken)
                works[way].append(work)
                reported[way].append(share)
        rows, cpu = (
            {way: Measurement(way, "s", tuple(v), rounds=f"{title} {clock}") for way, v in by_way.items()}
            for clock, by_way in (("wall", values), ("processor", works))
        )
        for way in ways:
            print(
                f"{title}, {way}: {rows[way].median:.2f} s, {ratio(rows[way], rows['alone'])} of alone;",
                end=" ",
            )
            print(f"processor time {ratio(cpu[way], cpu['alone'])};", end=" ")
            print(f"it said {statistics.median(reported[way]):.1%}", flush=True)
    return 0


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    raise SystemExit(ended(lambda: main(flags.parse_argv(Config, __doc__ or ""))))
