"""One of several processes: who says so, what is refused in one line, and how it ends."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from jaxperf.errors import JaxperfError
from jaxperf.process import child_environment
from jaxperf.processes.distributed import (
    Processes,
    _check_assigned_gpu,
    cluster,
    is_loopback,
    lost_another,
    start,
)
from jaxperf.processes.launcher import free_port
from jaxperf.result.gpus import Driver, Gpu

SLURM = {"SLURM_STEP_NODELIST": "node[1-2]", "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1"}


def test_a_cluster_is_recognized_by_what_it_sets_for_tasks_and_not_for_shells() -> None:
    assert cluster(SLURM) == "slurm"
    assert cluster({**SLURM, "SLURM_STEP_NUM_TASKS": "1"}) == ""
    assert cluster({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "2", "SLURM_PROCID": "0"}) == ""  # the batch script
    assert cluster({"OMPI_COMM_WORLD_SIZE": "2"}) == cluster({"PMI_SIZE": "2"}) == "mpi4py"
    assert cluster({"OMPI_COMM_WORLD_SIZE": "1"}) == ""
    assert cluster({"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": "0"}) == "kubernetes"
    assert cluster({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}) == ""
    assert cluster({}) == ""


def test_the_names_of_methods_are_ones_that_jax_knows() -> None:
    from jax._src import clusters

    known = {kind.name for kind in clusters.ClusterEnv._cluster_types}
    assert {"slurm", "mpi4py"} <= known


def test_three_options_or_none() -> None:
    assert not Processes().several
    assert Processes("host:1", 2, 0).several and not Processes("host:1", 1, 0).several
    for options, message in (
        (("host:1", None, None), "--num-processes and --process-id missing"),
        (("", 2, 0), "--coordinator missing"),
        (("host", 2, 0), "is not HOST:PORT"),
        (("host:99999", 2, 0), "is not HOST:PORT"),
        (("host:1", 2, 2), "--process-id 2 of 2 processes; they count from 0"),
    ):
        with pytest.raises(JaxperfError, match=message):
            Processes(*options)


def test_the_environment_says_what_no_option_says(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("COORDINATOR_ADDRESS", "host:1"), ("NUM_PROCESSES", "3"), ("PROCESS_ID", "2")):
        monkeypatch.setenv(f"JAX_{name}", value)
    assert Processes() == Processes("host:1", 3, 2)
    assert Processes("other:1", 2, 0).process_id == 0


def test_one_process_starts_nothing() -> None:
    start(Processes())
    start(Processes("host:1", 1, 0))


def test_a_missing_package_of_a_cluster_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PMI_SIZE", "2")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(JaxperfError, match="pip install mpi4py"):
        start(Processes())


def test_a_process_without_a_gpu_of_its_own_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """As process 1 of `jaxperf launch -n 2` on a machine with one GPU; the address is never asked."""
    monkeypatch.setattr(
        "jaxperf.processes.distributed.versions", lambda packages: {"jax-cuda12-plugin": "0.10.2"}
    )
    monkeypatch.setattr("jaxperf.result.gpus.ask_driver", lambda: Driver(gpus=(Gpu("H100"), Gpu("H100"))))
    refused = r"^3 processes and 2 GPU\(s\), and each process has one of its own; give -n 2, or let them"
    monkeypatch.setattr("jax.config", SimpleNamespace(jax_platforms="cuda,cpu"))
    monkeypatch.setenv("JAX_LOCAL_DEVICE_IDS", "2")
    with pytest.raises(JaxperfError, match=refused):
        start(Processes("host:1", 3, 2))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    with pytest.raises(JaxperfError, match="and 1 GPU"):
        start(Processes("host:1", 3, 2))
    for name, value in (
        ("CUDA_VISIBLE_DEVICES", "5,6,7"),
        ("CUDA_VISIBLE_DEVICES", "-1"),  # none, so all compute on the CPU
        ("JAX_LOCAL_DEVICE_IDS", "0"),
    ):
        with monkeypatch.context() as changed:
            changed.setenv(name, value)
            _check_assigned_gpu(Processes("host:1", 3, 2))
    monkeypatch.setattr("jax.config", SimpleNamespace(jax_platforms="cpu"))
    _check_assigned_gpu(Processes("host:1", 3, 2))


def test_loopback_is_told_from_other_addresses() -> None:
    assert all(map(is_loopback, ("127.0.0.1:1", "localhost:1", "[::1]:1")))
    assert not any(map(is_loopback, ("10.0.0.1:1", "node1:1", "")))


def test_an_error_of_the_exchange_is_told_from_ones_own() -> None:
    gloo = (
        "UNKNOWN: Gloo all-reduce failed: [pair.cc:538] Read error [127.0.0.1]:2982: Connection reset by peer"
    )
    assert lost_another(ValueError(gloo))
    before_the_first = (
        "UNKNOWN: Gloo context initialization failed: DEADLINE_EXCEEDED: GetKeyValue() timed out with key: "
        "cpu:gloo/0,2048/1 and duration: 29.999999939s"
    )
    assert lost_another(ValueError(before_the_first))
    assert not lost_another(ValueError("peer"))


LISTENS = """
import psutil, socket
from jaxperf.processes.distributed import Processes, start
start(Processes())
from jaxperf.parallel.multihost import check_same
check_same(1)  # the processes have exchanged something
listening = {c.laddr.ip for c in psutil.Process().net_connections() if c.status == "LISTEN"}
print(socket.gethostbyname(socket.gethostname()), *sorted(listening))
"""
OTHER_HOST = (
    'mount --bind "$0" /etc/hosts && ip link set lo up && ip addr add 10.99.0.1/32 dev lo && exec "$@"'
)


@pytest.mark.real
@pytest.mark.thorough
def test_launched_processes_listen_on_the_loopback_address_only(tmp_path: Path) -> None:
    """On a host whose name is another address of it, where Gloo would listen by itself."""
    if os.geteuid() or not all(map(shutil.which, ("unshare", "ip"))):
        pytest.skip("NOT TESTED, where processes listen: needs root, unshare and ip")
    hosts, logs = tmp_path / "hosts", tmp_path / "logs"
    hosts.write_text(f"127.0.0.1 localhost\n10.99.0.1 {socket.gethostname()}\n")
    inside = ["unshare", "--net", "--mount", "--uts", "sh", "-c", OTHER_HOST, str(hosts)]
    launch = [sys.executable, "-m", "jaxperf", "launch", "--logs", str(logs), "--", "python", "-c", LISTENS]
    done = subprocess.run(
        [*inside, *launch],
        env={**child_environment(), "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    for i in range(2):
        name, *listening = (logs / f"process-{i}.log").read_text().splitlines()[-1].split()
        assert name == "10.99.0.1" and listening
        assert {word.removeprefix("::ffff:") for word in listening} == {"127.0.0.1"}


@pytest.mark.thorough
def test_a_port_that_another_program_took_is_one_line() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", free_port()))
        listener.listen()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        start = f"ended(lambda: start(Processes({address!r}, 2, 0)) or 0)"
        program = f"from jaxperf.processes.distributed import *\n{start}"
        environment = {**child_environment(), "JAX_COORDINATOR_BIND_ADDRESS": address}
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=120
        )
    assert f"error: the processes did not meet ({address})" in done.stderr


LEAVES = """
import atexit, sys
from jaxperf.process import leave
atexit.register(print, "at the end")
print("written", end="")
leave(int(sys.argv[1]))
"""


@pytest.mark.parametrize(("status", "written"), [(0, "writtenat the end\n"), (130, "written")])
def test_a_failed_process_leaves_at_once_with_its_output_and_status(status: int, written: str) -> None:
    command = [sys.executable, "-c", LEAVES, str(status)]
    done = subprocess.run(command, env=child_environment(), capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (status, written, "")
