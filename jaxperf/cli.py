"""The command line: `jaxperf COMMAND`. Each command is a function that adds its flags, and does its work.

Nothing here imports JAX: the number of CPU devices is fixed before it starts, so each section runs in its own
process, and `--help` answers at once.
"""

import os
import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from jaxperf import __version__
from jaxperf.chapter import catalogue, run_sections
from jaxperf.errors import JaxperfError, escape_control
from jaxperf.flags import Parser, did_you_mean, file_path, number, whole
from jaxperf.jax_internals import import_jax
from jaxperf.libraries import require_chapter
from jaxperf.process import QUIET, ended, program_name, say
from jaxperf.result import Result, load_result
from jaxperf.result.store import check_writable

# A command gets its parser, the words for it, and the words of the program that comes after them
Words = Sequence[str]
Command = Callable[[Parser, Words, Words], int]

# A flag stands on two lines: what it takes, and what it means.
# fmt: off
RESULTS = Path("results")
USAGE = {
    "watch": "jaxperf watch [FLAGS] SCRIPT [ARGUMENTS]\n       jaxperf watch [FLAGS] -m MODULE [ARGUMENTS]",
    "measure": "jaxperf measure [FLAGS] MODULE:FUNCTION...",
    "plan": "jaxperf plan [FLAGS] MODULE:FUNCTION\n       jaxperf plan [FLAGS] -- python PROGRAM [ARGUMENTS]",
    "upgrade": "jaxperf upgrade [FLAGS] --python A --python B -- SCRIPT [ARGUMENTS]\n"
        "       e.g. jaxperf upgrade --python .venv/bin/python --python new/bin/python -- train.py",
    "gate": "jaxperf gate [FLAGS] BASELINE -- COMMAND\n"
        "       e.g. jaxperf gate baselines -- jaxperf measure train:step --json {}",
    "run": "jaxperf run [FLAGS] NAME... [-- FLAGS OF THE SECTION]",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that `argv` (default: the process's own arguments) names; returns the exit status.

    0 if everything succeeded, 1 if a section failed, the doctor found something broken or something became
    slower, 2 for a mistake in the command line, 3 if the gate cannot decide, 130 after Ctrl-C, 143 after
    SIGTERM, 129 after SIGHUP.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        return ended(lambda: _dispatch(arguments))
    except SystemExit as e:  # --help, or JAX could not be imported
        return e.code if isinstance(e.code, int) else 0


def _dispatch(arguments: list[str]) -> int:
    if arguments in (["--version"], ["-V"], ["version"]):
        print(f"jaxperf {__version__}")
        return 0
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:], "--help"]
    if not arguments:
        raise JaxperfError(f"no command given; there are {', '.join(COMMANDS)}; see `jaxperf --help`")
    name, *words = arguments
    if name in ("-h", "--help"):
        print(
            "usage: jaxperf COMMAND ...\n\n"
            "Why is JAX slow or fast? Tools that measure your programs, and a chapter of Dive into Deep\n"
            "Learning. Start with `jaxperf watch train.py`, or with `jaxperf list`.\n"
        )
        for name, command in COMMANDS.items():
            print(f"  {name:<9} {(command.__doc__ or '').splitlines()[0]}")
        print("\n`jaxperf COMMAND --help` shows the flags of a command, `jaxperf --version` the version.")
        return 0
    if name not in COMMANDS:
        noun = "flag" if name.startswith("-") else "command"
        hint = did_you_mean(name, COMMANDS) or f"; there are {', '.join(COMMANDS)}"
        raise JaxperfError(f"no {noun} {name!r}{hint}; see `jaxperf --help`")
    command, usage, program = COMMANDS[name], USAGE.get(name, ""), list[str]()
    if name == "watch":
        words, program = _split_program(words)
    elif "--" in words:
        at = words.index("--")
        words, program = words[:at], words[at + 1 :]
        if program and "-- " not in usage:
            raise JaxperfError(f"`{name}` takes no arguments after --: {program[0]!r}")
    return command(Parser(f"jaxperf {name}", command.__doc__ or "", usage=usage or None), words, program)


