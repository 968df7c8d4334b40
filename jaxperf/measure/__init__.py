"""The instruments, for the sections and for a user's own functions.

Import a module as a whole if its function names mean little alone: `from jaxperf.measure import timeline`.
"""

from jaxperf.measure.compile_log import RetraceError
from jaxperf.measure.environment import current_environment
from jaxperf.measure.memory import MemorySampler, device_memory
from jaxperf.measure.rounds import interleaved, per_round
from jaxperf.measure.stages import Program, Stages, compile_together, count_ops, stages
from jaxperf.measure.timing import Benchmark, block, measure, pending, probe
