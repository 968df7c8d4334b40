"""The instruments, for the sections and for a reader's own functions.

Import a module as a whole where its function names mean little without it (`timeline.record`,
`dispatch.fit`): `from jaxperf.measure import dispatch, timeline`.
"""

from jaxperf.measure.compile_log import RetraceError
from jaxperf.measure.dispatch import asynchronous_loop, synchronous_loop
from jaxperf.measure.environment import current_environment
from jaxperf.measure.memory import MemorySampler, device_memory, live_bytes
from jaxperf.measure.rounds import Overlap, interleaved, per_round, together
from jaxperf.measure.run_ahead import pending, probe, run_ahead_depth
from jaxperf.measure.stages import Program, Stages, TraceCounter, count_ops, count_traces, stages
from jaxperf.measure.subprocess_call import in_fresh_process
from jaxperf.measure.timing import Benchmark, Timer, block, measure

__all__ = [
    "Benchmark",
    "MemorySampler",
    "Overlap",
    "Program",
    "RetraceError",
    "Stages",
    "Timer",
    "TraceCounter",
    "asynchronous_loop",
    "block",
    "count_ops",
    "count_traces",
    "current_environment",
    "device_memory",
    "in_fresh_process",
    "interleaved",
    "live_bytes",
    "measure",
    "pending",
    "per_round",
    "probe",
    "run_ahead_depth",
    "stages",
    "synchronous_loop",
    "together",
]
