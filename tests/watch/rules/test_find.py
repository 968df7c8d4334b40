"""What is reported is worth a twentieth of the run."""

from __future__ import annotations

import pytest

from jaxperf.watch.observe.sampler import IMPORT, StackSample
from jaxperf.watch.observe.source_location import NOWHERE, Place
from jaxperf.watch.report.analysis import Analysis
from jaxperf.watch.rules import table as find
from jaxperf.watch.rules.table import Finding
from jaxperf.watch.session import Record

AT = Place("a.py", 3)


@pytest.mark.parametrize(
    ("wall_s", "imports_s", "seconds", "memory_bytes", "reported"),
    [
        (10.0, 0.0, 0.6, 0, 0.6),
        (10.0, 0.0, 0.4, 0, None),
        (10.0, 4.0, 0.4, 0, 0.4),  # of 6 s without the imports
        (0.2, 0.0, 0.015, 0, None),  # too short to read a line about
        (10.0, 0.0, 0.0, find.LARGE, 0.0),
        (10.0, 0.0, 50.0, 0, 10.0),  # never more than the run
    ],
)
def test_a_finding_is_worth_a_twentieth_of_the_run_without_imports(
    wall_s: float,
    imports_s: float,
    seconds: float,
    memory_bytes: int,
    reported: float | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    samples = [StackSample(IMPORT, NOWHERE, 0.0, imports_s)]
    analysis = Analysis(Record("a", 0.0, wall_s, samples=samples))
    finding = Finding("wait", AT, seconds, "", memory_bytes=memory_bytes)
    monkeypatch.setattr(find, "RULES", (lambda _: iter([finding]),))
    assert [f.seconds for f in find.find_causes(analysis)] == ([] if reported is None else [reported])