def _split_program(words: list[str]) -> tuple[list[str], list[str]]:
    """Return the flags of `watch`, and the program's arguments, which begin after SCRIPT or `-m MODULE`."""
    values = {"--json": 1, "--fail-on": 1, "--compiles": 1, "--compiles-compare": 2}
    i = 0
    while i < len(words) and words[i].startswith("-") and words[i] != "-m":
        i += 1 + values.get(words[i], 0)
    i += 2 if words[i : i + 1] == ["-m"] else 1
    return words[:i], words[i:]


def _add_arguments(parser: Parser) -> None:
    parser.add_argument("--args", nargs="+", default=(), metavar="SPEC",
        help='arrays ("f32[256,28,28,1]"), random keys ("key"), Python values ("3"); with a name as "n=3"')
    parser.add_argument("--setup", default="", metavar="MODULE:FUNCTION",
        help="called once, without arguments; returns the arguments as a tuple, or the only one")


def _add_thresholds(parser: Parser, least: float) -> None:
    parser.add_argument("--least", type=number(0, 1), default=least, metavar="X",
        help=f"differences up to this fraction do not count; {least:g} is {least:.0%}")
    parser.add_argument("--alpha", type=number(0, 1, above=True), default=0.05, metavar="X",
        help='chance of one or more wrong verdicts (in a gate, wrong "slower") among all rows')


# --- your own programs


def watch(parser: Parser, words: Words, arguments: Words) -> int:
    """Run your own program unchanged and report where its time goes, why, and what to change.

    The report goes to standard error at the end, at Ctrl-C and after a crash; the exit status is the
    program's.
    """
    parser.add_argument("script", nargs="?", metavar="SCRIPT", help="a Python file; its own flags follow")
    parser.add_argument("-m", metavar="MODULE", help="a module in place of a script, as `python -m` does")
    parser.add_argument("--no-profile", dest="profile", action="store_false",
        help="leave out the short windows of JAX's profiler, which show what devices do")
    parser.add_argument("--json", type=file_path, metavar="PATH",
        help='keep the report here, for `jaxperf report`; of several processes each, as "PATH-1"')
    parser.add_argument("--fail-on", default="", metavar="KINDS",
        help="end with status 1 and a line for each finding of these kinds, with commas between them: any, "
        "retrace, sync, transfer, eager, data, python, memory, program, float64, debug, version")
    parser.add_argument("--compiles", type=Path, metavar="DIR",
        default=os.environ.get("JAXPERF_COMPILES") or None,
        help="report only what is compiled, from which lines, why, and where the seconds go, on a page and "
        "in a JSON file in DIR; the variable JAXPERF_COMPILES does the same")
    parser.add_argument("--compiles-compare", nargs=2, type=Path, metavar=("A", "B"),
        help="run nothing; compare two such reports, and with --compiles DIR write a page about it, too")
    flags = parser.parse_args(words)
    if flags.compiles_compare:
        from jaxperf.watch.compiling import output

        first, second = flags.compiles_compare
        output.compare(first, second, flags.compiles)
        return 0
    if flags.compiles and (flags.json or flags.fail_on):
        raise JaxperfError("--compiles has its own JSON and no findings; leave out --json and --fail-on")
    from jaxperf.watch import run_module, run_script
    from jaxperf.watch.rules.table import parse_kinds

    options: dict[str, Any] = {"profile": flags.profile, "json": flags.json, "compiles": flags.compiles}
    options["fail_on"] = parse_kinds(flags.fail_on)
    if flags.m:
        return run_module(flags.m, arguments, **options)
    if not flags.script:
        raise JaxperfError("no program to watch; give a script or -m MODULE, as in `jaxperf watch train.py`")
    return run_script(Path(flags.script), arguments, **options)


def measure(parser: Parser, words: Words, _: Words) -> int:
    """Measure functions of your own, in turns: stages, time per call, program, roofline, memory.

    All functions get the same arguments, from `--args` or `--setup`. They are called as they are:
    what is not jitted is timed without jit, unless `--jit` is given.
    """
    parser.add_argument("functions", nargs="*", metavar="MODULE:FUNCTION",
        help="what to call, e.g. train:step or train.py:step; the others are compared with the first")
    _add_arguments(parser)
    parser.add_argument("--jit", action="store_true", help="jit what is not jitted yet")
    parser.add_argument("--rounds", type=whole(1), default=15, metavar="N",
        help="values per function, at least; every function has its turn in each round; an interval needs 6")
    parser.add_argument("--budget-s", type=number(0), default=5.0, metavar="S",
        help="seconds to go on for, at most, until ratios (or a lone function's time) are known within 2 %")
    parser.add_argument("--json", type=file_path, metavar="PATH",
        help="write the result here; `jaxperf report` and `compare` read it")
    options = parser.parse_args(words)
    import_jax()
    from jaxperf.measure import measure_command

    return measure_command.main(options)


