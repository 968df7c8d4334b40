"""What a program compiled, from which lines, why, and where the seconds went: the report as JSON.

    report = describe(log)

A program is what XLA compiles: a jitted function for one set of arguments' types, or a single operation
outside of jit. Programs are grouped by function and by line. The texts of the slowest ones are parsed here,
after the watched program has ended. docs/compiles.md describes the fields. Later versions may add some; one
that goes, or changes its meaning, raises `VERSION`.
"""

import bisect
import contextlib
import datetime
import json
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from jaxperf.errors import JaxperfError
from jaxperf.result import Environment
from jaxperf.result.formatting import format_on_page
from jaxperf.result.intervals import Interval, difference, total_length, union
from jaxperf.retraces import argument_changes
from jaxperf.watch.grouping import group_by
from jaxperf.watch.log import COMPILE, IMPORT, LOWER, TRACE, Compiled, Log, canonical_name
from jaxperf.watch.observe.executables import MOST_READ, unrolled_loops
from jaxperf.watch.observe.source_location import NOWHERE, Place, outside_jax

FORMAT, VERSION = "jaxperf-compiles", 1
STAGES = (TRACE, LOWER, COMPILE)
FUNCTION, LIBRARY, OPERATION = "function", "library", "operation"
LISTED, ROWS = 2000, 100  # programs that are listed one by one, and groups; the slowest
NEAR_S = 0.5  # from the last sample to the end of a program that ended in it
LINES = 15  # of each program that is looked into
# why a program exists, by the kind of change that JAX, or the watch, names
REASONS = {
    "shape": "new shape", "dtype": "new dtype", "weak type": "weak type", "static value": "static value",
    "structure": "other structure of arguments", "setting": "other JAX setting",
    "placement": "other sharding or device", "derived": "made by grad or vmap", "cleared": "caches cleared",
    "new body": "new body function",
}  # fmt: skip
_NO_PARTS = ("parameter", "constant", "tuple", "get-tuple-element", "bitcast")
Row = dict[str, Any]


def describe(log: Log, *, command: str = "", ended: str = "", environment: Environment | None = None) -> Row:
    """Return the report as JSON; times are seconds since the watch began."""
    pairs = _programs(log)
    programs = [program for program, _ in pairs]
    slowest = _slowest(pairs)
    functions = _groups(programs, _function_of)
    lines = _groups(programs, lambda p: (p["line"], p["kind"] == OPERATION))
    missed = [p for p in programs if p["cache"] == "miss"]
    return {
        "format": FORMAT,
        "version": VERSION,
        "program": log.name,
        "command": command,
        "ended": ended,
        "written_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "environment": asdict(environment or Environment()),
        "wall_s": log.wall_s,
        "overhead_s": sum(log.overhead_s.values()),
        "stages": _stages(log),
        "timeline": _timeline(log),
        "programs": len(programs),
        "operations": sum(p["kind"] == OPERATION for p in programs),
        "lines": len(lines),
        "functions": len(functions),
        "cache": {
            "folder": log.compile_cache,
            "hits": sum(p["cache"] == "hit" for p in programs),
            "misses": len(missed),
            "miss_s": sum(p["compile_s"] for p in missed),
            "notes": dict(Counter(p["cache_note"] for p in missed).most_common(5)),
        },
        "by_function": functions[:ROWS],
        "by_line": lines[:ROWS],
        "contents": log.losses.ask("the texts of programs", lambda: _contents(slowest), list[Row]()),
        "tracing": _tracing(log, slowest),
        "list": sorted(programs, key=lambda p: -p["seconds"])[:LISTED],
        "remarks": [*_unfinished(log), *log.remarks, *log.losses.remarks],
    }


