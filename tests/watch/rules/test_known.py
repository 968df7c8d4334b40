import pytest

from jaxperf.watch.log import Compiled, Log, Wait
from jaxperf.watch.observe.executables import Facts
from jaxperf.watch.observe.source_location import Place
from jaxperf.watch.report.analysis import Analysis
from jaxperf.watch.rules import programs
from jaxperf.watch.rules.table import advice_for, find_causes
from tests.test_known_faults import PATH, ROWS, SCATTER


def run(text, platform="cpu"):
    """Return a run of 9 s, of which the front end waited 8 s for a program that no window saw."""
    name = text.partition(",")[0].removeprefix("HloModule jit_")
    at = Place("b.py", 3)
    call = Compiled(name, at, {"trace": (0.1, 0.2), "compile": (0.2, 0.5)}, True)
    facts = Facts(name, platform, 1, 1, text=text)
    waits = [Wait("float", at, 1.0, 9.0, 4)]
    return Analysis(Log("b.py", 0.0, 9.0, compiled=[call], programs=[facts], waits=waits))


@pytest.mark.parametrize(("version", "count"), [("0.11.1", 1), ("0.11.0", 0), ("0.12.0.1", 0)])
def test_a_slow_program_has_a_finding_with_its_line(version, count, monkeypatch):
    monkeypatch.setattr("importlib.metadata.version", lambda _: version)
    findings = [f for f in find_causes(run(PATH)) if f.cause == "known fault"]
    assert len(findings) == count
    for finding in findings:
        assert (finding.at.file, finding.at.line) == ("a.py", 12)
        assert 7.5 < finding.seconds < 8.0
        assert "jax-ml/jax#40101" in finding.reason and version in finding.reason
        assert "jaxlib 0.11.0" in advice_for(finding).change
    assert not list(programs.fault_notes(run(PATH)))


@pytest.mark.parametrize(("version", "count"), [("0.10.2", 1), ("0.10.1", 0)])
def test_a_program_that_may_be_wrong_has_a_note(version, count, monkeypatch):
    monkeypatch.setattr("importlib.metadata.version", lambda _: version)
    analysis = run(ROWS)
    notes = list(programs.fault_notes(analysis))
    assert len(notes) == count
    assert all("jax-ml/jax#39103" in note and "some rows are wrong" in note for note in notes)
    assert not [f for f in find_causes(analysis) if f.cause == "known fault"]


@pytest.mark.parametrize(("platform", "count"), [("gpu", 1), ("cpu", 0), ("tpu", 0)])
def test_a_fault_of_gpus_is_none_on_others(platform, count, monkeypatch):
    monkeypatch.setattr("importlib.metadata.version", lambda _: "0.10.2")
    faults = [fault.issue for fault, *_ in programs.met_faults(run(SCATTER, platform))]
    assert sum("38806" in issue for issue in faults) == count
