"""What watching costs: programs alone, watched without the profiler, and watched with it, taking turns.

    python benchmarks/watch_overhead.py --rounds 9

All in one process, compiled before. A value is the seconds of the program in its block, without the report
that follows; the ratios are of the values of the same round. The overhead that each watch printed for itself
stands next to it.
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
WORK = {
    "steps without waiting": "fixed/item_in_loop",
    "a wait per step": "item_in_loop",
    "op by op": "eager_loop",
    "element reads": "element_reads",
    "a callback in a program": "callback_to_host",
}
WAYS = {"alone": None, "watched, profiler off": False, "watched": True}
FIRST = 20  # steps from which the number for the wanted seconds is worked out


def timed(run: Callable[[], Any], profile: bool | None) -> tuple[float, float, float]:
    """Return a run's wall and processor seconds, and the watch's cost; no watch if `profile` is None."""
    block = contextlib.nullcontext() if profile is None else watch(profile=profile, show=False)
    with block as watched:
        began, worked = time.perf_counter(), time.process_time()
        jax.block_until_ready(run())
        seconds, work = time.perf_counter() - began, time.process_time() - worked
    record = watched.record if watched else None
    return seconds, work, sum(record.overhead_s.values()) / record.wall_s if record else 0.0


def steps_for(program: Callable[[int], Any], seconds: float) -> int:
    """Return how many steps of a program take so long."""
    with contextlib.redirect_stdout(io.StringIO()):
        program(FIRST)
        elapsed_s, _, _ = timed(lambda: program(FIRST), None)
    return max(FIRST, round(FIRST * seconds / elapsed_s))


@dataclass(frozen=True)
class Config:
    """How often, how long, and which programs."""

    rounds: Annotated[int, at_least(6)] = 9  # turns of each program, each way
    seconds: Annotated[float, at_least(0.1)] = 10.0  # of each program alone
    only: tuple[str, ...] = ()  # programs, by their titles; all of them if none are given


def main(config: Config) -> int:
    """Print a line for each program and way."""
    for title, name in WORK.items():
        if config.only and title not in config.only:
            continue
        program = runpy.run_path(str(PROGRAMS / f"{name}.py"), run_name="program")["main"]
        steps = steps_for(program, config.seconds)
        values: dict[str, list[float]] = defaultdict(list)
        works: dict[str, list[float]] = defaultdict(list)
        reported: dict[str, list[float]] = defaultdict(list)
        for i in range(config.rounds):
            for way in list(WAYS)[i % 3 :] + list(WAYS)[: i % 3]:
                with contextlib.redirect_stdout(io.StringIO()):
                    elapsed_s, work, share = timed(lambda: program(steps), WAYS[way])  # noqa: B023
                values[way].append(elapsed_s)
                works[way].append(work)
                reported[way].append(share)
        print_rows(title, values, works, reported)
    return 0


def print_rows(title: str, *by_way: dict[str, list[float]]) -> None:
    """Print, for each way, seconds and processor time, as ratios to the program alone, and what it said."""
    values, works, reported = by_way
    rows, cpu = (
        {way: Measurement(way, "s", tuple(v), rounds=f"{title} {clock}") for way, v in seconds.items()}
        for clock, seconds in (("wall", values), ("processor", works))
    )
    for way in WAYS:
        print(
            f"{title}, {way}: {rows[way].median:.2f} s, {ratio(rows[way], rows['alone'])} of alone; "
            f"processor time {ratio(cpu[way], cpu['alone'])}; it said {statistics.median(reported[way]):.1%}",
            flush=True,
        )


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    raise SystemExit(ended(lambda: main(flags.parse_argv(Config, __doc__ or ""))))
