"""Check a solution of a puzzle: are its results right, and is it fast enough on this machine?

    python docs/puzzles/check.py NAME my_solution.py

The puzzle and the solution run in turns. Each compiles anew, and every round draws its inputs. The puzzle is
solved if the ratio of their times, by its interval at 95 %, is at least what the puzzle asks for. The exit
status is 0 if it is solved, 1 if it is not or a result is wrong, 2 after a mistake, 3 if this is undecided.
"""

from __future__ import annotations

if __name__ == "__main__":
    from jaxperf.process import end_at_once

    end_at_once()  # while all else is imported, Ctrl-C is no traceback

import contextlib
import io
import random
import runpy
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from jaxperf.errors import JaxperfError
from jaxperf.process import ended
from jaxperf.result import Measurement, Ratio, ratio, turns

FOLDER = Path(__file__).resolve().parent
NAMES = sorted(path.stem for path in FOLDER.glob("*.py") if path.name != "check.py")
ROUNDS = (7, 15)  # the second if seven decide nothing
SOLVED, NOT_YET, UNDECIDED = 0, 1, 3


def run(path: Path, seed: int) -> tuple[float, list[Any]]:
    """Run a program with nothing compiled; return its seconds and the arrays that `main(seed)` returns.

    Raises:
      JaxperfError: it has no such function, or fails.
    """
    import jax
    import numpy as np

    jax.clear_caches()
    try:
        began = time.perf_counter()
        with contextlib.redirect_stdout(io.StringIO()):
            program = runpy.run_path(str(path), run_name="program")
            if "main" not in program:
                raise JaxperfError(f"{path} has no function main(seed), which the puzzle has")
            outputs = jax.block_until_ready(program["main"](seed))
        return time.perf_counter() - began, [np.asarray(leaf) for leaf in jax.tree.leaves(outputs)]
    except JaxperfError:
        raise
    except (Exception, SystemExit) as e:
        lines = [f.lineno for f in traceback.extract_tb(e.__traceback__) if f.filename == str(path)]
        at = f"{path}:{lines[-1]}" if lines else str(path)
        reason = str(e).partition("\n")[0]
        raise JaxperfError(f"{at} raises {type(e).__name__}: {reason}") from None


def difference(expected: list[Any], results: list[Any]) -> str:
    """Say how results differ from those of the puzzle; "" if they are the same up to rounding."""
    import numpy as np

    shapes = [[array.shape for array in arrays] for arrays in (expected, results)]
    if shapes[0] != shapes[1]:
        return f"main returns arrays of the shapes {shapes[1]}, the puzzle {shapes[0]}"
    for right, array in zip(expected, results):
        scale = float(np.abs(right).max())
        off = float(np.abs(right - array).max())
        if not off <= 1e-3 * scale + 1e-6:  # so that NaN is wrong
            return f"a result is off by {off:.3g}, where the largest value is {scale:.3g}"
    return ""


def compare(puzzle: Path, solution: Path, times: float) -> tuple[Ratio | None, str]:
    """Run both in turns; return the ratio of their times, or None and how a result is wrong."""
    draw, paths = random.Random(), (puzzle, solution)
    values: tuple[list[float], list[float]] = ([], [])
    while True:
        seed, results = draw.randrange(2**20), dict[int, list[Any]]()
        for number in turns(range(2), draw):
            seconds, results[number] = run(paths[number], seed)
            values[number].append(seconds)
        if wrong := difference(results[0], results[1]):
            return None, f"{wrong}, for main({seed})"
        count = len(values[0]) - 1  # the first round also imports
        times_here = values[0][-1] / values[1][-1]
        print(f"round {count} of {ROUNDS[count > ROUNDS[0]]}: {times_here:.3g} times as fast", flush=True)
        if count in ROUNDS:
            slow, fast = (
                Measurement(path.stem, "s", tuple(v[1:]), rounds="turns") for path, v in zip(paths, values)
            )
            over = ratio(slow, fast)
            if over.above(times) is not None or count == ROUNDS[-1]:
                return over, ""


def verdict(over: Ratio, times: float) -> tuple[int, str]:
    """Return the exit status and a line that says whether a ratio solves a puzzle."""
    enough = over.above(times)
    ask = f"{over} times as fast, and the puzzle asks for {times:g} times"
    if enough is None:
        return UNDECIDED, f"undecided: {ask}; run it again while the machine is idle"
    return (SOLVED, f"solved: {ask}") if enough else (NOT_YET, f"not yet: {ask}")


def main(arguments: list[str]) -> int:
    """Check a solution and say what came out."""
    if arguments in (["-h"], ["--help"]):
        print(__doc__)
        return SOLVED
    puzzles = f"the puzzles are {', '.join(NAMES)}"
    if len(arguments) != 2:
        raise JaxperfError(f"give a puzzle and the file of a solution; {puzzles}")
    if arguments[0] not in NAMES:
        raise JaxperfError(f"there is no puzzle {arguments[0]!r}; {puzzles}")
    puzzle, solution = FOLDER / f"{arguments[0]}.py", Path(arguments[1]).resolve()
    if not solution.is_file():
        raise JaxperfError(f"there is no file {arguments[1]}; copy {puzzle} to it and change it")
    times = float(runpy.run_path(str(puzzle), run_name="program")["TIMES"])
    over, wrong = compare(puzzle, solution, times)
    status, line = verdict(over, times) if over else (NOT_YET, f"wrong: {wrong}")
    print(line)
    return status


if __name__ == "__main__":
    raise SystemExit(ended(lambda: main(sys.argv[1:])))
