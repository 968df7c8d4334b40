"""The instruments, for the sections and for a user's own functions.

Import a module as a whole if its function names mean little alone: `from jaxperf.measure import timeline`.
"""

from jaxperf.measure.compile_log import RetraceError as RetraceError
from jaxperf.measure.environment import current_environment as current_environment
from jaxperf.measure.memory import MemorySampler as MemorySampler
from jaxperf.measure.memory import device_memory as device_memory
from jaxperf.measure.rounds import interleaved as interleaved
from jaxperf.measure.rounds import per_round as per_round
from jaxperf.measure.stages import Program as Program
from jaxperf.measure.stages import Stages as Stages
from jaxperf.measure.stages import compile_together as compile_together
from jaxperf.measure.stages import count_ops as count_ops
from jaxperf.measure.stages import stages as stages
from jaxperf.measure.timing import Benchmark as Benchmark
from jaxperf.measure.timing import block as block
from jaxperf.measure.timing import measure as measure
from jaxperf.measure.timing import pending as pending
from jaxperf.measure.timing import probe as probe
