import os
import sys
from pathlib import Path

import pytest
import scripts

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "versions" / "run.py"


@pytest.fixture
def run(monkeypatch):
    # By its path: the comparison of frameworks has a module of this name, too
    return scripts.load("versions_run", SCRIPT, monkeypatch)


@pytest.fixture
def two(run, tmp_path):
    installed = run._installed(Path(sys.executable))
    return [run.Version(name, Path(sys.executable), installed, tmp_path / name) for name in ("a", "b")]


def test_each_kind_of_probe_has_its_answer_from_each_version(run, two):
    kinds = {
        "empty_program": "values", "compiling_a_perceptron": "values", "rows_shifted_in_place": "wrong",
        "memory_of_a_transformer_step": "bytes",
    }  # fmt: skip
    try:
        for name, key in kinds.items():
            answers, others = run.run_probe(name, "time", two, 2, 0.01)
            assert [list(answer) for answer in answers.values()] == [[key], [key]] and others >= 0
            for rows in (answer["values"] for answer in answers.values() if key == "values"):
                assert all(len(values) == 2 and min(values) > 0 for values in rows.values())
                assert set(rows) in ({""}, {"trace", "lower", "compile"})
    finally:
        for version in two:
            version.close()


def test_a_process_that_dies_is_said_and_the_next_probe_has_a_new_one(run, two):
    version = two[0]
    try:
        version.ask({"prepare": "empty_program"})
        os.kill(version.worker.pid, 11)
        answers, _ = run.run_probe("empty_program", "time", [version], 1, 0.01)
        assert "signal 11" in answers["a"]["ended"]
        answers, _ = run.run_probe("empty_program", "time", [version], 1, 0.01)
        assert answers["a"]["values"]
    finally:
        version.close()


def test_what_a_version_cannot_run_says_why(run, two):
    version = two[0]
    try:
        assert "KeyError" in version.ask({"prepare": "no such probe"})["cannot"]
        assert version.ask({"prepare": "empty_program"}) == {}
    finally:
        version.close()
