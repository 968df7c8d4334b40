"""A compiled program on a card as two queues: kernels one after the other, and collectives beside them.

The program's text is in the order that XLA scheduled. A synchronous collective stops the kernels; an
asynchronous one runs beside those between its start and its end, and stops them only for what is left.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from jaxperf.plan.cards import Card
from jaxperf.plan.collectives import Collective, describe_collective
from jaxperf.plan.hlo import Module
from jaxperf.plan.kernels import KERNEL_S, kernel_of
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

    def add(self, other: Elapsed, times: float = 1.0) -> None:
        """Add another part that runs `times` times after this one."""
        for name in (
            "total_s",
            "kernels_s",
            "arithmetic_s",
            "memory_s",
            "overhead_s",
            "flops",
            "bytes",
            "kernels",
        ):
            setattr(self, name, getattr(self, name) + times * getattr(other, name))
        for name, waited in other.exposed_s.items():
            self.exposed_s[name] = self.exposed_s.get(name, 0.0) + times * waited
        self.unknown_loops += other.unknown_loops


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
    for instruction in module.computations.get(name, ()):
        if instruction.opcode == "while":
            body = run(module, card, devices, network, instruction.called, scale=scale)
            elapsed.add(body, instruction.trips or 1)
            elapsed.unknown_loops += instruction.trips is None
        elif instruction.opcode == "call":
            elapsed.add(run(module, card, devices, network, instruction.called, scale=scale))
        elif instruction.opcode == "conditional":
            parts = [run(module, card, devices, network, b, scale=scale) for b in instruction.branches]
            elapsed.add(max(parts, key=lambda part: part.total_s, default=Elapsed()))
        elif collective := describe_collective(module, name, instruction, devices):
            end = max(elapsed.total_s, free_at) + collective_seconds(card, collective, network)
            free_at = end
            if collective.asynchronous:
                ends[instruction.name] = end, collective
            else:
                _wait(elapsed, end, collective)
        elif instruction.opcode.endswith("-done") and (
            pending := ends.get(next(iter(instruction.operands), ""))
        ):
            _wait(elapsed, *pending)
        elif work := kernel_of(module, name, instruction):
            took = scale * work.seconds(card)
            arithmetic = scale * work.arithmetic_s(card)
            elapsed.total_s += took
            elapsed.kernels_s += took
            elapsed.overhead_s += scale * KERNEL_S
            rest = took - scale * KERNEL_S
            if arithmetic >= rest:
                elapsed.arithmetic_s += rest
            else:
                elapsed.memory_s += rest
            elapsed.flops += work.flops
            elapsed.bytes += work.bytes
            elapsed.kernels += 1
    return elapsed


def _wait(elapsed: Elapsed, end: float, collective: Collective) -> None:
    waited = max(0.0, end - elapsed.total_s)
    elapsed.exposed_s[collective.name] = elapsed.exposed_s.get(collective.name, 0.0) + waited
    elapsed.total_s += waited
