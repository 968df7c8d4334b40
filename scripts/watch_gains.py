"""What each changed snippet gains: the slow programs of the tests against their repaired twins.

    python scripts/watch_gains.py [ROUNDS [NAME...]]

Each program runs in a process of its own, since compiling is part of what is repaired; slow and repaired ones
take turns. A value is the seconds of `main()` with JAX started and every result waited for.
"""

from __future__ import annotations

if __name__ == "__main__":
    from jaxperf.exits import end_at_once

    end_at_once()  # while all else is imported, Ctrl-C is no traceback

import os
import subprocess
import sys
from pathlib import Path

from jaxperf.exits import ended
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
    """Seconds of a program's `main()` in a new process."""
    environment = os.environ | {"JAX_NUM_CPU_DEVICES": "2" if "shards" in path.name else "1"}
    done = subprocess.run(
        [sys.executable, "-c", TIMED, str(path)], env=environment, capture_output=True, text=True, check=True
    )
    return float(done.stdout)


def main() -> int:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    print(
        f"{'program':<24} {'slow':>8} {'repaired':>9}   slow over repaired, median of {rounds} rounds (95 %)"
    )
    for name in sys.argv[2:] or PAIRS:
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
    raise SystemExit(ended(main))
