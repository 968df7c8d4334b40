"""Write the compile report of a process: NAME.html and NAME.json, in a folder that others may share."""

import html
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from jaxperf.result import Block, Environment, Fact, Grid, Note, Result, Text
from jaxperf.result.store import check_writable, write_whole
from jaxperf.watch.compiling import report, words
from jaxperf.watch.compiling.words import seconds
from jaxperf.watch.context import deliver_report, process_number
from jaxperf.watch.log import Log
from jaxperf.watch.report import text

SHOWN, HINTS, LISTED = 6, 3, 200  # rows and hints on a terminal; programs that a page lists one by one
_TEMPLATE = Path(__file__).with_name("page.html")
_locks: list[int] = []  # held until the process ends


def reserve(folder: Path, name: str) -> Path:
    """Return the path, without its suffix, of the report that this process will write.

    Processes that share a folder at the same time get paths of their own. A later run replaces the report of
    an earlier one.

    Raises:
      JaxperfError: the folder cannot be made, or nothing can be written to it.
    """
    stem = re.sub(r"[^\w.-]+", "-", name.removesuffix(".py")).strip("-.") or "program"
    path = check_writable(folder / f"{stem}.json", "give another folder to --compiles")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        import fcntl

        lock = os.open(path.parent, os.O_RDONLY)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _locks.append(lock)
    # a running process has reserved a report there, or this system or file system has no such locks
    except (ImportError, OSError):
        stem = f"{stem}-{os.getpid()}"
    return path.with_name(stem)


def write(log: Log, path: Path, *, command: str, ended: str, stream: TextIO) -> None:
    """Write a report as a page and as JSON, and print its summary.

    Raises:
      JaxperfError: a file cannot be written.
    """
    environment = log.losses.ask("the environment", text.environment_of_jax, Environment())
    described = report.describe(log, command=command, ended=ended, environment=environment)
    if number := process_number():
        path = path.with_name(f"{path.name}-{number}")
    page, title = path.with_name(f"{path.name}.html"), f"compile report: {log.name}"
    write_whole(path.with_name(f"{path.name}.json"), json.dumps(described, indent=1, allow_nan=False) + "\n")
    write_whole(page, render(title, described["summary"], [described]))
    rows = tuple(
        (row["name"][:24], str(row["programs"]), *(seconds(row[f"{stage}_s"]) for stage in report.STAGES),
         row["line"], ", ".join(row["reasons"])[:44])
        for row in described["by_function"]
    )  # fmt: skip
    counts = f"{described['programs']:,} programs, {described['operations']:,} of them operations outside jit"
    blocks: tuple[Block, ...] = (
        Text(described["summary"]),
        Grid(counts, ("", "programs", *report.STAGES, "at", "why"), rows, (1, 2, 3, 4), first=SHOWN),
        *(Text(f"{i}. {hint}") for i, hint in enumerate(described["hints"][:HINTS], start=1)),
        *map(Note, described["remarks"]),
        Fact("page", str(page), meaning="Page"),
    )
    question = "What was compiled, from which lines, and why?"
    deliver_report(Result("compiles", "", title, question, {}, environment, blocks), stream=stream)


def render(title: str, summary: str, reports: Sequence[Mapping[str, Any]]) -> str:
    """Return the page of a report, or of two that are compared."""
    shown = [{**each, "list": each["list"][:LISTED]} for each in reports]
    differences = words.differences(*reports)[: report.ROWS] if len(reports) > 1 else []
    figures = json.dumps({"reports": shown, "differences": differences}, allow_nan=False)
    values = {
        "title": html.escape(title),
        "summary": re.sub("`(.+?)`", r"<code>\1</code>", html.escape(summary)),
        # "</script>" in a line of the program must not end the element that holds the figures
        "data": figures.replace("</", "<\\/"),
    }
    page = re.sub(r"@(\w+)@", lambda match: values[match[1]], _TEMPLATE.read_text(encoding="utf-8"))
    return page.encode("utf-8", "backslashreplace").decode()  # bytes of a path that are not UTF-8


def compare(first: Path, second: Path, folder: Path | None) -> None:
    """Print what differs between two reports; with a folder, also write the page compare.html there.

    Raises:
      JaxperfError: a report cannot be read, or the page cannot be written.
    """
    sides = report.load(first), report.load(second)
    summary = words.difference(*sides)
    rows = tuple(
        (pair["name"][:24], pair["kind"], pair["line"], *map(str, pair["programs"]),
         *map(seconds, pair["seconds"]))
        for pair in words.differences(*sides)
    )  # fmt: skip
    stages = tuple(
        (name, *(seconds(side["stages"][name]) for side in sides), "") for name in sides[0]["stages"]
    )
    blocks = (
        Text(summary),
        Grid("Where the time goes", ("", "first", "second", ""), stages, (1, 2)),
        Grid("By function, the largest difference first",
             ("", "", "at", "programs", "then", "seconds", "then"), rows[: 2 * SHOWN], (3, 4, 5, 6)),
    )  # fmt: skip
    title = f"compile reports: {sides[0]['program']} and {sides[1]['program']}"
    question = "What is compiled more often, or takes longer?"
    deliver_report(Result("compiles", "", title, question, {}, Environment(), blocks), stream=sys.stdout)
    if folder:
        page = check_writable(folder / "compare.html", "give another folder to --compiles")
        write_whole(page, render("two compile reports compared", summary, sides))
        print(page)
