"""The flags of `jaxperf measure` and `jaxperf roofline`, apart from the work, which needs JAX."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from jaxperf.cli.flags import at_least


@dataclass(frozen=True)
class Measure:
    """Measure functions of your own, in turns: stages, time per call, the program, the roofline, memory.

    All functions get the same arguments, from `--args`, `--setup` or `--npz`. They are called as they are:
    what is not jitted is timed without jit, unless `--jit` is given.
    """

    functions: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="MODULE:FUNCTION...")]
    """What to call, e.g. train:step or train.py:step; the others are compared with the first."""
    args: Annotated[tuple[str, ...], tyro.conf.arg(metavar="SPEC...")] = ()
    """Arrays ("f32[256,28,28,1]"), random keys ("key"), Python values ("3"); with a name as "n=3"."""
    setup: Annotated[str, tyro.conf.arg(metavar="MODULE:FUNCTION")] = ""
    """Called once, without arguments; returns the arguments as a tuple, or the only one."""
    npz: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Arrays arr_0, arr_1, ... become arguments by position, others by name."""
    jit: bool = False
    """Jit what is not jitted yet."""
    rounds: Annotated[int, at_least(1)] = 15
    """Values per function, at least; every function has its turn in each round. An interval needs 6."""
    budget_s: Annotated[float, at_least(0)] = 5.0
    """Seconds to go on for, at most, until ratios (or a lone function's time) are known within 2 %."""
    json: Annotated[Path | None, tyro.conf.arg(metavar="PATH")] = None
    """Write the result here; `jaxperf report` and `compare` read it."""


@dataclass(frozen=True)
class MeasureRoofline:
    """Measure once what this machine can do at best: calls, matrix products, memory, copies."""
