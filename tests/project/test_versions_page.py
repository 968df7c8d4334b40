import importlib
import json
from pathlib import Path

import pytest

from jaxperf.known_faults import FAULTS

ROOT = Path(__file__).resolve().parents[2]
LOOP = next(fault for fault in FAULTS if "40101" in fault.issue)


@pytest.fixture
def versions_page(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    return importlib.import_module("versions_page")


def log(**versions):
    answers = {name.removeprefix("v").replace("_", "."): answer for name, answer in versions.items()}
    probe = {
        "kind": "time", "family": "loops", "about": "A *path* of `x_y`", "issue": LOOP.issue, "told": "a|b",
        "others": 0.0, "versions": answers,
    }  # fmt: skip
    return {
        "schema": 1, "made": "2026-11-28", "machine": {"cpu": "CPU", "cores": 2}, "busy_cores": 0.25,
        "settings": {}, "versions": {name: {} for name in answers}, "probes": {LOOP.probe: probe},
    }  # fmt: skip


def times(*values):
    return {"values": {"": list(values)}}


def test_the_page_is_that_of_the_kept_log(versions_page):
    kept = json.loads(versions_page.KEPT.read_text())
    assert versions_page.PAGE.read_text() == versions_page.page(kept), "run: python docs/versions_page.py"
    for family in {probe["family"] for probe in kept["probes"].values()}:
        if versions_page.timed(kept, family):
            assert (ROOT / "docs" / versions_page._plot(family)).is_file()


@pytest.mark.parametrize(
    ("older", "newest", "shown"),
    [
        ([2.0] * 6, [1.0] * 6, "**2.00**"),  # every round agrees
        ([0.5] * 6, [1.0] * 6, "**0.50**"),
        ([1.2] * 6, [1.0] * 6, "1.20"),  # below the limit
        ([2.0] * 5, [1.0] * 5, "2.00"),  # too few rounds for an interval
        ([2.0, 2.0, 2.0, 2.0, 2.0, 1.0], [1.0] * 6, "2.00"),  # the interval contains 1.3
    ],
)
def test_only_what_an_interval_proves_is_bold(older, newest, shown, versions_page):
    page = versions_page.page(log(v0_10_2=times(*older), v0_11_0=times(*newest)))
    row = next(line for line in page.splitlines() if line.startswith("| A \\*path\\* of `x_y`"))
    assert row.split(" | ")[1] == shown


@pytest.mark.parametrize(
    ("answers", "shown"),
    [
        ({"v0_11_0": times(1), "v0_11_1": times(9), "v0_12_0": times(1)}, "yes, on 0.11.1"),
        ({"v0_11_0": times(1), "v0_11_1": times(1), "v0_12_0": times(1)}, "no, not on 0.11.1"),
        # slower than later versions only: something else became faster
        ({"v0_11_0": times(9), "v0_11_1": times(9), "v0_12_0": times(1)}, "no, not on 0.11.1"),
        ({"v0_11_0": times(1), "v0_11_1": {"ended": "signal 11"}}, "yes, on 0.11.1"),
        ({"v0_11_0": times(1), "v0_12_0": times(1)}, "no affected version in this run"),
        ({"v0_11_1": times(1)}, "all versions here have it, so that none shows it"),
    ],
)
def test_a_fault_is_shown_by_the_versions_that_have_it(answers, shown, versions_page):
    assert versions_page.shown_by(LOOP, log(**answers)) == shown
