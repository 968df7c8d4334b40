"""Try on the CPU what an accelerator runs in tiny pieces.

A program of small operations, each of which needs the one before, takes an accelerator longer than a CPU: to
start a kernel takes longer than its work. The trial compiles the program for the CPU, as JAX handed it to the
compiler, and runs it with zeros after the watched program has ended. Nothing of that program runs again.
"""

import sys
import timeit
from types import FrameType
from typing import Any

from jaxperf import hlo, jax_internals
from jaxperf.watch.log import Compiled, Log
from jaxperf.watch.observe import hooks
from jaxperf.watch.observe.executables import compiler_variables

CALLS = 20  # in windows, from which on a program is worth a trial
LONGEST_TURN_S = 0.02
MOST_FLOPS, MOST_BYTES = 1e9, 64 << 20
KEPT, TRIED = 50, 2  # programs
RUNS = 10


class CpuTrials:
    def __init__(self, log: Log) -> None:
        self.log = log
        self._modules: dict[str, Any] = {}

    def keep(self, c: Compiled, frame: FrameType) -> None:
        accelerated = hooks.is_running() and sys.modules["jax"].default_backend() != "cpu"
        if accelerated and len(self._modules) < KEPT:
            module = compiler_variables(frame).get("computation")
            if module is not None:
                self._modules[c.program] = module

    def close(self) -> None:
        """Write into the log the seconds that small programs with short turns take on the CPU."""
        known = {facts.program: facts for facts in self.log.programs if not facts.old}
        for program in sorted(self.log.activity.programs.values(), key=lambda p: -p.calls):
            module, facts = self._modules.get(program.name), known.get(program.name)
            if (
                module is not None
                and facts is not None
                and len(self.log.on_cpu) < TRIED
                and program.calls >= CALLS
                and (program.turn_s or LONGEST_TURN_S) < LONGEST_TURN_S
                and facts.flops <= MOST_FLOPS
                and facts.peak_bytes <= MOST_BYTES
                and len(facts.devices) == 1
                # with zeros, a loop might not end
                and all(i.trips for i in facts.instructions if i.opcode == "while")
            ):
                self.log.on_cpu[program.name] = seconds_on_cpu(str(module))
        self._modules.clear()


def seconds_on_cpu(module: str) -> float:
    """Return the least seconds of an execution of a StableHLO text on the CPU, with arguments of zeros."""
    import jax
    import numpy as np

    client = jax_internals.get(jax_internals.XLA_CLIENT)
    cpu = jax.devices("cpu")[0]
    devices, options = client.DeviceList((cpu,)), client.CompileOptions()
    program = cpu.client.compile_and_load(module, executable_devices=devices, compile_options=options)
    shapes, _ = hlo.parse(program.hlo_modules()[0].to_string()).layout
    zeros = [np.zeros(shape.dims, hlo.dtype_name(shape.dtype)) for shape in shapes]
    arguments: list[Any] = []

    def place() -> None:  # anew, since the program may take their memory
        arguments[:] = jax.block_until_ready(jax.device_put(zeros, cpu))

    def run() -> None:
        jax.block_until_ready(program.execute(arguments))

    return min(timeit.repeat(run, place, number=1, repeat=RUNS))
