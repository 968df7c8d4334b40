"""tools/keep_run.py keeps a run only if the machine was idle and the code that of a commit."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jaxperf.result import Environment, Measurement, Result, Table, save_result
from tools import keep_run

QUIET, LOUD = (1.0, 1.01, 1.0, 1.02, 1.0, 1.01), (1.0, 2.0, 3.0, 1.0, 2.0, 3.0)


def write(folder: Path, *, values: tuple[float, ...] = QUIET, idle: bool = True, commit: str = "abc") -> None:
    rows = Table("Calls", (Measurement("a", "s", values),))
    save_result(Result("hybridize", "8.1", "A", "?", {}, Environment(), (rows,)), folder / "hybridize.json")
    about = {"wall_s": 1.0, "idle": idle, "busy": "" if idle else "others used a core"}
    about["environment"] = {"commit": commit}  # type: ignore[assignment]
    (folder / "hybridize.ipynb").write_text(json.dumps({"metadata": {"jaxperf": about}}))


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(keep_run, "ROOT", tmp_path)
    monkeypatch.setattr(keep_run, "KEPT", tmp_path / "kept")
    monkeypatch.setattr(keep_run, "trouble_before", list)
    (tmp_path / "kept").mkdir()
    return tmp_path / "kept"


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str, status: int = 0, **made: Any) -> int:
    """Keep a run that writes this in place of running sections."""

    def pretend(command: list[str], **_: Any) -> Any:
        Path(command[-1]).mkdir(parents=True, exist_ok=True)
        write(Path(command[-1]), **made)
        return subprocess.CompletedProcess(command, status)

    monkeypatch.setattr(keep_run.subprocess, "run", pretend)
    monkeypatch.setattr(sys, "argv", ["keep_run.py", "8.1", *arguments])
    return keep_run.main()


@pytest.mark.parametrize(
    ("made", "says"),
    [
        ({"idle": False}, "others used a core meanwhile"),
        ({"commit": "abc+dirty"}, "files had been changed"),
        ({"values": LOUD}, "1 of 1 rows are noisy"),
        ({"status": 1}, "a section failed"),
    ],
)
def test_a_run_that_is_not_as_it_should_be_is_not_kept(
    kept: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    made: dict[str, Any],
    says: str,
) -> None:
    assert run(monkeypatch, **made) == 1
    assert says in capsys.readouterr().err and not list(kept.iterdir())
    status = made.get("status", 0)
    monkeypatch.setattr(keep_run.subprocess, "run", lambda *_, **__: pytest.fail("it ran again"))
    monkeypatch.setattr(sys, "argv", ["keep_run.py", "8.1", "--have", "--anyway"])
    assert keep_run.main() == 0 or status
    assert {path.name for path in kept.iterdir()} == {"hybridize.json", "hybridize.ipynb"}


def test_a_quiet_run_is_kept(
    kept: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch) == 0
    assert (kept / "hybridize.ipynb").is_file() and "0 of 1 rows noisy" in capsys.readouterr().out


def test_nothing_starts_on_a_busy_machine(
    kept: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(keep_run, "trouble_before", lambda: ["other programs use 1.50 cores"])
    assert run(monkeypatch) == 2
    assert "not started: other programs use 1.50 cores" in capsys.readouterr().err and not list(
        kept.iterdir()
    )
