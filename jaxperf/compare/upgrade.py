"""Compare a program in two environments, such as two versions of JAX, in turns, by function."""

import os
import random
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import jaxperf
from jaxperf.compare.gate import PLACEHOLDER, run_once
from jaxperf.compare.results import RowKey, compare, comparison_blocks, measurements_by_key
from jaxperf.errors import JaxperfError
from jaxperf.known_faults import FAULTS
from jaxperf.process import say
from jaxperf.result import Block, Note, Result, Text, terminal
from jaxperf.result.ratio import turns

# To have rows, a function takes so much of the whole run in its stages, or so long on the device in a call
FUNCTION_SHARE, STAGE_SHARE, LONG_S = 0.05, 0.02, 1e-3
ON_DEVICE = "t2"
WHOLE = "Whole run"
NAMES = ("A", "B")


def main(pythons: Sequence[str], script: Sequence[str], runs: int, alpha: float, least: float) -> int:
    """Run a program `runs` times in each of two environments, print what differs, and return the exit status.

    The status is 1 if the whole run or a part of it is slower in B, else 0.
    """
    if len(pythons) != 2:
        raise JaxperfError("give --python twice: the environment that you have, and the one to judge")
    if not script:
        raise JaxperfError("no program to run; it comes after `--`, as in `-- train.py`")
    sides: tuple[list[Result], list[Result]] = ([], [])
    with tempfile.TemporaryDirectory() as scratch:
        # both sides use this very jaxperf, and need not have it
        tool = Path(scratch) / "tool"
        ignored = shutil.ignore_patterns("__pycache__", "experiments", "fashion_mnist_mini")
        shutil.copytree(Path(jaxperf.__file__).parent, tool / "jaxperf", ignore=ignored)
        others = os.environ.get("PYTHONPATH", "")
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(tool), others]))}
        draw, path = random.Random(0), Path(scratch) / "result.json"
        for i in range(runs):
            for side in turns((0, 1), draw):
                say(f"run {i + 1} of {runs} in {NAMES[side]}")
                watch = [pythons[side], "-m", "jaxperf", "watch", "--json", PLACEHOLDER, *script]
                sides[side].append(run_once(watch, path, environment))
                if not measurements_by_key(sides[side][-1]):
                    raise JaxperfError(f"{pythons[side]} compiled nothing; give a program that uses JAX")
    a, b = sides
    comparison = compare(a, b, alpha=alpha, least=least, only=_large_rows(a, b), apart=False)
    terminal.print_all([*comparison_blocks(comparison), *_faults(a, b)])
    return comparison.status


def _large_rows(a: Sequence[Result], b: Sequence[Result]) -> set[RowKey]:
    """Return the rows to judge: those of the whole run, and of functions that matter in A or B.

    Each further row makes all verdicts harder, and a program may compile a hundred small operations.
    """
    sides = [[measurements_by_key(result) for result in side] for side in (a, b)]
    tables = [*sides[0], *sides[1]]
    kept = {key for rows in tables for key in rows if key.title == WHOLE}
    for rows in tables:
        whole_s = max(m.median for key, m in rows.items() if key[1:] == (WHOLE, "time"))
        for title in {key.title for key in rows} - {WHOLE}:
            table = {key: m for key, m in rows.items() if key.title == title}
            seconds = {key: m.median for key, m in table.items() if m.unit == "s"}
            on_device = {key for key in seconds if key.name.startswith(ON_DEVICE)}
            kept |= {key for key in on_device if seconds[key] >= LONG_S}
            if sum(seconds[key] for key in seconds.keys() - on_device) >= FUNCTION_SHARE * whole_s:
                kept |= {key for key in table if key.name == "programs"}
                kept |= {key for key, s in seconds.items() if s >= STAGE_SHARE * whole_s}
    return {key for key in kept if any(all(key in rows for rows in side) for side in sides)}


def _faults(a: Sequence[Result], b: Sequence[Result]) -> Iterator[Block]:
    for fault in FAULTS:
        met = [
            f"{name} (jaxlib {side[0].environment.versions.get('jaxlib', 'unknown')})"
            for name, side in zip(NAMES, (a, b))
            if any(fault.issue in getattr(block, "text", "") for result in side for block in result.blocks)
        ]
        if met:
            yield Text(f"known fault in {' and '.join(met)}: {fault.text}")
    yield Note("Functions below 5 % of the run in their stages, and below 1 ms a call, have no rows.")
    yield Note("Stages and t2 of each function are as `jaxperf watch` sees them; watching itself costs time.")
