"""Report the lines of jitted functions on whose instructions devices spend most time in windows.

An instruction has the line at which it was traced. In a backward pass, that is the line of the forward pass.
A fusion has the line of its last operation.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from jaxperf.result import Block, Grid, Note
from jaxperf.watch.observe.executables import CONTAINERS, Facts
from jaxperf.watch.observe.source_location import NOWHERE, Place
from jaxperf.watch.report.analysis import Analysis

ROWS, STORED_ROWS = 5, 20  # on a terminal, and in the result
ROW_SHARE = 0.03  # smallest share of the devices' time that a row needs
WORTH = 0.05  # smallest share of the run in which devices compute, for the table to appear
HINT_SHARE = 0.3  # share of the devices' time from which on an operation gets a hint
_INTEGERS = re.compile(r"[su]\d+\[")
_HESSIAN = "vmap(jvp(vmap(transpose("  # part of the `op_name` of what `jax.hessian` computes
_PRODUCTS = {"dot": "dot_general", "convolution": "conv_general_dilated"}  # `op_name` may be an operand's
_HINTS = {
    "sort": "if only the largest are needed, jax.lax.top_k finds them; a random subset needs no sort if "
    "indices may repeat (jax.random.randint), or if one permutation serves many steps",
    "lu": "a matrix with structure has a quicker solver (jax.lax.linalg.tridiagonal_solve, or Cholesky's "
    "factor), and one that stays the same can be factored once",
    "cholesky": "a matrix that stays the same can be factored once",
    "dot_general of integers": "a product of float32 has faster kernels, and is exact up to 2**24",
    "jax.hessian": "if only its products with vectors are needed, jax.jvp(jax.grad(f), (w,), (v,))[1] "
    "computes one without the matrix",
}


def line_blocks(analysis: Analysis) -> Iterator[Block]:
    """Yield the table of lines, if devices compute for a share of the run that matters."""
    if analysis.computing_s < WORTH * analysis.record.wall_s:
        return
    lines, total_s = device_lines(analysis)
    seconds = {at: sum(operations.values()) for at, operations in lines.items()}
    rows = [
        (
            max(lines[at], key=lines[at].__getitem__),
            f"{seconds[at] / total_s:.0%}",
            str(at or "-"),
            at.source[:40] if at else "no line of its own",
        )
        for at in sorted(lines, key=seconds.__getitem__, reverse=True)
        if seconds[at] >= ROW_SHARE * total_s
    ]
    if rows:
        title = "Where devices spend their time in jitted functions"
        yield Grid(title, ("", "share", "at", ""), tuple(rows[:STORED_ROWS]), (1,), first=ROWS)
    for at, operations in lines.items():
        for name, hint in _HINTS.items():
            if operations.get(name, 0.0) >= HINT_SHARE * total_s:
                yield Note(
                    f"{name} takes {operations[name] / total_s:.0%} of the devices' time at {at}: {hint}"
                )


def device_lines(analysis: Analysis) -> tuple[dict[Place, dict[str, float]], float]:
    """Return seconds by line (NOWHERE if unknown) and by operation, and the seconds of all lines."""
    lines: dict[Place, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    total_s = 0.0
    for name in analysis.jitted.keys() & analysis.record.activity.programs.keys():
        instructions = _origins(analysis.programs.get(name, []))
        for (_, op), times in analysis.record.activity.programs[name].ops.items():
            opcode, operation, at = instructions.get(op, ("", op.rstrip(".0123456789"), NOWHERE))
            if opcode in CONTAINERS:
                continue
            total_s += sum(times)
            lines[at][operation] += sum(times)
    return lines, total_s


def _origins(programs: list[Facts]) -> dict[str, tuple[str, str, Place]]:
    """Return each instruction's opcode, JAX operation and line; NOWHERE if programs differ in the line."""
    origins: dict[str, tuple[str, str, Place]] = {}
    for facts in programs:
        for i in facts.instructions:
            name, at = _PRODUCTS.get(i.opcode) or i.operation or i.opcode, facts.at(i)
            name += " of integers" * (name == "dot_general" and bool(_INTEGERS.match(i.type)))
            name = "jax.hessian" if _HESSIAN in i.op_name else name
            known = origins.setdefault(i.name, (i.opcode, name, at))
            if known[2] != at:
                origins[i.name] = (*known[:2], NOWHERE)
    return origins
