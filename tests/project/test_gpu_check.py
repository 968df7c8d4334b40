"""The check of a GPU machine: every step ends, the next one runs, and each statement has its verdict."""

from __future__ import annotations

import json
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
import gpu_check

WELL = "print('reached')"
BAD = "raise SystemExit(3)"
HANGS = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(600)"


def step(name: str, *programs: str, limit_s: float = 60, **options: Any) -> gpu_check.Step:
    commands = [[sys.executable, "-c", program] for program in programs]
    well = lambda ended: (all(e.status == 0 for e in ended), "; ".join(map(str, ended)))  # noqa: E731
    return gpu_check.Step(name, f"{name} ends well", commands, limit_s, options.pop("judge", well), **options)


@pytest.fixture
def checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, str]]:
    def run(*steps: gpu_check.Step, only: tuple[str, ...] = ()) -> dict[str, str]:
        monkeypatch.setattr(gpu_check, "steps", lambda out, rehearse: list(steps))
        monkeypatch.setattr(gpu_check, "GRACE_S", 1.0)
        assert gpu_check.check(tmp_path, seconds=300, only=only, rehearse=True) == 0
        rows = json.loads((tmp_path / "summary.json").read_text())
        return {name: row["verdict"] for name, row in rows.items()}

    return run


def test_after_a_failure_and_a_hang_the_next_step_runs_and_the_archive_holds_all(
    checked: Callable[..., dict[str, str]], tmp_path: Path
) -> None:
    verdicts = checked(step("bad", BAD), step("hangs", HANGS, limit_s=0.5), step("well", WELL))
    assert verdicts == {"bad": "does not hold", "hangs": "does not hold", "well": "holds"}
    with tarfile.open(tmp_path / "gpu_check.tar.gz") as archive:
        assert {"bad-0.log", "hangs-0.log", "well-0.log", "summary.json"} == set(archive.getnames())


def test_a_second_call_goes_on_with_what_is_undecided(checked: Callable[..., dict[str, str]]) -> None:
    open_step = step("open", WELL, judge=lambda ended: (None, ""))
    assert checked(step("first", WELL), open_step, only=("first", "open")) == {
        "first": "holds",
        "open": "undecided",
    }
    # "first" would fail now, but it is decided
    assert checked(step("first", BAD), step("open", WELL)) == {"first": "holds", "open": "holds"}


def test_time_to_accuracy_counts_from_the_command_and_needs_every_seed() -> None:
    def ended(line: str) -> gpu_check.Ended:
        return gpu_check.Ended(0, 30.0, f"epoch 6\n{line}\n")

    reached, missed = ended("test accuracy 0.93: 7.0 s after the process began"), ended("test acc 0.92")
    judge = gpu_check.judge_accuracy(8)
    assert judge([reached] * 5)[0] is True
    assert judge([*[reached] * 4, missed])[0] is False
    assert judge([*[reached] * 4, ended("test accuracy 0.93: 8.1 s after the process began")])[0] is False
    assert judge([reached] * 4)[0] is None
    slow_first = ended("test accuracy 0.93: 20.0 s after the process began")
    assert gpu_check.judge_accuracy(8, first=1)([slow_first, *[reached] * 5])[0] is True
