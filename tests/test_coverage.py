"""docs/coverage.md: what its tables name exists, in the sources and in the result of a run.

A run of all sections takes minutes, so names are looked up in the sources: as an argument of `story.claim`,
`story.fact` and so on, in a file that the row names. JAXPERF_RESULTS names a folder of results of
`jaxperf run all`; then the same names are looked up in those too.
"""

from __future__ import annotations

import ast
import itertools
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from jaxperf import catalogue
from jaxperf.result import (
    Claim,
    Code,
    Dots,
    Environment,
    Fact,
    Grid,
    Habit,
    Heading,
    Lines,
    Output,
    Result,
    Table,
    Text,
    Timelines,
    load_result,
)

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "coverage.md"
STATES = ("faithful", "partly: ", "cannot be measured without ")
SPAN = re.compile(r"`([^`]+)`")
PROOF = re.compile(r"(\w+) `([^`]+)`")
HEAD = re.compile(r"^## .*\(`(\w+)`\)$", re.M)


@dataclass(frozen=True)
class Row:
    """A row of the page: `where` maps a file to names in it, `proofs` are pairs such as ("fact", "t1_s")."""

    section: str
    words: str
    where: dict[str, list[str]]
    proofs: list[tuple[str, str]]
    state: str


def rows_of(page: str) -> list[Row]:
    """The rows of all tables below headings that name a section's script."""
    found = []
    _, *parts = HEAD.split(page)
    for section, text in zip(parts[::2], parts[1::2]):
        lines = [line for line in text.splitlines() if line.startswith("|")]
        for line in lines[2:]:  # below the heads and their rule
            words, where, proofs, state = (cell.strip() for cell in line.strip("|").split("|"))
            files = dict(span.split(": ") for span in SPAN.findall(where))
            names = {file: listed.split(", ") for file, listed in files.items()}
            found.append(Row(section, words, names, PROOF.findall(proofs), state))
    return found


