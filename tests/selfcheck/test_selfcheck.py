"""`jaxperf selfcheck`: a result like any other, whose claims are decided with ten trials too."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from jaxperf.cli import command_line
from jaxperf.measure import measure
from jaxperf.measure.other_load import OtherLoad
from jaxperf.result import Environment, Grid, Measurement, Result, load_result
from jaxperf.result.recorder import Recorder
from jaxperf.result.terminal import render_text
from jaxperf.selfcheck import checks, known, verdicts
from jaxperf.selfcheck.verdicts import Counts


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Result:
    folder = tmp_path_factory.mktemp("selfcheck")
    quick = partial(measure, warmup_s=0, budget_s=0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checks, "Checks", lambda: checks.FULL.__class__((1e-5, 1e-3), trials=2))
        patch.setattr(known, "measure", quick)
        patch.setattr(known, "ROUNDS", known.LEAST_ROUNDS)
        patch.setitem(checks.QUICKEST, known.called_back, 1e-3)
        patch.setattr(verdicts, "measure", quick)
        patch.setattr(verdicts, "in_rounds", lambda parts, **_: verdicts.interleaved(parts, count=6))
        patch.setattr("sys.argv", ["jaxperf"])
        assert command_line.main(["selfcheck", "--out", str(folder)]) == 0
    return load_result(folder / "selfcheck.json")


def test_the_result_has_every_way_of_knowing_and_five_claims(result: Result) -> None:
    assert (result.experiment, result.command) == ("selfcheck", "jaxperf selfcheck")
    durations, *rules = result.of(Grid)
    assert [row[0] for row in durations.rows] == [
        "counted, 10 us", "counted, 1 ms", "clocked, 10 us", "clocked, 1 ms", "called back, 1 ms",
    ]  # fmt: skip
    assert [[row[0] for row in grid.rows] for grid in rules] == [["equal", "5 %"]] * 2
    assert len(result.claims) == 5
    shown = render_text([result])
    for text in ("The instruments checked", "counted, 1 ms", "tells equal programs apart"):
        assert text in shown


@pytest.mark.parametrize(
    ("apart", "finds", "others", "verdict"),
    [
        (0, 10, 0.0, ["holds", "holds"]),
        (4, 10, 0.0, ["does not hold", "holds"]),
        (1, 5, 0.0, ["holds", "does not hold"]),
        (0, 0, 1.0, ["holds", "not measurable here"]),  # a busy machine
    ],
)
def test_ten_trials_decide_both_claims(apart: int, finds: int, others: float, verdict: list[str]) -> None:
    recorder = Recorder(checks.SECTION, Environment(), {}, command="")
    counts = [Counts("equal", apart, 0, 10 - apart), Counts("5 %", finds, 0, 10 - finds)]
    checks._judge(recorder, "`Ratio`", counts, OtherLoad(others=others))
    assert [c.verdict for c in recorder.result().claims] == verdict


def test_the_grid_counts_what_was_set_aside() -> None:
    for m, cell in (
        (Measurement("m", "s", (1.0,)), ""),
        (Measurement("m", "s", (1.0,) * 3, set_aside=(2.0, 2.0)), "2 of 5"),
        (Measurement("m", "s", (1.0,) * 3, disturbed=1), ""),
        (Measurement("m", "s", (1.0,) * 3, disturbed=2), "not to be trusted"),
    ):
        assert checks._set_aside(m) == cell


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
