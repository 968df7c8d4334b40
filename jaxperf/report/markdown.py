"""Results as Markdown, for a README or a note: tables whose cells hold any text."""

from __future__ import annotations

import re
from collections.abc import Sequence

from jaxperf.measure.record import Result
from jaxperf.report import rows, systems
from jaxperf.report.machine import machine
from jaxperf.report.text import VERDICTS, plain

_MEANT = re.compile(r"([\\`*_{}\[\]<>|~$&#])")
_LINE_START = re.compile(r"^(\d{1,9})([.)])(?=\s|$)|^([-+=])(?=[-+=\s]|$)")


def render_markdown(results: Sequence[Result], *, left_out: Sequence[str] = ()) -> str:
    """All results, in the book's order, with the machine and the claims' tally above them.

    Args:
      results: what to show; none gives a page that says so.
      left_out: a line for every file that could not be read.
    """
    ordered = rows.in_order(results)
    lines = ["# Computational performance, measured", ""]
    lines += [f"- left out: {escape(line)}" for line in left_out]
    for name, answers in machine(ordered):
        words = "; ".join(f"{w} ({where})" if where else w for w, where in answers)
        lines.append(f"- {name}: {escape(words)}")
    if not ordered:
        return "\n".join([*lines, "There is no result to show.", ""])
    lines += [f"- Claims: {rows.tally(ordered)}", ""]
    for result in ordered:
        lines += _section(result)
    return "\n".join(lines).rstrip() + "\n"


def escape(words: str) -> str:
    """Words that mean nothing to Markdown and fit in one cell of a table."""
    one_line = " ".join(plain(words).split())
    return _LINE_START.sub(_harmless, _MEANT.sub(r"\\\1", one_line))


def _harmless(start: re.Match[str]) -> str:
    return f"{start[1]}\\{start[2]}" if start[1] else f"\\{start[3]}"


def table(heads: Sequence[str], cells: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> list[str]:
    """A table, columns `right` aligned to the right, and an empty line after it."""
    rule = ["---:" if i in right else "---" for i in range(len(heads))]
    body = [[escape(cell) for cell in row] for row in cells]
    return [f"| {' | '.join(row)} |" for row in ([escape(h) for h in heads], rule, *body)] + [""]


def _section(result: Result) -> list[str]:
    title = f"{result.section} {result.title or result.experiment}".strip()
    lines = [f"## {escape(title)}", "", escape(result.question), ""]
    if result.smoke:
        lines += ["**Smoke run: toy sizes, the times mean nothing.**", ""]
    if result.environment.devices_are_fake:
        many, cores = len(result.environment.devices), result.environment.cores
        lines += [f"Devices are fake: {many} CPU devices share {cores} cores of one host.", ""]
    if result.claims:
        cells = [(VERDICTS[c.held][0], c.statement, c.predicted, c.observed) for c in result.claims]
        lines += table(("Verdict", "Claim", "Predicted", "Seen"), cells)
    lines += _measurements(result)
    if published := rows.elsewhere(result):
        cells = [(name, p.value, p.system, p.source) for name, p in published]
        lines += table(("Published", "Value", "System", "Source"), cells, right=[1])
    lines += [f"- {escape(note)}" for note in result.notes if not note.startswith("--smoke")]
    if result.command:
        fence = "`" * (max(map(len, re.findall("`+", result.command)), default=0) + 1)
        lines += ["", f"Repeat it: {fence} {' '.join(plain(result.command).split())} {fence}"]
    return [*lines, ""]


def _measurements(result: Result) -> list[str]:
    workloads = systems.runs(result) if result.experiment == "peers" else {}
    groups = [systems.group(title, some, result) for title, some in workloads.items()] or rows.groups(result)
    lines: list[str] = []
    for group in groups:
        heads = ["Measurement" if not group.title else group.title, "Median", "Spread", "Noise"]
        heads += [f"Of {group.base}"] if group.base else []
        heads += ["Published", "Ours / published"] if group.sources else []
        cells = []
        for r in group.rows:
            cell = [f"{r.name} ({r.note})" if r.note else r.name, r.median, r.spread, r.noise]
            cell += [r.of_base] if group.base else []
            if group.sources:
                cell.append("; ".join(f"{p.value} ({p.system})" for p in r.published))
                cell.append("; ".join(p.ours for p in r.published))
            cells.append(cell)
        lines += table(heads, cells, right=[1, 2, *range(4, len(heads))])
    return lines
