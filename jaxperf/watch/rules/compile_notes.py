"""Notes on compile time, on JAX's compile cache, and on faults of the installed version."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from jaxperf.result.formatting import format_quantity
from jaxperf.result.intervals import total_length
from jaxperf.watch.observe.compiles import COMPILE, LOWER, TRACE
from jaxperf.watch.observe.executables import MULTIPLYING, PRODUCTS, Facts
from jaxperf.watch.observe.source_location import NOWHERE, Place
from jaxperf.watch.report.analysis import Analysis
from jaxperf.watch.rules.known import fault_notes

NOTE_SHARE = 0.2  # of the run, or of a program's instructions
LONG_COMPILE_S = 2.0  # seconds of a program's stages that are worth a note
CACHED_S = 1.0  # JAX's default for the setting `MIN_COMPILE_TIME`
MIN_COMPILE_TIME = "jax_persistent_cache_min_compile_time_secs"
CONSTANT = 1 << 20  # bytes
LAYERS = 8  # equal products for which `jax.lax.scan` compiles much less
_TUNED = ("__cublas", "__cudnn", "__triton")  # kernels that XLA autotunes


def compile_notes(analysis: Analysis) -> Iterator[str]:
    """Yield notes on the time before programs run."""
    yield from _slowest(analysis)
    yield from cache_notes(analysis)
    yield from fault_notes(analysis)


def _slowest(analysis: Analysis) -> Iterator[str]:
    """Yield a note on the program that took longest to trace and compile."""
    c = max(analysis.record.compiled, key=lambda c: c.total_s, default=None)
    if c is None or c.total_s < max(LONG_COMPILE_S, NOTE_SHARE * analysis.record.wall_s):
        return
    stages = ", ".join(
        f"{format_quantity(c.seconds(stage), 's')} to {verb}"
        for stage, verb in ((TRACE, "trace"), (LOWER, "lower"), (COMPILE, "compile"))
    )
    named = [f for f in analysis.programs.get(c.program, []) if not f.old]
    parts = list(_parts(named[0])) if len(named) == 1 and named[0].text else []
    yield f"{c.called} ({c.at}) took {stages}" + "".join(f"; {part}" for part in parts)


def _parts(facts: Facts) -> Iterator[str]:
    """Yield what makes a program slow to compile: instructions by line, constants, autotuned kernels."""
    yield f"it has {len(facts.instructions):,} instructions"
    at, share = line_with_most(facts)
    if share >= NOTE_SHARE:
        yield f"{share:.0%} of those that have a line come from {at}"
    at, count = equal_products(facts)
    if at and count >= LAYERS:
        yield (
            f"{count} equal products come from {at}, as from layers in a Python loop: jax.lax.scan over "
            "stacked weights compiles one layer"
        )
    constant = sum(shape.bytes for shape in facts.constants())
    if constant >= CONSTANT:
        yield f"{format_quantity(constant, 'bytes')} of constants pass through all of XLA's passes"
    tuned = sum(target in i.text for i in facts.instructions for target in _TUNED)
    if facts.platform != "cpu" and tuned:
        yield f"XLA tries several kernels for {tuned} operations: a cache on disk keeps the choice"


def equal_products(facts: Facts) -> tuple[Place, int]:
    """Return the reader's line with most equal matrix products, and their number; else NOWHERE and 0."""
    products = Counter(
        (facts.at(i), i.op_name, i.type.partition("{")[0])
        for i in facts.instructions
        if i.opcode in MULTIPLYING and i.operation in PRODUCTS
    )
    (at, _, _), count = next(iter(products.most_common(1)), ((NOWHERE, "", ""), 0))
    return at, count


def line_with_most(facts: Facts) -> tuple[Place, float]:
    """Return the reader's line with most instructions, and its share of all instructions with a line."""
    lines = Counter(facts.at(i) for i in facts.instructions)
    del lines[NOWHERE]
    at, count = next(iter(lines.most_common(1)), (NOWHERE, 0))
    return at, count / max(1, lines.total())


def cache_notes(analysis: Analysis) -> Iterator[str]:
    """Yield what a compile cache on disk would save, or why the one that is set is empty."""
    r = analysis.record
    spans = [c.stages[COMPILE] for c in r.compiled if COMPILE in c.stages]
    long_s = total_length((a, b) for a, b in spans if b - a >= CACHED_S)
    if not r.compile_cache and long_s >= NOTE_SHARE * r.wall_s:
        yield (
            f"each start compiles for {format_quantity(long_s, 's')} of {format_quantity(r.wall_s, 's')} "
            'what a compile cache on disk would keep: jax.config.update("jax_compilation_cache_dir", FOLDER) '
            "before the first call saves most of it from the second start on"
        )
    elif r.compile_cache and total_length(spans) >= NOTE_SHARE * r.wall_s and _is_empty(r.compile_cache):
        longest_s = max(b - a for a, b in spans)
        yield f"the compile cache in {r.compile_cache} is empty: {_why_empty(longest_s)}"


def _is_empty(folder: str) -> bool:
    """Return whether a local folder has no file; False for a remote one, as in gs://bucket."""
    return "://" not in folder and not any(p.is_file() for p in Path(folder).glob("*"))


def _why_empty(longest_s: float) -> str:
    config = getattr(sys.modules.get("jax"), "config", None)
    least_s = float(getattr(config, MIN_COMPILE_TIME, CACHED_S))
    if longest_s < least_s:
        longest, least = (format_quantity(seconds, "s") for seconds in (longest_s, least_s))
        return (
            f"JAX keeps programs that take {least} to compile, and the longest took {longest}; "
            f'jax.config.update("{MIN_COMPILE_TIME}", 0) keeps all'
        )
    return (
        "set it before anything is compiled, since JAX looks only once; programs that call back into Python "
        "are not kept; and the folder must be writable"
    )
