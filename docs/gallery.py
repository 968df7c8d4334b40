"""The gallery "Why is my JAX program slow?", made from the tested programs in tests/slow_programs.

    python docs/gallery.py record [NAMES]     # run watch five times on each slow program, about 25 minutes
    python docs/gallery.py measure [NAMES]    # run slow and repaired programs in turns, up to 12 minutes
    python docs/gallery.py measure SLOW.py REPAIRED.py    # two programs of yours that have a function main()

The first two write docs/gallery.json after each program. The page is made when the book is built: code and
changes come from the programs, symptoms and threads from tests/slow_programs/gallery.toml.
"""

from __future__ import annotations

if __name__ == "__main__":
    from jaxperf.process import end_at_once

    end_at_once()  # while all else is imported, Ctrl-C is no traceback

import ast
import html
import itertools
import json
import re
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jaxperf.errors import JaxperfError
from jaxperf.process import ended
from jaxperf.result import Measurement, Ratio, ratio
from jaxperf.result.store import write_whole
from jaxperf.watch.rules import CAUSES

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests"))

from twins import PROGRAMS, cause, marked, write_repaired  # noqa: E402

PUZZLES = ROOT / "docs" / "puzzles"
WAYS = ROOT / "tests" / "measure" / "test_wrong_timing.py"
STORE = ROOT / "docs" / "gallery.json"
NO_GAIN = {"undecided": "undecided", "faster": "slower than before"}  # of repairs
BUDGET_S = 720  # for all programs of a call


def entries() -> dict[str, dict[str, Any]]:
    """Return what gallery.toml says about each program, and its `groups`, `looks` and `threads`."""
    return tomllib.loads((PROGRAMS / "gallery.toml").read_text(encoding="utf-8"))


def names() -> list[str]:
    """Return the programs in the page's order."""
    return [name for name in entries() if name not in ("groups", "looks", "threads")]


def stored() -> dict[str, dict[str, Any]]:
    """Return what was recorded and measured, by program."""
    return json.loads(STORE.read_text(encoding="utf-8")) if STORE.exists() else {}  # type: ignore[no-any-return]


def gain(name: str, values: dict[str, Any]) -> tuple[Ratio, Measurement, Measurement]:
    """Return the ratio of slow to repaired, and both."""
    slow, repaired = (
        Measurement(kind, "s", tuple(values[kind]), rounds=name) for kind in ("slow", "repaired")
    )
    return ratio(slow, repaired), slow, repaired


def causes_without_a_program() -> list[str]:
    """Return a line for each cause that watch reports and no program here has."""
    shown = {cause(PROGRAMS / f"{name}.py")[0] for name in names()}
    others = (c for name, c in CAUSES.items() if name not in shown)
    return [f"- {c.title[0].upper()}{c.title[1:]}: section *{c.section}*." for c in others]


def main(arguments: list[str]) -> int:
    """Record or measure programs; return 1 if watch misses a cause."""
    if not arguments or arguments[0] not in ("record", "measure"):
        raise JaxperfError(f"give record or measure, and names of programs, not {' '.join(arguments)!r}")
    if arguments[0] == "measure" and any(name.endswith(".py") for name in arguments):
        return measure_files([Path(name) for name in arguments[1:]])
    chosen = arguments[1:] or names()
    if unknown := [name for name in chosen if name not in names()]:
        raise JaxperfError(f"there is no program {unknown[0]!r}; there are {', '.join(names())}")
    misses = 0
    for name in chosen:
        try:
            values = run(arguments[0], name, BUDGET_S / len(chosen))
        except JaxperfError as e:
            print(f"error: {e}", file=sys.stderr)
            misses += 1
            continue
        everything = stored()
        everything[name] = {**everything.get(name, {}), arguments[0]: values}
        rows = [f"{json.dumps(n)}: {json.dumps(everything[n])}" for n in names() if n in everything]
        write_whole(STORE, "{\n" + ",\n".join(rows) + "\n}\n")
        if arguments[0] == "record":
            shown = f"{values['text'].split('. ')[0]}{share(values)}"
        else:
            shown = str(gain(name, values)[0])
        print(f"{name:<24} {shown}", flush=True)
    return min(misses, 1)


def measure_files(paths: list[Path]) -> int:
    """Print how much faster the second of two programs is."""
    import gallery_runs

    if len(paths) != 2 or not all(path.is_file() for path in paths):
        raise JaxperfError(f"measure takes two programs that are there, not {' '.join(map(str, paths))}")
    values = gallery_runs.measure(paths, None, 1, 60)
    print(describe_gain(paths[0].stem, values))
    return 0


