"""The live workers of a run: one per system and number of devices, all with the same cores and settings.

Each workload has new ones, since what a process did before can change its speed: where MXNet has once copied
a large array, libgomp has more threads than cores and stops letting them spin, and MXNet's forward pass of
LeNet takes 413 us instead of 150. If a worker is lost, a new one replaces it; a system that loses its workers
again and again is given up.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxperf.frameworks.worker import System, TaskError, Worker, WorkerGoneError
from jaxperf.result.machine import available_cores

START_S = 120  # that a worker may take to import its framework
LOSSES = 5  # of workers of one system in a run, in one lane
OVER = 1.1  # a configuration that used so many times the cores that it was given is not judged
STRANGE = ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "VIRTUAL_ENV", "JAX_COMPILATION_CACHE_DIR")

# For a GPU; by default JAX also takes three quarters of its memory, and PyTorch needs some.
_ON_A_GPU = {"JAX_PLATFORMS": "cuda,cpu", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


class GivenUpError(Exception):
    """No worker of this system is available any more (one line says why)."""


class Pool:
    """Live workers, started when first asked for.

    Args:
      systems: by name.
      scratch: working folder of all.
      environment: environment variables of all.
      cores: processors that every worker may use; empty for all there are.
      platform: "cpu" or "gpu", where JAX starts; each workload tells the other systems.

    Attributes:
      barred: configurations that broke their device, and are not tried again, with the reason.
    """

    def __init__(
        self,
        systems: Sequence[System],
        *,
        scratch: Path,
        environment: Mapping[str, str],
        cores: Sequence[int] = (),
        platform: str = "cpu",
    ) -> None:
        self.systems = {system.name: system for system in systems}
        self.scratch, self.cores = scratch, tuple(cores)
        self.environment, self.platform = environment, platform
        self._live: dict[tuple[str, int, str], Worker] = {}
        self._losses: Counter[tuple[str, str]] = Counter()
        self._given_up: dict[tuple[str, str], str] = {}
        self._stopped = False
        self.barred: dict[str, str] = {}
        self.greetings: dict[str, dict[str, Any]] = {}

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self, lane: str | None = None) -> None:
        """End the live workers, or only those in a lane; `worker` starts new ones."""
        for key in [key for key in self._live if lane in (None, key[2])]:
            self._live.pop(key).close()

    def threads(self, devices: int) -> int:
        """Return the threads that each of `devices` devices gets: an equal share of the cores."""
        return max(1, len(self.cores or available_cores()) // devices)

    def shares(self, devices: int) -> list[list[int]]:
        """Return the cores of each of `devices` devices; with more devices than cores, they share."""
        cores, size = list(self.cores or available_cores()), self.threads(devices)
        firsts = [i * size % len(cores) for i in range(devices)]
        return [cores[first : first + size] for first in firsts]

    def worker(self, name: str, devices: int = 1, lane: str = "") -> Worker:
        """Return the live worker of a system; each lane has one of its own, which can be lost alone.

        Raises:
          GivenUpError: it cannot be started, or was lost too often.
        """
        key = name, devices, lane
        if key not in self._live:
            self._live[key] = self._start(name, devices, lane)
        return self._live[key]

    def abort(self) -> None:
        """Kill all workers, of which other threads may expect an answer, and start no others."""
        self._stopped = True
        for worker in list(self._live.values()):
            worker.kill()

    def forget(self, name: str, devices: int, lane: str = "") -> None:
        """Note that this worker was lost; the next call of `worker` starts another."""
        self._live.pop((name, devices, lane)).end()
        self._losses[name, lane] += 1

    def _start(self, name: str, devices: int, lane: str) -> Worker:
        if self._stopped:
            raise GivenUpError("the run was stopped")
        if reason := self._given_up.get((name, lane)):
            raise GivenUpError(reason)
        if self._losses[name, lane] >= LOSSES:
            raise GivenUpError(f"{name} is given up after losing {LOSSES} workers")
        threads, shares = self.threads(devices), self.shares(devices)
        start = {"cores": list(self.cores), "threads": threads, "devices": devices, "shares": shares}
        is_jax = self.systems[name].side == "jax"
        variables = {
            **self._shared(is_jax=is_jax),
            **_threading(threads, devices, is_jax=is_jax),
            **(_ON_A_GPU if is_jax and self.platform == "gpu" else {}),
        }
        try:
            worker = Worker(
                self.systems[name],
                start=start,
                environment=variables,
                scratch=self.scratch,
                limit_s=START_S,
            )
        except (TaskError, WorkerGoneError) as e:
            self._given_up[name, lane] = str(e)  # it would not start the next time either
            raise GivenUpError(str(e)) from None
        self.greetings.setdefault(name, worker.greeting)
        return worker

    def _shared(self, *, is_jax: bool) -> dict[str, str]:
        """Our environment, without variables for our own Python if the worker's is different."""
        return {k: v for k, v in self.environment.items() if is_jax or k not in STRANGE} | {
            "PYTHONUNBUFFERED": "1",
            "PYTHONNOUSERSITE": "1",
            "TORCHINDUCTOR_CACHE_DIR": str(self.scratch / "inductor"),  # so that compile times are cold
        }


def _threading(threads: int, devices: int, *, is_jax: bool) -> dict[str, str]:
    """Return the variables that tell each system its number of threads.

    JAX counts the cores itself, and its devices share one pool of as many threads.
    """
    variables = {v: str(threads) for v in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
    if is_jax:
        variables |= {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(devices)}
    return variables | ({"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {})
