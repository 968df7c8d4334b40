"""A run's seconds, divided over its workloads: whether a configuration still has the time to start."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from jaxperf.frameworks.workloads import Workload

FOR_ROUNDS = 0.2  # of a workload's seconds; no configuration may start in them
# Seconds that a start took: an H200, JAX 0.11.2, PyTorch 2.11, 26 November 2026.
STARTS = {
    ("resnet", "jit"): 16.0,
    ("resnet", "scan"): 5.0,
    ("resnet", "channels-last"): 10.0,
    ("resnet", "compiled"): 17.0,
    ("lenet", "jit"): 4.0,
    ("lenet", "compiled"): 10.0,
}
OTHERS = {"mlp": 1.0}
USUAL = 3.0


class Budget:
    """The seconds of a run; what a workload leaves over goes to the next ones.

    Args:
      seconds: of the whole run, counted from now.
      workloads: in the order in which they run; their shares divide the seconds.
      starts: seconds that a start is expected to take, by network and configuration, until one is seen.
      clock: gives the seconds since any moment.
    """

    def __init__(
        self,
        seconds: float,
        workloads: Sequence[Workload],
        starts: Mapping[tuple[str, str], float] = STARTS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock, self._end, self._starts = clock, clock() + seconds, dict(starts)
        self._shares = [w.share for w in workloads]
        self._until = self._rounds_from = self._end

    def begin(self) -> None:
        """Begin the next workload: from now on `left` is about its part."""
        now, rest = self._clock(), sum(self._shares) or 1.0
        seconds = max(0.0, self._end - now) * (self._shares.pop(0) if self._shares else 1.0) / rest
        self._until, self._rounds_from = now + seconds, now + (1 - FOR_ROUNDS) * seconds

    @property
    def left(self) -> float:
        """Seconds until the workload must end; below 0 if it should have."""
        return self._until - self._clock()

    def allows(self, net: str, configuration: str, after: str = "") -> bool:
        """Return whether a configuration still has the time to start.

        Args:
          net: the network.
          configuration: what would start.
          after: another configuration that must still have the time to start then; "" for none.
        """
        needs = self._start_s(net, configuration) + (self._start_s(net, after) if after else 0.0)
        return needs <= self._rounds_from - self._clock()

    def _start_s(self, net: str, configuration: str) -> float:
        return self._starts.get((net, configuration), OTHERS.get(net, USUAL))

    def started(self, net: str, configuration: str, seconds: float) -> None:
        """Note how long a start took; the next one of this kind is expected to take as long."""
        self._starts[net, configuration] = seconds
