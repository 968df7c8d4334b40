"""Simulate a compiled program on a card with two queues: one of kernels, and one of collectives.

The program's text is in the order that XLA scheduled. Kernels wait for a synchronous collective. They overlap
an asynchronous one between its start and its end, and then wait for the rest of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from jaxperf.hlo import Module
from jaxperf.plan.cards import Card
from jaxperf.plan.collectives import Collective, describe_collective
from jaxperf.plan.kernels import KERNEL_S, Cost, Kernel, kernel_of
from jaxperf.plan.links import Network, exchange_s

Sums = dict[str, float]


@dataclass
class Elapsed:
    """Seconds and work of a program or a part of it."""

    total_s: float = 0.0  # from its start to its end
    parts: Sums = field(default_factory=dict)  # kernels' seconds: "arithmetic", "memory" and "overhead"
    waits: Sums = field(default_factory=dict)  # seconds for which kernels wait, by collective's name
    work: Sums = field(default_factory=dict)  # of the kernels: "flops", "bytes", and their number "kernels"
    unknown_loops: int = 0  # whose number of iterations XLA does not know, counted once
    unknown_kernels: set[str] = field(default_factory=set)  # whose arithmetic is not known

    @property
    def kernels_s(self) -> float:
        return sum(self.parts.values())

    def add(self, other: Elapsed, times: float = 1.0) -> None:
        """Add a part that runs `times` times after this one."""
        self.total_s += times * other.total_s
        for mine, theirs in zip((self.parts, self.waits, self.work), (other.parts, other.waits, other.work)):
            _add(mine, theirs, times)
        self.unknown_loops += other.unknown_loops
        self.unknown_kernels |= other.unknown_kernels

    def add_kernel(self, kernel: Kernel, card: Card, scale: float) -> None:
        """Add a kernel, whose time is multiplied by `scale`."""
        seconds, overhead = scale * kernel.seconds(card), scale * KERNEL_S
        bound = "arithmetic" if kernel.arithmetic_s(card) >= kernel.memory_s(card) else "memory"
        self.total_s += seconds
        _add(self.parts, {bound: seconds - overhead, "overhead": overhead})
        _add(self.work, {"flops": kernel.flops, "bytes": kernel.bytes, "kernels": 1})
        self.unknown_kernels |= {kernel.unknown} - {""}

    def wait(self, end: float, collective: Collective) -> None:
        """Wait for a collective that ends at `end`."""
        waited = max(0.0, end - self.total_s)
        _add(self.waits, {collective.name: waited})
        self.total_s += waited


def _add(sums: Sums, more: Mapping[str, float], times: float = 1.0) -> None:
    for name, value in more.items():
        sums[name] = sums.get(name, 0.0) + times * value


def run(
    module: Module,
    card: Card,
    devices: int,
    network: Network,
    computation: str = "",
    *,
    scale: float = 1.0,
    kernels: Mapping[str, Cost] = MappingProxyType({}),
) -> Elapsed:
    """Return the seconds and the work of a computation, by default the entry, on one of `devices` cards.

    `scale` multiplies every kernel's time, as a measured step asks for; `kernels` has custom kernels' costs.
    """
    elapsed, free_at = Elapsed(), 0.0  # the links are free from `free_at` on
    ends: dict[str, tuple[float, Collective]] = {}

    def part(called: str) -> Elapsed:
        return run(module, card, devices, network, called, scale=scale, kernels=kernels)

    for instruction in module.computations.get(computation or module.entry, ()):
        if instruction.opcode == "while":
            elapsed.add(part(instruction.called), instruction.trips or 1)
            elapsed.unknown_loops += instruction.trips is None
        elif instruction.opcode == "call":
            elapsed.add(part(instruction.called))
        elif instruction.opcode == "conditional":
            elapsed.add(max(map(part, instruction.branches), key=lambda p: p.total_s, default=Elapsed()))
        elif collective := describe_collective(module, instruction, devices):
            nodes = collective.nodes(card.per_node)
            seconds = exchange_s(
                card, collective.kind, collective.bytes, collective.group_size, nodes, network
            )
            free_at = max(elapsed.total_s, free_at) + seconds
            if collective.asynchronous:
                ends[instruction.name] = free_at, collective
            else:
                elapsed.wait(free_at, collective)
        elif instruction.opcode.endswith("-done"):
            if pending := ends.get(next(iter(instruction.operands), "")):
                elapsed.wait(*pending)
        elif work := kernel_of(module, instruction, kernels):
            elapsed.add_kernel(work, card, scale)
    return elapsed
