"""Try on the CPU what an accelerator runs in tiny pieces.

A program of small operations, each of which needs the one before, takes an accelerator longer than a CPU: to
start a kernel takes longer than its work. The trial compiles the program for the CPU, as JAX handed it to the
compiler, and runs it with zeros after the watched program has ended. Nothing of that program runs again.
"""

import sys
import time
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
LEAST_RUNS, TRIAL_S = 5, 0.2


class CpuTrials:
    def __init__(self, log: Log) -> None:
        self.log = log
        self._modules: dict[str, Any] = {}

    def keep(self, c: Compiled, frame: FrameType) -> None:
        """Keep the program that JAX's compiler has in one of its frames, unless it is for the CPU."""
        if (
            len(self._modules) >= KEPT
            or not hooks.is_running()
            or sys.modules["jax"].default_backend() == "cpu"
        ):
            return
        module = compiler_variables(frame).get("computation")
        if module is not None:
            self._modules[c.program] = module

    def close(self) -> None:
        """Write into the log the seconds that programs with short turns take on the CPU."""
        for name in self._candidates()[:TRIED]:
            self.log.on_cpu[name] = seconds_on_cpu(str(self._modules[name]))
        self._modules.clear()

    def _candidates(self) -> list[str]:
        called = self.log.activity.programs
        facts = {f.program: f for f in self.log.programs if not f.old}
        small = [
            name
            for name in self._modules
            if name in called
            and name in facts
            and called[name].calls >= CALLS
            and (called[name].turn_s or LONGEST_TURN_S) < LONGEST_TURN_S
            and facts[name].flops <= MOST_FLOPS
            and facts[name].peak_bytes <= MOST_BYTES
            and len(facts[name].devices) == 1
            # with zeros, a loop might not end
            and all(i.trips for i in facts[name].instructions if i.opcode == "while")
        ]
        return sorted(small, key=lambda name: -called[name].calls)


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
    least_s, ends = float("inf"), time.perf_counter() + TRIAL_S
    for run in range(1000):
        if run >= LEAST_RUNS and time.perf_counter() > ends:
            break
        arguments = jax.device_put(zeros, cpu)  # anew, since it may take their memory
        jax.block_until_ready(arguments)
        start = time.perf_counter()
        jax.block_until_ready(program.execute(arguments))
        least_s = min(least_s, time.perf_counter() - start)
    return least_s
