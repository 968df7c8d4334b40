"""Estimate the waits in pauses of the hooks, as if the program went on as just before each pause."""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jaxperf.result.intervals import Interval, clip, difference, total_length
from jaxperf.watch.grouping import group_by
from jaxperf.watch.observe.pauses import KINDS, Pause
from jaxperf.watch.observe.sampler import StackSample
from jaxperf.watch.observe.source_location import Place
from jaxperf.watch.observe.waits import Wait


@dataclass(frozen=True)
class UnrecordedWaits:
    """The waits of one line in one pause, as a single interval of their total length."""

    at: Place
    kind: str
    count: float
    nbytes: float
    start: float
    end: float


def estimate(
    pauses: Sequence[Pause],
    waits: Sequence[Wait],
    samples: Sequence[StackSample],
    compiling: Sequence[Interval],
) -> Iterator[UnrecordedWaits]:
    """Yield the estimated waits in all pauses.

    Args:
      pauses: the pauses of the hooks.
      waits: the recorded waits, in order.
      samples: all samples, in order; they show when the front end was in the functions that wait.
      compiling: when something was traced or compiled.
    """
    starts, sampled = [w.start for w in waits], [s.end for s in samples]
    for pause in pauses:
        before, during, after = (bisect.bisect_left(starts, t) for t in (*pause.recorded, pause.end))
        recorded = [w for w in waits[before:during] if w.kind in KINDS]
        others = [(w.start, w.end) for w in waits[during:after] if w.kind not in KINDS]
        functions = {(w.at.file, w.at.function) for w in recorded}
        first = bisect.bisect_left(sampled, pause.start)
        last = bisect.bisect_left(sampled, pause.end) + 1
        inside = [
            (s.start, s.end)
            for s in samples[first:last]
            if any((at.file, at.function) in functions for at in (s.at, *s.callers))
        ]
        stretches = difference(clip(inside, pause.start, pause.end), [*others, *compiling])
        times = total_length(stretches) / (pause.recorded[1] - pause.recorded[0])
        moment = pause.start
        for (at, kind), calls in group_by(recorded, lambda w: (w.at, w.kind)).items():
            end = moment + times * sum(w.end - w.start for w in calls)
            nbytes = times * sum(w.nbytes for w in calls)
            yield UnrecordedWaits(at, kind, times * len(calls), nbytes, moment, end)
            moment = end