def run(action: str, name: str, budget_s: float) -> dict[str, Any]:
    """Record what watch says of a program, or measure a pair for `budget_s` seconds, in new processes."""
    import gallery_runs

    path, entry = PROGRAMS / f"{name}.py", entries()[name]
    devices = entry.get("devices", 1)
    if action == "record":
        return gallery_runs.record(path, *cause(path), entry.get("steps"), devices)
    with tempfile.TemporaryDirectory() as folder:
        pair = [path, write_repaired(name, Path(folder))]
        return gallery_runs.measure(pair, entry.get("steps"), devices, max(budget_s - 2, 0))  # 2 s: its start


# The page


def page() -> str:
    """Return the table of all causes and their sections, as MyST."""
    about, results = entries(), stored()
    lines = ["| what people say | what it is | gain |", "| --- | --- | --- |"]
    groups = {group: [n for n in names() if about[n]["group"] == group] for group in about["groups"]}
    for group, title in about["groups"].items():
        lines.append(f"| **{title}** | | |")
        for name in groups[group]:
            values = results.get(name, {}).get("measure")
            times = "not measured"
            if values:
                over = gain(name, values)[0]
                times = NO_GAIN.get(over.word, f"{over.median:.2g}×")
            entry, place = about[name], anchor(about[name].get("like", name))
            lines.append(f"| {entry['symptom']} | [{entry['title']}](#{place}) | {times} |")
    for group, title in about["groups"].items():
        lines += ["", f"## {title}"]
        for name in groups[group]:
            if "like" not in about[name]:
                variants = [n for n in groups[group] if about[n].get("like") == name]
                lines += section(name, variants, about, results)
    lines += ["", "## What watch reports, too", "", *causes_without_a_program()]
    return "\n".join(lines) + "\n"


def anchor(name: str) -> str:
    """Return the anchor of a program's section."""
    return name.replace("_", "-")


def section(
    name: str, variants: list[str], about: dict[str, Any], results: dict[str, dict[str, Any]]
) -> Iterator[str]:
    """Yield the lines of a program's section, with a line for each variant of it."""
    entry, path, values = about[name], PROGRAMS / f"{name}.py", results.get(name, {})
    code, line = excerpt(path)
    yield from ("", f"({anchor(name)})=", f"### {entry['title']}", "", f"> {entry['symptom']}", "")
    yield from ("```{code-block} python", f":emphasize-lines: {line}", "", code, "```", "")
    if "record" in values:
        text = html.escape(values["record"]["text"])
        style = "white-space: pre-wrap; font-size: 0.8rem"  # so that phones show all of it
        yield f'**jaxperf watch says**{share(values["record"])}\n\n<pre style="{style}">{text}</pre>\n'
    yield f"**The change**\n\n```diff\n{changes(path)}\n```\n"
    yield f"**The gain**: {describe_gain(name, values.get('measure'))} {result_of(entry)}\n"
    if "care" in entry:
        yield f"**Take care**: {entry['care']}\n"
    yield f"**Without jaxperf**: {look(entry, about['looks'], path)}\n"
    for variant in variants:
        yield variant_line(variant, about[variant], results.get(variant, {}))
    threads = dict.fromkeys(t for n in (name, *variants) for t in about[n].get("threads", ()))
    if threads:
        links = (
            f"{about['threads'][t]} ([{t}](https://github.com/{t.replace('#', '/issues/')}))" for t in threads
        )
        yield f"**Who met it**: {'; '.join(links)}.\n"
    yield f"[Both programs, in one file](../tests/slow_programs/{path.name})."


def variant_line(name: str, entry: dict[str, Any], values: dict[str, Any]) -> str:
    """Return the paragraph of a variant: its title, its gain, and how often watch names it."""
    parts = [f"**The same**: [{entry['title']}](../tests/slow_programs/{name}.py)."]
    if "measure" in values:
        over = gain(name, values["measure"])[0]
        parts.append(f"Slow over repaired is {over}. {result_of(entry)}")
    if "record" in values:
        parts.append(f"Watch names it{share(values['record'])}.")
    return " ".join(parts) + "\n"


def share(record: dict[str, Any]) -> str:
    """Say in how many runs watch named a cause."""
    return f", in {record['named']} of {record['runs']} runs" if "runs" in record else ""


def result_of(entry: dict[str, Any]) -> str:
    """Say how the result of a repaired program differs, and what the program leaves out."""
    if "leaves_out" in entry:
        return (
            f"The repaired program leaves work out: {entry['leaves_out']}, and the gain is the price of that."
        )
    if "differs" in entry:
        return f"The result is not the same: {entry['differs']}."
    return "The result is the same."


def look(entry: dict[str, Any], looks: dict[str, str], path: Path) -> str:
    """Say how to see a cause without jaxperf."""
    text = looks.get(entry["look"], entry["look"])
    words = {0: "never", 1: "once"}
    slow, fixed = (words.get(n, f"{n} times") for n in entry.get("compiled", (0, 0)))
    facts = {"file": path.name, "name": entry.get("name", ""), "slow": slow, "fixed": fixed}
    return re.sub(r"\{(file|name|slow|fixed)\}", lambda word: facts[word[1]], text)


