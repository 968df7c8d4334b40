"""`jaxperf roofline`: measure what this machine can do at best, and store it for later use."""

from __future__ import annotations

from jaxperf.chapter.catalogue import SectionEntry
from jaxperf.chapter.recorder import Recorder
from jaxperf.errors import to_one_line
from jaxperf.measure import ceilings
from jaxperf.measure.roofline import Roofline, from_result, path_for
from jaxperf.report.formatting import format_on_page
from jaxperf.result import Axis, Curve, Environment, Measurement, save_result
from jaxperf.result.store import check_writable
from jaxperf.startup import environment as current_environment

SECTION = SectionEntry(
    "roofline", "", "This machine's roofline", "What can this machine do at best, through JAX?", 20
)
BUSY = 0.10  # share of the cores; from here on, a measurement says that the machine was busy


def main() -> int:
    """Measure and store the roofline; an existing file is replaced once the new one is complete.

    Raises:
      JaxperfError: the cache folder cannot be written, or JAX cannot start.
    """
    environment = current_environment()
    path = path_for(environment)
    check_writable(path)
    roofline = tell(environment)
    save_result(roofline.result, path)
    print(to_one_line(f"kept: {path}"))
    return 0


def tell(environment: Environment) -> Roofline:
    """Measure all parts, with a table of each, and return them."""
    recorder = Recorder(SECTION, environment, {"devices": 1}, command="jaxperf roofline")
    conditions(recorder)
    calls = ceilings.dispatch_floor(), ceilings.queueing_floor()
    recorder.table(calls, title="What a call costs, however little it computes", fold=True)
    products = [ceilings.matrix_rate(dtype) for dtype in ceilings.DTYPES]
    recorder.table(products, title="Matrix products", fold=True)
    memory(recorder)
    recorder.table(ceilings.copy_rates(), title="Copies between host and device", fold=True)
    summary(recorder, from_result(recorder.result()))
    return from_result(recorder.result())


def conditions(recorder: Recorder) -> None:
    """Record how busy the machine was before anything was measured."""
    others, load = ceilings.others_share(), ceilings.load_average()
    recorder.fact("others_share", others, meaning="share of the cores that other programs used before")
    recorder.fact("load_average", load, meaning="load average of the last minute before")
    if others > BUSY:
        recorder.note(
            f"other programs used {others:.0%} of the cores, so this is less than the machine can do; "
            "run it again when it is idle"
        )


def memory(recorder: Recorder) -> None:
    """Measure memory with arrays from 16 KiB on, and draw the rate over the size."""
    rows: list[Measurement] = [ceilings.memory_rate(size) for size in ceilings.array_sizes()]
    recorder.table(rows, title="Reading and writing an array, again and again", fold=True)
    sizes = [int(m.configuration) for m in rows]
    recorder.lines(
        "Memory by the size of the array",
        [Curve("best value", tuple(map(float, sizes)), tuple(max(m.values) for m in rows))],
        x=Axis("array", "bytes"),
        y=Axis("read and written", "bytes/s"),
    )


def summary(recorder: Recorder, roofline: Roofline) -> None:
    """Show the roofline itself on half a screen: the best value of every part."""
    known = ceilings.cache_sizes()
    levels: dict[str, list[int]] = {}
    for size in roofline.bytes_per_s:
        name = ceilings.level_of(size, known) or f"arrays of {format_on_page(size, 'bytes')}"
        levels.setdefault(name, []).append(size)
    rows = [("empty program, waited for", format_on_page(roofline.dispatch_s, "s"))]
    rows.append(("empty program, queued", format_on_page(roofline.queueing_s, "s")))
    rows += [
        (f"matrix product, {dtype}", format_on_page(rate, "FLOP/s"))
        for dtype, rate in roofline.flops_per_s.items()
    ]
    for name, sizes in levels.items():
        best = max(roofline.bytes_per_s[size] for size in sizes)
        rows.append((name if name.startswith("arrays") else _place(name), format_on_page(best, "bytes/s")))
    rows.append(("host to device", format_on_page(roofline.to_device_bytes_per_s, "bytes/s")))
    rows.append(("device to host", format_on_page(roofline.to_host_bytes_per_s, "bytes/s")))
    recorder.grid(("", "at best"), rows, title="The roofline")


def _place(level: str) -> str:
    return "memory, read and written" if level == "memory" else f"{level} cache, read and written"