def roofline(parser: Parser, words: Words, _: Words) -> int:
    """Measure once what this machine can do at best: calls, matrix products, memory, copies."""
    parser.parse_args(words)
    began = time.monotonic()
    os.environ |= QUIET | os.environ
    import_jax()
    from jaxperf.measure import ceilings

    return ceilings.main(began)


def plan(parser: Parser, words: Words, program: Words) -> int:
    """Plan a step of yours for devices that you don't have: collectives, memory, time, what to change.

    The step is compiled for each number of devices and never runs. It needs JAX's CUDA plugin, and no GPU;
    for TPUs, it needs libtpu. Arguments are those of one device; shardings that they have are kept, on a
    larger mesh. After --, a program runs up to its first training step, which is planned and not run.
    """
    from jaxperf.plan import words as values

    examples = whole(1, 10**12)
    parser.add_argument("step", nargs="?", default="", metavar="MODULE:FUNCTION",
        help="what jax.jit returned, e.g. train:step; or a function of `devices` or `mesh` that makes it")
    parser.add_argument("--for", dest="for_", default="h100", metavar="CARD",
        help='a card: a100, h100, h200, b200; a TPU: v5e, v5p, v6e; "this" is the GPU that is here')
    parser.add_argument("--devices", type=values.counts, default="1,8,64", metavar="N,N,...",
        help="how many devices; one plan for each number")
    _add_arguments(parser)
    batch = parser.add_mutually_exclusive_group()
    batch.add_argument("--per-device", type=examples, metavar="N",
        help="examples on each device; by default as many as the arguments have")
    batch.add_argument("--total", type=examples, metavar="N",
        help="examples of the whole batch, whatever the number of devices")
    parser.add_argument("--batch", type=values.batch_axes, metavar="I,I,...",
        help="positions of the arguments that are the batch, from 0 on; 1:axis=1 if the examples are on "
        "axis 1; by default those of equal first axis that do not come back from the step")
    parser.add_argument("--kernel", type=values.kernel, nargs="+", default=(), metavar="NAME=FLOPS,BYTES",
        help="work of one run of a custom kernel on one device, as flash=4e12,2e9")
    parser.add_argument("--get", action="store_true",
        help="install JAX's CUDA plugin into a folder that only plans use, and do nothing else")
    parser.add_argument("--fit", action="store_true",
        help="also find the largest batch that fits, and what makes the given one fit, by compiling again")
    parser.add_argument("--mesh", type=values.mesh_axes, default={}, metavar="NAME=N,...",
        help="axes for one of --devices, as data=8,model=8 for 64; for others, the first takes the rest")
    parser.add_argument("--network", default="infiniband", metavar="NAME",
        help="what connects the nodes: infiniband, efa, tcpxo")
    parser.add_argument("--json", type=file_path, metavar="PATH", help="write the plan here")
    options = parser.parse_args(words)
    os.environ |= QUIET | os.environ
    import_jax()
    from jaxperf.plan import command

    return command.main(options, program)


def doctor(parser: Parser, words: Words, _: Words) -> int:
    """Say what this machine has, what is missing, and the command that fixes it."""
    parser.parse_args(words)
    from jaxperf import doctor as checks

    return checks.main()


# --- results


def compare(parser: Parser, words: Words, _: Words) -> int:
    """Compare two runs, measurement by measurement; exit status 1 where B is slower than A.

    A and B are each a result's JSON file, several of them (`a1.json,a2.json`), or a folder of them. Of
    several results of one experiment, the medians are compared.
    """
    parser.add_argument("a", metavar="A", help="the run to compare with")
    parser.add_argument("b", metavar="B", help="the run to judge")
    _add_thresholds(parser, 0.02)
    options = parser.parse_args(words)
    from jaxperf.compare import results
    from jaxperf.result import terminal

    a, b = _side(options.a), _side(options.b)
    toys = ", ".join(sorted({r.experiment for r in (*a, *b) if r.smoke}))
    if toys:
        raise JaxperfError(f"{toys}: smoke runs, whose toy sizes decide nothing; leave --smoke out")
    comparison = results.compare(a, b, alpha=options.alpha, least=options.least)
    terminal.print_all(results.comparison_blocks(comparison))
    return comparison.status


