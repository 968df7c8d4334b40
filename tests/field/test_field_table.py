import importlib
import json
import subprocess
from pathlib import Path

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


@pytest.fixture
def field(monkeypatch):
    for folder in ("docs", "benchmarks", "benchmarks/field"):
        monkeypatch.syspath_prepend(str(ROOT / folder))
    return importlib.import_module("field_table")


def test_the_table_names_only_what_is_there(field):
    programs, environments = field.read_table()
    assert programs and environments
    for program in programs.values():
        for stand_in in program.stand_ins:
            assert (field.STAND_INS / f"{stand_in.partition(':')[0]}.py").is_file()
        assert len({repair.name for repair in program.repairs}) == len(program.repairs)


def test_an_edit_may_name_a_module_beside_the_script(field, tmp_path):
    clones = tmp_path / "clones"
    repository = clones / "owner+name"
    repository.mkdir(parents=True)
    (repository / "notebook.ipynb").write_text(json.dumps(NOTEBOOK))
    (repository / "helper.py").write_text("WIDTH = 9\n")
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "programs"]):
        settings = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        subprocess.run(["git", "-C", str(repository), *settings, *words], check=True, capture_output=True)
    edits = [["x = 1", "from helper import WIDTH as x"], ["WIDTH = 9", "WIDTH = 3", "helper.py"]]
    place = {"repository": "owner/name", "commit": "HEAD", "path": "notebook.ipynb", "folder": "."}
    program = field._program("one", {**place, "environment": "e", "edits": edits})
    assert children.run(field.make_ready(program, clones, tmp_path / "made")).stdout == "3 4\n"
    with pytest.raises(JaxperfError, match="'absent' occurs 0 times"):
        field.make_ready(program, clones, tmp_path / "again", field._edits([["absent", "", "helper.py"]]))


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
def test_output_is_the_same_but_for_what_varies_by_itself(plain, watched, again, same, field, monkeypatch):
    run = load("field_run", ROOT / "benchmarks" / "field" / "run.py", monkeypatch)
    assert run.same_output(plain, watched, again) == same


def test_runs_that_write_one_log_keep_what_the_other_has_written(field, monkeypatch, tmp_path):
    run = load("field_run", ROOT / "benchmarks" / "field" / "run.py", monkeypatch)
    log = tmp_path / "log.json"
    for name, part in (
        ("hmm", {"watch": {"cpu_s": [1.0, 1.1]}}),
        ("vae", {"watch": {}}),
        ("hmm", {"repairs": {"jit": {"cpu_s": [2.0]}}}),
        ("hmm", {"repairs": {"init": {"cpu_s": [3.0]}}}),
    ):
        run._keep(log, name, part)
    kept = json.loads(log.read_text())["programs"]
    assert kept["hmm"] == {
        "watch": {"cpu_s": [1.0, 1.1]}, "repairs": {"jit": {"cpu_s": [2.0]}, "init": {"cpu_s": [3.0]}}
    }  # fmt: skip
    assert kept["vae"] == {"watch": {}}


def test_the_page_is_that_of_the_kept_log(field):
    page = importlib.import_module("field_page")
    kept = json.loads(page.KEPT.read_text())
    assert page.PAGE.read_text() == page.page(kept, field.read_table()[0]), "run: python docs/field_page.py"
