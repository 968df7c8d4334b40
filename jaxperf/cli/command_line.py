"""The command line: `jaxperf list`, `run`, `report`, `compare`, `measure`, `gate` and so on.

Nothing here imports JAX: the number of CPU devices is fixed before it starts, so each section runs in its own
process, and `--help` answers at once.
"""

from __future__ import annotations

import difflib
import os
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxperf import __version__, flags
from jaxperf.chapter import catalogue, run_sections
from jaxperf.cli.commands import (
    COMMANDS,
    Command,
    Compare,
    Gate,
    List,
    Measure,
    MeasureRoofline,
    Peers,
    Plan,
    Report,
    Run,
    Selfcheck,
    Watch,
)
from jaxperf.compare import gate
from jaxperf.errors import JaxperfError, escape_control, to_one_line
from jaxperf.jax_internals import import_jax
from jaxperf.process import ended, program_name, say
from jaxperf.result.record import Result
from jaxperf.result.store import load_result

DESCRIPTION = (
    'The chapter "Computational Performance" of Dive into Deep Learning, measured on JAX. '
    "Start with `jaxperf list`; `jaxperf --version` tells the version."
)


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
    words, extra = _split_program(arguments) if arguments[:1] == ["watch"] else _split(arguments)
    if "" in words[1:]:
        raise JaxperfError(f"a word after `{words[0]}` is empty; give a value, or leave the flag out")
    if extra and words[:1] not in (["run"], ["gate"], ["watch"]):
        raise JaxperfError(f"only `run`, `gate` and `watch` take arguments after --: {extra[0]!r}")
    match _parse(words):
        case List():
            return show_list()
        case Run() as run:
            return run_all(run, extra)
        case Report() as report:
            return show_report(report)
        case Compare() as compare:
            return show_comparison(compare)
        case Measure() as options:
            import_jax()
            from jaxperf.measure import measure_command

            return measure_command.main(options)
        case MeasureRoofline():
            began = time.monotonic()
            import_jax()
            from jaxperf.measure import roofline_command

            return roofline_command.main(began)
        case Plan() as options:
            import_jax()
            from jaxperf.plan import command as plan_command

            return plan_command.main(options)
        case Gate() as options:
            return gate.main(options, extra)
        case Watch() as watch:
            return watch_program(watch, extra)
        case Peers() as options:
            from jaxperf.frameworks import command

            return command.main(options.arguments, program=program_name(), warn=say)
        case Selfcheck() as check:
            from jaxperf import selfcheck

            return selfcheck.main(full=check.full, trials=check.trials, out=check.out)
        case _:
            from jaxperf import doctor

            return doctor.main()


def _split(arguments: list[str]) -> tuple[list[str], tuple[str, ...]]:
    """Return the arguments before `--`, and those after it."""
    if "--" not in arguments:
        return arguments, ()
    at = arguments.index("--")
    return arguments[:at], tuple(arguments[at + 1 :])


def _split_program(arguments: list[str]) -> tuple[list[str], tuple[str, ...]]:
    """Return the arguments of jaxperf, and those of the program, which begin after SCRIPT or `-m MODULE`."""
    takes_value = {"--json", "--fail-on", "-m", "--m"}
    i = 1
    while i < len(arguments):
        word = arguments[i]
        i += 2 if word in takes_value else 1
        if word in ("-m", "--m") or not word.startswith("-"):
            break
    return arguments[:i], tuple(arguments[i:])


def _parse(arguments: list[str]) -> Any:
    """Return the command as its dataclass; errors are one line that names the nearest right word."""
    if not arguments:
        raise JaxperfError(f"no command given; there are {', '.join(COMMANDS)}; see `jaxperf --help`")
    if not arguments[0].startswith("-") and arguments[0] not in COMMANDS:
        near = difflib.get_close_matches(arguments[0], COMMANDS, n=1)
        right = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(COMMANDS)};"
        raise JaxperfError(f"no command {arguments[0]!r}; {right} see `jaxperf --help`")
    named = f"jaxperf {arguments[0]}" if arguments[0] in COMMANDS else "jaxperf"
    try:
        return flags.parse(Command, args=arguments, prog="jaxperf", description=DESCRIPTION)
    except JaxperfError as e:
        text = str(e).replace("`jaxperf --help`", f"`{named} --help`")
        if arguments[0] == "run" and "Unrecognized" in text:
            text += "; a section's own flags come after `--`"
        raise JaxperfError(text) from None


