"""The commands of `jaxperf` and their flags, each a dataclass that tyro reads; what they do is in `cli`.

The flags of `gate`, `measure` and `roofline` are defined next to their code.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from jaxperf.compare.gate import Gate
from jaxperf.flags import at_least, between, check_exclusive
from jaxperf.plan.options import Plan

RESULTS = Path("results")
# A flag `--no-NAME`: its help says what the flag does, so tyro must not add "(default: True)" to it.
SwitchedOff = Annotated[bool, tyro.conf.arg(help_behavior_hint="")]


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


@dataclass(frozen=True)
class List:
    """Show the sections: what each asks and how long it takes."""


@dataclass(frozen=True)
class Run:
    """Run sections, each in its own process. With one section, arguments after `--` go to its script."""

    names: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="NAME...")] = ()
    """Names or numbers from `jaxperf list`, or `all`."""
    smoke: bool = False
    """Seconds instead of minutes: every part, at toy sizes; its times mean nothing."""
    full: bool = False
    """The long versions, with which the pages of the book are made."""
    answers: bool = False
    """Run the answers to the exercises too."""
    verbose: bool = False
    """Print the text of the sections too."""
    devices: Annotated[int | None, between(1, 1024), tyro.conf.arg(metavar="N")] = None
    """How many devices to use; on a CPU, how many to split it into. Each section has a default of its own."""
    platform: Literal["auto", "cpu", "gpu"] = "auto"
    """Where to run; auto takes a GPU if JAX finds one."""
    out: Annotated[Path, tyro.conf.arg(metavar="DIR")] = RESULTS
    """Folder that takes a JSON file and a notebook per section."""
    peers: Annotated[str, tyro.conf.arg(metavar="NAME,...")] = ""
    """Then compare with these too (mxnet, torch); `jaxperf peers` tells which are there."""
    peer_python: Annotated[
        tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="NAME=PATH")
    ] = ()
    """Compare with a framework that another Python has already, as in torch=/usr/bin/python3."""

    def __post_init__(self) -> None:
        check_exclusive(smoke=self.smoke, full=self.full)


@dataclass(frozen=True)
class Report:
    """Show what a run measured and claimed, and where its notebooks are."""

    results: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")] = RESULTS
    """Folder of the JSON files, or one of them."""
    format: Literal["text", "csv", "pyperf"] = "text"
    """csv: every value as a line; pyperf: JSON for `pyperf stats` and `pyperf compare_to`."""


@dataclass(frozen=True)
class Compare:
    """Compare two runs, measurement by measurement; exit status 1 where B is slower than A.

    A and B are each a result's JSON file, several of them (`a1.json,a2.json`), or a folder of them. Of
    several results of one experiment, the medians are compared.
    """

    a: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="A")]
    """The run to compare with."""
    b: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="B")]
    """The run to judge."""
    alpha: Annotated[float, between(0, 1)] = 0.05
    """Chance of one or more wrong verdicts among all rows."""
    least: Annotated[float, between(0, 1)] = 0.02
    """The smallest difference that counts, as a fraction; 0.02 is 2 %."""


@dataclass(frozen=True)
class Watch:
    """Run your own program unchanged and report where its time goes, why, and what to change.

    `jaxperf watch [FLAGS] SCRIPT [ARGUMENTS]`, or `-m MODULE` in place of SCRIPT. The report goes to standard
    error at the end, at Ctrl-C and after a crash; the exit status is the program's.
    """

    program: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="SCRIPT")] = ()
    """A Python file, and its own flags."""
    m: Annotated[str, tyro.conf.arg(metavar="MODULE", aliases=["-m"])] = ""
    """A module to run in place of a script, as `python -m` does."""
    profile: SwitchedOff = True
    """Leave out the short windows of JAX's profiler, which show what devices do."""
    json: Annotated[Path | None, tyro.conf.arg(metavar="PATH")] = None
    """Keep the report as a result, for `jaxperf report`; of several processes each, as "PATH-1" and so on."""
    fail_on: Annotated[str, tyro.conf.arg(metavar="KINDS")] = ""
    """End with status 1 and a line for each finding of these kinds: retrace, sync, transfer, eager, data,
    python, memory, program, float64, debug, or any; several with commas between them."""


@dataclass(frozen=True)
class Doctor:
    """Say what this machine has, what is missing, and the command that fixes it."""


@dataclass(frozen=True)
class Peers:
    """Say which other frameworks are installed to compare with; `peers install [NAME...]` installs them."""

    arguments: Annotated[
        tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[install [NAME...]]")
    ] = ()
    """Nothing, or `install`, which takes names (mxnet, torch) or all there are."""


@dataclass(frozen=True)
class Selfcheck:
    """Check the instruments: known durations, equal programs, true differences; about two minutes."""

    full: bool = False
    """400 trials and durations up to 1 s, which takes an hour or more."""
    trials: Annotated[int | None, at_least(1), tyro.conf.arg(metavar="N")] = None
    """How many trials each rule gets, instead of 10 or, with --full, 400."""
    out: Annotated[Path, tyro.conf.arg(metavar="DIR")] = RESULTS
    """Folder that takes selfcheck.json, which `report` shows."""


Command = (
    Annotated[List, tyro.conf.subcommand("list")]
    | Annotated[Run, tyro.conf.subcommand("run")]
    | Annotated[Report, tyro.conf.subcommand("report")]
    | Annotated[Compare, tyro.conf.subcommand("compare")]
    | Annotated[Measure, tyro.conf.subcommand("measure")]
    | Annotated[MeasureRoofline, tyro.conf.subcommand("roofline")]
    | Annotated[Plan, tyro.conf.subcommand("plan")]
    | Annotated[Gate, tyro.conf.subcommand("gate")]
    | Annotated[Watch, tyro.conf.subcommand("watch")]
    | Annotated[Doctor, tyro.conf.subcommand("doctor")]
    | Annotated[Peers, tyro.conf.subcommand("peers")]
    | Annotated[Selfcheck, tyro.conf.subcommand("selfcheck")]
)
COMMANDS = (
    "list", "run", "report", "compare", "watch", "measure", "roofline", "plan", "gate", "doctor",
    "peers", "selfcheck",
)  # fmt: skip