def path_of(file: str) -> Path:
    """A file of the page: from the top of the checkout, or from the package."""
    return next((p for p in (ROOT / file, ROOT / "jaxperf" / file) if p.is_file()), ROOT / file)


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def defined(path: Path) -> set[str]:
    """Functions, classes and constants of a file."""
    nodes = tree_of(path).body
    named = {n.name for n in ast.walk(tree_of(path)) if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    targets = itertools.chain.from_iterable(n.targets for n in nodes if isinstance(n, ast.Assign))
    annotated = (n.target for n in nodes if isinstance(n, ast.AnnAssign))
    return named | {t.id for t in (*targets, *annotated) if isinstance(t, ast.Name)}


# What of a block is compared: in the sources the method of `Story` (or a function that is called like one)
# and its arguments, by place and by keyword; in a result the block's class and its field.
SOURCES: dict[str, list[tuple[str | None, int | None, tuple[str, ...]]]] = {
    "claim": [("claim", None, ("book", "ours")), ("Sentence", 0, ()), ("equal", 1, ())],
    "fact": [("fact", 0, ())],
    "heading": [("heading", 0, ())],
    "table": [(None, None, ("title",))],
    "figure": [("lines", 0, ()), ("dots", 0, ()), ("timeline", None, ("title",))],
    "book": [("book", 0, ()), ("_other", 0, ()), ("Reference", 0, ())],
    "text": [("text", None, ())],
    "habit": [("habit", None, ("gluon", "jax"))],
    "output": [("say", 0, ()), ("print", None, ())],
}
WITHIN = ("text", "habit", "output")  # the page quotes a part of these, and the whole of all others


def expected(row: Row, kind: str, name: str) -> bool:
    """Whether one of the row's files holds this, as far as its source can tell."""
    paths = [path_of(file) for file in row.where]
    if kind == "test":
        file, _, function = name.partition("::")
        return function.startswith("test_") and path_of(file).is_file() and function in defined(path_of(file))
    if kind == "code":
        return any(name in shown_code(path) for path in paths)
    patterns = (p for path in paths for p in patterns_of(path, kind))
    if kind in WITHIN:
        return any(name in p.replace(".*", "*") for p in patterns)
    return any(re.fullmatch(p, name) for p in patterns)


def shown_code(path: Path) -> set[str]:
    """Names of what a file shows with `story.code`."""
    calls = (n for n in ast.walk(tree_of(path)) if isinstance(n, ast.Call) and called(n) == "code")
    return {a.id for call in calls for a in call.args if isinstance(a, ast.Name)}


def called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


@cache
def patterns_of(path: Path, kind: str) -> frozenset[str]:
    """What a file gives as this kind: regular expressions, or for quoted kinds words with ".*" for holes."""
    found: set[str] = set()
    for node in (n for n in ast.walk(tree_of(path)) if isinstance(n, ast.Call)):
        for method, place, keywords in SOURCES[kind]:
            if method is not None and called(node) != method:
                continue
            given = [k.value for k in node.keywords if k.arg in keywords]
            if not keywords:
                given += node.args if place is None else node.args[place : place + 1]
            for value in given:
                found |= set(words_of(value, path, quoted=kind in WITHIN))
    return frozenset(found)


def words_of(value: ast.expr, path: Path, *, quoted: bool) -> Iterator[str]:
    """What an argument can be: ".*" stands for a hole in an f-string, spaces for any white space.

    A name stands for what the file assigns to it; where that cannot be seen, for every constant of the file.
    """
    if isinstance(value, ast.Constant | ast.JoinedStr):
        yield literal(value, quoted=quoted)
    elif isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
        for pair in itertools.product(*(words_of(v, path, quoted=quoted) for v in (value.left, value.right))):
            yield "".join(pair)
    elif isinstance(value, ast.IfExp):
        yield from words_of(value.body, path, quoted=quoted)
        yield from words_of(value.orelse, path, quoted=quoted)
    else:
        known = assigned(path).get(value.id, []) if isinstance(value, ast.Name) else []
        constants = (n for n in ast.walk(tree_of(path)) if isinstance(n, ast.Constant))
        for node in known or constants:
            yield literal(node, quoted=quoted)


def literal(node: ast.expr, *, quoted: bool) -> str:
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    words = (str(p.value) if isinstance(p, ast.Constant) else None for p in parts)
    whole = "".join(".*" if w is None else (w if quoted else re.escape(w)) for w in words)
    return " ".join(whole.split()) if quoted else whole


@cache
def assigned(path: Path) -> dict[str, list[ast.expr]]:
    """The strings that a file assigns to names."""
    found: dict[str, list[ast.expr]] = {}
    for node in (n for n in ast.walk(tree_of(path)) if isinstance(n, ast.Assign)):
        if isinstance(node.value, ast.JoinedStr) or isinstance(getattr(node.value, "value", None), str):
            for target in (t for t in node.targets if isinstance(t, ast.Name)):
                found.setdefault(target.id, []).append(node.value)
    return found


def told(result: Result, kind: str, name: str) -> bool:
    """Whether a result holds this; "*" in the name stands for anything."""
    if kind == "test" or (kind == "book" and result.smoke):  # at toy size the book's figures have no place
        return True
    if kind == "code":
        return any(re.search(rf"^(def|class) {name}\b", c.source, re.M) for c in result.of(Code))
    words: dict[str, list[str]] = {
        "claim": [c.statement for c in result.of(Claim)],
        "fact": [f.name for f in result.of(Fact)],
        "heading": [h.title for h in result.of(Heading)],
        "table": [t.title for kind in (Table, Grid) for t in result.of(kind)],
        "figure": [f.title for kind in (Lines, Dots, Timelines) for f in result.of(kind)],
        "book": [r.name for r in result.references],
        "text": [t.text for t in result.of(Text)],
        "habit": [" ".join((h.gluon + " " + h.jax).split()) for h in result.of(Habit)],
        "output": [" ".join(o.text.split()) for o in result.of(Output)],
    }
    pattern = re.compile(re.escape(name).replace(r"\*", ".*"))
    return any((pattern.search if kind in WITHIN else pattern.fullmatch)(w) for w in words[kind])


def mistakes(page: str) -> list[str]:
    """What the sources contradict, a line each."""
    found = []
    for row in rows_of(page):
        for file, names in row.where.items():
            known = defined(path_of(file)) if path_of(file).is_file() else set()
            found += [f"{row.words}: no {name} in {file}" for name in names if name not in known]
        known_files = [file for file in row.where if path_of(file).is_file()]
        if len(known_files) == len(row.where):
            found += [f"{row.words}: no {k} {n!r}" for k, n in row.proofs if not expected(row, k, n)]
        if not row.where or not row.proofs or not row.state.startswith(STATES):
            found.append(f"{row.words}: where, proof or state is missing")
    return found


def untold(page: str, results: dict[str, Result]) -> list[str]:
    """What the results contradict: what a row names and no result holds, and the book's claims of no row."""
    rows = rows_of(page)
    found = [
        f"{row.words}: no {kind} {name!r} in {row.section}"
        for row in rows
        for kind, name in row.proofs
        if row.section not in results or not told(results[row.section], kind, name)
    ]
    for section, result in results.items():
        named = [
            re.escape(n).replace(r"\*", ".*")
            for r in rows if r.section == section for kind, n in r.proofs if kind == "claim"
        ]  # fmt: skip
        books = (c.statement for c in result.of(Claim) if c.source != "jaxperf")
        found += [
            f"no row for {section}'s claim {s!r}" for s in books if not any(re.fullmatch(n, s) for n in named)
        ]
    return found


def test_all_that_the_page_names_exists():
    assert not mistakes(PAGE.read_text(encoding="utf-8"))


def test_the_page_has_all_sections_in_the_books_order_and_counts_its_rows():
    page = PAGE.read_text(encoding="utf-8")
    sections = list(dict.fromkeys(row.section for row in rows_of(page)))
    assert sections == [s.name for s in catalogue.SECTIONS if s.name in sections]
    assert {s.name for s in catalogue.SECTIONS} - set(sections) == {"peers"}  # of which the book has nothing
    states = [row.state for row in rows_of(page)]
    counted = [sum(state.startswith(word) for state in states) for word in STATES]
    said = re.search(r"(\d+) rows: (\d+) faithful, (\d+) partly, (\d+) that cannot be measured", page)
    assert said
    assert [int(n) for n in said.groups()] == [len(states), *counted]


CASE = "tests/test_coverage.py::test_a_wrong_table_is_told_row_by_row"
RIGHT = f"""
## 8.1 The section (`hybridize`)

| row of the book | where | proof | state |
| --- | --- | --- | --- |
| two helpers | `experiments/hybridize.py: add, get_net` | code `add`; fact `adds_traced` | faithful |
| the export | `chapter/exporting.py: _operations` | habit `net.export("my_mlp")`; test `{CASE}` | partly: 1 |
"""


WRONG = (
    ("get_net", "get_nets", "two helpers: no get_nets in experiments/hybridize.py"),
    ("hybridize.py", "hybrid.py", "two helpers: no add in experiments/hybrid.py"),
    ("adds_traced", "adds_trace", "two helpers: no fact 'adds_trace'"),
    ("fact `adds", "claim `adds", "two helpers: no claim 'adds_traced'"),
    ("code `add`", "code `benchmarks`", "two helpers: no code 'benchmarks'"),
    ("my_mlp", "your_mlp", """the export: no habit 'net.export("your_mlp")'"""),
    ("_row_by_row", "_at_once", "the export: no test 'tests/test_coverage.py::"),
    ("partly", "mostly", "the export: where, proof or state is missing"),
    ("code `add`; fact `adds_traced`", "", "two helpers: where, proof or state is missing"),
)


def test_a_wrong_table_is_told_row_by_row():
    assert not mistakes(RIGHT)
    for old, new, complaint in WRONG:
        first, *_ = mistakes(RIGHT.replace(old, new))
        assert first.startswith(complaint), old


def test_no_other_words_would_do():
    rows = rows_of(PAGE.read_text(encoding="utf-8"))
    loose = [(kind, name) for row in rows for kind, name in row.proofs if expected(row, kind, name[::-1])]
    assert not loose


def test_what_a_result_does_not_hold_is_told():
    fact, code = Fact("adds_traced", 3), Code("def add(a, b):\n    return a + b")
    habit = Habit('net.export("my_mlp")', "")
    claim = Claim("It adds", "holds", "", "right", "", "section 8.1")

    def wrong(*blocks, page=RIGHT):
        result = Result("hybridize", "8.1", "", "", {}, Environment(), blocks)
        return untold(page, {"hybridize": result})

    named = RIGHT.replace("fact `adds_traced`", "fact `adds_*`; claim `It *`")
    assert not wrong(fact, code, habit)
    assert not wrong(fact, code, habit, claim, page=named)
    assert wrong(code, habit) == ["two helpers: no fact 'adds_traced' in hybridize"]
    assert wrong(fact, habit) == ["two helpers: no code 'add' in hybridize"]
    assert wrong(fact, code) == ["""the export: no habit 'net.export("my_mlp")' in hybridize"""]
    assert wrong(fact, code, habit, claim) == ["no row for hybridize's claim 'It adds'"]
    assert wrong(fact, code, habit, page=named) == ["two helpers: no claim 'It *' in hybridize"]
    assert len(untold(RIGHT, {})) == 4


@pytest.mark.real
def test_all_that_the_page_names_is_in_the_results():
    folder = os.environ.get("JAXPERF_RESULTS")
    if not folder:
        pytest.skip("JAXPERF_RESULTS names no folder of results")
    names = [s.name for s in catalogue.SECTIONS if s.name != "peers"]
    results = {name: load_result(Path(folder, f"{name}.json")) for name in names}
    assert not untold(PAGE.read_text(encoding="utf-8"), results)
