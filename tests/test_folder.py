"""The folder of a run: one run at a time, nothing overwritten, and signals end a training at a step's end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from trainings import STEPS, assert_same, step_of, steps_in, trained

from jaxperf.errors import JaxperfError
from jaxperf.launch import child_environment
from jaxperf.train import CheckpointFolder, Policy

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
with CheckpointFolder(Path(sys.argv[3]), Policy(every_steps=3), resume=True) as folder:
    run = Run(folder.of("toy"), read=lambda state: state, place=place, updates=1000)
    state = run.start(place(jnp.zeros((3, 2))), epochs=1)
    print(run.step, float(state.addressable_data(0).max()), flush=True)
    run.begin()
    while run.step < 500:
        state, loss = step(state)
        run.stepped(state, loss, loss)
        if run.step == 8 and sys.argv[1:2] + sys.argv[4:] == ["1", "told"]:
            os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.005)
"""


def two_processes(folder: Path, *words: str) -> list[tuple[int, str, str]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    environment = child_environment() | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1"}
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": environment}
    pair = [
        subprocess.Popen([sys.executable, "-c", PROCESS, str(i), address, str(folder), *words], **pipes)
        for i in range(2)
    ]
    said = [process.communicate() for process in pair]
    return [(process.returncode, *words) for process, words in zip(pair, said)]


@pytest.mark.thorough
def test_sigterm_to_one_of_two_processes_ends_both_after_one_step_and_both_go_on(tmp_path: Path) -> None:
    ended = two_processes(tmp_path, "told")
    assert [status for status, _, _ in ended] == [(128 + signal.SIGTERM)] * 2
    [last] = {said.splitlines()[-1] for _, _, said in ended}
    newest = int(steps_in(tmp_path)[-1].removeprefix("step-"))
    assert last == f"SIGTERM: stopped after step {newest}; step {newest} is saved, go on with --resume"
    for status, told, _ in two_processes(tmp_path):
        assert (status, told.splitlines()[-1]) == (0, f"{newest} {newest:.1f}")


SCRIPT = Path(__file__).parents[1] / "experiments" / "multiple_gpus.py"


def section(folder: Path, *words: str, until: str = "") -> tuple[int, str, list[str]]:
    """Run section 8.4 at toy size; SIGTERM ends it once a file is there that fits the pattern `until`."""
    small = ("--smoke", "--platform", "cpu", "--rounds", "6", "--epochs", "2", "--updates", "40")
    command = [
        sys.executable,
        str(SCRIPT),
        *small,
        "--checkpoints",
        str(folder),
        "--every-steps",
        "1",
        *words,
    ]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=child_environment(), **pipes) as process:
        try:
            while until and process.poll() is None and not list(folder.glob(until)):
                time.sleep(0.01)
            if until:
                process.send_signal(signal.SIGTERM)
            told, said = process.communicate()
        finally:
            process.kill()
    return process.returncode, told, said.splitlines()


@pytest.mark.thorough
def test_section_8_4_is_ended_by_sigterm_and_goes_on(tmp_path: Path) -> None:
    status, _, said = section(tmp_path, until="2-devices/step-*[0-9]")
    assert status == (128 + signal.SIGTERM) and said[-1].startswith("SIGTERM: stopped after step "), said
    status, _, said = section(tmp_path)
    assert status == 2 and said[-1].endswith("add --resume to go on, or give another folder")
    status, told, said = section(tmp_path, "--resume")
    assert status == 0, said
    on = [line for line in said if line.startswith("going on after step")]
    assert on[0].startswith("going on after step 80 (epoch 3, update 0)") and "2-devices" in on[1]
    assert "2 devices, pmap" in told  # a part that needs the parameters before the last epoch