def upgrade(parser: Parser, words: Words, script: Words) -> int:
    """Run your program in two environments, in turns, and say what became slower, by function.

    The environments may have any two versions of JAX from 0.5.3 on. Exit status 1 where B is slower than A.
    """
    parser.add_argument("--python", action="append", default=[], metavar="PYTHON",
        help="twice: the Python of the environment that you have, and of the one to judge")
    parser.add_argument("--runs", type=whole(1), default=6, metavar="N",
        help="processes in each; with fewer than 4 nothing can be decided")
    _add_thresholds(parser, 0.05)
    options = parser.parse_args(words)
    from jaxperf.compare import upgrade as upgrading

    return upgrading.main(options.python, script, options.runs, options.alpha, options.least)


def gate(parser: Parser, words: Words, command: Words) -> int:
    """Run a command several times and judge it against its baseline on this machine.

    `{}` in COMMAND is replaced by the path of the result that it is to write. The first run stores the
    baseline. Exit status: 0 not slower, 1 slower, 2 a mistake or a command that failed, 3 undecided: the
    machine is too noisy, or only other machines have a baseline.
    """
    parser.add_argument("baseline", type=Path, metavar="BASELINE",
        help="folder of the command's baselines, one per machine")
    parser.add_argument("--update", action="store_true",
        help="store this run as the machine's baseline, whatever the verdict; the exit status is then 0")
    parser.add_argument("--runs", type=whole(4), default=7, metavar="N",
        help="processes to run; with fewer than 4 nothing can be decided")
    _add_thresholds(parser, 0.02)
    parser.add_argument("--size", type=number(0, 10), default=0.10, metavar="X",
        help="the slowdown that must be found; where noise could hide it, the verdict is undecided")
    parser.add_argument("--out", type=Path, metavar="DIR", help="keep the results of this run here")
    parser.add_argument("--summary", type=file_path, metavar="FILE",
        help="write the outcome here as Markdown; under GitHub Actions the job's page shows it too")
    options = parser.parse_args(words)
    from jaxperf.compare import gate as gating

    return gating.main(options, command)


def report(parser: Parser, words: Words, _: Words) -> int:
    """Show what a run measured and claimed, and where its notebooks are.

    Files that are damaged or from another program are named and left out.
    """
    parser.add_argument("results", nargs="?", type=Path, default=RESULTS, metavar="DIR",
        help="folder of the JSON files, or one of them")
    folder = parser.parse_args(words).results
    by_path = _load(folder)
    if not by_path:
        raise JaxperfError(f"no result to show in {folder}; `jaxperf run all` makes some")
    from jaxperf.result import terminal

    terminal.print_all(by_path.values())
    claims = Counter(claim.verdict for result in by_path.values() for claim in result.claims)
    if claims:
        print(f"claims: {', '.join(f'{number} {verdict}' for verdict, number in claims.items())}")
    print(escape_control(f"results: {', '.join(map(str, by_path))} (JSON, one file per section)"))
    notebooks = [path.with_suffix(".ipynb") for path in by_path if path.with_suffix(".ipynb").exists()]
    if notebooks:
        print(escape_control(f"notebooks: {', '.join(map(str, notebooks))}"))
    return 0


def _side(paths: str) -> list[Result]:
    """Return the results that a side of a comparison names: files or folders, with commas between them."""
    results: dict[Path, Result] = {}
    for word in paths.split(","):
        if not word:
            raise JaxperfError(f"{paths!r} has nothing on one side of a comma; give A1,A2 without blanks")
        for path, result in _load(Path(word)).items():
            if path.resolve() in results:
                raise JaxperfError(f"{path} is named twice; each result counts once")
            results[path.resolve()] = result
    return list(results.values())


def _load(folder: Path) -> dict[Path, Result]:
    """Return results by path, in the book's order; each other file in a folder is named in a line."""
    if not os.path.isdir(folder):  # noqa: PTH112  Path.is_dir raises if a name is too long
        return {folder: load_result(folder)}
    by_path = {}
    # glob silently ignores a forbidden folder
    for path in sorted(path for path in folder.iterdir() if path.suffix == ".json"):
        try:
            by_path[path] = load_result(path)
        except JaxperfError as e:
            say(f"left out: {e}")
    return dict(sorted(by_path.items(), key=lambda item: catalogue.place(item[1].experiment)))


