"""How long a step takes at least on TPUs, from the figures of data sheets.

The time of a TPU's kernels is not modeled. What a step computes, moves and sends bounds its time from below:
arithmetic over the peak, bytes of the chip's memory over its bandwidth, and bytes that leave a chip over the
bandwidth of all its links.
"""

from __future__ import annotations

from jaxperf.plan.cards import Tpu
from jaxperf.plan.collectives import Collective, collective_of
from jaxperf.plan.hlo import Module, executed_instructions
from jaxperf.plan.kernels import kernel_of
from jaxperf.plan.links import crossing
from jaxperf.plan.timeline import Elapsed

CHECKED = "times are at least these: from data sheets, not checked against a measurement"


def least_work(module: Module, tpu: Tpu) -> Elapsed:
    """Return what a program makes each chip do, with the least seconds for its arithmetic and its memory.

    What a chip's vector memory holds costs no traffic. Other times are 0.
    """
    work = Elapsed()
    for computation, instruction, times in executed_instructions(module):
        work.unknown_loops += instruction.opcode == "while" and instruction.trips is None
        if kernel := kernel_of(module, computation, instruction):
            work.kernels += times
            body = module.computations.get(instruction.called, ())
            if not any(collective_of(each.opcode) for each in body):  # else it passes on what others send
                work.bytes += times * kernel.bytes
            work.flops += times * kernel.flops
            for product in kernel.products:
                peak = tpu.peak_flops["int8" if "8" in product.dtype else "bfloat16"]
                work.arithmetic_s += times * product.flops / peak
    work.memory_s = work.bytes / tpu.memory_bandwidth
    return work


def collective_s(tpu: Tpu, collective: Collective, count: int) -> float:
    """Return the seconds that a collective takes at least, if all links of a slice of `count` chips send."""
    size = 2 if collective.kind == "collective-permute" else collective.group_size  # groups are pairs
    sent = crossing(collective.kind, collective.bytes, size)
    return sent / (tpu.link_bandwidth * tpu.links(count)) if sent else 0.0
