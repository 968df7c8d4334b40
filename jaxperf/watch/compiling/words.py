"""The sentences of a compile report, and of two reports compared. Each is chosen by what was measured."""

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from jaxperf.result.formatting import format_count, format_on_page, format_quantity

WORTH = 0.05  # of the wall time, from which on a fact is worth a sentence
BRIEF_S = 0.1  # seconds below which none is
LITTLE = 0.1  # share of the wall time below which a program does not wait for compiling
SEVERAL = 8  # equal parts, or operations outside jit, that are worth a sentence
MAIN = 0.2  # share of a program's instructions that makes a line, or a loop, worth naming
LARGE = 1 << 20  # bytes of constants that are
_DOING = {"trace_s": "tracing", "lower_s": "lowering", "compile_s": "compiling (XLA)"}
_CHANGES = {
    "new function object": "jit it once, before the loop; what varies is an argument",
    "static value": "make it an ordinary argument, unless it is a size",
    "new shape": "pad to few sizes, or drop what is left over",
    "weak type": "pass arrays of one dtype, such as jnp.float32(x), in place of Python's numbers",
    "new dtype": "convert once, before the first call",
    "other structure of arguments": "pass the same keys and types each time",
    "other sharding or device": "place the arguments once, as the results come back",
    "caches cleared": "leave out jax.clear_caches",
}  # fmt: skip
Fact = tuple[float, str, str]  # seconds, what was seen, and what to change


def seconds(value: float) -> str:
    return format_on_page(value, "s")


def compiling_s(report: Mapping[str, Any]) -> float:
    return float(sum(report["stages"][stage] for stage in ("trace", "lower", "compile")))


def sentences(report: Mapping[str, Any]) -> tuple[str, list[str]]:
    """Return the summary, and what takes longest with what to change."""
    wall_s, total_s = report["wall_s"], compiling_s(report)
    facts = sorted([*_repeats(report), *_operations(report), *_slow(report)], key=lambda fact: -fact[0])
    least_s = max(BRIEF_S, WORTH * wall_s)
    shown = [
        f"{observed}. To change: {change}." if change else f"{observed}."
        for spent_s, observed, change in (*facts, *_disk(report))
        if spent_s >= least_s
    ]
    programs = format_count(report["programs"], "program")
    if not report["list"]:
        summary = f"Nothing was compiled in {seconds(wall_s)}."
    elif total_s < LITTLE * wall_s:
        took = f"{programs} took {seconds(total_s)} of {seconds(wall_s)}"
        summary = f"Compiling is not what this program waits for: {took}."
    else:
        observed = facts[0][1] if facts else "no single part stands out"
        took = f"{seconds(total_s)} of {seconds(wall_s)} are tracing and compiling"
        summary = f"{took}, of {programs}: {observed}."
    return summary, shown


def _named(row: Mapping[str, Any]) -> str:
    return f"{row['name']} ({row['line']})"


def _file(row: Mapping[str, Any]) -> str:
    return str(row["line"]).rpartition(":")[0]


def _repeats(report: Mapping[str, Any]) -> Iterator[Fact]:
    for row in report["by_function"]:
        times = sum(row["reasons"].values())
        again = Counter({reason: n for reason, n in row["reasons"].items() if reason != "first call"})
        if row["kind"] != "operation" and times > 1 and again:
            [(reason, _)] = again.most_common(1)
            change = f", {row['changes'][0].partition('; ')[0]}" if row["changes"] else ""
            done = "compiled" if row["programs"] == times else "traced"
            why = f"{seconds(row['again_s'])} for the repeats: {reason}{change}"
            yield row["again_s"], f"{_named(row)} is {done} {times} times, {why}", _CHANGES.get(reason, "")


def _operations(report: Mapping[str, Any]) -> Iterator[Fact]:
    rows = [row for row in report["by_function"] if row["kind"] == "operation"]
    if report["operations"] >= SEVERAL and rows:
        total_s = sum(row["seconds"] for row in rows)
        most = [f"{row['programs']} in {row['name']} ({_file(row)})" for row in rows[:3]]
        observed = f"{report['operations']:,} single operations outside jit take {seconds(total_s)}"
        change = "put what they compute into a jitted function, which is one program"
        # a library's lines cannot be changed
        own = (row["name"] for row in rows if not row["called_at"])
        if name := next((name for name in own if name.isidentifier() and name != "main"), ""):
            change = f"jit {name}, or the part of it that works on arrays, so that it is one program"
        yield total_s, f"{observed}, each a program of its own; {', '.join(most)}", change