def describe_gain(name: str, values: dict[str, Any] | None) -> str:
    """Say how much faster the repaired program is."""
    if not values:
        return f"not measured yet (`python docs/gallery.py measure {name}`)."
    over, slow, repaired = gain(name, values)
    what = f"{NO_GAIN[over.word]}: " if over.word in NO_GAIN else ""
    what += f"{values['steps']:,} steps: " if values.get("steps") else ""
    return (
        f"{what}{slow.median:.2f} s before and {repaired.median:.2f} s after. Slow over repaired is {over} "
        f"in {over.rounds} rounds, at 95 %. {values['at']}."
    )


def body(path: Path) -> dict[int, tuple[str, str]]:
    """Return sign and code of the lines between a program's docstring and its last `if`, by number."""
    lines = path.read_text(encoding="utf-8").splitlines()
    first, *_, last = ast.parse("\n".join(lines)).body
    assert first.end_lineno and isinstance(last, ast.If)
    shown = enumerate(lines[: last.lineno - 1], start=1)
    rows = {number: marked(line) for number, line in shown if number > first.end_lineno}
    return {number: (sign, code.partition("  # noqa")[0]) for number, (sign, code) in rows.items()}


def excerpt(path: Path) -> tuple[str, int]:
    """Return what a slow program computes, without its imports, and the number of the line with the cause."""
    shown: list[tuple[int, str]] = []
    for number, (sign, code) in body(path).items():
        after_empty = not shown or not shown[-1][1]
        left_out = re.match(r"import |from \w[\w.]* import ", code) or (not code and after_empty)
        if sign != "+" and not left_out:
            shown.append((number, code))
    numbers, text = zip(*shown, strict=True)
    return "\n".join(text).rstrip(), numbers.index(cause(path)[1]) + 1


def changes(path: Path) -> str:
    """Return the lines that differ in the repaired program, with one line around them."""
    rows = [(sign, code) for sign, code in body(path).values() if code]
    changed = [sign != " " for sign, _ in rows]
    near = [any(changed[max(0, i - 1) : i + 2]) for i in range(len(rows))]
    parts = [
        "\n".join(sign + code for (sign, code), _ in part)
        for shown, part in itertools.groupby(zip(rows, near, strict=True), key=lambda row: row[1])
        if shown
    ]
    return "\n ...\n".join(parts)


# Puzzles, and ways to time JAX wrongly


def puzzles() -> str:
    """Return a section for each puzzle, as MyST."""
    lines = []
    for path in sorted(PUZZLES.glob("*.py")):
        symptom = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
        if path.name != "check.py":
            code = "\n".join(code for _, code in body(path).values()).strip()
            lines += ["", f"## {path.stem}", "", f"> {symptom}", "", f"```python\n{code}\n```"]
    return "\n".join(lines)


def with_tests(text: str) -> str:
    """Let each row of the table in trust.md lead to its test, and show the tests below."""
    source = WAYS.read_text(encoding="utf-8")
    tests = {
        node.name.removeprefix("test_").replace("_", " "): ast.get_source_segment(source, node) or ""
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }
    shown = []
    for way, code in tests.items():
        row, place = f"\n| {way} |", "way-" + way.replace(" ", "-")
        if row in text:
            text = text.replace(row, f'\n| <a href="#{place}">{html.escape(way)}</a> |')
            head = f'<details id="{place}"><summary>{html.escape(way)}</summary>'
            shown.append(f"{head}\n\n```python\n{code}\n```\n\n</details>\n")
    return text.replace("<!-- tests of the ways -->", "\n".join(shown))


def on_source(app: Any, docname: str, source: list[str]) -> None:
    """Fill in the pages when the book is built."""
    if docname == "gallery":
        source[0] = source[0].replace("<!-- gallery -->", page())
        for path in (STORE, *PROGRAMS.glob("gallery.toml"), *PROGRAMS.rglob("*.py")):
            app.env.note_dependency(str(path), docname=docname)
    elif docname == "puzzles":
        source[0] = source[0].replace("<!-- puzzles -->", puzzles())
        for path in PUZZLES.glob("*.py"):
            app.env.note_dependency(str(path), docname=docname)
    elif docname == "trust":
        source[0] = with_tests(source[0])
        app.env.note_dependency(str(WAYS), docname=docname)


def setup(app: Any) -> dict[str, Any]:
    """Tell Sphinx; links are made after this."""
    app.connect("source-read", on_source, priority=400)
    return {"parallel_read_safe": True}


if __name__ == "__main__":
    raise SystemExit(ended(lambda: main(sys.argv[1:])))
