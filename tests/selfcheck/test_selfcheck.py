"""`jaxperf selfcheck`: a result like any other."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pytest

from jaxperf.chapter.recorder import Recorder
from jaxperf.cli import command_line
from jaxperf.measure import measure
from jaxperf.report.terminal import render_text
from jaxperf.result import Environment, Grid, Lines, Measurement, Result, load_result
from jaxperf.selfcheck import command, known, telling, verdicts
from jaxperf.selfcheck.config import Config

TINY = Config(known_s=(1e-5, 1e-3), trials=2, rounds=6, values=6, numbers=(6,), least=6, budget_s=0)


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Result:
    folder = tmp_path_factory.mktemp("selfcheck")
    quick = partial(measure, warmup_s=0, budget_s=0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "QUICK", TINY)
        patch.setattr(known, "measure", quick)
        patch.setitem(telling.QUICKEST, known.called_back, 1e-3)
        patch.setattr(verdicts, "measure", quick)
        patch.setattr("sys.argv", ["jaxperf"])
        assert command_line.main(["selfcheck", "--out", str(folder)]) == 0
    return load_result(folder / "selfcheck.json")


def test_it_tells_every_part_idle_and_loaded(result: Result) -> None:
    assert result.experiment == "selfcheck"
    assert result.command == "jaxperf selfcheck"
    known_claims, rule_claims = result.claims[0::5], [*result.claims[1:5], *result.claims[6:]]
    assert [("idle" in c.statement, "loaded" in c.statement) for c in known_claims] == [(1, 0), (0, 1)]
    assert len(rule_claims) == 8
    assert sum("under load" in c.statement for c in rule_claims) == 4


def test_every_way_of_knowing_is_in_the_grid(result: Result) -> None:
    idle, loaded = [g for g in result.of(Grid) if g.title.startswith("Measured and known")]
    assert [row[0] for row in idle.rows] == [
        "counted, 10 us", "counted, 1 ms", "clocked, 10 us", "clocked, 1 ms", "called back, 1 ms",
    ]  # fmt: skip
    assert [row[0] for row in loaded.rows] == ["clocked, 10 us", "clocked, 1 ms"]


def test_what_is_not_to_be_trusted_is_not_judged_under_load(monkeypatch: pytest.MonkeyPatch) -> None:
    right, wrong = (1.0,) * 12, (2.0,) * 12
    for values, disturbed, verdict, observed in (
        ((right, wrong), (0, 0), "does not hold", "outside: b; not to be trusted: none"),
        ((right, wrong), (0, 12), "holds", "outside: none; not to be trusted: b"),
        ((right, wrong), (0, 5), "does not hold", "outside: b; not to be trusted: none"),
        ((wrong, wrong), (12, 12), "undecided", "outside: none; not to be trusted: a and b"),
    ):
        rows = [Measurement(n, "s", v, disturbed=d) for n, v, d in zip("ab", values, disturbed)]
        checked = [known.Checked(1.0, row) for row in rows]
        monkeypatch.setattr(telling, "_checked", lambda *_, checked=checked: checked)
        monkeypatch.setattr(telling, "cores_busy", lambda count: nullcontext())
        recorder = Recorder(command.SECTION, Environment(), {}, command="")
        telling.known_durations_loaded(recorder, TINY)
        (claim,) = recorder.result().claims
        assert (claim.verdict, claim.observed.rsplit(";", 1)[0]) == (verdict, observed)


def test_the_grid_counts_what_was_set_aside() -> None:
    for m, cell in (
        (Measurement("m", "s", (1.0,)), ""),
        (Measurement("m", "s", (1.0,) * 3, set_aside=(2.0, 2.0)), "2 of 5"),
        (Measurement("m", "s", (1.0,) * 3, disturbed=1), ""),
        (Measurement("m", "s", (1.0,) * 3, disturbed=2), "not to be trusted"),
    ):
        assert telling._set_aside(m) == cell


def test_a_curve_per_difference_for_both_rules(result: Result) -> None:
    figures = list(result.of(Lines))
    titles = "Measured over known", "Told apart by Ratio", "Told apart by compare"
    assert [f.title for f in figures] == [*titles, f"{titles[0]} under load"]
    for figure in figures[1:3]:
        assert [curve.name for curve in figure.curves] == ["0%", "2%", "5%", "10%", "20%"]
        assert all(0 <= y <= 1 for curve in figure.curves for _, y in curve.known)


def test_the_terminal_shows_it(result: Result) -> None:
    shown = render_text([result])
    for text in ("The instruments checked", "counted, 1 ms", "tells equal programs apart"):
        assert text in shown


def test_mistakes_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    for arguments, message in (
        (["--trials", "0"], "--trials is 0; give at least 1"),
        (["--out", str(tmp_path / "file")], "cannot write"),
    ):
        assert command_line.main(["selfcheck", *arguments]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
