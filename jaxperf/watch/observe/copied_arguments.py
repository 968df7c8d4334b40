"""Arguments that each call has to copy first: NumPy arrays, and arrays on other devices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from jaxperf.hlo import shape_of
from jaxperf.watch.observe.compiles import Compiled
from jaxperf.watch.observe.executables import Facts
from jaxperf.watch.observe.windows import ExecutedProgram


def note_copied_arguments(
    compiled: Iterable[Compiled], executed: Mapping[str, ExecutedProgram], programs: Iterable[Facts]
) -> None:
    """Set `elsewhere` of each `Compiled`, and keep in it and in `host` only what later calls copy, too.

    Parameters are often NumPy arrays in the first call only. The profiler's windows count the arrays (and
    Python numbers) that a later call copies, but not their sizes. So the smallest arrays are kept, which
    gives a lower bound.
    """
    facts = {f.program: f for f in programs if not f.old}
    for c in compiled:
        program, known = executed.get(c.program), facts.get(c.program)
        c.elsewhere = _elsewhere(c, known) if program and known else {}
        if program and program.calls:
            arrays = sum(shape_of(text) is not None for text in c.signature.values())
            numbers = max(0, (len(known.layout[0]) if known else 0) - arrays)
            sizes = {**c.host, **c.elsewhere}
            smallest = sorted(sizes, key=lambda where: sizes[where])
            copied = set(smallest[: max(0, round(program.copies / program.calls) - numbers)])
            c.host = {where: size for where, size in c.host.items() if where in copied}
            c.elsewhere = {where: size for where, size in c.elsewhere.items() if where in copied}


def _elsewhere(c: Compiled, facts: Facts) -> dict[str, int]:
    """Return the bytes of the arguments that are not on the program's devices, by name."""
    arrays = {where: shape_of(c.signature.get(where, "")) for where in c.placements}
    return {
        where: array.bytes
        for where, array in arrays.items()
        if array and {*c.placements[where].devices} != {*facts.devices}
    }
