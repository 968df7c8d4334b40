"""Apply what `jaxperf watch` advises, and compare the gain with the saving that it named.

    python benchmarks/watch_savings.py                     # all pairs of tests/slow_programs, some minutes
    python benchmarks/watch_savings.py new_jit_object      # these
    python benchmarks/watch_savings.py SLOW.py FIXED.py    # two programs of yours

Each program runs in processes of its own, slow and repaired in turns. The gain is the difference of the
medians of seconds, and of processor seconds: choose the latter on a machine with other work. A saving is
right within a factor of 1.5.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = ROOT / "tests" / "slow_programs"
FACTOR = 1.5
_WATCH = """
import contextlib, io, json, runpy, sys
import jaxperf
from jaxperf.watch.report.analysis import Analysis
from jaxperf.watch.rules import find_causes
with contextlib.redirect_stdout(io.StringIO()), jaxperf.watch(show=False) as outcome:
    runpy.run_path(sys.argv[1], run_name="__main__")
found = find_causes(Analysis(outcome.record))
json.dump([(f.cause, f.at.line, f.seconds) for f in found], open(sys.argv[2], "w"))
"""


class Cost(NamedTuple):
    """What one run of a program took, in seconds."""

    wall: float
    processor: float


def environment(devices: int) -> dict[str, str]:
    """Return the environment of a program: no compile cache, so many CPU devices."""
    variables = {k: v for k, v in os.environ.items() if k != "JAX_COMPILATION_CACHE_DIR"}
    return variables | {"JAX_NUM_CPU_DEVICES": str(devices)}


def savings(path: Path, devices: int) -> list[tuple[str, int, float]]:
    """Return cause, line and seconds of each finding."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "found.json")
        command = [sys.executable, "-c", _WATCH, str(path), str(file)]
        subprocess.run(command, env=environment(devices), check=True, stdout=subprocess.DEVNULL)
        return [tuple(each) for each in json.loads(file.read_text())]


def cost(path: Path, devices: int) -> Cost:
    """Return what one run of a program took."""
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, str(path)], env=environment(devices), stdout=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"error: {path} ended with status {process.returncode}")
    return Cost(time.perf_counter() - began, usage.ru_utime + usage.ru_stime)


def compare(slow: Path, fixed: Path, rounds: int, devices: int, processor: bool) -> bool:
    """Print what watch says of a pair and what the change gains; return whether the saving is right."""
    found = savings(slow, devices)
    pairs = [(cost(slow, devices), cost(fixed, devices)) for _ in range(rounds)]
    wall_s = statistics.median(b.wall for b, _ in pairs) - statistics.median(a.wall for _, a in pairs)
    processor_s = statistics.median(b.processor for b, _ in pairs)
    processor_s -= statistics.median(a.processor for _, a in pairs)
    gain_s, saved_s = processor_s if processor else wall_s, sum(seconds for _, _, seconds in found)
    right = gain_s > 0 and gain_s / FACTOR <= saved_s <= gain_s * FACTOR
    what = ", ".join(f"{name} at {line}" for name, line, _ in found) or "nothing"
    print(
        f"{slow.stem:<24} {'right' if right else 'WRONG':<6} said {saved_s:6.2f} s, gained {wall_s:6.2f} s, "
        f"{processor_s:6.2f} s of processors ({what})",
        flush=True,
    )
    return right


def main() -> int:
    """Compare pairs; return 1 if fewer than four of five savings are right."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("programs", nargs="*", help="names of pairs, or two files")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--processor", action="store_true", help="judge processor seconds")
    options = parser.parse_args()
    gallery = tomllib.loads((PROGRAMS / "gallery.toml").read_text(encoding="utf-8"))
    files = [Path(name) for name in options.programs if name.endswith(".py")]
    if files and len(files) != 2:
        parser.error("give two files, the slow and the repaired program")
    if files:
        return 0 if compare(files[0], files[1], options.rounds, 1, options.processor) else 1
    names = options.programs or sorted(path.stem for path in PROGRAMS.glob("*.py"))
    right = [
        compare(
            PROGRAMS / f"{name}.py", PROGRAMS / "fixed" / f"{name}.py", options.rounds,
            gallery.get(name, {}).get("devices", 1), options.processor,
        )
        for name in names
    ]  # fmt: skip
    print(f"{sum(right)} of {len(right)} savings are within a factor of {FACTOR} of the gain")
    return 0 if sum(right) >= 0.8 * len(right) else 1


if __name__ == "__main__":
    sys.exit(main())
