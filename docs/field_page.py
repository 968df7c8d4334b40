"""Make docs/field.md and docs/field-reports.md from the kept log of benchmarks/field/run.py and its table.

python docs/field_page.py              # from benchmarks/results/field.json
python docs/field_page.py LOG          # keep this log first
python docs/field_page.py --check      # say whether the page is that of the kept log
"""

from __future__ import annotations

import json
import statistics
import sys
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "docs"), str(ROOT / "benchmarks" / "field")]

from field_table import Judged, Program, Slow, read_table  # noqa: E402
from kept_log import keep_log  # noqa: E402

from jaxperf.measure.other_load import BUSY  # noqa: E402
from jaxperf.result.formatting import format_count  # noqa: E402
from jaxperf.result.markdown import escape, table_of_markdown  # noqa: E402
from jaxperf.result.ratio import Ratio, ratio_of  # noqa: E402

KEPT = ROOT / "benchmarks" / "results" / "field.json"
PAGE = ROOT / "docs" / "field.md"
REPORTS = ROOT / "docs" / "field-reports.md"
TEXTS = ROOT / "docs" / "field_reports.toml"
VARIANTS = ROOT / "benchmarks" / "results" / "variants.json"
GOALS = {"programs": 40, "repositories": 20, "true": 0.9, "found": 0.75, "faster": 20, "typical": 1.4}
FASTER = 1.2  # times, from which on a program counts as faster
COSTLY = 0.1  # share of the program's time, from which on a cause counts
OUTPUT = {"same": "same", "close": "same within 0.1 %", "other": "differs"}
VERDICTS = {
    "true": "true",
    "half": "half true",
    "redundant": "says what another finding says",
    "false": "false",
}


def main(words: list[str]) -> int:
    """Write the page, or check it; return the exit status."""
    if keep_log(words, __doc__, KEPT):
        log, programs = json.loads(KEPT.read_text()), read_table()[0]
        same = (PAGE.read_text(), REPORTS.read_text()) == (page(log, programs), reports(log, programs))
        print("field.md is that of the kept log" if same else "run: python docs/field_page.py")
        return int(not same)
    log, programs = json.loads(KEPT.read_text()), read_table()[0]
    PAGE.write_text(page(log, programs))
    REPORTS.write_text(reports(log, programs))
    return 0


# --- what the log and the table say


@dataclass(frozen=True)
class Gain:
    """What a change gained: a program, one of its changes, and times before over times after.

    Attributes:
      printed: whether the change can be made by what watch prints: its advice names it, and stands below a
        finding that is true.
    """

    program: Program
    change: str
    printed: bool
    status: int
    output: str
    cpu: Ratio
    before_s: float
    after_s: float


def judged(finding: dict[str, Any], program: Program) -> Judged | None:
    """Return what a person said of a finding; None if nobody has."""
    for each in program.findings:
        if each.cause == finding["cause"] and each.line == finding["line"]:
            return each
    return None


def watched(log: dict[str, Any], programs: dict[str, Program]) -> list[tuple[Program, dict[str, Any]]]:
    """Return the programs that ran with and without watch, with what is kept of them."""
    kept = log["programs"]
    return [(p, kept[name]["watch"]) for name, p in programs.items() if "watch" in kept.get(name, {})]


def worked(log: dict[str, Any], programs: dict[str, Program]) -> list[tuple[Program, dict[str, Any]]]:
    """Return those of `watched` that ended as they should without watch."""
    return [(p, w) for p, w in watched(log, programs) if w["status"][0] == p.status]


def gains(log: dict[str, Any], programs: dict[str, Program]) -> list[Gain]:
    """Return what each measured change gained, the most first."""
    found = []
    for name, program in programs.items():
        kept = log["programs"].get(name, {})
        rows, findings = kept.get("repairs", {}), kept.get("watch", {}).get("findings", [])
        # advice is printed only with a finding of this log
        verdicts = [verdict for f in findings if (verdict := judged(f, program))]
        has_true_finding = any(verdict.verdict == "true" for verdict in verdicts)
        for repair in program.repairs:
            if repair.name not in rows:
                continue
            after = rows[repair.name]
            before_s, after_s = after["before_cpu_s"], after["cpu_s"]
            found.append(
                Gain(
                    program, repair.what, repair.printed and has_true_finding,
                    after["status"], after["output"],
                    ratio_of([b / a for b, a in zip(before_s, after_s, strict=True)]),
                    statistics.median(before_s), statistics.median(after_s),
                )
            )  # fmt: skip
    return sorted(found, key=lambda gain: -gain.cpu.median)


def best_printed(found: Sequence[Gain]) -> dict[str, Gain]:
    """Return for each program the change with the largest gain among those that watch printed.

    A change after which the program prints other numbers is none.
    """
    best: dict[str, Gain] = {}
    for gain in found:  # the largest first
        if gain.printed and gain.status == gain.program.status and gain.output != "other":
            best.setdefault(gain.program.name, gain)
    return best


def costly(log: dict[str, Any], programs: dict[str, Program]) -> list[tuple[Program, Slow]]:
    """Return the causes that an expert names and that cost a tenth of the program's time or more."""
    return [(p, slow) for p, _ in worked(log, programs) for slow in p.slow if slow.share >= COSTLY]


