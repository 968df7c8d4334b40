"""What a program compiled, from which lines, why, and where the seconds went: the report as JSON.

    report = describe(log)

A program is what XLA compiles: a jitted function for one set of arguments' types, or a single operation
outside of jit. Programs are grouped by function and by line. The texts of the slowest ones are parsed here,
after the watched program has ended. docs/compiles.md describes the fields. Later versions may add some; one
that goes, or changes its meaning, raises `VERSION`.
"""

import contextlib
import datetime
import functools
import json
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any

from jaxperf.errors import JaxperfError
from jaxperf.result import Environment
from jaxperf.result.formatting import format_on_page
from jaxperf.result.intervals import Interval, difference, total_length, union
from jaxperf.retraces import argument_changes
from jaxperf.watch.compiling import words
from jaxperf.watch.grouping import group_by
from jaxperf.watch.log import COMPILE, IMPORT, LOWER, TRACE, Compiled, Log, canonical_name, changes_by_field
from jaxperf.watch.observe import source_location
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
_name = functools.cache(str)  # of a type, which NumPy takes long to print
OPERAND, RESULT = "operand", "result"
Row = dict[str, Any]


def note_types(c: Compiled, frame: FrameType) -> None:
    """Describe an operation outside of jit by what it is compiled for, not by the call that led to it.

    One call of a library runs many operations, on other arrays than the call's.
    """
    frames = source_location.frames_outwards(frame)
    compiling = next((f.f_locals for f in frames if "global_in_avals" in f.f_code.co_varnames), None)
    if compiling and not c.explained and not c.owner:
        # constants, but for a generator's own argument, ".0"
        signature = {n: text for n, text in c.signature.items() if "[" not in text and n[0] != "."}
        for word, name in ((OPERAND, "global_in_avals"), (RESULT, "global_out_avals")):
            for i, aval in enumerate(compiling[name]):
                weak = "{weak_type=True}" if aval.weak_type else ""
                signature[f"{word} {i}"] = f"{_name(aval.dtype)}[{','.join(map(str, aval.shape))}]{weak}"
        c.signature = signature


def describe(log: Log, *, command: str = "", ended: str = "", environment: Environment | None = None) -> Row:
    """Return the report as JSON; times are seconds since the watch began."""
    compiled = sorted([*log.compiled, *log.nested], key=lambda c: min(c.stages.values()))
    own_seconds = _own_seconds(compiled)
    pairs = _programs(log, compiled, own_seconds)
    # the slowest program of each function
    of_functions = sorted((p for p in pairs if p[0]["kind"] != OPERATION), key=lambda p: -p[0]["seconds"])
    groups = group_by(of_functions, lambda pair: _function_of(pair[0]))
    slowest = [group[0] for group in groups.values()][:MOST_READ]
    rows = [row for row, _ in pairs]
    programs = [row for row in rows if row["compiled"]]
    functions = _groups(rows, _function_of)
    lines = _groups(rows, lambda p: (p["line"], p["kind"] == OPERATION))
    missed = [p for p in programs if p["cache"] == "miss"]
    running = [span for c in compiled for span in c.stages.values()]
    imports = difference(((s.start, s.end) for s in log.samples if s.kind == IMPORT), running)
    stages = {IMPORT: total_length(imports)}
    stages |= {stage: sum(seconds[stage] for seconds in own_seconds) for stage in STAGES}
    gap_s = log.wall_s / 400  # what is too close to be seen apart is joined
    report = {
        "format": FORMAT,
        "version": VERSION,
        "program": log.name,
        "command": command,
        "ended": ended,
        "written_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "environment": asdict(environment or Environment()),
        "wall_s": log.wall_s,
        "overhead_s": sum(log.overhead_s.values()),
        "stages": {**stages, "other": max(0.0, log.wall_s - sum(stages.values()))},
        "timeline": [
            (stage, start - log.start, end - log.start)
            for stage in STAGES
            for start, end in union((c.stages[stage] for c in compiled if stage in c.stages), gap_s)
        ],
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
        "list": sorted(rows, key=lambda p: -p["seconds"])[:LISTED],
        "remarks": [*_unfinished(log, running), *log.remarks, *log.losses.remarks],
    }
    report["summary"], report["hints"] = words.sentences(report)
    return report


