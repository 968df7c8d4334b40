"""Checkpoints: saved by a policy, found again, and the one before a damaged one is used."""

from __future__ import annotations

import logging
import re
import shutil
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from disks import fill, make_read_only, use_up_files
from trainings import NAME, STEPS, InterruptedTrainingError, assert_same, at, step_of, steps_in, trained

from jaxperf.errors import JaxperfError
from jaxperf.train import Policy
from jaxperf.train.arrays import _drop_late_errors
from jaxperf.train.checkpoint import Checkpoints
from jaxperf.train.manifest import read_verified, write_manifest

STEP = step_of()


@pytest.fixture(scope="module")
def expected() -> object:
    return trained(STEP)


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """A training with checkpoints of its steps 3, 4 and 5."""
    with pytest.raises(InterruptedTrainingError):
        trained(STEP, tmp_path, before=at(6))
    assert steps_in(tmp_path) == [f"step-0000000{i}" for i in (3, 4, 5)]
    return tmp_path


def newest(folder: Path, step: int = 5) -> Path:
    return folder / NAME / f"step-0000000{step}"


def array_file(checkpoint: Path) -> Path:
    """The largest of Orbax's files, which holds values."""
    return max((checkpoint / "state").rglob("d/*"), key=lambda path: path.stat().st_size)


def test_the_policy_says_when_and_how_many(tmp_path: Path) -> None:
    trained(STEP, tmp_path / "a", policy=Policy(every_steps=3, keep=10))
    assert steps_in(tmp_path / "a") == [f"step-0000000{i}" for i in (3, 4, 6, 8)]  # 4 and 8 end epochs
    trained(STEP, tmp_path / "b", policy=Policy(every_steps=0, keep=1))
    assert steps_in(tmp_path / "b") == ["step-00000008"]


def test_seconds_are_counted_by_a_clock_that_does_not_jump(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: clock)
    checkpoints = Checkpoints(tmp_path, Policy(0, 60.0), resume=False, stop=lambda step: 0, settings={})
    monkeypatch.setattr(time, "time", lambda: 1e10)
    assert not checkpoints.due(1)
    clock += 60
    assert checkpoints.due(2)


def test_a_damaged_checkpoint_is_reported_and_the_one_before_it_resumes_to_the_same_bits(
    stopped: Path, expected: object, capfd: pytest.CaptureFixture[str]
) -> None:
    for step, reason in ((5, "SHA-256 of state/.* differs"), (4, "has 0 bytes, not")):
        path = array_file(newest(stopped, step))
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 16
        path.write_bytes(data if step == 5 else b"")
        with pytest.raises(InterruptedTrainingError):
            trained(STEP, stopped, before=at(1))
        line, resumed = capfd.readouterr().err.splitlines()
        assert re.search(
            rf"^checkpoint .*step-0000000{step} is damaged \(.*{reason}.*\); using step {step - 1}$", line
        )
        assert f"going on after step {step - 1} " in resumed
        assert newest(stopped, step).with_suffix(".damaged").is_dir()
    assert_same(trained(STEP, stopped), expected)  # type: ignore[arg-type]


def test_what_bears_the_name_of_a_damaged_checkpoint_stays(stopped: Path) -> None:
    path, lines = newest(stopped, 5), "somebody's lines"
    path.with_suffix(".damaged").write_text(lines)
    (path / "manifest.json").write_bytes(b"")
    with pytest.raises(InterruptedTrainingError):
        trained(STEP, stopped, before=at(1))
    assert path.with_suffix(".damaged").read_text() == lines
    assert (path.with_suffix(".damaged-2") / "manifest.json").read_bytes() == b""


def test_no_intact_checkpoint_is_an_error_and_not_a_training_from_the_beginning(stopped: Path) -> None:
    for step in (3, 4, 5):
        (newest(stopped, step) / "manifest.json").unlink()
    with pytest.raises(JaxperfError, match=r"no checkpoint in .* is intact; start again in another folder"):
        trained(STEP, stopped)


def test_files_of_something_else_under_a_manifest_that_fits_are_damage(
    stopped: Path, expected: object, capfd: pytest.CaptureFixture[str]
) -> None:
    about = read_verified(newest(stopped))
    (newest(stopped) / "state" / "_METADATA").write_text("{}")
    write_manifest(newest(stopped), about)
    about = read_verified(newest(stopped, 4))
    shutil.rmtree(newest(stopped, 4) / "state" / "ocdbt.process_0")
    (newest(stopped, 4) / "state" / "manifest.ocdbt").write_bytes(b"\x00" * 100)
    write_manifest(newest(stopped, 4), about)
    assert_same(trained(STEP, stopped), expected)  # type: ignore[arg-type]
    lines = capfd.readouterr().err.splitlines()
    assert [("damaged" in line, "using step" in line) for line in lines[:2]] == [(True, True)] * 2
    assert "after step 3 " in lines[2] and len(lines) == 3


