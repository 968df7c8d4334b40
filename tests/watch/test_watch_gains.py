"""The gains of the repairs: each slow program is measured, and its row is in the docs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from studies import study

from jaxperf.errors import JaxperfError

ROOT = Path(__file__).parents[2]


def test_every_slow_program_has_a_row_with_its_gain() -> None:
    pairs = study("watch_gains").PAIRS
    text = (ROOT / "docs" / "watch.md").read_text()
    table = text[text.index("| program | slow | repaired | gain |") :]
    measured = r"[\d.]+ s \| [\d.]+ s \| [\d.]+ \([\d.]+ to [\d.]+\)"
    rows = re.findall(rf"^\| (\S+)(?: \*)? \| (?:{measured}|- \| - \| not measured) \|$", table, re.M)
    assert rows == sorted(rows[:-1]) + rows[-1:]
    assert {*rows} == {*pairs}


def test_every_program_has_a_repaired_twin() -> None:
    assert [
        name for name, (_, repaired) in study("watch_gains").PAIRS.items() if not repaired.is_file()
    ] == []


def test_an_unknown_program_is_one_line_with_those_there_are() -> None:
    with pytest.raises(JaxperfError, match="no program nosuch; there are accidental_float64, "):
        study("watch_gains").Config(only=("nosuch",))
