"""Simulate a compiled program on a card with two queues: one of kernels, and one of collectives.

The program's text is in the order that XLA scheduled. Kernels wait for a synchronous collective. They overlap
an asynchronous one between its start and its end, and then wait for the rest of it.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from jaxperf.hlo import Module
from jaxperf.plan.cards import Card
from jaxperf.plan.collectives import Collective, source_of
from jaxperf.plan.kernels import KERNEL_S, Kernel


@dataclass
class Elapsed:
    """Seconds and work of a program, or of a part of it, on one device."""

    step_s: float = 0.0  # from its start to its end
    # kernels' seconds: "arithmetic", "memory" and "overhead"; and the "call" of the program
    parts: dict[str, float] = field(default_factory=dict)
    waits: dict[str, float] = field(default_factory=dict)  # kernels' seconds of waits, by collective
    flops: float = 0.0  # of matrix products, convolutions and custom kernels
    bytes: float = 0.0  # that kernels read and write
    kernels: float = 0.0
    lines: dict[str, float] = field(default_factory=dict)  # runs of kernels, by line of the user's code

    @property
    def waits_s(self) -> float:
        return sum(self.waits.values())

    def stretched(self, kernels: float, waits: float) -> float:
        """Return the seconds of the step if its kernels and its waits take so many times as long."""
        return kernels * sum(self.parts.values()) + waits * self.waits_s

    def add(self, other: Self, times: float = 1.0) -> None:
        """Add a part that runs `times` times after this one."""
        for name, value in vars(other).items():
            total = getattr(self, name)
            if isinstance(value, dict):
                for key, part in value.items():
                    total[key] = total.get(key, 0.0) + times * part
            else:
                setattr(self, name, total + times * value)


def run(
    module: Module,
    kernels: Mapping[str, Kernel],  # of the program, by instruction
    collectives: Mapping[str, Collective],
    card: Card,
    computation: str = "",
) -> Elapsed:
    """Return the seconds and the work of a computation, by default the entry, on one card."""
    elapsed = Elapsed()
    free_at = 0.0  # from when on the links are free
    ends: dict[str, float] = {}  # of asynchronous collectives

    def wait(collective: str) -> None:
        waited = max(0.0, ends[collective] - elapsed.step_s)
        elapsed.add(Elapsed(waited, waits={collective: waited}))

    part = functools.partial(run, module, kernels, collectives, card)
    for instruction in module.computations.get(computation or module.entry, ()):
        name = instruction.name
        started = next(iter(instruction.operands), "")  # what a "-done" waits for
        if instruction.opcode in ("while", "call"):
            elapsed.add(part(instruction.called), instruction.trips or 1)
        elif instruction.opcode == "conditional":
            elapsed.add(max(map(part, instruction.branches), key=lambda p: p.step_s, default=Elapsed()))
        elif each := collectives.get(name):
            ends[name] = free_at = max(elapsed.step_s, free_at) + each.each_s
            if not each.asynchronous:
                wait(name)
        elif instruction.opcode.endswith("-done") and started in ends:
            wait(started)
        elif kernel := kernels.get(name):
            seconds = kernel.seconds(card)
            bound = "arithmetic" if kernel.arithmetic_s(card) >= kernel.memory_s(card) else "memory"
            parts = {bound: seconds - KERNEL_S, "overhead": KERNEL_S}
            line = source_of(module, instruction)
            lines = {line: 1.0} if line else {}
            elapsed.add(Elapsed(seconds, parts, {}, kernel.flops, kernel.bytes, 1.0, lines))
    return elapsed