def _own_seconds(compiled: Sequence[Compiled]) -> list[dict[str, float]]:
    """Return the seconds of each program's stages: an instant counts for the stage that began last.

    So those of a program that is compiled while another one is traced are its own only, and the seconds of
    all programs add up to the time in which anything was traced or compiled.
    """
    seconds = [dict.fromkeys(STAGES, 0.0) for _ in compiled]
    edges: list[tuple[float, bool, float, tuple[int, str]]] = []
    for i, c in enumerate(compiled):
        for stage, (start, end) in c.stages.items():
            if start < end:
                edges += [(start, True, -end, (i, stage)), (end, False, -end, (i, stage))]
    running, since = list[tuple[int, str]](), 0.0
    for now, begins, _, part in sorted(edges):
        if running:
            i, stage = running[-1]
            seconds[i][stage] += now - since
        if begins:
            running.append(part)
        else:
            running.remove(part)
        since = now
    return seconds


def _programs(
    log: Log, compiled: Sequence[Compiled], own_seconds: Sequence[dict[str, float]]
) -> list[tuple[Row, Compiled]]:
    """Return a row for each program, and for each function that was traced only, as by `lower`."""
    before: dict[tuple[str, str], Compiled] = {}
    pairs, kept = [], _kept_before(log)
    for c, seconds in zip(compiled, own_seconds):
        kind = FUNCTION if c.explained else OPERATION
        if c.owner:
            kind = LIBRARY
        if COMPILE not in c.stages and kind == OPERATION:
            continue
        # of an operation, the innermost line outside JAX, else the call's
        inner = c.inner or c.at
        line = inner if kind == OPERATION else c.at or inner
        key = (c.name, str(line)) if kind == OPERATION else (c.called, c.defined)
        reason, change = _reason(kind, c, before.get(key))
        before[key] = c
        missed = f"it had {kept[c.program] or 'none'} of this name"
        if kept[c.program]:
            missed += ", for other operations, types, flags or versions"
        if c.cache_note:
            missed += f"; {c.cache_note}"
        file, _, first_line = c.defined.rpartition(":")
        pairs.append(({
            "name": c.called, "kind": kind,
            "line": str(line), "source": line.source, "function": line.function,
            # the program's own line, if that one is a library's
            "called_at": str(c.at) if c.at and c.at != line else "",
            "defined": str(Place(file, int(first_line))) if first_line.isdigit() else c.defined,
            "reason": reason, "change": change, "compiled": COMPILE in c.stages,
            **{f"{stage}_s": seconds[stage] for stage in STAGES}, "seconds": sum(seconds.values()),
            "start_s": min(c.stages.values())[0] - log.start,
            "cache": c.cache, "cache_note": missed if c.cache == "miss" else "",
            "arguments": ", ".join(f"{n}: {text}" for n, text in list(c.signature.items())[:12]),
        }, c))  # fmt: skip
    return pairs


def _kept_before(log: Log) -> Counter[str]:
    """Return how many programs of each name the compile cache had before this run; none of a remote one."""
    began = time.time() - (time.perf_counter() - log.start)
    files = Path(log.compile_cache).glob("*-cache") if log.compile_cache else ()
    kept = Counter[str]()
    with contextlib.suppress(OSError):
        kept.update(canonical_name(f.name.rsplit("-", 2)[0]) for f in files if f.stat().st_mtime < began)
    return kept


def _function_of(p: Row) -> tuple[str, ...]:
    """Return what the programs of a function have in common."""
    if p["kind"] == OPERATION:
        return p["kind"], p["line"].rpartition(":")[0], p["function"]
    return p["kind"], p["defined"].rpartition(":")[0], p["name"]


def _reason(kind: str, c: Compiled, before: Compiled | None) -> tuple[str, str]:
    """Return why a program exists, and what differs from the one before it, of the same function or line."""
    changes = changes_by_field(before, c) if before else c.changes
    if not changes and before is None:
        return "operation outside jit" if kind == OPERATION else "first call", ""
    if not changes and before is not None and kind == FUNCTION:
        captured = argument_changes(before.closure, c.closure)
        return "new function object", "; ".join(f"it captures {change}" for change in captured[:3])
    if not changes and before is not None:
        changes = argument_changes(before.signature, c.signature)
        # an operation's result follows from the rest, and a constant may be an operand
        operands = tuple(x for x in changes if x.what.startswith(OPERAND))
        changes = operands or tuple(x for x in changes if not x.what.startswith(RESULT)) or changes
    reason = REASONS.get(changes[0].kind if changes else "", "other constants")
    if kind != FUNCTION and reason == "static value":  # an operation's own parameters
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
            {"line": line, "source": inside[0]["source"], **_sums(inside, "seconds")}
            for line, inside in group_by(group, lambda p: p["line"]).items()
        ]
        rows.append({
            "name": slowest["function"] if operation else slowest["name"],
            **{name: slowest[name] for name in ("kind", "line", "source", "called_at", "defined")},
            **_sums(group, "trace_s", "lower_s", "compile_s", "seconds"),
            "again_s": sum(p["seconds"] for equal in same.values() for p in equal[1:]),
            "reasons": dict(Counter(p["reason"] for p in group).most_common()),
            "changes": list(dict.fromkeys(p["change"] for p in group if p["change"]))[:5],
            "names": dict(Counter(p["name"] for p in group).most_common(8)),
            "lines": sorted(lines, key=lambda each: -each["seconds"])[:LINES],
        })  # fmt: skip
    return sorted(rows, key=lambda row: -row["seconds"])