def _kept_before(log: Log) -> Counter[str]:
    """Return how many programs of each name the compile cache had before this run; none of a remote one."""
    began = datetime.datetime.now().timestamp() - (time.perf_counter() - log.start)
    kept: Counter[str] = Counter()
    with contextlib.suppress(OSError):
        for file in Path(log.compile_cache).glob("*-cache") if log.compile_cache else ():
            if file.stat().st_mtime < began:
                kept[canonical_name(file.name.rsplit("-", 2)[0])] += 1
    return kept


def _programs(log: Log) -> list[tuple[Row, Compiled]]:
    compiled = (c for c in [*log.compiled, *log.nested] if COMPILE in c.stages)
    in_order = sorted(compiled, key=lambda c: c.stages[COMPILE])
    before: dict[tuple[str, str], Compiled] = {}
    pairs, kept = [], _kept_before(log)
    for c, seconds in zip(in_order, _own_seconds(in_order)):
        kind = FUNCTION if c.explained else OPERATION
        if c.owner:
            kind = LIBRARY
        # of an operation, the innermost line outside JAX, else the call's
        inner = c.inner or c.at
        line = inner if kind == OPERATION else c.at or inner
        key = (c.name, str(line)) if kind == OPERATION else (c.called, c.defined)
        reason, change = _reason(c, before.get(key))
        before[key] = c
        missed = ["it had none of this name", c.cache_note]
        if kept[c.program]:
            missed[0] = (
                f"it had {kept[c.program]} of this name, for other operations, types, flags or versions"
            )
        file, _, first_line = c.defined.rpartition(":")
        pairs.append(({
            "name": c.called, "kind": kind,
            "line": str(line), "source": line.source, "function": line.function,
            # the program's own line, if that one is a library's
            "called_at": str(c.at) if c.at and c.at != line else "",
            "defined": str(Place(file, int(first_line))) if first_line.isdigit() else c.defined,
            "reason": reason, "change": change,
            **{f"{stage}_s": seconds[stage] for stage in STAGES}, "seconds": sum(seconds.values()),
            "start_s": min(a for a, _ in c.stages.values()) - log.start,
            "cache": c.cache, "cache_note": "; ".join(filter(None, missed)) if c.cache == "miss" else "",
            "arguments": ", ".join(f"{n}: {text}" for n, text in list(c.signature.items())[:12]),
        }, c))  # fmt: skip
    return pairs


def _function_of(p: Row) -> tuple[str, ...]:
    """Return what the programs of a function have in common."""
    if p["kind"] == OPERATION:
        return p["kind"], p["line"].rpartition(":")[0], p["function"]
    return p["kind"], p["defined"].rpartition(":")[0], p["name"]


def _own_seconds(compiled: Sequence[Compiled]) -> list[dict[str, float]]:
    """Return the seconds of each program's stages, without those of programs compiled inside of them.

    So the seconds of all programs add up to the time in which anything was traced or compiled.
    """
    seconds = [dict.fromkeys(STAGES, 0.0) for _ in compiled]
    spans = [(a, b, i, stage) for i, c in enumerate(compiled) for stage, (a, b) in c.stages.items()]
    around: list[tuple[float, int, str]] = []
    for start, end, i, stage in sorted(spans, key=lambda span: (span[0], -span[1])):
        while around and around[-1][0] <= start:
            around.pop()
        seconds[i][stage] += end - start
        if around:
            outer_end, outer, outer_stage = around[-1]
            seconds[outer][outer_stage] -= min(end, outer_end) - start
        around.append((end, i, stage))
    return seconds


def _reason(c: Compiled, before: Compiled | None) -> tuple[str, str]:
    """Return why a program exists, and what differs from the one before it, of the same function or line."""
    changes = c.changes
    if not changes and before is None:
        return "first call" if c.explained or c.owner else "operation outside jit", ""
    if not changes and before is not None and c.explained:
        captured = argument_changes(before.closure, c.closure)
        return "new function object", "; ".join(f"it captures {change}" for change in captured[:3])
    if not changes and before is not None:
        changes = argument_changes(before.signature, c.signature)
    reason = REASONS.get(changes[0].kind if changes else "", "other constants")
    if not c.explained and reason == "static value":  # an operation's own parameters
        reason = "other constants"
    return reason, "; ".join(map(str, changes[:3]))


