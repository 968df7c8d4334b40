"""Results as Markdown, for a README or a note: every item of the walk, with its words escaped."""

from __future__ import annotations

import re
from collections.abc import Sequence

from jaxperf.errors import plain
from jaxperf.report.figures import Picture
from jaxperf.report.machine import machine
from jaxperf.report.story import Facts, Item, walk
from jaxperf.report.tables import Rows, counted, tally
from jaxperf.report.words import INCOMPLETE, scalar
from jaxperf.result import Claim, Code, Failed, Habit, Heading, Note, Output, Result, Text

_MEANT = re.compile(r"([\\`*_{}\[\]<>|~$&#])")
_LINE_START = re.compile(r"^(\d{1,9})([.)])(?=\s|$)|^([-+=])(?=[-+=\s]|$)")


def render_markdown(results: Sequence[Result], *, left_out: Sequence[str] = ()) -> str:
    """All results in the order given, below the machine and the verdicts on all claims.

    Args:
      results: what to show; none gives a page that says so.
      left_out: a line for every file that could not be read.
    """
    lines = ["# Computational performance, measured", ""]
    lines += [f"- left out: {escape(line)}" for line in left_out]
    if not results:
        return "\n".join([*lines, "There is no result to show.", ""])
    lines += [*summary(results), ""]
    peers = [r for r in results if r.experiment == "peers"]
    for result in results:
        lines += [*opening(result, "##"), ""]
        lines += [line for item in walk(result, peers=peers) for line in markdown(item)]
        if result.command:
            lines += [f"Repeat it: {_code(result.command)}", ""]
    return "\n".join(lines).rstrip() + "\n"


def summary(results: Sequence[Result]) -> list[str]:
    """A list that says where the results come from and gives the verdicts on their claims."""
    lines = []
    for name, answers in machine(results):
        words = "; ".join(f"{w} ({where})" if where else w for w, where in answers)
        lines.append(f"- {name}: {escape(words)}")
    counts = tally(results)
    lines.append(f"- Sentences of the book and ours, here: {counted(counts.sentences)}")
    return [*lines, f"- Our predictions: {counted(counts.predictions)}"]


def opening(result: Result, level: str) -> list[str]:
    """A result's title and question, and what readers of its times must know."""
    title = f"{result.section} {result.title or result.experiment}".strip()
    lines = [f"{level} {escape(title)}", "", escape(result.question)]
    if result.incomplete:
        lines += ["", f"**{INCOMPLETE}**"]
    if result.smoke:
        lines += ["", "**Smoke run: toy sizes, the times mean nothing.**"]
    if result.environment.devices_are_fake:
        many, cores = len(result.environment.devices), result.environment.cores
        lines += ["", f"Devices are fake: {many} CPU devices share {cores} cores of one host."]
    return lines


def markdown(item: Item, *, level: str = "###") -> list[str]:
    """One item as lines, with an empty line after each paragraph; `level` begins a heading."""
    match item:
        case Heading():
            return [f"{level} {escape(item.title)}", ""]
        case Text():
            return _paragraph(prose(item.text))
        case Habit():
            blocks = [
                "In Gluon:",
                "",
                *fenced(item.gluon, "python"),
                "In JAX:",
                "",
                *fenced(item.jax, "python"),
            ]
            return [*blocks, *_paragraph(prose(item.remark))]
        case Code():
            where = f"{item.file}, line {item.line}:" if item.file else ""
            return [*_paragraph(escape(where)), *fenced(item.source, "python")]
        case Output():
            return fenced(item.text, "text")
        case Rows():
            remarks = [line for remark in item.remarks for line in _paragraph(escape(remark))]
            shown = table(item.heads, item.cells, right=item.right) if item.cells else []
            return [*_paragraph(strong(item.title)), *shown, *remarks]
        case Picture():
            words = " ".join(filter(None, [f"Figure: {item.title}.", item.caption, item.description]))
            return [f"*{escape(words)}*", ""]
        case Claim():
            return [*_claim(item), ""]
        case Facts():
            facts = [f"{fact.words or fact.name}: {scalar(fact.value, fact.unit)}" for fact in item.facts]
            return [*(f"- {escape(fact)}" for fact in facts), ""]
        case Note():
            return [f"Note: {escape(item.text)}", ""]
        case Failed():
            return [strong(f"Failed: {item.part}: {item.error}"), ""]


def escape(words: str) -> str:
    """Words escaped for Markdown, so that they fit in one cell of a table."""
    return _LINE_START.sub(_harmless, _quiet(_one_line(words)))


def prose(words: str) -> str:
    """A paragraph in which words between backticks are code and nothing else is markup."""
    pieces = re.split("`([^`]*[^`\\s][^`]*)`", _one_line(words))  # every other piece was between backticks
    return _LINE_START.sub(
        _harmless, "".join(f"`{piece}`" if i % 2 else _quiet(piece) for i, piece in enumerate(pieces))
    )


def fenced(code: str, language: str) -> list[str]:
    """A block of code, unchanged, between fences that nothing in it can close, and an empty line after it."""
    fence = "`" * max(3, _longest_run(code) + 1)
    return [f"{fence}{language}", *plain(code).split("\n"), fence, ""]


def table(heads: Sequence[str], cells: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> list[str]:
    """A table, columns `right` aligned to the right, and an empty line after it."""
    rule = ["---:" if i in right else "---" for i in range(len(heads))]
    body = [[escape(cell) for cell in row] for row in cells]
    return [f"| {' | '.join(row)} |" for row in ([escape(h) for h in heads], rule, *body)] + [""]


def _claim(claim: Claim) -> list[str]:
    """A list item: the sentence with its verdict, the prediction with its verdict, and what was seen."""
    source = f" ({claim.source})" if claim.source else ""
    predicted = "predicted" if claim.prediction == "not stated" else f"prediction **{claim.prediction}**"
    return [
        f"- **{claim.holds}**: {escape(claim.statement + source)}",
        f"  ({predicted}: {escape(claim.predicted)}; observed: {escape(claim.observed)})",
    ]


def _one_line(words: str) -> str:
    return " ".join(plain(words).split())


def _quiet(words: str) -> str:
    return _MEANT.sub(r"\\\1", words)


def _harmless(start: re.Match[str]) -> str:
    return f"{start[1]}\\{start[2]}" if start[1] else f"\\{start[3]}"


def strong(words: str) -> str:
    """Words in bold; nothing if there are none."""
    return f"**{escape(words)}**" if words.strip() else ""


def _paragraph(line: str) -> list[str]:
    return [line, ""] if line else []


def _longest_run(words: str) -> int:
    return max(map(len, re.findall("`+", words)), default=0)


def _code(words: str) -> str:
    """Words as code within a line."""
    fence = "`" * (_longest_run(words) + 1)
    return f"{fence} {_one_line(words)} {fence}"
