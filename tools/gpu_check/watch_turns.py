"""Time a training loop alone and under `watch`, in turns, and keep the ratio: `watch_turns.py FILE`."""

from __future__ import annotations

import contextlib
import json
import random
import runpy
import sys
import time
from pathlib import Path
from typing import Any

import jax

from jaxperf.result import Measurement, ratio
from jaxperf.result.ratio import turns
from jaxperf.watch import watch

PROGRAM = Path(__file__).resolve().parents[2] / "tests" / "slow_programs" / "fixed" / "item_in_loop.py"
ROUNDS, TURN_S = 6, 6.0  # the first window of a run costs most


def seconds(run: Any, *, watched: bool) -> float:
    """Return the seconds of the program, without the report that follows."""
    with watch(show=False) if watched else contextlib.nullcontext():
        began = time.perf_counter()
        jax.block_until_ready(run())
        return time.perf_counter() - began


def main(path: Path) -> int:
    """Write the ratio of the times with and without `watch`, and its interval."""
    program = runpy.run_path(str(PROGRAM), run_name="program")["main"]
    program(20)
    steps = max(50, int(50 * TURN_S / seconds(lambda: program(50), watched=False)))
    seconds(lambda: program(20), watched=True)  # the first watch imports and starts what later ones reuse
    values: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(ROUNDS):
        for watched in turns([True, False], random.Random()):
            values[watched].append(seconds(lambda: program(steps), watched=watched))
    rows = (Measurement(str(k), "s", tuple(v), rounds="turns") for k, v in values.items())
    over = ratio(*rows)
    path.write_text(json.dumps({"ratio": str(over), "low": over.low, "high": over.high}), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
