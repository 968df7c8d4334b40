"""The folder of a run: one run at a time, nothing overwritten, and signals end a training at a step's end."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jax
import pytest
from trainings import STEPS, assert_same, in_two_processes, step_of, steps_in, trained

from jaxperf.errors import JaxperfError
from jaxperf.process import child_environment
from jaxperf.train import CheckpointFolder, Policy
from jaxperf.train.manifest import read_verified, write_manifest

STEP = step_of()


def test_two_runs_do_not_share_a_folder(tmp_path: Path) -> None:
    with CheckpointFolder(tmp_path / "a"):
        with pytest.raises(
            JaxperfError, match=rf"^another run \(process {os.getpid()}\) saves to .*/a; give another folder$"
        ):
            CheckpointFolder(tmp_path / "a", resume=True).__enter__()
        with CheckpointFolder(tmp_path / "b"):
            pass
    with CheckpointFolder(tmp_path / "a"):
        pass


def test_a_folder_is_found_from_where_the_program_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    trained(STEP, Path("saved"), policy=Policy(every_steps=0), before=lambda n: monkeypatch.chdir("/"))
    assert steps_in(tmp_path / "saved") == ["step-00000004", "step-00000008"]


def test_checkpoints_are_not_mixed_with_those_of_an_earlier_run(tmp_path: Path) -> None:
    trained(STEP, tmp_path, resume=False)
    before = steps_in(tmp_path)
    for _ in range(2):  # the refused one does not keep the folder locked
        with pytest.raises(JaxperfError, match="holds checkpoints; add --resume to go on, or give another"):
            trained(STEP, tmp_path, resume=False)
    assert steps_in(tmp_path) == before


def test_parts_of_a_killed_run_are_removed_and_nothing_of_anybody_else(tmp_path: Path) -> None:
    part = tmp_path / "saved" / "1-device" / "step-00000003.part" / "state"
    others = [tmp_path / "elsewhere" / "step-00000003.part", tmp_path / "saved" / "1-device" / "film.part"]
    for folder in (part, *others):
        folder.mkdir(parents=True)
    (tmp_path / "saved" / "link").symlink_to(tmp_path / "elsewhere")
    with CheckpointFolder(tmp_path / "saved", resume=True):
        assert not part.parent.exists()
    assert all(other.is_dir() for other in others)


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "in it", Path("/proc/nowhere")):
        with pytest.raises(JaxperfError, match=r"^cannot save checkpoints to [^\n]*; give another folder$"):
            CheckpointFolder(path).__enter__()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_training_after_its_step_which_is_saved(
    number: signal.Signals, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = signal.getsignal(number)
    rare = Policy(every_steps=100)
    for step in (3, 1, STEPS - 4):  # the last one is the training's last
        with pytest.raises(SystemExit) as ended:
            trained(
                STEP,
                tmp_path,
                policy=rare,
                before=lambda n, step=step: n == step and os.kill(os.getpid(), number),
            )
        assert ended.value.code == 128 + number
        assert signal.getsignal(number) is before
    assert capfd.readouterr().err.splitlines()[1] == (
        f"{number.name}: stopped after step 3; step 3 is saved, go on with --resume"
    )
    assert steps_in(tmp_path)[-1] == f"step-{STEPS:08d}"
    assert_same(trained(STEP, tmp_path), trained(STEP))


def test_a_signal_that_was_ignored_stays_ignored(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as `nohup` does
    try:
        trained(STEP, tmp_path, before=lambda n: os.kill(os.getpid(), signal.SIGHUP))
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_signal_between_the_trainings_ends_the_run_when_the_folder_is_closed(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="143"), CheckpointFolder(tmp_path):
        os.kill(os.getpid(), signal.SIGTERM)


def test_several_processes_do_not_save_by_a_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(JaxperfError, match=r"^several processes do not share a clock; use --every-steps"):
        CheckpointFolder(tmp_path, Policy(every_s=9)).__enter__()


TWICE = """
import hashlib, os, signal, sys, threading
from pathlib import Path
from jaxperf.train import CheckpointFolder, checkpoint_folder as folder
folder.SAME_S, again_s, rounds = map(float, sys.argv[2:])
with CheckpointFolder(Path(sys.argv[1])) as kept:
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Timer(again_s, os.kill, (os.getpid(), signal.SIGTERM)).start()
    hashlib.pbkdf2_hmac("sha256", b"", b"", int(rounds))  # a long time in C, where Python hears nothing
    print("step over", flush=True)
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("same_s", "again_s", "rounds", "status", "output"),
    [(1.0, 0.1, 5e6, 143, "step over\n"), (0.1, 0.5, 1e9, -signal.SIGTERM, "")],
)
def test_a_signal_that_is_repeated_soon_is_one_request_and_later_ends_the_process_in_its_step(
    same_s: float, again_s: float, rounds: float, status: int, output: str, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", TWICE, str(tmp_path), *map(str, (same_s, again_s, rounds))]
    environment = child_environment() | {"JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True)
    assert (done.returncode, done.stdout) == (status, output)


PROCESS = """
import os, signal, sys
from pathlib import Path
import jax
jax.distributed.initialize(sys.argv[2], 2, int(sys.argv[1]))
import trainings
from jaxperf.train import CheckpointFolder, Policy, train
step, data = trainings.step_of(), trainings.pictures()
number, last = map(int, sys.argv[4:])
with CheckpointFolder(Path(sys.argv[3]), Policy(every_steps=3), resume=True) as folder:
    for name, updates in (("toy", 9), ("second", last)):
        if updates:
            [_] = train(step, data, epochs=1, batch_size=4, updates=updates, checkpoints=folder.of(name))
        print(name, "ended", flush=True)
        if (name, sys.argv[1]) == ("toy", "1") and number:
            os.kill(os.getpid(), number)
"""


def two_processes(number: int, last: int, *folders: Path, **variables: str) -> list[tuple[int, str, str]]:
    """A training of 9 steps, then one of `last`; process 1 gets signal `number` between them.

    Returns:
      Of each process, its status and what it wrote.
    """
    arguments = str(number), str(last)
    return in_two_processes(PROCESS, *((str(folder), *arguments) for folder in folders), **variables)


@pytest.mark.thorough
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_one_of_two_processes_ends_both_after_one_step_and_both_go_on(
    number: signal.Signals, tmp_path: Path
) -> None:
    """Between two trainings: they agree on a step of the second, whose steps begin at 1 again."""
    ended = two_processes(number, 500, tmp_path, tmp_path)
    assert [status for status, _, _ in ended] == [128 + number] * 2
    [last] = {errors.splitlines()[-1] for _, _, errors in ended}
    newest = max(int(path.name.removeprefix("step-")) for path in tmp_path.glob("second/step-*"))
    assert last == f"{number.name}: stopped after step {newest}; step {newest} is saved, go on with --resume"
    for status, output, errors in two_processes(0, 500, tmp_path, tmp_path):
        assert (status, output.splitlines()[-1]) == (0, "second ended")
        assert f"going on after step {newest} " in errors


@pytest.mark.thorough
def test_a_signal_to_one_of_two_processes_after_all_steps_ends_both_as_the_folder_closes(
    tmp_path: Path,
) -> None:
    for status, output, _ in two_processes(signal.SIGTERM, 0, tmp_path, tmp_path):
        assert status == 128 + signal.SIGTERM and "second ended" in output


@pytest.mark.thorough
def test_two_processes_without_jaxs_preemption_service_save_nothing_and_say_how_to_start_it(
    tmp_path: Path,
) -> None:
    for status, output, errors in two_processes(0, 9, tmp_path, tmp_path, JAX_ENABLE_PREEMPTION_SERVICE="0"):
        assert status != 0 and "toy" not in output
        assert "to stop after the same step; set JAX_ENABLE_PREEMPTION_SERVICE=1" in errors
    assert list(tmp_path.iterdir()) == []


@pytest.mark.thorough
def test_two_processes_that_find_different_checkpoints_end_with_a_line_that_says_which(
    tmp_path: Path,
) -> None:
    """As on two machines with folders of their own: process 0 has written all."""
    folders = tmp_path / "0", tmp_path / "1"
    assert [status for status, _, _ in two_processes(0, 0, *folders)] == [0, 0]
    shutil.copytree(folders[0], folders[1], dirs_exist_ok=True)
    newest = folders[1] / "toy" / "step-00000009"
    about = read_verified(newest)
    write_manifest(newest, replace(about, progress={**about.progress, "train_s": 1.5}))
    for finds in ("another step 9", "no checkpoint"):
        message = f"process 1 finds {finds}, and process 0 finds step 9; give --checkpoints a folder that all"
        for status, _, errors in two_processes(0, 20, *folders):
            assert status != 0 and message in errors
        shutil.rmtree(folders[1], ignore_errors=True)