# --- the page


def page(log: dict[str, Any], programs: dict[str, Program]) -> str:
    """Return the page as Markdown."""
    return "\n".join(_lines(log, programs)) + "\n"


def _lines(log: dict[str, Any], programs: dict[str, Program]) -> Iterator[str]:
    runs = worked(log, programs)
    yield "# Watch on programs of other people"
    yield ""
    yield (
        "Programs that nobody here wrote, unchanged but for their data and their length, with and without "
        "`jaxperf watch`. A person judged each finding, and applied the advice."
    )
    yield ""
    yield (
        f"{log['machine']['cpu']}, {log['machine']['cores']} cores, {log['made']}, CPU devices. Made by "
        "[benchmarks/field](../benchmarks/field/README.md), which has no code of "
        "these programs: it takes them from clones of their repositories."
    )
    yield ""
    if any(w["others"] >= BUSY for _, w in runs):
        yield "```{warning}"
        yield (
            "Other programs ran on this machine. So times are seconds of its processors, not of a clock, "
            "and the seconds that watch names, which are of the clock, are too long."
        )
        yield "```"
        yield ""
    yield from _goals(log, programs)
    yield from _findings(runs)
    yield from _gained(gains(log, programs))
    yield from _missed(log, programs)
    yield from _failed(log, programs)
    yield from _variants()


def _goals(log: dict[str, Any], programs: dict[str, Program]) -> Iterator[str]:
    runs = worked(log, programs)
    verdicts = [judged(f, p) for p, w in runs for f in w["findings"]]
    known = [v for v in verdicts if v is not None]
    true = [v for v in known if v.verdict == "true"]
    slow = costly(log, programs)
    seen = [s for _, s in slow if s.found == "finding"]
    noted = [s for _, s in slow if s.found == "note"]
    found = gains(log, programs)
    best, tried = best_printed(found), {g.program.name for g in found if g.printed}
    fast = [g for g in best.values() if g.cpu.median >= FASTER]
    proven = [g for g in fast if g.cpu.above(FASTER)]
    other = [p.name for p, w in runs if w["status"][0] != w["status"][1] or not w["same_output"]]
    notes = f"{len(noted)} more are notes" if noted else ""
    unknown = f"{len(verdicts) - len(known)} not judged" if len(known) < len(verdicts) else ""
    typical = "-"
    if fast:
        known_times = sum(g.cpu.rounds >= 6 for g in fast)
        typical = f"{statistics.median(g.cpu.median for g in fast):.2f}, {known_times} with an interval"
    rows = [
        ["programs", str(GOALS["programs"]), str(len(runs))],
        ["repositories", str(GOALS["repositories"]), str(len({p.repository for p, _ in runs}))],
        ["findings that are true", f"{GOALS['true']:.0%}", _of(len(true), len(known), unknown)],
        [
            "causes that an expert names, that cost 10 % or more, and that are findings",
            f"{GOALS['found']:.0%}", _of(len(seen), len(slow), notes),
        ],
        [
            f"programs that are {FASTER} times as fast, or more, by the advice as it is printed",
            str(GOALS["faster"]), f"{len(fast)} of {len(tried)} tried; an interval proves {len(proven)}",
        ],
        ["the median of these", str(GOALS["typical"]), typical],
        [
            "programs that end otherwise, or print otherwise, under watch", "0",
            ", ".join([str(len(other)), *other]),
        ],
    ]  # fmt: skip
    yield from table_of_markdown(["", "goal", "now"], rows)
    yield ""


def _of(some: int, all_: int, note: str) -> str:
    if not all_:
        return "-"
    return f"{some} of {all_}, {some / all_:.0%}" + (f"; {note}" if note else "")


def _findings(runs: Sequence[tuple[Program, dict[str, Any]]]) -> Iterator[str]:
    yield "## What watch says of them"
    yield ""
    yield (
        "Seconds of processors without and under watch; what watch found, what it promised, and whether this "
        "is true."
    )
    yield ""
    rows = []
    for program, w in runs:
        rows.append(
            [
                _program(program),
                f"{w['cpu_s'][0]:.1f}, {w['cpu_s'][1]:.1f}",
                "<br>".join(_said(program, w)) or "nothing",
            ]
        )
    yield from table_of_markdown(["program", "CPU s", "findings"], rows)
    yield ""


def _program(program: Program) -> str:
    link = f"https://github.com/{program.repository}/blob/{program.commit}/{program.path}"
    name = f"{program.repository.split('/')[1]}: {Path(program.path).name}"
    shorter = f"<br>{escape(program.shorter)}" if program.shorter else ""
    return f"[{escape(name)}]({link}), {program.commit[:7]}{shorter}"


def _said(program: Program, w: dict[str, Any]) -> Iterator[str]:
    for finding in w["findings"]:
        verdict = judged(finding, program)
        said = "not judged" if verdict is None else VERDICTS[verdict.verdict]
        why = f": {escape(verdict.why)}" if verdict is not None and verdict.why else ""
        what = ", ".join(escape(finding[key]) for key in ("title", "place", "saves"))
        yield f"{what}. **{said}**{why}"


