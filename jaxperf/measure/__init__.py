"""The instruments, for the sections and for a user's own functions.

Import a module as a whole if its function names mean little alone: `from jaxperf.measure import timeline`.
"""

from jaxperf.measure.compile_log import RetraceError
from jaxperf.measure.compile_together import compile_together
from jaxperf.measure.dispatch import pending, probe
from jaxperf.measure.environment import current_environment
from jaxperf.measure.memory import MemorySampler, device_memory
from jaxperf.measure.rounds import interleaved, per_round
from jaxperf.measure.stages import Program, Stages, count_ops, stages
from jaxperf.measure.timing import Benchmark, block, measure

__all__ = [
    "Benchmark",
    "MemorySampler",
    "Program",
    "RetraceError",
    "Stages",
    "block",
    "compile_together",
    "count_ops",
    "current_environment",
    "device_memory",
    "interleaved",
    "measure",
    "pending",
    "per_round",
    "probe",
    "stages",
]
