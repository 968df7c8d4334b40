"""Several processes compute what one process with as many devices computes: with real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from jaxperf.errors import JaxperfError
from jaxperf.parallel import first_devices, of_this_process, processes_of, rows_of
from jaxperf.process import child_environment
from jaxperf.processes.launcher import free_port

TRAINING = Path(__file__).parents[1].joinpath("train_lenet.py")
WAYS = ("pmap", "shard_map", "jit")
ROUNDING = 1e-7  # of parameters near 0.1 after four updates: the sums of three or more have another order


def train(
    out: Path, *ways: str, processes: int = 1, devices: int = 1, **variables: str
) -> dict[str, np.ndarray]:
    done = start(out, *ways, processes=processes, devices=devices, **variables)
    assert done.returncode == 0, done.stderr
    assert f"written by process 0 of {processes}" in done.stdout
    with np.load(out) as arrays:
        return dict(arrays)


def start(
    out: Path, *ways: str, processes: int, devices: int = 1, flags: tuple[str, ...] = (), **variables: str
) -> subprocess.CompletedProcess[str]:
    logs = str(out.with_suffix(""))
    launch = [sys.executable, "-m", "jaxperf", "launch", "-n", str(processes), "--logs", logs, *flags, "--"]
    environment = {**child_environment(), "DEVICES": str(devices), **variables}
    command = [*(launch if processes > 1 else ()), sys.executable, str(TRAINING), str(out), *ways]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)


def distance(actual: dict[str, np.ndarray], desired: dict[str, np.ndarray]) -> float:
    assert actual.keys() == desired.keys()
    return max(float(np.abs(a - desired[name]).max()) for name, a in actual.items())


@pytest.mark.thorough
def test_two_processes_of_one_device_have_the_bits_of_one_of_two_and_with_shares_of_the_cores_nearly(
    tmp_path: Path,
) -> None:
    """Each way; the bits with as many threads for each process, since XLA cuts long sums by their number."""
    one = train(tmp_path / "one.npz", *WAYS, devices=2)
    assert distance(one, train(tmp_path / "same.npz", *WAYS, processes=2, flags=("--no-split-cores",))) == 0
    assert distance(one, train(tmp_path / "split.npz", *WAYS, processes=2)) <= ROUNDING


@pytest.mark.thorough
def test_four_devices_of_any_processes_are_those_of_one_up_to_rounding(tmp_path: Path) -> None:
    one = train(tmp_path / "one.npz", "pmap", "jit", devices=4)
    for processes, devices in ((4, 1), (2, 2)):
        out = tmp_path / f"{processes}.npz"
        assert distance(one, train(out, "pmap", "jit", processes=processes, devices=devices)) <= ROUNDING


@pytest.mark.thorough
def test_by_hand_is_refused_in_one_line(tmp_path: Path) -> None:
    done = start(tmp_path / "out.npz", "manual", processes=2)
    assert done.returncode == 2
    logs = [(tmp_path / "out" / f"process-{i}.log").read_text() for i in range(2)]
    message = (
        "error: way 'manual' copies between the devices of one process, and these belong to 2; use 'pmap'"
    )
    assert any(message in log for log in logs) and not any("Traceback" in log for log in logs)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("what", "number", "statuses", "bound_s", "message"),
    [
        ("RAISES", 1, {1}, 20, "process 1: ValueError: this process is broken"),
        ("RAISES", 0, {1}, 20, "process 0 failed first: exit status 1"),
        ("KILLED", 1, {128 + signal.SIGKILL}, 20, "process 1 failed first: ended by signal 9"),
        ("KILLED", 0, {128 + signal.SIGKILL}, 20, "process 0 failed first: ended by signal 9"),  # coordinator
        # The other gives up after 30 s: without heartbeats, or without Gloo's first connection.
        ("STOPPED", 1, {1, 128 + signal.SIGABRT}, 90, "process 0 failed first"),
    ],
)
def test_a_lost_process_ends_the_run_and_is_named(
    tmp_path: Path, what: str, number: int, statuses: set[int], bound_s: float, message: str
) -> None:
    """Within a generous bound from the fault on: 10 s between TERM and KILL, 30 s without a sign of life."""
    marks = tmp_path / "fault"
    done = start(
        tmp_path / "out.npz", "jit", processes=2, FAULT_AT=str(marks), **{what: str(number)},
    )  # fmt: skip
    elapsed_s = time.time() - marks.stat().st_mtime
    assert done.returncode in statuses and message in done.stderr, done.stderr
    assert elapsed_s < bound_s
    assert not (tmp_path / "out.npz").exists()


@pytest.mark.thorough
def test_processes_started_again_after_one_was_killed_go_on_to_the_same_bits(tmp_path: Path) -> None:
    undisturbed = train(tmp_path / "one.npz", "jit", processes=2)
    faults = {"KILLED": "1", "FAULT_AT": str(tmp_path / "fault"), "CHECKPOINTS": str(tmp_path / "saved")}
    out, flags = tmp_path / "out.npz", ("--max-restarts", "1")
    done = start(out, "jit", processes=2, flags=flags, **faults)
    assert done.returncode == 0 and "starting all again, 1 of 1" in done.stderr, done.stderr
    for i in range(2):
        log = (tmp_path / "out" / f"process-{i}.log").read_text()
        assert any(f"going on after step {step} (epoch 1" in log for step in (1, 2)), log
    with np.load(out) as arrays:
        assert distance(undisturbed, dict(arrays)) == 0


@pytest.mark.thorough
@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize(
    ("what", "status", "saved"), [("RAISES", 1, ""), ("KILLED", -signal.SIGKILL, "saved")]
)
def test_without_the_launcher_the_others_end_when_one_is_lost(
    tmp_path: Path, what: str, status: int, saved: str, number: int
) -> None:
    environment = child_environment() | {
        "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{free_port()}",
        "JAX_NUM_PROCESSES": "2",
        "FAULT_AT": str(tmp_path / "fault"),
        "CHECKPOINTS": saved and str(tmp_path / saved),
        what: str(number),
    }
    command = [sys.executable, str(TRAINING), str(tmp_path / "out.npz"), "jit"]
    pair = [
        subprocess.Popen(
            command, env=environment | {"JAX_PROCESS_ID": str(i)}, stderr=subprocess.PIPE, text=True
        )
        for i in range(2)
    ]
    errors = [process.communicate(timeout=200)[1] for process in pair]
    assert pair[number].returncode == status, errors[number]
    assert "ValueError: this process is broken" in errors[number] or what == "KILLED"
    our_line, jaxs = "error: another process left the run", "likely indicates that another task died"
    other, error_text = pair[1 - number].returncode, errors[1 - number]
    assert (other == 1 and our_line in error_text) or (other == -signal.SIGABRT and jaxs in error_text), (
        error_text
    )
    # Who knows it does not wait with Orbax for the checkpoint under way, until JAX misses the lost process
    assert our_line not in error_text or "stopped sending heartbeats" not in error_text


def test_one_process_reads_every_row() -> None:
    devices = first_devices(4, platform="cpu")
    assert rows_of(8, devices) == slice(0, 8)
    assert (processes_of(devices), of_this_process(devices)) == (1, devices)
    with pytest.raises(JaxperfError, match="batch size 9 is not divisible by 4 devices"):
        rows_of(9, devices)
    assert "JAX_PROCESS_ID" not in os.environ
