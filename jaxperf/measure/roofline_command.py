"""`jaxperf roofline`: measure what this machine can do at best, and store it for later use."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import jax
import psutil

from jaxperf.errors import to_one_line
from jaxperf.measure import ceilings
from jaxperf.measure.environment import current_environment
from jaxperf.measure.other_load import other_load
from jaxperf.measure.roofline import best_value, from_result, path_for
from jaxperf.process import forced_end
from jaxperf.result import About, Measurement, save_result, terminal
from jaxperf.result.formatting import format_on_page
from jaxperf.result.machine import cores
from jaxperf.result.recorder import Recorder
from jaxperf.result.store import check_writable

SECTION = About("roofline", "", "This machine's roofline", "What can this machine do at best, through JAX?")
BUDGET_S = 20.0  # from the start of the process to its end
# Of that: Python's own start and end, writing the file, and a part that takes longer than those before it
RESERVE_S = 4.0
TITLES = {
    ceilings.DISPATCH: "What a call costs, however little it computes",
    ceilings.MATRIX: "Matrix products",
    ceilings.MEMORY: "Reading and writing an array, again and again",
    ceilings.COPY: "Copies between host and device",
}
LOOK_S = 0.5  # at how busy the machine is
BUSY = 0.10  # share of the cores; from here on, a measurement says that the machine was busy


@dataclass(frozen=True)
class RooflinePart:
    name: str  # as it is printed
    measure: Callable[[], Iterable[Measurement]]
    needed: bool = False  # measured however long the others took: no roofline is whole without it


@forced_end()
def main(began: float) -> int:
    """Measure and store the roofline; an existing file is replaced once the new one is complete.

    `began` is `time.monotonic` before JAX was imported; parts that end `BUDGET_S` later are left out.
    """
    environment = current_environment()
    path = path_for(environment)
    check_writable(path, advice="set XDG_CACHE_HOME to another folder")
    recorder = Recorder(SECTION, environment, {"devices": 1}, command="jaxperf roofline")
    terminal.print_all([recorder.result()])
    record_load(recorder)
    rows, notes = measure_in_time(parts(), ends=began + BUDGET_S - RESERVE_S)
    for quantity, title in TITLES.items():
        recorder.table([m for m in rows if m.quantity == quantity], title=title, fold=True)
    for note in notes:
        recorder.note(note)
    save_result(from_result(recorder.result()).result, path)
    print(to_one_line(f"kept: {path}"))
    return 0


def parts() -> list[RooflinePart]:
    """Return all parts, the most important first."""

    def product(dtype: str) -> RooflinePart:
        return RooflinePart(
            f"matrix product, {dtype}", lambda: [ceilings.matrix_rate(dtype)], dtype == ceilings.DTYPES[0]
        )

    def array(size: int) -> RooflinePart:
        return RooflinePart(f"array of {size:,} B", lambda: [ceilings.memory_rate(size)], size in ends)

    sizes = ceilings.array_sizes()
    ends = dict.fromkeys((sizes[-1], sizes[0]))
    first, second, *others = map(product, ceilings.DTYPES)
    return [
        RooflinePart("calls", ceilings.call_costs, needed=True),
        first,
        *map(array, ends),
        RooflinePart("copies", ceilings.copy_rates, needed=True),
        second,
        *(array(size) for size in sizes if size not in ends),
        *others,
    ]


def measure_in_time(
    wanted: Iterable[RooflinePart], *, ends: float, clock: Callable[[], float] = time.monotonic
) -> tuple[list[Measurement], list[str]]:
    """Measure part after part until `ends` on `clock`, and print the best value of each at once.

    A part that is not needed is left out if the time is over, or if the backend cannot compute it. Also
    return notes on these.
    """
    rows: list[Measurement] = []
    left_out: list[str] = []
    notes: list[str] = []
    for part in wanted:
        if not part.needed and clock() >= ends:
            left_out.append(part.name)
            continue
        try:
            for m in part.measure():
                print(to_one_line(f"{m.name}: {format_on_page(best_value(m), m.unit)}"), flush=True)
                rows.append(m)
        except jax.errors.JaxRuntimeError as e:  # XLA has no product of this dtype here
            if part.needed:
                raise
            notes.append(f"not possible here: {part.name}: {str(e).splitlines()[0]}")
    if left_out:
        notes.append(f"no time was left for: {', '.join(left_out)}")
    return rows, notes


def record_load(recorder: Recorder) -> None:
    with other_load() as load:
        time.sleep(LOOK_S)
    others = load.others / cores()
    recorder.fact("others_share", others, meaning="share of the cores that other programs used before")
    average = psutil.getloadavg()[0]
    recorder.fact("load_average", average, meaning="load average of the last minute before")
    if others > BUSY:
        recorder.note(
            f"other programs used {others:.0%} of the cores, so this is less than the machine can do; "
            "run it again when it is idle"
        )
