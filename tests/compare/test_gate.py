import json
import re
import shlex
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from disks import fill

from jaxperf import cli
from jaxperf.compare.gate import load_baseline, run_once, store_baseline
from jaxperf.errors import JaxperfError
from jaxperf.result import Environment, Measurement, Result, Table, save_result
from jaxperf.result.record import SCHEMA_VERSION

MACHINE = Environment(cpu="Z80", cores=2, backend="cpu")
# A command that writes recorded results, one per process: the next file of a folder to the path it is given.
COPY = """
for left in "$2"/*.json; do
  echo "said by the command"
  cp "$left" "$1"
  mv "$left" "$left.used"
  exit
done
"""


def recorded(folder, median, *, spread=0.001, **changes):
    """A folder of four results as processes would leave them; `changes` are fields of the result."""
    for i in range(4):
        values = tuple(median * (1 + spread * i + 1e-5 * k) for k in range(5))
        result = Result("measure", "", "T", "Q?", {"n": 1}, MACHINE,
                        blocks=(Table("Times", (Measurement("step", "s", values),)),))  # fmt: skip
        save_result(replace(result, **changes), folder / f"{i}.json")
    return folder


@pytest.fixture(autouse=True)
def anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    Path("copy.sh").write_text(COPY)


def gate(results, *flags, runs=4):
    command = ["sh", "copy.sh", "{}", str(results)]
    return cli.main(["gate", "kept", f"--runs={runs}", *flags, "--", *command])


def test_a_baseline_is_stored_then_judged_against_and_the_status_says_how(tmp_path, capsys, monkeypatch):
    assert gate(recorded(tmp_path / "a", 1e-3), "--update") == 0
    assert [r.config for r in load_baseline(Path("kept", MACHINE.fingerprint))] == [{"n": 1}] * 4
    assert "baseline stored" in capsys.readouterr().out
    page = tmp_path / "page.md"
    page.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(page))
    outcomes = {"same": (1e-3, 0.001, 0), "slower": (2e-3, 0.001, 1), "noisy": (1e-3, 0.2, 3)}
    for name, (median, spread, status) in outcomes.items():
        folder = recorded(tmp_path / name, median, spread=spread)
        assert gate(folder, f"--summary={name}.md", "--out=kept-runs") == status, name
        output = capsys.readouterr().out
        assert "said by the command" not in output and "[4/4]" in output
    assert "Not slower" in Path("same.md").read_text()
    assert "Slower: step" in Path("slower.md").read_text()
    assert "too noisy to decide" in Path("noisy.md").read_text()
    assert page.read_text() == "before\n" + "\n".join(Path(f"{n}.md").read_text() for n in outcomes) + "\n"
    assert len(load_baseline(Path("kept-runs"))) == 4


def test_the_first_run_stores_the_baseline_and_the_second_is_judged(tmp_path, capsys):
    kept = "--out=kept/runs"  # results beside the baseline are not another machine's
    assert gate(recorded(tmp_path / "a", 1e-3), kept) == 0
    assert "the next run of the same command is judged against it" in capsys.readouterr().out
    assert len(load_baseline(Path("kept", MACHINE.fingerprint))) == 4
    assert gate(recorded(tmp_path / "b", 2e-3), kept) == 1
    assert "Slower: step" in capsys.readouterr().out


def test_gate_refuses_smoke_runs(tmp_path, capfd):
    assert gate(recorded(tmp_path / "a", 1e-3, smoke=True)) == 2
    assert "smoke run, whose toy sizes decide nothing" in capfd.readouterr().err
    sides = [str(recorded(tmp_path / name, 1e-3, smoke=True)) for name in "bc"]
    assert cli.main(["compare", *sides]) == 2
    assert capfd.readouterr().err.startswith("error: measure: smoke runs, whose toy sizes decide nothing")


def test_another_machine_has_no_baseline_and_gets_one_beside_the_first(tmp_path, capsys):
    assert gate(recorded(tmp_path / "a", 1e-3), "--update") == 0
    other = replace(MACHINE, cpu="6502")
    assert gate(recorded(tmp_path / "b", 1e-3, environment=other)) == 3
    output = capsys.readouterr().out
    assert "no baseline of this machine (6502, 2 cores, cpu)" in output and MACHINE.fingerprint in output
    assert "[2/4]" not in output.split("stored")[1]  # one run tells which machine it is
    assert gate(recorded(tmp_path / "c", 9.0, environment=other), "--update") == 0
    assert {p.name for p in Path("kept").iterdir()} == {MACHINE.fingerprint, other.fingerprint}


