"""A run's seconds: which configurations still have the time to start, and what the main rows need."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Mapping, Sequence

from jaxperf.frameworks.study import Entry
from jaxperf.frameworks.workloads import Workload

Starts = Mapping[str, Mapping[str, float]]
# Seconds that a start is expected to take, by network and precision. Those of LeNet, and of ResNet-18 with
# jit, scan and (in bfloat16) channels-last, are about those of an H200 (JAX 0.11.2, PyTorch 2.11; 26 and 27
# November 2026). There, torch.compile was not done after 26 s for ResNet-18 in bfloat16. All others are
# guesses.
_RESNET = {"scan": 5.0, "CUDA graphs": 3.0, "eager": 5.0, "compiled": 35.0, "compiled, CUDA graphs": 10.0}
_LENET = {
    "jit": 4.0, "scan": 1.2, "channels-last": 2.1, "CUDA graphs": 1.0, "eager": 1.7,
    "compiled": 11.0, "compiled, CUDA graphs": 0.2,
}  # fmt: skip
STARTS: Starts = {
    "resnet bfloat16": {"jit": 17.0, "channels-last": 10.0, **_RESNET},
    "resnet TF32": {"jit": 6.0, "channels-last": 6.0, **_RESNET},
    "lenet bfloat16": _LENET,
    "lenet TF32": _LENET,
    "mlp": {"jit": 0.7, "scan": 0.3, "eager": 0.1, "CUDA graphs": 0.1},
}
_USUAL = 3.0  # where nothing is known


class Budget:
    """The seconds of a run. Those that the main workloads still need are reserved for them.

    Args:
      seconds: of the whole run, counted from now.
      workloads: in the order in which they run.
      starts: seconds that a start is expected to take, until one is seen: by network and precision, and by
        configuration.
      clock: gives the seconds since any moment.

    Attributes:
      early: by workload that has not begun, its entries, of which some have been started already.
    """

    def __init__(
        self,
        seconds: float,
        workloads: Sequence[Workload],
        starts: Starts = STARTS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock, self._end, self._rest = clock, clock() + seconds, list(workloads)
        self.early: dict[str, list[Entry]] = {}
        self._starts = {(net, name): s for net, names in starts.items() for name, s in names.items()}

    @property
    def left(self) -> float:
        """Return the seconds until the run must end; below 0 if it should have."""
        return self._end - self._clock()

    def begin(self, workload: Workload) -> None:
        """Begin a workload: from now on, nothing is reserved for it."""
        self._rest.remove(workload)

    def later_main(self) -> list[Workload]:
        """Return the main workloads that have neither begun nor been started early."""
        return [w for w in self._rest if w.main and w.name not in self.early]

    def spare(self, systems: Container[str]) -> float:
        """Return the seconds that are left without those that later main workloads need in these systems."""
        return self.left - sum(self.needs(w, systems) for w in self._rest if w.main)

    def needs(self, workload: Workload, systems: Container[str]) -> float:
        """Return the seconds that a workload needs: the starts that are not optional, and its rounds."""
        return workload.rounds_s + sum(
            self.start_s(workload, name)
            for system, names in workload.configurations.items()
            for name in names
            if system in systems and name not in workload.optional
        )

    def start_s(self, workload: Workload, configuration: str) -> float:
        """Return the seconds that a start is expected to take."""
        return self._starts.get((_kind(workload), configuration), _USUAL)

    def started(self, workload: Workload, configuration: str, seconds: float) -> None:
        """Note how long a start took; the next one of this kind is expected to take as long."""
        self._starts[_kind(workload), configuration] = seconds


def _kind(workload: Workload) -> str:
    """Network and precision: what the time of a start depends on most."""
    return f"{workload.settings.get('net', '')} {workload.settings.get('precision', '')}".strip()
