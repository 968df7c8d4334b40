"""Load this machine's stored roofline, and find a program's place under it.

A program is limited by arithmetic or by memory, whichever takes longer for its FLOPs and bytes (Williams,
Waterman and Patterson, 2009). A third limit is the cost of a call, however little it computes.

    roofline = stored_roofline()  # from `jaxperf roofline`; None if that has not run on this machine
    roofline.position(stages(step, x).program, seconds=2e-3).limit  # "memory"
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from jaxperf.errors import JaxperfError
from jaxperf.measure.environment import current_environment
from jaxperf.process import cache_folder
from jaxperf.result import Environment, Measurement, Result, load_result

MISSING = "no roofline of this machine; `jaxperf roofline` measures it once, in 20 s"
# The quantities measured (`Measurement.quantity`); their `configuration` is "each" or "end", a dtype, or the
# bytes of an array.
DISPATCH, MATRIX, MEMORY = "dispatch", "matrix", "memory"
SMALLEST = 16 * 2**10  # bytes of the smallest array with which memory is measured
Limit = Literal["arithmetic", "memory", "dispatch"]  # which is the cost of the call
DEFAULT_DTYPE = "float32"  # for programs without matrix products, and for dtypes without a measured rate


@dataclass(frozen=True)
class Position:
    """A program under the roofline."""

    limit: Limit
    bound_s: float  # the minimum seconds that this limit allows
    # `bound_s` as a fraction of the program's seconds. 1 is as fast as possible; more than 1 means that the
    # compiler's estimate of bytes or FLOPs is too large.
    share: float
    flops_per_s: float  # that the program reaches
    bytes_per_s: float


@dataclass(frozen=True)
class Roofline:
    """What the first device of a machine can do at best.

    Other programs only slow a measurement down, so the best value of each measurement counts.
    """

    dispatch_s: float  # of an empty program, including the wait for it
    flops_per_s: Mapping[str, float]  # of matrix products, by dtype
    bytes_per_s: Mapping[int, float]  # read and written, by the bytes of the array
    result: Result  # all measurements, with their conditions: environment, time, load

    def bandwidth(self, size: int) -> float:
        """Return the best rate of any measured array of that size or larger, or else the largest one's."""
        return max(self.bytes_per_s[s] for s in self.bytes_per_s if s >= min(size, max(self.bytes_per_s)))

    def position(self, program: Any, *, seconds: float) -> Position | None:
        """Return the place of a program that takes `seconds` per call, by the compiler's estimate.

        None if there is no estimate, or if the program has loops, of which the compiler counts one iteration.
        `program` has the compiler's estimates as `stages.Program` has them.
        """
        if program.loops or not program.flops + program.bytes_accessed:
            return None
        dtype = program.matrix_dtype or DEFAULT_DTYPE
        peak = self.flops_per_s.get(dtype, self.flops_per_s[DEFAULT_DTYPE])
        bounds: dict[Limit, float] = {
            "arithmetic": program.flops / peak,
            "memory": program.bytes_accessed / self.bandwidth(program.peak_bytes),
            "dispatch": self.dispatch_s,
        }
        limit = max(bounds, key=lambda name: bounds[name])
        rates = program.flops / seconds, program.bytes_accessed / seconds
        return Position(limit, bounds[limit], bounds[limit] / seconds, *rates)

    def differences(self, environment: Environment) -> list[str]:
        """Return versions and flags that have changed since this was measured, one line for each."""
        then, now = ({**e.versions, **e.flags} for e in (self.result.environment, environment))
        return [
            f"{name} was {then.get(name, 'unset')}, is {now.get(name, 'unset')}"
            for name in {**then, **now}
            if name != "jaxperf" and then.get(name) != now.get(name)
        ]


def path_for(environment: Environment) -> Path:
    return cache_folder() / "roofline" / f"{environment.fingerprint}.json"


def stored_roofline(environment: Environment | None = None) -> Roofline | None:
    """Return the roofline that `jaxperf roofline` measured on this machine; None if there is none."""
    path = path_for(environment or current_environment())
    return from_result(load_result(path), where=str(path)) if path.exists() else None


def best_value(m: Measurement) -> float:
    return min(m.values) if m.unit == "s" else max(m.values)


def from_result(result: Result, *, where: str = "the result") -> Roofline:
    """Return the roofline in a result of `jaxperf roofline`; `where` names the result in errors."""
    best: dict[str, dict[str, float]] = defaultdict(dict)
    for m in result.measurements:
        best[m.quantity][m.configuration] = best_value(m)
    needed = {DISPATCH: "each", MATRIX: DEFAULT_DTYPE, MEMORY: str(SMALLEST)}
    is_whole = all(name in best[quantity] for quantity, name in needed.items())
    if not is_whole or not all(map(str.isdecimal, best[MEMORY])):
        raise JaxperfError(f"{where} holds no whole roofline; run `jaxperf roofline` again")
    sizes = {int(size): rate for size, rate in best[MEMORY].items()}
    return Roofline(best[DISPATCH]["each"], best[MATRIX], sizes, result)
