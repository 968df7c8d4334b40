"""benchmarks/field: programs are read from clones, edited, and judged as the table says."""

from __future__ import annotations

import dataclasses
import importlib
import json
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import children
import pytest
from scripts import load

from jaxperf.errors import JaxperfError

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOK = {
    "cells": [
        {"cell_type": "markdown", "source": ["# title\n"]},
        {"cell_type": "code", "source": ["%matplotlib inline\n", "x = 1\n", "%time y = x + 1"]},
        {"cell_type": "code", "source": "print(x, y)\nraise SystemExit(3)"},
    ]
}
PAGE = """# Title

```{code-cell} ipython3
:tags: [hide-output]

x = 2
```

```python
print(x)
```
"""


@pytest.fixture
def field(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    for folder in ("docs", "benchmarks", "benchmarks/field"):
        monkeypatch.syspath_prepend(str(ROOT / folder))
    return importlib.import_module("field_table")


@pytest.fixture
def clones(tmp_path: Path) -> Path:
    """Return a folder with a clone of a repository that has a notebook and a page."""
    repository = tmp_path / "clones" / "owner+name"
    repository.mkdir(parents=True)
    (repository / "notebook.ipynb").write_text(json.dumps(NOTEBOOK))
    (repository / "page.md").write_text(PAGE)
    (repository / "helper.py").write_text("WIDTH = 9\n")
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "programs"]):
        settings = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        subprocess.run(["git", "-C", str(repository), *settings, *words], check=True, capture_output=True)
    return repository.parent


def entry(field: ModuleType, **values: Any) -> Any:
    return field._program("one", {"repository": "owner/name", "commit": "HEAD", "environment": "e", **values})


def test_the_table_names_only_what_is_there(field: ModuleType) -> None:
    programs, environments = field.read_table()
    assert programs and environments
    for program in programs.values():
        for stand_in in program.stand_ins:
            assert (field.STAND_INS / f"{stand_in.partition(':')[0]}.py").is_file()
        assert len({repair.name for repair in program.repairs}) == len(program.repairs)


def test_a_notebook_becomes_a_script_and_its_lines_are_found_again(
    field: ModuleType, clones: Path, tmp_path: Path
) -> None:
    program = entry(field, path="notebook.ipynb", edits=[["x = 1", "x = 5"]])
    script = field.make_ready(program, clones, tmp_path / "made")
    done = children.run(script)
    assert (done.returncode, done.stdout) == (3, "5 6\n")
    line = script.read_text().splitlines().index("print(x, y)") + 1
    assert field.place_in(line, script.with_suffix(".ipynb")) == "cell 2, line 1"


def test_an_edit_may_name_a_module_beside_the_script(field: ModuleType, clones: Path, tmp_path: Path) -> None:
    edits = [["x = 1", "from helper import WIDTH as x"], ["WIDTH = 9", "WIDTH = 3", "helper.py"]]
    program = entry(field, path="notebook.ipynb", folder=".", edits=edits)
    assert children.run(field.make_ready(program, clones, tmp_path / "made")).stdout == "3 4\n"
    with pytest.raises(JaxperfError, match="'absent' occurs 0 times"):
        field.make_ready(program, clones, tmp_path / "again", field._edits([["absent", "", "helper.py"]]))


def test_a_page_keeps_its_line_numbers(field: ModuleType, clones: Path, tmp_path: Path) -> None:
    script = field.make_ready(entry(field, path="page.md"), clones, tmp_path / "made")
    assert script.read_text().splitlines()[PAGE.splitlines().index("print(x)")] == "print(x)"
    assert children.run(script).stdout == "2\n"


@pytest.mark.parametrize(
    ("edits", "problem"),
    [
        ([["absent", ""]], "occurs 0 times"),
        ([["x", "y"]], "occurs 4 times"),
        ([["x = 1", "", 1]], "line 1 does not contain"),
    ],
)
def test_an_edit_that_does_not_fit_is_an_error(
    edits: list[list[Any]], problem: str, field: ModuleType, clones: Path, tmp_path: Path
) -> None:
    with pytest.raises(JaxperfError, match=problem):
        field.make_ready(entry(field, path="notebook.ipynb", edits=edits), clones, tmp_path / "made")


