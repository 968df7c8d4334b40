"""What each changed snippet gains: the slow programs of the tests against their repaired twins.

    python benchmarks/watch_gains.py --rounds 7 --only item_in_loop eager_loop

Each program runs in a process of its own, since compiling is part of what is repaired; slow and repaired ones
take turns. A value is the seconds of `main()` with JAX started and every result waited for.
"""

from __future__ import annotations

if __name__ == "__main__":
    from jaxperf.processes.exit_status import end_at_once

    end_at_once()  # while all else is imported, Ctrl-C is no traceback

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from jaxperf.cli import flags
from jaxperf.cli.flags import at_least
from jaxperf.errors import JaxperfError
from jaxperf.processes.exit_status import ended
from jaxperf.result import Measurement, ratio

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = ROOT / "tests" / "slow_programs"
PAIRS = {p.stem: (p, p.parent / "fixed" / p.name) for p in sorted(PROGRAMS.glob("*.py"))} | {
    "docs/watch/train": (ROOT / "docs" / "watch" / "train.py", ROOT / "docs" / "watch" / "train_changed.py")
}
TIMED = """
import contextlib, io, runpy, sys, time
import jax
jax.block_until_ready(jax.device_put(1.0, jax.devices()[0]))
with contextlib.redirect_stdout(io.StringIO()):
    program = runpy.run_path(sys.argv[1], run_name="program")
    began = time.perf_counter()
    jax.block_until_ready(program["main"]())
print(time.perf_counter() - began)
"""


def seconds(path: Path) -> float:
    """Return the seconds of a program's `main()` in a new process."""
    environment = os.environ | {
        "JAX_NUM_CPU_DEVICES": "2" if {"shards", "moved"} & {*path.stem.split("_")} else "1"
    }
    done = subprocess.run(
        [sys.executable, "-c", TIMED, str(path)], env=environment, capture_output=True, text=True, check=True
    )
    return float(done.stdout)


@dataclass(frozen=True)
class Config:
    """How often, and which programs."""

    rounds: Annotated[int, at_least(6)] = 7  # turns of each pair
    only: tuple[str, ...] = ()  # names of programs; all of them if none are given

    def __post_init__(self) -> None:
        if unknown := set(self.only) - PAIRS.keys():
            raise JaxperfError(f"there is no program {min(unknown)}; there are {', '.join(PAIRS)}")


def main(config: Config) -> int:
    """Print a line for each program."""
    rounds = config.rounds
    print(
        f"{'program':<24} {'slow':>8} {'repaired':>9}   slow over repaired, median of {rounds} rounds (95 %)"
    )
    for name in config.only or PAIRS:
        slow, repaired = PAIRS[name]
        pairs = [(seconds(slow), seconds(repaired)) for _ in range(rounds)]
        before, after = (
            Measurement(word, "s", values, rounds=name)
            for word, values in zip(("slow", "repaired"), zip(*pairs))
        )
        print(
            f"{name:<24} {before.median:>6.2f} s {after.median:>7.2f} s   {ratio(before, after)}", flush=True
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(ended(lambda: main(flags.parse_argv(Config, __doc__ or ""))))