def test_a_copied_checkpoint_does_not_pass_for_a_later_one(
    stopped: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(newest(stopped), newest(stopped, 9))
    with pytest.raises(InterruptedTrainingError):
        trained(STEP, stopped, before=at(1))
    assert "(it says that it is step 5); using step 5" in capfd.readouterr().err


def test_names_and_texts_of_a_checkpoint_command_no_terminal_and_stay_in_their_line(
    stopped: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (newest(stopped) / "\x1b[31m\nred\udcff").touch()
    other = read_verified(newest(stopped, 4))
    lies: list[dict[str, Any]] = [
        {"surroundings": {**other.surroundings, "way": "\x1b]0;x\x07\nerror"}},
        {"training": {**other.training, "\x1b[2J\r": "x\n" * 100_000}},
        {"arrays": {**other.arrays, "\x9b31m\n" * 100_000: "float32[1]"}},
    ]
    for lie, says in zip(lies, ("way is \\x1b]0;x", "\\x1b[2J\\r is x\\nx", "\\x9b31m\\n\\x9b31m")):
        (newest(stopped, 4) / "manifest.json").unlink()
        write_manifest(newest(stopped, 4), replace(other, **lie))
        with pytest.raises((InterruptedTrainingError, JaxperfError)) as caught:
            trained(STEP, stopped, before=at(1))
        lines = [*capfd.readouterr().err.splitlines(), str(caught.value)]
        assert says in "".join(lines)
        assert all(line.isprintable() and len(line) < 1500 for line in lines)


def test_only_names_that_a_checkpoint_gets_are_taken_for_one(
    stopped: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("step-000000009", "step-\u0660\u0660\u0660\u0660\u0660\u0660\u0660\u0669"):
        (stopped / NAME / name).mkdir()
    with pytest.raises(InterruptedTrainingError):
        trained(STEP, stopped, before=at(1))
    assert capfd.readouterr().err.startswith("going on after step 5 ")


def test_what_a_killed_run_left_half_written_is_no_checkpoint(stopped: Path, expected: object) -> None:
    newest(stopped).rename(newest(stopped).with_suffix(".part"))
    assert_same(trained(STEP, stopped), expected)  # type: ignore[arg-type]
    assert not list(stopped.rglob("*.part"))


def test_of_errors_that_nobody_can_handle_only_the_late_ones_are_dropped(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[Exception] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda error: seen.append(error.exc_value))
    _drop_late_errors.__wrapped__()
    logging.getLogger("asyncio").error("Task exception was never retrieved: tensorstore_spec")
    logging.getLogger("asyncio").error("Task exception was never retrieved")
    assert [record.getMessage() for record in caplog.records] == ["Task exception was never retrieved"]
    errors = [RuntimeError("Event loop is closed"), RuntimeError("Event loop"), ValueError("is closed")]
    for error in errors:
        sys.unraisablehook(SimpleNamespace(exc_value=error))  # type: ignore[arg-type]
    assert seen == errors[1:]


@pytest.mark.real
def test_a_full_disk_costs_a_line_and_a_checkpoint_but_not_the_training(
    small_disk: Path, expected: object, capfd: pytest.CaptureFixture[str]
) -> None:
    def before(n: int) -> None:
        if n == 4:
            until = time.monotonic() + 20  # on a busy machine half a second is not enough
            while "step-00000003" not in steps_in(small_disk) and time.monotonic() < until:
                time.sleep(0.05)
            fill(small_disk)

    assert_same(trained(STEP, small_disk, before=before), expected)  # type: ignore[arg-type]
    _, *lines = capfd.readouterr().err.splitlines()
    assert lines and all(
        re.search(
            r"^cannot save a checkpoint of step \d to .*: No space left on device; step \d is the newest$", s
        )
        for s in lines
    )
    assert not list(small_disk.rglob("*.part"))
    (small_disk / "ballast").unlink()
    assert_same(trained(STEP, small_disk), expected)  # type: ignore[arg-type]
    assert "going on after step" in capfd.readouterr().err
    assert steps_in(small_disk)[-1] == f"step-{STEPS:08d}"


@pytest.mark.real
def test_where_orbax_cannot_make_its_folder_none_of_its_threads_stays(
    small_disk: Path, expected: object, capfd: pytest.CaptureFixture[str]
) -> None:
    """Room for no file, then for one and for two more; such a thread would wait 300 s for the folder."""
    running, ballast = set(threading.enumerate()), []

    def before(n: int) -> None:
        if n == 4:
            time.sleep(0.5)
            ballast.extend(use_up_files(small_disk).iterdir())
        elif n in (5, 6):
            time.sleep(0.5)
            ballast.pop().unlink()

    assert_same(trained(STEP, small_disk, before=before), expected)  # type: ignore[arg-type]
    assert capfd.readouterr().err.count("No space left on device; step 3 is the newest") == 5
    for thread in set(threading.enumerate()) - running:
        thread.join(10 * (not thread.name.startswith("metadata_store")))  # an idle pool, which Python ends
        assert not thread.is_alive() or thread.name.startswith("metadata_store"), thread


@pytest.mark.real
def test_a_read_only_disk_is_refused_before_the_training_in_one_line(small_disk: Path) -> None:
    with pytest.raises(InterruptedTrainingError):
        trained(STEP, small_disk, before=at(2))
    make_read_only(small_disk)
    with pytest.raises(JaxperfError, match=r"^cannot save .*: Read-only file system; give another folder$"):
        trained(STEP, small_disk)
