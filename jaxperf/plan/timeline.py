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
from jaxperf.plan.links import Network, collective_seconds


@dataclass
class Elapsed:
    """Seconds of a program or a part of it.

    Attributes:
      total_s: seconds from its start to its end.
      kernels_s: seconds of the kernels alone.
      arithmetic_s, memory_s, overhead_s: parts of `kernels_s`: seconds in kernels bound by arithmetic, in
        kernels bound by memory, and the fixed overhead of all kernels.
      exposed_s: seconds for which kernels wait for collectives, by the collective's name.
      flops, bytes: work of the kernels.
      kernels: number of kernels that run.
      unknown_loops: loops whose number of iterations XLA does not know, counted once.
      unknown_kernels: names of custom kernels whose arithmetic is not known.
    """

    total_s: float = 0.0
    kernels_s: float = 0.0
    arithmetic_s: float = 0.0
    memory_s: float = 0.0
    overhead_s: float = 0.0
    exposed_s: dict[str, float] = field(default_factory=dict)
    flops: float = 0.0
    bytes: float = 0.0
    kernels: float = 0.0
    unknown_loops: int = 0
    unknown_kernels: set[str] = field(default_factory=set)

    def parts(self) -> dict[str, float]:
        """Return the seconds of the kernels by what bounds them."""
        return {"arithmetic": self.arithmetic_s, "memory": self.memory_s, "overhead": self.overhead_s}

    def add(self, other: Elapsed, times: float = 1.0) -> None:
        """Add a part that runs `times` times after this one."""
        for name, value in vars(other).items():
            if isinstance(value, float):
                setattr(self, name, getattr(self, name) + times * value)
        for name, waited in other.exposed_s.items():
            self.exposed_s[name] = self.exposed_s.get(name, 0.0) + times * waited
        self.unknown_loops += other.unknown_loops
        self.unknown_kernels |= other.unknown_kernels

    def add_kernel(self, work: Kernel, card: Card, scale: float) -> None:
        """Add a kernel, whose time is multiplied by `scale`."""
        seconds, overhead = scale * work.seconds(card), scale * KERNEL_S
        self.total_s += seconds
        self.kernels_s += seconds
        self.overhead_s += overhead
        if work.arithmetic_s(card) >= work.memory_s(card):
            self.arithmetic_s += seconds - overhead
        else:
            self.memory_s += seconds - overhead
        self.flops += work.flops
        self.bytes += work.bytes
        self.kernels += 1
        self.unknown_kernels |= {work.unknown} - {""}

    def wait(self, end: float, collective: Collective) -> None:
        """Wait for a collective that ends at `end`."""
        waited = max(0.0, end - self.total_s)
        self.exposed_s[collective.name] = self.exposed_s.get(collective.name, 0.0) + waited
        self.total_s += waited


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
    """Return the seconds of a program on one of `devices` cards.

    Args:
      module: the program.
      card: the card that it runs on.
      devices: number of cards that run it.
      network: the network between nodes.
      computation: the computation to run; the entry by default.
      scale: factor on every kernel's time, from a measurement of the step on one card.
      kernels: costs of custom kernels, by name.
    """
    elapsed, free_at = Elapsed(), 0.0  # the links are free from `free_at` on
    name = computation or module.entry
    ends: dict[str, tuple[float, Collective]] = {}

    def part(called: str) -> Elapsed:
        return run(module, card, devices, network, called, scale=scale, kernels=kernels)

    for instruction in module.computations.get(name, ()):
        if instruction.opcode == "while":
            elapsed.add(part(instruction.called), instruction.trips or 1)
            elapsed.unknown_loops += instruction.trips is None
        elif instruction.opcode == "call":
            elapsed.add(part(instruction.called))
        elif instruction.opcode == "conditional":
            elapsed.add(max(map(part, instruction.branches), key=lambda p: p.total_s, default=Elapsed()))
        elif collective := describe_collective(module, instruction, devices):
            free_at = max(elapsed.total_s, free_at) + collective_seconds(card, collective, network)
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