def _sums(rows: Sequence[Row], *names: str) -> Row:
    counted = {name: sum(row[name] for row in rows) for name in ("compiled", *names)}
    return {"programs": counted.pop("compiled"), **counted}


def _unfinished(log: Log, running: Sequence[Interval]) -> Iterator[str]:
    """Yield a remark if the program ended while JAX was tracing or compiling, which no event tells."""
    last = max((end for _, end in running), default=log.start)
    inside = [sample for sample in log.stacks if sample.start >= last]
    if inside and log.end - inside[-1].end < NEAR_S:
        at = next(iter(inside[-1].places), NOWHERE)
        spent = format_on_page(log.end - inside[0].start, "s")
        problem = f"the program ended while JAX was tracing or compiling at {at}, for {spent}"
        yield f"{problem}, which count as everything else"


def _tracing(log: Log, slowest: Sequence[tuple[Row, Compiled]]) -> list[Row]:
    """Return, for each of the slowest programs, the lines at which Python spends its tracing and lowering."""
    rows = []
    for program, c in slowest:
        lines: dict[Place, Row] = {}
        spans = [c.stages[stage] for stage in (TRACE, LOWER) if stage in c.stages]
        for start, end in spans:
            for sample in (sample for sample in log.stacks if start < sample.end <= end):
                # the sample that came first in a stage stands for time before it, too
                seconds = sample.end - max(sample.start, start)
                for place in dict.fromkeys(sample.places):
                    if place not in lines:
                        known = {"line": str(place), "function": place.function, "source": place.source}
                        lines[place] = {**known, "seconds": 0.0, "with_calls_s": 0.0}
                    lines[place]["with_calls_s"] += seconds
                for place in sample.places[:1]:
                    lines[place]["seconds"] += seconds
        if lines:
            in_order = sorted(lines.values(), key=lambda row: (-row["seconds"], -row["with_calls_s"]))
            named = {"name": program["name"], "line": program["line"]}
            rows.append({**named, "seconds": total_length(spans), "lines": in_order[:LINES]})
    return rows


def _contents(slowest: Sequence[tuple[Row, Compiled]]) -> list[Row]:
    rows = []
    for program, c in slowest:
        facts = c.facts
        if facts is None or not facts.text:
            continue
        lines, equal = Counter[Place](), Counter[tuple[Place, str, str, str]]()
        for i in facts.instructions:
            place = next((p for p in facts.module.frames(i) if outside_jax(p.file)), NOWHERE)
            lines[place] += 1
            if i.op_name and i.opcode not in _NO_PARTS:
                equal[place, i.opcode, i.op_name, i.type.partition("{")[0]] += 1
        total = lines.total()
        del lines[NOWHERE]
        by_line = []
        for p, n in lines.most_common(LINES):
            # one operation of JAX may be the same instruction many times, such as an error function
            parts = [count for (at, *_), count in equal.items() if at == p]
            by_line.append({
                "line": str(p), "function": p.function, "source": p.source, "instructions": n,
                "share": n / total, "equal": statistics.median_low(parts or [0]),
            })  # fmt: skip
        rows.append({
            **{name: program[name] for name in ("name", "line", "arguments", "seconds")},
            "instructions": total,
            "constant_bytes": sum(shape.bytes for shape in facts.constants()),
            "by_line": by_line,
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
    except OSError as e:
        why = f": {e.strerror}"
    except (ValueError, RecursionError):
        why = ": it is not JSON"
    if not isinstance(report, dict) or (report.get("format"), report.get("version")) != (FORMAT, VERSION):
        problem = f"{inside[0]} is not a compile report of version {VERSION}{why}"
        raise JaxperfError(f"{problem}; `jaxperf watch --compiles DIR` writes one")
    return report
