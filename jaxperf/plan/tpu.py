"""Lower bounds of a step's time on TPUs, from data sheets.

Kernels are not modeled. A step takes at least its arithmetic over the peak, its memory traffic over the
memory's bandwidth, and the bytes that leave a chip over the bandwidth of all its links.
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
    """Return the work of each chip, with the least seconds for arithmetic and memory; other times are 0.

    Arrays in a chip's vector memory cause no traffic.
    """
    work = Elapsed()
    for computation, instruction, times in executed_instructions(module):
        work.unknown_loops += instruction.opcode == "while" and instruction.trips is None
        if kernel := kernel_of(module, computation, instruction):
            work.kernels += times
            body = module.computations.get(instruction.called, ())
            if not any(collective_of(each.opcode) for each in body):  # not for fused collectives
                work.bytes += times * kernel.bytes
            work.flops += times * kernel.flops
            for product in kernel.products:
                peak = tpu.peak_flops["int8" if "8" in product.dtype else "bfloat16"]
                work.arithmetic_s += times * product.flops / peak
    work.memory_s = work.bytes / tpu.memory_bandwidth
    return work


def collective_s(tpu: Tpu, collective: Collective, count: int) -> float:
    """Return the least seconds of a collective, if all links of a slice of `count` chips send."""
    size = 2 if collective.kind == "collective-permute" else collective.group_size  # groups are pairs
    sent = crossing(collective.kind, collective.bytes, size)
    return sent / (tpu.link_bandwidth * tpu.links(count)) if sent else 0.0
