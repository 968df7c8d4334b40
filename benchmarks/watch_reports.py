"""Read what `jaxperf watch --json` found."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

from jaxperf.result.formatting import format_quantity
from jaxperf.watch.rules import CAUSES

UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9, "min": 60.0}
_FOUND = re.compile(
    r"\d+\. (.+?), (\S+|.*In \[\d+\]):(\d+): saves(?: up to| about| at most)? (.*?)\. (?=[A-Z\w<])(.*)", re.S
)


@dataclass(frozen=True)
class Found:
    """A finding of watch: its cause, its line, and what a change would save, in seconds and in words."""

    cause: str
    title: str
    file: str
    line: int
    seconds: float
    saves: str
    reason: str
    change: str


def findings(report: Path) -> list[Found]:
    """Return the findings in a report, the largest saving first."""
    report_json = json.loads(report.read_text())
    if "findings" in report_json:
        return [_found(entry) for entry in report_json["findings"]]
    names = {cause.title: name for name, cause in CAUSES.items()}
    blocks, found = report_json["blocks"], []
    for i, block in enumerate(blocks):
        match = _FOUND.match(block["text"]) if block["kind"] == "text" else None
        if match is None:
            continue
        title, file, line, saves, reason = match.groups()
        change = next((b["text"] for b in blocks[i + 1 : i + 3] if b["kind"] == "text"), "")
        found.append(
            Found(names.get(title, title), title, file, int(line), _seconds(saves), saves, reason, change)
        )
    return found


def _found(entry: dict[str, Any]) -> Found:
    """Return a finding from its entry in the JSON of a report."""
    saving, site = entry["saving"], entry["site"]
    amounts = [format_quantity(saving["seconds"], "s")] if saving["seconds"] else []
    if saving["memory_bytes"]:
        amounts.append(f"{format_quantity(saving['memory_bytes'], 'bytes')} of memory")
    return Found(
        entry["cause"], entry["title"], site["file"], site["line"], saving["seconds"], " and ".join(amounts),
        entry["evidence"], entry["change"],
    )  # fmt: skip


def notes(report: Path) -> list[str]:
    """Return the notes of a report, which stand after its findings."""
    blocks: list[dict[str, Any]] = json.loads(report.read_text())["blocks"]
    headings = [
        i for i, b in enumerate(blocks) if b["kind"] == "heading" and b["title"].startswith("Findings")
    ]
    return [block["text"] for block in blocks[headings[-1] if headings else 0 :] if block["kind"] == "note"]


def _seconds(saves: str) -> float:
    """Return the seconds in words such as "1.83 s and 67 MB of memory"; 0 if it saves memory alone."""
    match = re.match(r"([\d.,]+) (s|ms|us|ns|min)\b", saves)
    return float(match[1].replace(",", "")) * UNITS[match[2]] if match else 0.0
