"""Record a `Timeline` under JAX's profiler: when the front end, each device and the copies worked.

Recording adds about ten events of 1 us each per operation on a CPU, so times of tiny operations are mostly
overhead. Use `measure` to time operations.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import jax
from jax.profiler import ProfileData

from jaxperf.errors import JaxperfError
from jaxperf.measure import trace
from jaxperf.measure.timing import block
from jaxperf.result.intervals import Interval, overlap_fraction, union
from jaxperf.result.values import Timeline


def record(fn: Callable[..., Any], *args: Any, name: str = "", warmup_calls: int = 1) -> Timeline:
    """Run `fn(*args)` under the profiler, wait for all its outputs, and return what every lane did.

    Lanes: "python", in which the calling thread works in JAX; "wait", in which it waits for the outputs; one
    per device ("cpu 0", "gpu 0"); and "copies", between devices and between device and host. `wall_s` is
    from the process's clock, and `traced_s` is the same interval by the profiler's clock.

    Args:
      fn: the function to run; it returns a pytree of arrays.
      *args: its arguments.
      name: of the timeline; the function's own by default.
      warmup_calls: calls before the recorded one, so that nothing is compiled in it.

    Raises:
      JaxperfError: another profile is being taken.
    """
    label = name or str(getattr(fn, "__name__", type(fn).__name__))
    for _ in range(warmup_calls):
        block(fn(*args))
    with tempfile.TemporaryDirectory(prefix="jaxperf-") as scratch:
        with _profiler(scratch), jax.profiler.TraceAnnotation(trace.RUN):
            began = time.perf_counter()
            outputs = fn(*args)
            with mark("outputs"):
                block(outputs)
            wall_s = time.perf_counter() - began
        del outputs
        profiles = sorted(Path(scratch).rglob("*.xplane.pb"))
        read = trace.read(ProfileData.from_file(str(profiles[0]))) if profiles else ([], 0.0)
    spans, traced_s = read
    return Timeline(label, tuple(spans), wall_s, traced_s=traced_s)


def mark(name: str, *, lane: str = trace.WAIT) -> AbstractContextManager[Any]:
    """Return a context manager that marks this thread's work as a span of `lane` in a recorded timeline.

    The profiler itself does not know that Python waits or copies.
    """
    return jax.profiler.TraceAnnotation(f"{trace.MARK}{lane}/{name}")


def busy(timeline: Timeline, lane: str) -> list[Interval]:
    """Return the intervals in which `lane` was busy: disjoint, in order, in seconds."""
    return union(timeline.intervals(lane))


def lane_of(device: jax.Device) -> str:
    """Return the name of a device's lane, such as "cpu 0"."""
    return f"{device.platform} {device.id}"


def overlap(timeline: Timeline, a: str, b: str) -> float:
    """Return the share of the less busy lane's time, 0 to 1, in which the other lane is busy, too.

    Compare the wall time as well: devices that share cores may overlap fully and gain nothing.
    """
    return overlap_fraction(timeline.intervals(a), timeline.intervals(b))


@contextmanager
def _profiler(folder: str) -> Iterator[None]:
    """Write a profile of the block to `folder`, without Python calls, which are costly to record."""
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    try:
        jax.profiler.start_trace(folder, profiler_options=options)
    except RuntimeError as e:
        raise JaxperfError(
            f"cannot record a timeline: {str(e).splitlines()[0]} Stop the other profile"
        ) from None
    try:
        yield
    finally:
        jax.profiler.stop_trace()