def _groups(programs: Sequence[Row], key: Callable[[Row], object]) -> list[Row]:
    """Return a row for each group of programs with the same key, the slowest first."""
    rows = []
    for group in group_by(programs, key).values():
        slowest = max(group, key=lambda p: p["seconds"])
        operation = slowest["kind"] == OPERATION
        same = group_by(group, lambda p: (p["name"], p["line"] if p["kind"] == OPERATION else ""))
        lines = [
            {"line": line, "source": source, "programs": len(inside),
             "seconds": sum(p["seconds"] for p in inside)}
            for (line, source), inside in group_by(group, lambda p: (p["line"], p["source"])).items()
        ]  # fmt: skip
        rows.append({
            "name": slowest["function"] if operation else slowest["name"],
            **{name: slowest[name] for name in ("kind", "line", "source", "called_at", "defined")},
            "programs": len(group),
            **{name: sum(p[name] for p in group) for name in ("trace_s", "lower_s", "compile_s", "seconds")},
            "again_s": sum(p["seconds"] for equal in same.values() for p in equal[1:]),
            "reasons": dict(Counter(p["reason"] for p in group).most_common()),
            "changes": list(dict.fromkeys(p["change"] for p in group if p["change"]))[:5],
            "names": dict(Counter(p["name"] for p in group).most_common(8)),
            "lines": sorted(lines, key=lambda each: -each["seconds"])[:LINES],
        })  # fmt: skip
    return sorted(rows, key=lambda row: -row["seconds"])


def _spans(log: Log, stage: str) -> list[Interval]:
    imports = [(s.start, s.end) for s in log.samples if s.kind == stage == IMPORT]
    return imports + [c.stages[stage] for c in [*log.compiled, *log.nested] if stage in c.stages]


def _stages(log: Log) -> dict[str, float]:
    """Return the seconds of each stage, which add up to the wall time: an instant counts once.

    A program that is compiled while another one is traced counts as compiling.
    """
    left: list[Interval] = [(log.start, log.end)]
    seconds = dict.fromkeys((IMPORT, *STAGES), 0.0)
    for stage in (*reversed(STAGES), IMPORT):
        after = difference(left, _spans(log, stage))
        seconds[stage] = total_length(left) - total_length(after)
        left = after
    return {**seconds, "other": total_length(left)}


def _timeline(log: Log) -> list[tuple[str, float, float]]:
    """Return when each stage ran, as (stage, start, end); what is too close to be seen apart is joined."""
    rows: list[tuple[str, float, float]] = []
    for stage in STAGES:
        for start, end in union(_spans(log, stage)):
            near = rows and rows[-1][0] == stage and start - log.start - rows[-1][2] < log.wall_s / 400
            begin = rows.pop()[1] if near else start - log.start
            rows.append((stage, begin, end - log.start))
    return rows


def _unfinished(log: Log) -> Iterator[str]:
    """Yield a remark if the program ended while JAX was tracing or compiling, which no event tells."""
    last = max((end for stage in STAGES for _, end in _spans(log, stage)), default=log.start)
    running = [sample for sample in log.stacks if sample.start >= last]
    if running and log.end - running[-1].end < NEAR_S:
        at = next(iter(running[-1].places), NOWHERE)
        spent = format_on_page(log.end - running[0].start, "s")
        problem = f"the program ended while JAX was tracing or compiling at {at}, for {spent}"
        yield f"{problem}, which count as everything else"


def _slowest(pairs: Sequence[tuple[Row, Compiled]]) -> list[tuple[Row, Compiled]]:
    """Return the slowest programs, one of each function."""
    functions = (pair for pair in pairs if pair[0]["kind"] != OPERATION)
    in_order = sorted(functions, key=lambda pair: -pair[0]["seconds"])
    return [group[0] for group in group_by(in_order, lambda p: _function_of(p[0])).values()][:MOST_READ]