def test_updating_replaces_the_baseline_and_says_how_it_moved(tmp_path, capsys):
    gate(recorded(tmp_path / "a", 1e-3), "--update")
    assert gate(recorded(tmp_path / "b", 2e-3), "--update") == 0
    assert "Slower: step" in capsys.readouterr().out
    assert load_baseline(Path("kept", MACHINE.fingerprint))[0].measurements[0].values[0] == 2e-3
    assert gate(recorded(tmp_path / "c", 4e-3, config={"n": 2}), "--update") == 0
    assert "lower" not in capsys.readouterr().out  # other settings, so there is nothing to judge by
    assert gate(recorded(tmp_path / "d", 4e-3, config={"n": 2})) == 0
    assert [p.name for p in Path("kept").iterdir()] == [MACHINE.fingerprint]


def test_a_full_disk_is_one_line_and_leaves_nothing(small_disk, tmp_path):
    paths = sorted(recorded(tmp_path / "a", 1.0).glob("*.json"))
    fill(small_disk)
    with pytest.raises(JaxperfError, match=r"^cannot store \S+kept/machine: No space left"):
        store_baseline(paths, small_disk / "kept" / "machine")
    assert {p.name for p in small_disk.rglob("*")} == {"ballast", "kept"}


def test_mistakes_are_one_line_and_status_2(tmp_path, capfd):
    gate(recorded(tmp_path / "a", 1e-3), "--update")
    other = recorded(tmp_path / "b", 1e-3, config={"n": 2})
    Path("file").touch()
    mistakes = [
        (["kept"], "no command given"),
        (["kept", "--", "true"], "no {} among the command's arguments"),
        (["kept", "--runs=3", "--", "true", "{}"], "--runs is 3; give at least 4"),
        (["kept", "--size=0.01", "--", "true", "{}"], "give a size above --least"),
        (["kept", "--alpha=0", "--", "true", "{}"], "--alpha is 0"),
        (["file", "--", "true", "{}"], "file is a file"),
        (["kept", "--summary=file/x.md", "--", "true", "{}"], "cannot write file/x.md"),
        (["kept", "--", "no-such-command", "{}"], "cannot start 'no-such-command'"),
        (["kept", "--", "sh", "-c", "exit 7", "{}"], "failed with status 7"),
        (["kept", "--", "sh", "-c", ":", "{}"], "wrote no result"),
        (["kept", "--", "sh", "-c", 'echo [ > "$0"', "{}"], "is not JSON"),
        (["kept", "--", "sh", "copy.sh", "{}", str(other)], "other settings: n 1, now 2"),
    ]
    for arguments, says in mistakes:
        capfd.readouterr()
        assert cli.main(["gate", *arguments]) == 2, arguments
        output = capfd.readouterr().err
        assert output.startswith("error: ") and output.count("\n") == 1 and says in output, output


def test_a_failing_command_is_shown_with_what_it_said(capfd):
    arguments = ["sh", "-c", "echo no such data; exit 1", "{}"]
    assert cli.main(["gate", "kept", "--update", "--", *arguments]) == 2
    assert capfd.readouterr().err.startswith("no such data\nerror: the command failed with status 1")
    assert not Path("kept").exists()
    Path("kept").mkdir()
    assert cli.main(["gate", "kept", "--", *arguments]) == 2
    assert Path("kept").is_dir()  # it was there before


def test_the_command_starts_with_no_signal_blocked(tmp_path):
    """Else Ctrl-C would not end it, nor `terminate` the processes that it starts."""
    program = "import signal, sys; sys.exit(len(signal.pthread_sigmask(signal.SIG_BLOCK, ())))"
    with pytest.raises(JaxperfError, match="wrote no result but ended with status 0"):
        run_once([sys.executable, "-c", program], tmp_path / "result.json")


def test_a_damaged_baseline_is_named(tmp_path, capfd):
    gate(recorded(tmp_path / "a", 1e-3), "--update")
    broken = Path("kept", MACHINE.fingerprint, "run-2.json")
    broken.write_text(json.dumps({"format": "jaxperf-result", "schema_version": SCHEMA_VERSION}))
    assert gate(recorded(tmp_path / "b", 1e-3)) == 2
    assert f"error: {broken} is damaged" in (line := capfd.readouterr().err) and "--update" in line
    assert gate(recorded(tmp_path / "c", 1e-3), "--update") == 0
    assert len(load_baseline(broken.parent)) == 4


def test_the_example_for_a_hosted_ci_service_gives_commands_that_are_understood(monkeypatch):
    text = Path(__file__).parents[2].joinpath("docs", "gate.yml").read_text(encoding="utf-8")
    one_line = re.sub(r"\s*\\?\n\s+", " ", text)
    commands = re.findall(r"jaxperf (gate .*?--json \{\})", one_line)
    assert len(commands) == 2
    asked = []
    monkeypatch.setattr("jaxperf.compare.gate.main", lambda *both: asked.append(both) or 0)
    monkeypatch.setattr("jaxperf.measure.measure_command.main", lambda options: 0)
    for command in commands:
        assert cli.main(shlex.split(command)) == 0
    for _, (program, *arguments) in asked:
        assert program == "jaxperf" and cli.main(arguments) == 0
