"""The folder of a run: one run at a time, nothing overwritten, and signals end a training at a step's end."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from trainings import STEPS, assert_same, in_two_processes, step_of, steps_in, trained

from jaxperf.errors import JaxperfError
from jaxperf.launch import child_environment
from jaxperf.train import CheckpointFolder, Policy
from jaxperf.train.manifest import verified, write_manifest

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


TWICE = """
import hashlib, os, signal, sys, threading
from pathlib import Path
from jaxperf.train import CheckpointFolder, folder
folder.SAME_S, again_s, rounds = map(float, sys.argv[2:])
with CheckpointFolder(Path(sys.argv[1])) as kept:
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Timer(again_s, os.kill, (os.getpid(), signal.SIGTERM)).start()
    hashlib.pbkdf2_hmac("sha256", b"", b"", int(rounds))  # a long time in C, where Python hears nothing
    print("step over", flush=True)
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("same_s", "again_s", "rounds", "status", "told"),
    [(1.0, 0.1, 5e6, 143, "step over\n"), (0.1, 0.5, 1e9, -signal.SIGTERM, "")],
)
def test_a_signal_that_is_repeated_soon_is_one_request_and_later_ends_the_process_in_its_step(
    same_s: float, again_s: float, rounds: float, status: int, told: str, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", TWICE, str(tmp_path), *map(str, (same_s, again_s, rounds))]
    environment = child_environment() | {"JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True)
    assert (done.returncode, done.stdout) == (status, told)


def wait_for(process: subprocess.Popen[str], folder: Path, until: str, *, more_than: int = 0) -> None:
    while process.poll() is None and len(list(folder.glob(until))) <= more_than:
        time.sleep(0.01)


RUN = """
import pathlib, sys
from jaxperf import catalogue, launch
from jaxperf.exits import ended
catalogue.folder = lambda: pathlib.Path(sys.argv[1])
options = launch.Options(pathlib.Path(sys.argv[2]), onednn=False, extra=("--checkpoints", sys.argv[3]))
raise SystemExit(ended(lambda: launch.run_section(catalogue.find("use_gpu"), options).status))
"""
SLOW = """
import dataclasses, pathlib, time, typing, tyro
from jaxperf import script
@dataclasses.dataclass(frozen=True)
class Config:
    saving: typing.Annotated[script.Saving, tyro.conf.OmitArgPrefixes] = script.Saving()
FLAGS = script.parse(Config)
import jax.numpy as jnp
from jaxperf.train import Run
def main(config, story):
    with config.saving.folder() as folder:
        run = Run(folder.of("toy"), updates=1000)
        state = run.start(jnp.zeros(3), epochs=1)
        run.begin()
        for _ in range(9):
            pathlib.Path(__file__).with_name(f"begun-{run.step}").touch()
            time.sleep(2.5)
            run.stepped(state + 1, state.sum(), state.sum())
script.run(main, FLAGS)
"""


@pytest.mark.thorough
@pytest.mark.parametrize("tells", [(os.killpg,), (os.kill,), (os.kill, os.killpg)])
def test_a_signal_to_jaxperf_run_or_its_group_saves_a_step_that_takes_longer_than_a_second(
    tells: tuple[Callable[[int, int], None], ...], tmp_path: Path
) -> None:
    """After a second the parent tells the section once more; `timeout` tells its child and then all."""
    (tmp_path / "use_gpu.py").write_text(SLOW)
    words = [str(tmp_path), str(tmp_path / "out"), str(tmp_path / "saved")]
    (tmp_path / "out").mkdir()
    pipes: Any = {"stderr": subprocess.PIPE, "text": True, "start_new_session": True}
    with subprocess.Popen([sys.executable, "-c", RUN, *words], env=child_environment(), **pipes) as process:
        wait_for(process, tmp_path, "begun-0")
        for tell in tells:
            tell(process.pid, signal.SIGTERM)
            time.sleep(0.3)  # or the system would make one signal of two
        _, said = process.communicate()
    assert process.returncode == 128 + signal.SIGTERM, said
    assert said.splitlines()[0] == "SIGTERM: stopped after step 1; step 1 is saved, go on with --resume"
    assert steps_in(tmp_path / "saved") == ["step-00000001"]


PROCESS = """
import os, signal, sys, time
from pathlib import Path
import jax
jax.distributed.initialize(sys.argv[2], 2, int(sys.argv[1]))
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxperf.train import CheckpointFolder, Policy, Run
everywhere = NamedSharding(Mesh(np.array(jax.devices()), ("devices",)), PartitionSpec())
step = jax.jit(lambda state: (state + 1, state.sum()), out_shardings=everywhere)
place = lambda tree: jax.device_put(np.asarray(tree), everywhere)
number, last = map(int, sys.argv[4:])
with CheckpointFolder(Path(sys.argv[3]), Policy(every_steps=3), resume=True) as folder:
    for name, steps in (("toy", 9), ("second", last)):
        run = Run(folder.of(name), read=lambda state: state, place=place, updates=1000)
        state = run.start(place(jnp.zeros((3, 2))), epochs=1)
        print(name, run.step, float(state.addressable_data(0).max()), flush=True)
        run.begin()
        while run.step < steps:
            state, loss = step(state)
            run.stepped(state, loss, loss)
            if (name, run.step, sys.argv[1]) == ("toy", 9, "1") and number:
                os.kill(os.getpid(), number)
            time.sleep(0.005)
print("unheard")
"""


def two_processes(number: int, last: int, *folders: Path, **variables: str) -> list[tuple[int, str, str]]:
    """A training of 9 steps, then one of `last`; process 1 gets signal `number` at the end of the first.

    Returns:
      Of each process, its status and what it wrote.
    """
    words = str(number), str(last)
    return in_two_processes(PROCESS, *((str(folder), *words) for folder in folders), **variables)


@pytest.mark.thorough
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_one_of_two_processes_ends_both_after_one_step_and_both_go_on(
    number: signal.Signals, tmp_path: Path
) -> None:
    """At the end of a training, so the step that they agree on is one of the next, whose steps begin anew."""
    ended = two_processes(number, 500, tmp_path, tmp_path)
    assert [status for status, _, _ in ended] == [128 + number] * 2
    [last] = {said.splitlines()[-1] for _, _, said in ended}
    newest = max(int(path.name.removeprefix("step-")) for path in tmp_path.glob("second/step-*"))
    assert last == f"{number.name}: stopped after step {newest}; step {newest} is saved, go on with --resume"
    for status, told, _ in two_processes(0, 20, tmp_path, tmp_path):
        assert (status, told.splitlines()[-2:]) == (0, [f"second {newest} {newest:.1f}", "unheard"])


@pytest.mark.thorough
def test_a_signal_to_one_of_two_processes_after_all_steps_ends_both_as_the_folder_closes(
    tmp_path: Path,
) -> None:
    for status, told, _ in two_processes(signal.SIGTERM, 0, tmp_path, tmp_path):
        assert status == 128 + signal.SIGTERM and "unheard" not in told


@pytest.mark.thorough
def test_two_processes_without_jaxs_preemption_service_save_nothing_and_say_how_to_start_it(
    tmp_path: Path,
) -> None:
    for status, told, said in two_processes(0, 9, tmp_path, tmp_path, JAX_ENABLE_PREEMPTION_SERVICE="0"):
        assert status != 0 and "toy" not in told
        assert "to stop after the same step; set JAX_ENABLE_PREEMPTION_SERVICE=1" in said
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
    about = verified(newest)
    write_manifest(newest, replace(about, progress={**about.progress, "train_s": 1.5}))
    for finds in ("another step 9", "no checkpoint"):
        said = f"process 1 finds {finds}, and process 0 finds step 9; give --checkpoints a folder that all"
        for status, _, told in two_processes(0, 20, *folders):
            assert status != 0 and said in told
        shutil.rmtree(folders[1], ignore_errors=True)


SCRIPT = Path(__file__).parents[1] / "experiments" / "multiple_gpus.py"
SMALL = ("--smoke", "--platform", "cpu", "--rounds", "1", "--epochs", "2", "--updates", "40")


def section(folder: Path, *words: str, until: str = "") -> tuple[int, str, list[str]]:
    """Run section 8.4 at toy size; SIGTERM ends it once a file is there that fits the pattern `until`."""
    saved = ("--checkpoints", str(folder), "--every-steps", "1")
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    command = [sys.executable, str(SCRIPT), *SMALL, *saved, *words]
    with subprocess.Popen(command, env=child_environment(), **pipes) as process:
        try:
            if until:
                wait_for(process, folder, until)
                process.send_signal(signal.SIGTERM)
            told, said = process.communicate()
        finally:
            process.kill()
    return process.returncode, told, said.splitlines()


@pytest.mark.thorough
def test_section_8_4_is_ended_by_sigterm_and_goes_on(tmp_path: Path) -> None:
    status, _, said = section(tmp_path, until="2-devices/step-*[0-9]")
    assert status == (128 + signal.SIGTERM) and said[-1].startswith("SIGTERM: stopped after step "), said
    saved = max(tmp_path.glob("2-devices/step-*[0-9]"))
    assert verified(saved).surroundings["way"] == "by hand"
    status, _, said = section(tmp_path)
    assert status == 2 and said[-1].endswith("add --resume to go on, or give another folder")
    status, told, said = section(tmp_path, "--resume")
    assert status == 0, said
    on = [line for line in said if line.startswith("going on after step")]
    assert on[0].startswith("going on after step 80 (epoch 3, update 0)") and "2-devices" in on[1]
    assert "2 devices, pmap" in told  # a part that needs the parameters before the last epoch


def launched(folder: Path, number: int, whom: int | None, *words: str) -> tuple[int, list[list[str]]]:
    """Run section 8.4 in two processes, and once it has saved two more steps send a signal.

    Args:
      folder: of the checkpoints; the logs lie next to it.
      number: the signal.
      whom: the process that gets it; None for the launcher.
      words: more flags of the section.

    Returns:
      The exit status, and what each process wrote.
    """
    logs, had = folder.with_name(f"logs-{number}-{whom}"), len(list(folder.glob("*/step-*[0-9]")))
    saved = ("--checkpoints", str(folder), "--every-steps", "1", "--keep", "1000")
    launch = [sys.executable, "-m", "jaxperf", "launch", "--logs", str(logs), "--", "8.4"]
    with subprocess.Popen([*launch, *SMALL, *saved, *words], env=child_environment()) as process:
        try:
            wait_for(process, folder, "*/step-*[0-9]", more_than=had + 1)
            started = psutil.Process(process.pid).children()
            (psutil.Process(process.pid) if whom is None else started[whom]).send_signal(number)
        finally:
            status = process.wait(60)
    return status, [(logs / f"process-{i}.log").read_text().splitlines() for i in range(2)]


@pytest.mark.thorough
def test_section_8_4_in_two_processes_is_ended_by_a_signal_to_any_and_goes_on(tmp_path: Path) -> None:
    """Three runs, of which each goes on where the one before it was stopped."""
    folder, words, before = tmp_path / "saved", ("--updates", "1000"), 0
    for number, whom in ((signal.SIGTERM, 1), (signal.SIGHUP, 0), (signal.SIGTERM, None)):
        status, logs = launched(folder, number, whom, *words)
        assert status == 128 + number
        newest = max(int(path.name.removeprefix("step-")) for path in folder.glob("*/step-*[0-9]"))
        for log in logs:
            said = f"{number.name}: stopped after step {newest}; step {newest} is saved, go on with --resume"
            assert said in log, log
            if "--resume" in words:
                assert any(line.startswith(f"going on after step {before} ") for line in log), log
        before, words = newest, ("--updates", "1000", "--resume")