def _tracing(log: Log, slowest: Sequence[tuple[Row, Compiled]]) -> list[Row]:
    """Return, for each of the slowest programs, the lines at which Python spends its tracing and lowering."""
    ends, rows = [sample.end for sample in log.stacks], []
    for program, c in slowest:
        at: defaultdict[Place, float] = defaultdict(float)
        below: defaultdict[Place, float] = defaultdict(float)
        spans = [c.stages[stage] for stage in (TRACE, LOWER) if stage in c.stages]
        for start, end in spans:
            for sample in log.stacks[bisect.bisect(ends, start) : bisect.bisect(ends, end)]:
                # the sample that came first in a stage stands for time before it, too
                seconds = sample.end - max(sample.start, start)
                for place in sample.places[:1]:
                    at[place] += seconds
                for place in {*sample.places}:
                    below[place] += seconds
        lines = [
            {"line": str(p), "function": p.function, "source": p.source, "seconds": at[p],
             "with_calls_s": below[p]}
            for p in sorted(below, key=lambda place: (-at[place], -below[place]))[:LINES]
        ]  # fmt: skip
        if lines:
            named = {"name": program["name"], "line": program["line"]}
            rows.append({**named, "seconds": total_length(spans), "lines": lines})
    return rows


def _contents(slowest: Sequence[tuple[Row, Compiled]]) -> list[Row]:
    rows = []
    for program, c in slowest:
        facts, lines = c.facts, Counter[Place]()
        if facts is None or not facts.text:
            continue
        equal: Counter[tuple[Place, str, str, str]] = Counter()
        for i in facts.instructions:
            place = next((p for p in facts.module.frames(i) if outside_jax(p.file)), NOWHERE)
            lines[place] += 1
            if i.op_name and i.opcode not in _NO_PARTS:
                equal[place, i.opcode, i.op_name, i.type.partition("{")[0]] += 1
        total = lines.total()
        del lines[NOWHERE]
        # one operation of JAX may be the same instruction many times, such as an error function
        parts = group_by(equal, lambda operation: operation[0])
        rows.append({
            **{name: program[name] for name in ("name", "line", "arguments", "seconds")},
            "instructions": total,
            "constant_bytes": sum(shape.bytes for shape in facts.constants()),
            "by_line": [
                {"line": str(p), "function": p.function, "source": p.source, "instructions": n,
                 "share": n / total,
                 "equal": statistics.median_low([equal[part] for part in parts.get(p, ())] or [0])}
                for p, n in lines.most_common(LINES)
            ],
            "loops": [
                {"line": str(x.at), "source": x.at.source, "turns": x.iterations, "share": x.share}
                for x in unrolled_loops(facts, few=True, outside=(c.at, *c.callers))[:3]
            ],
        })  # fmt: skip
    return rows


def load(path: Path) -> Row:
    """Read a report: its JSON or its page, or the only one in a folder.

    Raises:
      JaxperfError: it cannot be read, is not a report, or is of another version.
    """
    inside = sorted(path.glob("*.json")) if path.is_dir() else [path.with_suffix(".json")]
    if len(inside) != 1:
        names = ", ".join(p.name for p in inside[:5]) or "none"
        raise JaxperfError(f"{path} has {len(inside)} compile reports ({names}); name the JSON file")
    report, why = None, ""
    try:
        report = json.loads(inside[0].read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as e:
        why = f": {getattr(e, 'strerror', None) or 'it is not JSON'}"
    if not isinstance(report, dict) or (report.get("format"), report.get("version")) != (FORMAT, VERSION):
        problem = f"{inside[0]} is not a compile report of version {VERSION}{why}"
        raise JaxperfError(f"{problem}; `jaxperf watch --compiles DIR` writes one")
    return report