def show_list() -> int:
    """Print every section: number, name, duration, title and question."""
    wide = max(len(s.name) for s in catalogue.SECTIONS)
    for s in catalogue.SECTIONS:
        print(f"{s.number or '-':<4} {s.name:<{wide}}  {_duration(s.takes_s):<12}  {s.title}")
        print(f"{'':<4} {'':<{wide}}  {'':<12}  {s.question}")
    total = _duration(sum(s.takes_s for s in catalogue.SECTIONS if s.name != run_sections.PEERS))
    print(
        f"\non two CPU cores, {total} for all; run them: `{program_name()} run all`, or one by name or number"
    )
    print(
        f"`all` does not include peers: `{program_name()} peers install`, then `run all --peers mxnet,torch`"
    )
    return 0


def _duration(takes_s: float) -> str:
    return f"about {takes_s:.0f} s" if takes_s < 90 else f"about {takes_s / 60:.0f} min"


def run_all(run: Run, extra: tuple[str, ...]) -> int:
    """Run the named sections one after the other; if one fails, the others still run."""
    names = _peer_names(run)
    sections = run_sections.choose_sections(run.names, peers=bool(names))
    shared = tuple(f"--{name}" for name in ("smoke", "full", "answers", "verbose") if getattr(run, name))
    options = run_sections.RunOptions(
        run.out, shared, run.devices, run.platform, names, run.peer_python, extra
    )
    run_sections.check_options(sections, options)
    outcomes = []
    for i, section in enumerate(sections, start=1):
        print(f"[{i}/{len(sections)}] {section.name}, {_duration(section.takes_s)}", flush=True)
        outcome = run_sections.run_section(section, options)
        outcomes.append(outcome)
        if outcome.trouble:
            say(f"failed: {section.name}: {outcome.trouble}")
    _tell_results(outcomes, run.out)
    statuses = [o.status for o in outcomes if o.trouble]
    return statuses[0] if len(outcomes) == 1 and statuses else int(bool(statuses))


def _peer_names(run: Run) -> tuple[str, ...]:
    """Return the systems to compare with; named interpreters are tested before any section runs."""
    if not run.peers and not run.peer_python:
        return ()
    from jaxperf.frameworks.environments import named_interpreters, named_peers

    return tuple(peer.name for peer in named_peers([run.peers, *named_interpreters(run.peer_python)]))


def _tell_results(outcomes: Sequence[run_sections.Outcome], out: Path) -> None:
    good = [o for o in outcomes if not o.trouble]
    wall_s = sum(o.wall_s for o in outcomes)
    print(f"\n{len(good)} of {len(outcomes)} sections succeeded, in {wall_s:.0f} s")
    for outcome in good:
        print(escape_control(f"  {outcome.path}"))
    if bad := [o.section.name for o in outcomes if o.trouble]:
        say(f"failed: {', '.join(bad)}")
    if good:
        print(escape_control(f"read them: `{program_name()} report {shlex.quote(str(out))}`"))


