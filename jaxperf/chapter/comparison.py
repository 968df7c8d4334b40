"""What the comparison begins with: the systems that are there, their settings, the workloads."""

from __future__ import annotations

import dataclasses
import os
import platform
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil

from jaxperf.errors import JaxperfError
from jaxperf.frameworks.command import peer_status
from jaxperf.frameworks.device_workloads import DEVICE_SMOKE, DeviceSizes, device_workloads
from jaxperf.frameworks.environments import look, named_interpreters, named_peers, running_python
from jaxperf.frameworks.inputs import Shapes
from jaxperf.frameworks.pool import GivenUpError, Pool
from jaxperf.frameworks.sizes import SMOKE, Sizes
from jaxperf.frameworks.worker import System
from jaxperf.frameworks.workloads import ONEDNN, Workload, workloads
from jaxperf.process import mistakes_end
from jaxperf.result.machine import available_cores

BUSY_PERCENT = 10
# From jaxlib 0.12 on. The last keeps XLA's default library from taking single convolutions first.
ONEDNN_FLAGS = (
    "--xla_cpu_use_onednn=true",
    "--xla_cpu_experimental_onednn_custom_call=true",
    "--xla_cpu_experimental_ynn_fusion_type=-individual_convolution",
)
IMAGES = 2048
Say = Callable[[str], None]


@dataclass(frozen=True)
class Choice:
    """What to compare, as a user's flags say it.

    Attributes:
      peers: systems beside JAX.
      peer_python: NAME=PATH of a Python that has a peer, which then runs there.
      only: only the workloads whose names contain one of these strings; "" is in all.
      cores: how many processors each system may use; 0 for all.
      devices: how many the parallel workloads use, on a CPU.
      platform: "cpu" or "gpu".
      on_device: whether the images are on the device, as they are on a GPU: other workloads, and no MXNet.
      with_onednn: whether JAX also runs with XLA's flags for oneDNN.
      omp_wait: how OpenMP's threads wait, in all systems: "default", "passive", or "auto", which sends them
        to sleep where other programs keep the machine busy.
      rounds: of every workload; 0 for the usual ones.
      smoke: whether everything is of toy size.
      seed: of weights and inputs.
    """

    peers: Sequence[str] = ("mxnet", "torch")
    peer_python: Sequence[str] = ()
    only: Sequence[str] = ()
    cores: int = 0
    devices: int = 2
    platform: str = "cpu"
    on_device: bool = False
    with_onednn: bool = False
    omp_wait: str = "auto"
    rounds: int = 0
    smoke: bool = False
    seed: int = 0

    def check(self) -> None:
        """Refuse what cannot be compared.

        Raises:
          JaxperfError: a word that is none of those that there are, or a number below 0.
        """
        if self.omp_wait not in (allowed := ("auto", "default", "passive")):
            raise JaxperfError(f"--omp-wait is {self.omp_wait!r}; there are {', '.join(allowed)}")
        for flag, number in (("--cores", self.cores), ("--rounds", self.rounds)):
            if number < 0:
                raise JaxperfError(f"{flag} is {number}; give 1 or more, or 0 for the usual ones")


@contextmanager
def prepared(
    choice: Choice, images: Any, labels: Any, *, lenet: Shapes, say: Say
) -> Iterator[tuple[list[Workload], Pool]]:
    """Yield the chosen workloads, and live workers of JAX and of every peer that is there.

    Where the choice is a mistake (a word that names nothing, sizes that do not fit, no GPU), the program ends
    with one line.

    Args:
      choice: what to compare.
      images, labels: what to train on; on the host, the first 2048 are used.
      lenet: shapes of LeNet's parameters in the book's layout, by name.
      say: is told in one line which system is missing, and what else readers must know.
    """
    with ExitStack() as stack:
        folder = TemporaryDirectory(prefix="jaxperf-peers-", ignore_cleanup_errors=True)
        scratch = Path(stack.enter_context(folder))
        with mistakes_end():
            choice.check()
            work = chosen_of(define(choice, images, labels, lenet, scratch), choice.only)
            shared = environment(choice.omp_wait, say)
            cores = available_cores()[: choice.cores] if choice.cores else ()
            pool = stack.enter_context(
                Pool(
                    systems(choice, shared, say),
                    scratch=scratch,
                    environment=shared,
                    cores=cores,
                    platform=choice.platform,
                )
            )
            if choice.platform == "gpu":
                check_gpu(pool)
        yield work, pool