def test_a_missing_clone_is_named_with_the_way_to_get_it(field: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(JaxperfError, match="git clone --bare"):
        field.make_ready(entry(field, path="page.md"), tmp_path, tmp_path / "made")


@pytest.mark.parametrize(
    ("plain", "watched", "again", "same"),
    [
        ("loss 1.5", "loss 1.5", None, True),
        ("took 3 s, loss 1.5", "took 9 s, loss 1.5", "took 4 s, loss 1.5", True),
        ("took 3 s, loss 1.5", "took 9 s, loss 1.6", "took 4 s, loss 1.5", False),
        ("took 3.1 s", "took 9s", None, True),  # a time
        ("1/2 \b\b\b\n2/2 1s", "2/2 3s", None, True),  # progress bars
        ("|█--| 50% [1/2]\n2", "2", None, True),
        ("loss 1.5", "loss 1.6", None, False),
        ("loss 1.5", "loss 1.5 and more", "loss 1.5", False),
        ("turn 1\nturn 2", "turn 1", "turn 1\nturn 2\nturn 3", True),  # the number of lines varies by itself
        ("turn 1\nturn 2", "failed", "turn 1\nturn 2\nturn 3", False),
    ],
)
def test_output_is_the_same_but_for_what_varies_by_itself(
    plain: str,
    watched: str,
    again: str | None,
    same: bool,
    field: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = load("field_run", ROOT / "benchmarks" / "field" / "run.py", monkeypatch)
    assert run.same_output(plain, watched, again) == same


@pytest.mark.parametrize(
    ("after", "likeness"),
    [("loss 1.5", "same"), ("loss 1.5001", "close"), ("loss 1.6", "other"), ("loss 1.5 nan", "other")],
)
def test_a_change_may_alter_last_digits(
    after: str, likeness: str, field: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = load("field_run", ROOT / "benchmarks" / "field" / "run.py", monkeypatch)
    assert run.likeness("loss 1.5", after, "loss 1.5") == likeness


def watched(**values: Any) -> dict[str, Any]:
    return {
        "status": [0, 0],
        "same_output": True,
        "cpu_s": [2.0, 2.1],
        "others": 0.0,
        "findings": [],
        **values,
    }


FINDING = {"cause": "wait", "line": 7, "title": "a wait", "place": "line 7", "saves": "1 s"}


def test_the_page_counts_verdicts_causes_and_gains(field: ModuleType) -> None:
    page = importlib.import_module("field_page")
    program = entry(
        field, path="a.py", findings=[{"cause": "wait", "line": 7, "verdict": "true"}],
        slow=[{"what": "a", "share": 0.3, "found": "finding"}, {"what": "b", "share": 0.2, "found": "no"}],
        repairs=[{"name": "wait", "what": "wait once", "printed": True, "edits": []}],
    )  # fmt: skip
    times = {"": {"cpu_s": [3.0] * 6}, "wait": {"cpu_s": [2.0] * 6, "status": 0, "output": "same"}}
    log = {
        "made": "2026-11-28", "machine": {"cpu": "CPU", "cores": 2},
        "programs": {"one": {"watch": watched(findings=[FINDING, FINDING | {"line": 8}]), "repairs": times}},
    }  # fmt: skip
    text = page.page(log, {"one": program})
    assert "1 of 1, 100%; 1 not judged" in text  # verdicts
    assert "1 of 2, 50%" in text  # causes
    assert "1 of 1 tried; an interval proves 1" in text and "1.50 (1.50 to 1.50)" in text
    times["wait"]["output"] = "other"  # faster, but not the same program any more
    assert "0 of 1 tried; an interval proves 0" in page.page(log, {"one": program})
    times["wait"]["output"] = "close"
    for verdict, tried in (("half", 0), ("true", 1)):  # advice that is half true cannot be followed as it is
        judged = dataclasses.replace(program.findings[0], verdict=verdict)
        text = page.page(log, {"one": dataclasses.replace(program, findings=(judged,))})
        assert f"{tried} of {tried} tried" in text
    log["programs"]["one"]["watch"] |= {"status": [0, 1]}
    assert "| 0 | 1, one |" in page.page(log, {"one": program})


def test_the_page_is_that_of_the_kept_log(field: ModuleType) -> None:
    page = importlib.import_module("field_page")
    kept = json.loads(page.KEPT.read_text())
    assert page.PAGE.read_text() == page.page(kept, field.read_table()[0]), "run: python docs/field_page.py"
