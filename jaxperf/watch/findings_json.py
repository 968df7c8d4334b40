"""A finding as other programs read it; docs/watch-json.md and the schema beside it describe the fields.

The fields and the ids of causes stay the same from release to release. Later releases may add some; one that
goes, or changes its meaning, raises `jaxperf.result.record.FINDINGS_VERSION`.
"""

from pathlib import Path
from typing import Any

from jaxperf.watch.rules.table import Finding, advice_for, cause_of


def fields(finding: Finding, wall_s: float) -> dict[str, Any]:
    """Return a finding's fields, given the seconds of the run."""
    advice = advice_for(finding)
    return {
        "cause": finding.cause,
        "kind": cause_of(finding).kind,
        "title": advice.title,
        "site": {
            "file": _in_the_project(finding.at.file),
            "line": finding.at.line,
            "function": finding.at.function,
            "statement": finding.at.source,
        },
        "evidence": finding.reason,
        "change": advice.change,
        "example": advice.example,
        "section": advice.section,
        "saving": {
            "seconds": finding.seconds,
            "share": min(1.0, finding.seconds / wall_s) if wall_s else 0.0,
            "memory_bytes": finding.memory_bytes,
        },
        "confidence": cause_of(finding).confidence,
    }


def _in_the_project(file: str) -> str:
    """Return a path relative to the working directory, as an annotation needs it; others stay absolute."""
    try:
        return Path(file).relative_to(Path.cwd()).as_posix()
    except (ValueError, OSError):
        return file
