"""A compiled program on a card as two queues: kernels one after the other, and collectives beside them.

The program's text is in the order that XLA scheduled. A synchronous collective stops the kernels; an
asynchronous one runs beside those between its start and its end, and stops them only for what is left.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from jaxperf.plan.cards import Card
from jaxperf.plan.collectives import Collective, describe_collective
from jaxperf.plan.hlo import Module
from jaxperf.plan.kernels import KERNEL_S, Kernel, kernel_of
from jaxperf.plan.links import Network, collective_seconds


@dataclass
class Elapsed:
    """Seconds of a program or a part of it.

    Attributes:
      total_s: from its start to its end.
      kernels_s: of the kernels alone.
      arithmetic_s, memory_s, overhead_s: of these: in kernels bound by arithmetic, by memory, and what
        kernels cost however little they do.
      exposed_s: for which kernels waited for collectives, by the collective's name.
      flops, bytes: of the kernels.
      kernels: how many were run.
      unknown_loops: loops whose number of turns XLA does not know, counted once.
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

    def parts(self) -> dict[str, float]:
        """Return the seconds of the kernels by what bounds them."""
        return {"arithmetic": self.arithmetic_s, "memory": self.memory_s, "overhead": self.overhead_s}

    def add(self, other: Elapsed, times: float = 1.0) -> None:
        """Add another part that runs `times` times after this one."""
        for name, value in vars(other).items():
            if isinstance(value, float):
                setattr(self, name, getattr(self, name) + times * value)
        for name, waited in other.exposed_s.items():
            self.exposed_s[name] = self.exposed_s.get(name, 0.0) + times * waited
        self.unknown_loops += other.unknown_loops

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

    def wait(self, end: float, collective: Collective) -> None:
        """Wait for a collective that ends at `end`."""
        waited = max(0.0, end - self.total_s)
        self.exposed_s[collective.name] = self.exposed_s.get(collective.name, 0.0) + waited
        self.total_s += waited


def run(
    module: Module, card: Card, devices: int, network: Network, computation: str = "", *, scale: float = 1.0
) -> Elapsed:
    """Return the seconds of a program on one of `devices` cards.

    Args:
      module: the program.
      card: what it runs on.
      devices: how many cards run it.
      network: what connects the nodes.
      computation: the part of it to run; its entry by default.
      scale: by which every kernel's time is multiplied, from a measurement of the step on one card.
    """
    elapsed, free_at = Elapsed(), 0.0  # when the links are free again
    name = computation or module.entry
    ends: dict[str, tuple[float, Collective]] = {}

    def part(called: str) -> Elapsed:
        return run(module, card, devices, network, called, scale=scale)

    for instruction in module.computations.get(name, ()):
        if instruction.opcode == "while":
            elapsed.add(part(instruction.called), instruction.trips or 1)
            elapsed.unknown_loops += instruction.trips is None
        elif instruction.opcode == "call":
            elapsed.add(part(instruction.called))
        elif instruction.opcode == "conditional":
            elapsed.add(max(map(part, instruction.branches), key=lambda p: p.total_s, default=Elapsed()))
        elif collective := describe_collective(module, name, instruction, devices):
            free_at = max(elapsed.total_s, free_at) + collective_seconds(card, collective, network)
            if collective.asynchronous:
                ends[instruction.name] = free_at, collective
            else:
                elapsed.wait(free_at, collective)
        elif instruction.opcode.endswith("-done"):
            if pending := ends.get(next(iter(instruction.operands), "")):
                elapsed.wait(*pending)
        elif work := kernel_of(module, name, instruction):
            elapsed.add_kernel(work, card, scale)
    return elapsed