def _gained(found: Sequence[Gain]) -> Iterator[str]:
    if not found:
        return
    yield "## What the changes gained"
    yield ""
    yield (
        "Whole programs with imports, before and after the change, in turns. The ratio is the median of the "
        'rounds\' ratios of processor seconds, with its 95 % interval, which needs six rounds. "As printed" '
        "says whether watch names this change, below a finding that is true. A change after which the output "
        "differs is not counted above."
    )
    yield ""
    rows = [
        [
            escape(f"{g.program.repository.split('/')[1]}: {Path(g.program.path).name}"), escape(g.change),
            "yes" if g.printed else "no",
            f"{g.before_s:.1f} to {g.after_s:.1f}" if g.status == g.program.status else "ends with an error",
            _ratio(g.cpu) if g.status == g.program.status else "-", OUTPUT[g.output],
        ]
        for g in found
    ]  # fmt: skip
    yield from table_of_markdown(
        ["program", "change", "as printed", "CPU s", "times as fast", "output"], rows
    )
    yield ""


def _ratio(ratio: Ratio) -> str:
    text = f"{ratio.median:.2f}"
    if ratio.rounds < 6:
        return f"{text} ({format_count(ratio.rounds, 'round')})"
    return f"{text} ({ratio.low:.2f} to {ratio.high:.2f})"


def _missed(log: dict[str, Any], programs: dict[str, Program]) -> Iterator[str]:
    yield "## What an expert finds that watch does not report"
    yield ""
    rows = [
        [
            escape(p.name),
            escape(s.what),
            f"{s.share:.0%}",
            {"note": "a note without seconds", "no": "nothing"}[s.found],
        ]
        for p, _ in worked(log, programs)
        for s in p.slow
        if s.found != "finding"
    ]
    if not rows:
        yield "Nothing so far."
    else:
        yield from table_of_markdown(["program", "cause", "share of its time", "watch"], rows)
    yield ""


def _failed(log: dict[str, Any], programs: dict[str, Program]) -> Iterator[str]:
    rows = [
        [
            _program(p),
            str(w["status"][0]),
            str(w["status"][1]),
            f"`{w.get('error', '')[:120].replace('|', ' ').replace('`', '')}`",
        ]
        for p, w in watched(log, programs)
        if w["status"][0] != p.status
    ]
    if not rows:
        return
    yield "## Programs that fail by themselves"
    yield ""
    yield "They do not fit the installed versions of their packages, and do not count above."
    yield ""
    yield from table_of_markdown(["program", "status", "under watch", "error"], rows)
    yield ""


def _variants() -> Iterator[str]:
    if not VARIANTS.exists():
        return
    score = json.loads(VARIANTS.read_text())
    sys.path.insert(0, str(ROOT / "benchmarks" / "variants"))
    from score_variants import score_lines

    yield "## Variants that a generator writes"
    yield ""
    yield from score_lines(score)
    yield ""


# --- reports for authors


def reports(log: dict[str, Any], programs: dict[str, Program]) -> str:
    """Return the reports for authors as Markdown."""
    return "\n".join(_report_lines(log, programs)) + "\n"


def _report_lines(log: dict[str, Any], programs: dict[str, Program]) -> Iterator[str]:
    yield "# Two faults in official examples"
    yield ""
    yield (
        "Written for the authors of these examples, with what they need to repeat the measurement. The other "
        "findings are in [Watch on programs of other people](field.md). Nothing was sent."
    )
    for text in tomllib.loads(TEXTS.read_text(encoding="utf-8"))["report"]:
        program = programs[text["program"]]
        name = next(r.what for r in program.repairs if r.name == text["repair"])
        measured = [g for g in gains(log, programs) if (g.program, g.change) == (program, name)]
        yield ""
        yield f"## {text['title']}"
        yield ""
        yield f"At {program.commit}: {_program(program).replace('<br>', '; ')}."
        for part in ("seen", "change"):
            yield ""
            yield text[part].strip()
        yield ""
        yield from (_measured(gain, log) for gain in measured)
        if not measured:
            yield "Not measured yet."


def _measured(gain: Gain, log: dict[str, Any]) -> str:
    """Return what a change gained, in a sentence."""
    versions = log["programs"][gain.program.name]["versions"]
    before, after = f"{gain.before_s:.1f}", f"{gain.after_s:.1f}"
    rounds = f"{format_count(gain.cpu.rounds, 'round')} in turns"
    times = (
        f"{_ratio(gain.cpu)} times as fast"
        if gain.cpu.rounds >= 6
        else f"{gain.cpu.median:.2f} times as fast"
    )
    where = f"{log['machine']['cpu']}, Python {versions['python']}, JAX {versions['jax']}"
    outputs = {"same": "It prints the same.", "close": "What it prints is the same within 0.1 %."}
    output = outputs.get(gain.output, "The numbers that it prints differ.")
    return (
        f"The whole program takes {before} seconds of processors before the change and {after} after it, "
        f"and so is {times} ({rounds}; {where}). {output}"
    )


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
