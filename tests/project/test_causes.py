"""benchmarks/versions/causes.py: what a version makes of a program, in a word, and the page."""

import json
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import scripts

from jaxperf.watch.findings_json import fields
from jaxperf.watch.observe.source_location import Place
from jaxperf.watch.rules.table import Finding

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks" / "versions"


@pytest.fixture
def causes(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    scripts.load("run", FOLDER / "run.py", monkeypatch)  # not the comparison of frameworks, of that name, too
    return scripts.load("causes", FOLDER / "causes.py", monkeypatch)


@pytest.mark.parametrize(
    ("version", "answer", "word"),
    [
        ("0.8.2", {"status": 0, "findings": [["sync", 7], ["new jit", 5]]}, "yes"),
        ("0.8.2", {"status": 0, "findings": [["new jit", 6]]}, "other"),
        ("0.10.2", {"status": 0, "findings": []}, "-"),
        ("0.7.2", {"status": 0, "findings": []}, "-"),
        ("0.7.2", {"status": 0, "findings": [["new jit", 5]]}, "FAILED"),  # it cannot know that
        ("0.5.3", {"status": 1, "alone": 1, "error": "no jax.P"}, "no such API"),
        ("0.9.2", {"status": 1, "alone": 0, "error": "ValueError"}, "FAILED"),
        ("0.9.2", {"status": 0, "error": "Traceback"}, "FAILED"),
    ],
)
def test_a_version_has_a_word_for_each_program(
    causes: ModuleType, version: str, answer: dict[str, Any], word: str
) -> None:
    entry = {"cause": "new jit", "line": 5, "versions": {version: answer}}
    assert causes.verdict(entry, version) == word


@pytest.mark.parametrize(
    ("version", "answer", "again"),
    [
        ("0.9.2", None, True),
        ("0.9.2", {"status": 0, "findings": [["new jit", 5]], "runs": 1}, False),
        ("0.9.2", {"status": 0, "findings": [], "runs": 2}, True),
        ("0.9.2", {"status": 0, "findings": [], "runs": 3}, False),
        ("0.9.2", {"status": 1, "alone": 0, "error": "ValueError", "runs": 1}, False),
        ("0.7.2", {"status": 0, "findings": [], "runs": 1}, False),
    ],
)
def test_a_cause_that_was_missed_has_further_runs(
    causes: ModuleType, version: str, answer: dict[str, Any] | None, again: bool
) -> None:
    entry = {"cause": "new jit", "line": 5, "versions": {version: answer} if answer else {}}
    assert causes.wants_a_run(entry, version) == again


def test_a_report_is_read_as_watch_writes_it(
    causes: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def run(command: list[str], devices: int, folder: Path) -> tuple[int, str]:
        found = fields(Finding("wait", Place("a.py", 7), 1.0, "it waits", "float"), 2.0)
        Path(command[command.index("--json") + 1]).write_text(json.dumps({"findings": [found]}))
        return 0, ""

    monkeypatch.setattr(causes, "_run", run)
    version = SimpleNamespace(python="python")
    assert causes.watched(version, Path("a.py"), 1, tmp_path) == {"status": 0, "findings": [["wait", 7]]}


def test_the_page_counts_what_each_version_names(causes: ModuleType) -> None:
    found, no_api = {"status": 0, "findings": [["x", 1]]}, {"status": 1, "alone": 1}
    log = {
        "versions": {"0.10.2": {"python": "3.12.1", "flax": "0.12.8"}, "0.8.2": {"python": "3.12.1"}},
        "programs": {
            "a": {"cause": "x", "line": 1, "versions": {"0.8.2": no_api, "0.10.2": found}},
            "b": {"cause": "y", "line": 9, "versions": {"0.8.2": found, "0.10.2": found}},
        },
    }
    rows = [line.split(" | ") for line in causes.page(log).splitlines() if line.startswith("| ")]
    assert rows[0] == ["| program and its cause", "0.8.2", "0.10.2 |"]
    assert rows[2:] == [
        ["| a: x", "no such API", "yes |"], ["| b: y", "other", "other |"],
        ["| named", "0", "1 |"], ["| of those that run", "1", "2 |"],
    ]  # fmt: skip
