"""`jaxperf gate BASELINE -- COMMAND`: has a program become slower than it was on this machine?

The command is run several times, each time as a new process, and writes a result to the path that replaces
`{}` in its arguments. A baseline is a folder of such results for each machine, BASELINE/FINGERPRINT, which
`jaxperf report` and `compare` read like any other.
"""

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxperf import process
from jaxperf.compare.gate_verdict import UNDECIDED, judge, summary_blocks
from jaxperf.compare.results import measurements_by_key
from jaxperf.errors import JaxperfError, to_one_line
from jaxperf.result import Block, Code, Heading, Result, Text, load_result
from jaxperf.result.store import check_writable, write_whole
from jaxperf.result.terminal import print_all, render_text

PLACEHOLDER = "{}"  # as in `find -exec`
TAIL = 4000  # characters of a failed command's output
STEP_SUMMARY = "GITHUB_STEP_SUMMARY"  # GitHub Actions shows the Markdown that is appended to this file


def main(options: Any, command: Sequence[str]) -> int:
    """Run the command, judge it, store a baseline if requested, report, and return the exit status.

    `options` are the flags of `jaxperf gate`, whose help explains them.
    """
    # Before --out adds to the folder
    machines = sorted({path.parent.name for path in options.baseline.glob("*/*.json")})
    update = options.update or not machines
    _check(options, command, update=update)
    with tempfile.TemporaryDirectory(prefix="jaxperf-gate-") as scratch:
        folder = options.out or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        paths = [folder / f"run-{i}.json" for i in range(1, options.runs + 1)]
        runs = _run_each(command, paths)
        first = next(runs)
        machine = first.environment.machine
        baseline_folder = options.baseline / first.environment.fingerprint
        try:
            baseline = load_baseline(baseline_folder)
            if baseline:
                _check_settings(baseline_folder, baseline[0], first)
        except JaxperfError as e:
            if not options.update:
                raise JaxperfError(f"{e}; --update stores a new baseline") from None
            baseline = []
        if not update and not baseline:
            again = shlex.join(["jaxperf", "gate", str(options.baseline), "--update", "--", *command])
            text = (
                f"{options.baseline} has no baseline of this machine ({machine}). It has baselines of "
                f"{', '.join(machines)}. Store one from the code you trust:"
            )
            _show(options, [Heading("Undecided: no baseline of this machine"), Text(text), Code(again)])
            return UNDECIDED
        results = [first, *runs]
        if baseline:
            judgement = judge(baseline, results, alpha=options.alpha, least=options.least, size=options.size)
            _show(options, list(summary_blocks(judgement, machine=machine)))
            if not update:
                return judgement.status
        store_baseline(paths, baseline_folder)
        print(to_one_line(f"baseline stored: {baseline_folder} ({len(results)} runs on {machine})"))
        if not baseline:
            print("the next run of the same command is judged against it; --update stores a new one")
        return 0


def _check(options: Any, command: Sequence[str], *, update: bool) -> None:
    if not command:
        raise JaxperfError("no command given; it comes after --, as in: gate baselines -- python bench.py {}")
    if not any(PLACEHOLDER in word for word in command):
        raise JaxperfError(
            f"no {{}} among the command's arguments, so it cannot know where to write its result: "
            f"{shlex.join(command)}; give e.g. --json {{}}"
        )
    if options.size <= options.least:
        raise JaxperfError(f"--size is {options.size:g}; give a size above --least, {options.least:g}")
    if options.baseline.exists() and not options.baseline.is_dir():
        raise JaxperfError(f"{options.baseline} is a file; give a folder for the baselines of all machines")
    if options.summary:
        check_writable(options.summary)
    if update:
        check_writable(options.baseline / "probe")
    if options.out:
        check_writable(options.out / "run-1.json")


def _run_each(command: Sequence[str], paths: Sequence[Path]) -> Iterator[Result]:
    for i, path in enumerate(paths, 1):
        began = time.perf_counter()
        result = run_once(command, path)
        print(f"[{i}/{len(paths)}] {time.perf_counter() - began:.1f} s", flush=True)
        yield result


def run_once(command: Sequence[str], path: Path, environment: Mapping[str, str] | None = None) -> Result:
    """Run the command once, as a process that writes its result to `path`, and return the result.

    The command's output is shown only if it fails.
    """
    arguments = [word.replace(PLACEHOLDER, str(path)) for word in command]
    path.unlink(missing_ok=True)
    with tempfile.TemporaryFile() as log:
        streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": subprocess.STDOUT}
        try:
            status = process.run_child(
                arguments, environment or os.environ, preexec_fn=process.release_signals, **streams
            )
        except OSError as e:
            raise JaxperfError(f"cannot start {arguments[0]!r}: {e.strerror or e}; give a command") from None
        if status or not path.exists():
            log.seek(0)
            sys.stderr.write(log.read().decode(errors="replace")[-TAIL:])
            how = "failed with status" if status else "wrote no result but ended with status"
            raise JaxperfError(f"the command {how} {status}: {shlex.join(arguments)}")
    result = load_result(path)
    if result.smoke:
        raise JaxperfError("the command made a smoke run, whose toy sizes decide nothing; leave --smoke out")
    return result


def load_baseline(folder: Path) -> list[Result]:
    return [load_result(path) for path in sorted(folder.glob("*.json"))] if folder.is_dir() else []


def store_baseline(paths: Sequence[Path], folder: Path) -> None:
    """Copy results to the folder as its baseline, and remove the old one when the new one is complete."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".jaxperf-") as name:
            new, old = Path(name, "new"), Path(name, "old")
            new.mkdir()
            for path in paths:
                shutil.copyfile(path, new / path.name)
            if folder.exists():
                folder.rename(old)
            try:
                new.rename(folder)
            except BaseException:
                old.rename(folder)
                raise
    except OSError as e:
        raise JaxperfError(f"cannot store {folder}: {e.strerror or e}; give another baseline") from None


def _check_settings(folder: Path, before: Result, now: Result) -> None:
    settings = {**before.config, **now.config}
    changed = [k for k in settings if before.config.get(k) != now.config.get(k)]
    reason = ""
    if changed:
        was = ", ".join(f"{k} {before.config.get(k)!r}, now {now.config.get(k)!r}" for k in changed)
        reason = f"was measured with other settings: {was}"
    elif measurements_by_key(before).keys().isdisjoint(measurements_by_key(now)):
        reason = "has no measurement in common with this run"
    if reason:
        raise JaxperfError(f"{folder} {reason}; give the command what it had, or give another folder")


def _show(options: Any, shown: Sequence[Block]) -> None:
    print_all(shown)
    text = textwrap.indent(render_text(shown), "    ")  # code in Markdown, in which no words are markup
    if options.summary:
        write_whole(options.summary, text)
    page = os.environ.get(STEP_SUMMARY)
    if page:
        try:
            with Path(page).open("a", encoding="utf-8") as file:
                file.write(text + "\n")
        except OSError as e:
            raise JaxperfError(f"cannot write {page} ({STEP_SUMMARY}): {e.strerror}; unset it") from None