# --- the chapter


def list_sections(parser: Parser, words: Words, _: Words) -> int:
    """Show the sections: what each asks and how long it takes."""
    parser.parse_args(words)
    wide = max(len(s.name) for s in catalogue.SECTIONS)
    for s in catalogue.SECTIONS:
        print(f"{s.number or '-':<4} {s.name:<{wide}}  {_duration(s.takes_s):<12}  {s.title}")
        print(f"{'':<4} {'':<{wide}}  {'':<12}  {s.question}")
    total = _duration(sum(s.takes_s for s in catalogue.SECTIONS if s.name != run_sections.PEERS))
    program = program_name()
    print(f"\non two CPU cores, {total} for all; run them: `{program} run all`, or one by name or number")
    print(f"`all` does not include peers, which needs MXNet and PyTorch: `{program} run peers`")
    return 0


def _duration(takes_s: float) -> str:
    return f"about {takes_s:.0f} s" if takes_s < 90 else f"about {takes_s / 60:.0f} min"


def run(parser: Parser, words: Words, extra: Words) -> int:
    """Run sections, each in its own process; if one fails, the others still run.

    With one section, the flags after `--` go to its script.
    """
    parser.add_argument("names", nargs="*", metavar="NAME",
        help="names or numbers from `jaxperf list`, or `all`")
    catalogue.add_flags(parser)
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="DIR",
        help="folder that takes a JSON file and a notebook per section")
    flags = parser.parse_args(words)
    sections = run_sections.choose_sections(flags.names)
    require_chapter("`jaxperf run`")
    if extra and len(sections) != 1:
        names = ", ".join(section.name for section in sections)
        raise JaxperfError(f"flags after -- go to one section, but {len(sections)} are named: {names}")
    passed_on = [*extra, *(f"--{name}" for name in ("smoke", "full", "answers") if getattr(flags, name))]
    passed_on += [f"--devices={flags.devices}"] if flags.devices else []
    passed_on += [f"--platform={flags.platform}"] if flags.platform != "auto" else []
    check_writable(flags.out / f"{sections[0].name}.json", advice="give another --out")
    flags.out.mkdir(parents=True, exist_ok=True)
    outcomes = []
    for i, section in enumerate(sections, start=1):
        print(f"[{i}/{len(sections)}] {section.name}, {_duration(section.takes_s)}", flush=True)
        outcomes.append(run_sections.run_section(section, flags.out, passed_on))
        if error := outcomes[-1].error:
            say(f"failed: {section.name}: {error}")
    good = [outcome.path for outcome in outcomes if not outcome.error]
    failed = [outcome for outcome in outcomes if outcome.error]
    wall_s = sum(outcome.wall_s for outcome in outcomes)
    print(f"\n{len(good)} of {len(outcomes)} sections succeeded, in {wall_s:.0f} s")
    for path in good:
        print(escape_control(f"  {path}"))
    if len(failed) > 1:
        say(f"failed: {', '.join(outcome.section.name for outcome in failed)}")
    if good:
        print(escape_control(f"read them: `{program_name()} report {shlex.quote(str(flags.out))}`"))
    if len(outcomes) == 1:
        return outcomes[0].status
    return 1 if failed else 0


def check(parser: Parser, words: Words, _: Words) -> int:
    """Check your solution of an exercise: is it right, or what is wrong? Alone, list those with a check."""
    parser.add_argument("exercise", nargs="?", default="", metavar="EXERCISE",
        help="its number, as in 8.4.3: section 8.4, exercise 3")
    parser.add_argument("file", nargs="?", type=Path, metavar="FILE",
        help="a Python file with the functions that the exercise asks for")
    options = parser.parse_args(words)
    from jaxperf.chapter import checks

    return checks.main(options.exercise, options.file)


COMMANDS: dict[str, Command] = {
    "watch": watch, "measure": measure, "roofline": roofline, "plan": plan, "doctor": doctor,
    "compare": compare, "gate": gate, "upgrade": upgrade, "report": report,
    "list": list_sections, "run": run, "check": check,
}  # fmt: skip