def define(choice: Choice, images: Any, labels: Any, lenet: Shapes, folder: Path) -> tuple[Workload, ...]:
    """Return all workloads at the sizes that were chosen, with their files in `folder`."""
    if choice.on_device:
        sizes = with_rounds(choice, DEVICE_SMOKE if choice.smoke else DeviceSizes())
        return device_workloads(
            sizes, folder, images, labels, lenet=lenet, platform=choice.platform, seed=choice.seed
        )
    return workloads(
        with_rounds(choice, SMOKE if choice.smoke else Sizes()),
        folder,
        images[:IMAGES],
        labels[:IMAGES],
        lenet=lenet,
        devices=choice.devices,
        onednn=choice.with_onednn,
        seed=choice.seed,
    )


def with_rounds(choice: Choice, usual: Any) -> Any:
    """Return the sizes with the rounds that were chosen."""
    names = [f.name for f in dataclasses.fields(usual) if f.name.endswith("rounds")]
    return dataclasses.replace(usual, **dict.fromkeys(names, choice.rounds)) if choice.rounds else usual


def chosen_of(there: Iterable[Workload], only: Sequence[str]) -> list[Workload]:
    """Return the workloads whose names contain one of the strings, or all.

    Raises:
      JaxperfError: no workload holds one.
    """
    there, parts = list(there), [word.lower() for word in only if word]
    workloads = [w for w in there if not parts or any(word in w.name.lower() for word in parts)]
    if not workloads:
        names = ", ".join(w.name for w in there)
        raise JaxperfError(f"no workload holds {' or '.join(only)}; there are {names}")
    return workloads


def systems(choice: Choice, shared: Mapping[str, str], say: Say) -> list[System]:
    """Return JAX, and every peer that is there; name the others with the command that installs them."""
    interpreter = Path(sys.executable)
    measured, pythons = [System("jax", interpreter)], named_interpreters(filter(None, choice.peer_python))
    if choice.with_onednn:
        x86 = platform.machine().lower() in ("x86_64", "amd64")
        if x86 and tuple(map(int, metadata.version("jaxlib").split(".")[:2])) >= (0, 12):
            flags = " ".join((shared["XLA_FLAGS"], *ONEDNN_FLAGS)).strip()
            measured.append(System(ONEDNN, interpreter, variables={"XLA_FLAGS": flags}, runs="jax"))
        else:
            say("XLA's flags for oneDNN need an x86 processor and jaxlib 0.12 or newer: they have no rows")
    for peer in dict.fromkeys((*named_peers(choice.peers), *named_peers(pythons))):
        if peer.name == "mxnet" and choice.on_device:
            say("MXNet is left out: the package of its last release computes on CPUs only")
            continue
        other = pythons.get(peer.name) or (running_python(peer) if choice.platform == "gpu" else None)
        there = other or look(peer)
        if there.state != "ready":
            say(f"{peer.name} is not measured: {peer_status(peer)}")
        elif choice.platform == "gpu" and "CUDA" not in there.detail:
            say(f"{peer.name} is not measured: {there.detail} has no CUDA; --peer-python names another")
        else:
            measured.append(System(peer.name, there.python))
            if other:
                say(f"{peer.name} is the one of {there.python}: {there.detail}")
    if choice.on_device and choice.platform == "cpu":
        say("CUDA graphs are not available here: PyTorch computes on a CPU")
    return measured


def environment(omp_wait: str, say: Say) -> dict[str, str]:
    """Return the environment variables of all workers: the user's own, without XLA's flags for oneDNN.

    On 2 cores that other programs kept busy, a PyTorch sum of 40,000 numbers took 16 ms with spinning
    threads, which is one time slice of the scheduler, and 12 us with sleeping ones; on an idle machine
    spinning is faster.
    """
    words = os.environ.get("XLA_FLAGS", "").split(" ")
    shared = {**os.environ, "XLA_FLAGS": " ".join(word for word in words if word not in ONEDNN_FLAGS)}
    root = str(Path(__file__).resolve().parents[2])  # JAX's worker imports this very package
    shared["PYTHONPATH"] = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    busy = psutil.cpu_percent(interval=1) if omp_wait == "auto" else 0.0
    if busy > BUSY_PERCENT:
        say(f"others use {busy:.0f}% of the machine: OpenMP's threads sleep while they wait")
    asleep = omp_wait == "passive" or busy > BUSY_PERCENT
    return {**shared, "OMP_WAIT_POLICY": "passive"} if asleep else shared


def check_gpu(pool: Pool) -> None:
    """Ask JAX's worker for its GPU.

    Raises:
      JaxperfError: it finds none.
    """
    try:
        device = pool.worker("jax").greeting["device"]
    except GivenUpError as e:
        raise JaxperfError(f"{e}; without --platform gpu the systems are compared on the CPU") from None
    if device["platform"] != "gpu":
        raise JaxperfError("JAX finds no GPU; without --platform gpu the systems are compared on the CPU")