def _slow(report: Mapping[str, Any]) -> Iterator[Fact]:
    """Yield the stages of each function's first program, and where their time goes."""
    contents = {(c["name"], c["line"]): c for c in report["contents"]}
    tracing = {(t["name"], t["line"]): t for t in report["tracing"]}
    for row in report["by_function"]:
        same = row["name"], row["line"]
        for stage, doing in _DOING.items() if row["kind"] != "operation" and row["seconds"] else ():
            once_s = row[stage] * (1 - row["again_s"] / row["seconds"])
            observed, change = f"{doing} {_named(row)} takes {seconds(once_s)}", ""
            if stage == "trace_s" and same in tracing:
                line = max(tracing[same]["lines"], key=lambda each: each["seconds"])
                observed += f", {seconds(line['seconds'])} of it at {line['line']}, `{line['source'][:60]}`"
                change = "do what needs no array before the call, and let jax.lax.scan trace a loop once"
            elif same in contents:
                more, change = parts(contents[same])
                observed += more
            yield once_s, observed, change


def parts(contents: Mapping[str, Any]) -> tuple[str, str]:
    observed, change = f"; it has {contents['instructions']:,} instructions", ""
    loop = next((loop for loop in contents["loops"] if loop["share"] >= MAIN), None)
    lines = [line for line in contents["by_line"][:3] if line["share"] >= MAIN]
    if loop:
        observed += f", {loop['share']:.0%} of them by the loop at {loop['line']}"
        observed += f", which Python unrolls {loop['turns']} times or more"
        change = "jax.lax.scan or fori_loop compiles the body of the loop once"
    if lines:
        shares = (f"{line['share']:.0%} from {line['line']}, `{line['source'][:60]}`" for line in lines)
        observed += f": {', '.join(shares)}"
        if lines[0]["equal"] >= SEVERAL:
            observed += f", in {lines[0]['equal']} equal parts"
            change = (
                change or "if these are layers or turns of a Python loop, jax.lax.scan compiles one of them"
            )
    if contents["constant_bytes"] >= LARGE:
        observed += f", and {format_quantity(contents['constant_bytes'], 'bytes')} of constants"
        change = change or "make the arrays that it captures arguments"
    return observed, change


def _disk(report: Mapping[str, Any]) -> Iterator[Fact]:
    cache, compile_s = report["cache"], report["stages"]["compile"]
    if not cache["folder"]:
        change = (
            'jax.config.update("jax_compilation_cache_dir", FOLDER) before the first call, and to keep '
            'programs of less than a second, too, ("jax_persistent_cache_min_compile_time_secs", 0)'
        )
        observed = f"There is no compile cache on disk, so each start spends {seconds(compile_s)} in XLA"
        yield compile_s, observed, change
    elif cache["misses"]:
        notes = "; ".join(f"{n} times: {note}" for note, n in cache["notes"].items())
        observed = f"{cache['folder']} has {cache['hits']} of {cache['hits'] + cache['misses']} programs"
        observed += f"; the others take {seconds(cache['miss_s'])}"
        change = notes or "start once more: the programs, the flags or the versions were new"
        yield cache["miss_s"], observed, change


def differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the functions of two reports, the largest difference first.

    A function is the same if its kind, its name and its file's name are: lines move from version to version.
    """
    rows: dict[tuple[str, str, str], dict[str, Any]] = {}
    for side, report in enumerate((first, second)):
        for row in reversed(report["by_function"]):
            key = row["kind"], row["name"], Path(_file(row)).name
            pair = rows.setdefault(key, {"programs": [0, 0], "seconds": [0.0, 0.0]})
            pair |= {name: row[name] for name in ("name", "kind", "line")}
            pair["programs"][side], pair["seconds"][side] = row["programs"], row["seconds"]
    return sorted(rows.values(), key=lambda row: -abs(row["seconds"][1] - row["seconds"][0]))


def difference(first: Mapping[str, Any], second: Mapping[str, Any]) -> str:
    totals = [
        f"{format_count(side['programs'], 'program')} in {seconds(compiling_s(side))}"
        for side in (first, second)
    ]
    return f"The first compiles {totals[0]}, the second {totals[1]}."
