"""Results as CSV and for pyperf: every value is there, exactly."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from jaxperf import cli
from jaxperf.compare.export import to_csv, to_pyperf
from jaxperf.result import Environment, Heading, Measurement, Result, Table, save_result

STEP = Measurement("step, jit", "s", (0.1, 1 / 3), warmup=(0.5,), loops=10, set_aside=(0.9,))
RESULT = Result(
    "hybridize", "8.1", "T", "Q?", {}, Environment(),
    (Table("Times", (STEP, Measurement("size", "bytes", (64.0,)))), Heading("Part"),
     Table("", (Measurement("step, jit", "s", (2.0,)), Measurement("rate", "images/s", (5.0,))))),
)  # fmt: skip


def test_csv_has_a_line_for_every_value_with_all_its_digits() -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv([RESULT]))))
    assert [(r["measurement"], float(r["value"]), r["warmup"] + r["set_aside"]) for r in rows[:4]] == [
        ("Times: step, jit", 0.5, "10"), ("Times: step, jit", 0.1, "00"), ("Times: step, jit", 1 / 3, "00"),
        ("Times: step, jit", 0.9, "01"),
    ]  # fmt: skip
    assert rows[0]["section"] == "hybridize" and rows[0]["loops"] == "10" and rows[1]["round"] == "0"
    assert [(r["measurement"], r["unit"]) for r in rows[4:]] == [
        ("size", "bytes"), ("Part: step, jit", "s"), ("rate", "images/s"),
    ]  # fmt: skip


def test_pyperf_gets_the_times_and_sizes_of_all_results_as_runs() -> None:
    suite = json.loads(to_pyperf([RESULT, RESULT]))
    by_name = {b["metadata"]["name"]: b for b in suite["benchmarks"]}
    assert suite["version"] == "1.0" and len(by_name) == 3  # no unit of pyperf's for images per second
    step = by_name["hybridize: Times: step, jit"]
    assert step["metadata"] == {"name": "hybridize: Times: step, jit", "unit": "second", "loops": 10}
    assert step["runs"] == [{"values": [0.1, 1 / 3], "warmups": [[10, 0.5]]}] * 2
    assert by_name["hybridize: size"]["metadata"]["unit"] == "byte"


@pytest.mark.parametrize("kind", ["csv", "pyperf"])
def test_report_prints_nothing_but_the_export(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_result(RESULT, tmp_path / "hybridize.json")
    assert cli.main(["report", str(tmp_path), "--format", kind]) == 0
    assert capsys.readouterr().out == {"csv": to_csv, "pyperf": to_pyperf}[kind]([RESULT])