def show_report(report: Report) -> int:
    """Show every readable result; files that are damaged or from another program are named and left out.

    Raises:
      JaxperfError: no such folder, or nothing readable in it.
    """
    by_path = _load(report.results)
    results = list(by_path.values())
    if not results:
        raise JaxperfError(f"no result to show in {report.results}; `{program_name()} run all` makes some")
    if report.format != "text":
        from jaxperf.compare import export

        print({"csv": export.to_csv, "pyperf": export.to_pyperf}[report.format](results), end="")
        return 0
    from jaxperf.result import terminal
    from jaxperf.result.tables import count_verdicts, format_counts

    console = terminal.console()
    color = console.is_terminal and not console.no_color
    print(terminal.render_text(results, color=color, width=max(console.width, 80)), end="")
    if claims := count_verdicts(results):
        print(f"claims: {format_counts(claims)}")
    print(escape_control(f"results: {', '.join(map(str, by_path))} (JSON, one file per section)"))
    if notebooks := [path.with_suffix(".ipynb") for path in by_path if path.with_suffix(".ipynb").exists()]:
        print(escape_control(f"notebooks: {', '.join(map(str, notebooks))}"))
    return 0


def show_comparison(options: Compare) -> int:
    """Print the comparison of two runs; return 1 if anything became slower, else 0.

    Raises:
      JaxperfError: a file is not a jaxperf result, or nothing in them can be compared.
    """
    from jaxperf.compare.comparison_text import render_comparison
    from jaxperf.compare.results import compare
    from jaxperf.result.terminal import console

    a, b = _side(options.a), _side(options.b)
    if toys := sorted({r.experiment for r in (*a, *b) if r.smoke}):
        raise JaxperfError(
            f"{', '.join(toys)}: smoke runs, whose toy sizes decide nothing; compare runs without --smoke"
        )
    comparison = compare(a, b, alpha=options.alpha, least=options.least)
    print(render_comparison(comparison, color=console().is_terminal), end="")
    return comparison.status


def watch_program(watch: Watch, arguments: tuple[str, ...]) -> int:
    """Run a program under a watch; return its exit status.

    Raises:
      JaxperfError: no program is named, or it cannot be read; or an unknown kind of finding.
    """
    from jaxperf.watch import run_module, run_script
    from jaxperf.watch.fail_on import parse_kinds

    kinds = parse_kinds(watch.fail_on)
    options: dict[str, Any] = {"profile": watch.profile, "json": watch.json, "fail_on": kinds}
    if watch.m:
        return run_module(watch.m, arguments, **options)
    if not watch.program:
        raise JaxperfError("no program to watch; give a script or -m MODULE, as in `jaxperf watch train.py`")
    return run_script(Path(watch.program[0]), arguments, **options)


def _side(paths: str) -> list[Result]:
    """Return the results that a side of a comparison names: files or folders, with commas between them.

    Raises:
      JaxperfError: nothing before or after a comma, an unreadable file, or one that is named twice.
    """
    results: dict[Path, Result] = {}
    for word in paths.split(","):
        if not word:
            raise JaxperfError(
                f"{to_one_line(repr(paths))} has nothing on one side of a comma; give A1,A2 without blanks"
            )
        folder = os.path.isdir(word)  # noqa: PTH112  Path.is_dir raises if a name is too long
        by_path = _load(Path(word)) if folder else {Path(word): load_result(Path(word))}
        for path, result in by_path.items():
            if path.resolve() in results:
                raise JaxperfError(f"{path} is named twice; each result counts once")
            results[path.resolve()] = result
    return list(results.values())


def _load(where: Path) -> dict[Path, Result]:
    """Results by path, in the book's order; each other file is named in a line."""
    if not where.exists():
        if parent := next((path for path in where.parents if path.is_file()), None):
            raise JaxperfError(
                f"cannot read {where}: {parent} is a file; give a folder, or a result's JSON file"
            )
        if where.suffix == ".json":
            raise JaxperfError(f"no file {where}; give a result's JSON file, or a folder of them")
        raise JaxperfError(f"no folder {where}; `{program_name()} run all --out {where}` makes it")
    by_path = {}
    inside = where.iterdir() if where.is_dir() else [where]  # glob silently ignores a forbidden folder
    for path in sorted(p for p in inside if p == where or p.suffix == ".json"):
        try:
            by_path[path] = load_result(path)
        except JaxperfError as e:
            say(f"left out: {e}")
    return dict(sorted(by_path.items(), key=lambda item: catalogue.place(item[1].experiment)))
