"""Notes on compiled programs, for changes whose savings cannot be estimated.

There are notes on compile time, too, and on faults of the installed version.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterator

from jaxperf.hlo import Instruction, dtype_name, shape_of
from jaxperf.result import Block, Note
from jaxperf.result.formatting import format_count, format_quantity
from jaxperf.result.intervals import total_length
from jaxperf.watch.log import COMPILE, Compiled, ExecutedProgram
from jaxperf.watch.observe.executables import Facts
from jaxperf.watch.observe.source_location import NOWHERE, Place
from jaxperf.watch.report.analysis import Analysis
from jaxperf.watch.report.top_programs import IN_GROUPS
from jaxperf.watch.rules import habits
from jaxperf.watch.rules.programs import (
    branch_s,
    called_programs,
    fault_notes,
    new_programs,
    selected_branches,
)
from jaxperf.watch.rules.table import CAUSES, cause_of, find_causes
from jaxperf.watch.source import statements

NOTE_SHARE = 0.2  # of the run
COMPILING_S, COMPILING_SHARE = 2.0, 0.3  # seconds, and share of the run, of compiling worth a note
CACHED_S = 1.0  # seconds of compiling from which on JAX's cache keeps a program by default
MOVED = 1 << 20  # bytes of a collective that are worth a note
TEMPORARY = 64 << 20  # bytes of temporaries that are worth a note
BUSY_SHARE = 0.2  # share of the devices' time that makes a program worth notes
TALL = 10  # rows of a Jacobian for each column that are worth a note
TINY, TINY_SHARE = 4, 0.2  # rows of a matrix that is tiny, and the share of a program that is worth a note
_FACTORS = re.compile("getrf|potrf|trsm|geqrf|orgqr|syev|gesdd")  # of LAPACK and of cuSOLVER
_ALGEBRA = re.compile(r"jit\(_?(inv|det|slogdet|solve|lu|cholesky|cho_solve|qr|eigh|svd|solve_triangular)")
CONVOLUTION_SHARE = 0.5  # share of a program's time in a convolution that is worth a note


def note_blocks(analysis: Analysis) -> Iterator[Block]:
    """Yield all notes; none if this JAX says too little."""
    if not analysis.log.names_causes:
        return
    for facts, c, program, program_s in called_programs(analysis):
        if program_s >= BUSY_SHARE * analysis.computing_s:
            yield from map(
                Note,
                (
                    *_collectives(facts, c), *_branches(facts, c, program), *_grouped(facts, c, program),
                    *_tall_jacobians(facts, c), *_tiny_systems(facts, c, program),
                ),
            )  # fmt: skip
    for notes in (
        _mapped, _unusable, compiling_notes, cache_notes, fault_notes, habits.growth_notes,
        habits.timing_notes, habits.fork_notes, habits.keras_notes, habits.python_notes,
    ):  # fmt: skip
        yield from map(Note, notes(analysis))


def cache_notes(analysis: Analysis) -> Iterator[str]:
    r = analysis.log
    spans = (c.stages[COMPILE] for c in r.compiled if c.seconds(COMPILE) >= CACHED_S)
    long_s = total_length(spans)
    if not r.compile_cache and long_s >= NOTE_SHARE * r.wall_s:
        yield (
            f"XLA compiles for {format_quantity(long_s, 's')} of {format_quantity(r.wall_s, 's')} in each "
            'start; a compile cache on disk, jax.config.update("jax_compilation_cache_dir", FOLDER) before '
            "the first call, saves most of it from the second start on"
        )


def compiling_notes(analysis: Analysis) -> Iterator[str]:
    """Yield a note if much of the run is tracing and compiling that findings do not explain."""
    log, seconds = analysis.log, analysis.compiling.within(analysis.log.start, analysis.log.end)
    kinds = ("retrace", "eager", "program", "debug")
    explaining = (
        f for f in find_causes(analysis) if f.cause == "iterated array" or cause_of(f).kind in kinds
    )
    explained_s = sum(f.seconds for f in explaining)
    if seconds >= max(COMPILING_S, COMPILING_SHARE * log.wall_s) and explained_s < seconds / 2:
        times = format_count(len(log.compiled), "time")
        explained = "findings explain less than half of it" if explained_s else "no finding explains it"
        spent = f"{format_quantity(seconds, 's')} of {format_quantity(log.wall_s, 's')}"
        yield (
            f"JAX traces and compiles {times} for {spent}, and {explained}: "
            "`jaxperf watch --compiles DIR` tells of each program the line, the seconds and why it exists"
        )


def _collectives(facts: Facts, c: Compiled) -> Iterator[str]:
    """Yield a note on each collective that moves many bytes."""
    bodies = {i.called for i in facts.instructions if i.opcode == "while"}
    for i in facts.instructions if len(facts.devices) > 1 else ():
        if i.collective not in ("", "all-reduce") and i.bytes >= MOVED:
            kind, at = i.collective, facts.at(i) or c.at
            how = "in each turn of a loop" if i.computation in bodies else "per call"
            line = _source(i, facts, c.called) or at
            use = f", for {at}" if at != line else ""
            yield (
                f"{c.called} has an {kind} of {i.type.partition('{')[0]}, "
                f"{format_quantity(i.bytes, 'bytes')} {how} at {line}{use}: it is not split as its use needs "
                "it; a sharding of its own (jax.lax.with_sharding_constraint) at that line keeps the parts "
                "where they are"
            )


def _source(i: Instruction, facts: Facts, name: str) -> Place:
    """Return the reader's line that computed what is gathered; for an argument, its first use."""
    while operands := facts.module.operands(i):
        i = operands[0]
        if at := facts.at(i):
            return at
    at = next((p for p in sorted(facts.places) if p.function == name), NOWHERE)
    names = statements.nodes_in(statements.innermost(at, statements.FUNCTION), ast.Name)
    uses = [n.lineno for n in names if n.id == i.op_name.partition("[")[0]]
    return at._replace(line=min(uses)) if uses else NOWHERE


def _branches(facts: Facts, c: Compiled, program: ExecutedProgram) -> Iterator[str]:
    """Yield a note for each branch that is a select, of whose costly side no window saw the seconds."""
    for at, sides in selected_branches(facts):
        if not any(branch_s(facts, program, side) for side in sides):
            yield (
                f"under vmap, the branch at {at} is a select: {c.called} computes both sides for every "
                f"element. {CAUSES['both branches'].usual}"
            )


def _grouped(facts: Facts, c: Compiled, program: ExecutedProgram) -> Iterator[str]:
    """Yield a note for each convolution in groups that takes most of a program's time."""
    total_s = program.op_s(facts.steps.__contains__)
    for i in facts.instructions:
        groups = IN_GROUPS.search(i.text) if i.opcode in ("convolution", "custom-call") else None
        if groups is None:
            continue
        names = {i.name, *(user.name for user in facts.instructions if user.called == i.computation)}
        if program.op_s(names.__contains__) >= CONVOLUTION_SHARE * total_s > 0:
            yield (
                f"a convolution in {groups[1]} groups takes most of {c.called}'s time "
                f"({facts.at(i) or c.at}); compilers often reach a small share of the machine there: compare "
                "it with a sum of shifted products, one for each position of the kernel"
            )


def _tiny_systems(facts: Facts, c: Compiled, program: ExecutedProgram) -> Iterator[str]:
    """Yield a note if linear algebra of tiny matrices, in each turn of a loop, takes much of a program."""
    calls = (
        i
        for i in facts.instructions
        if i.opcode == "custom-call"
        and "while/body" in i.op_name
        and _FACTORS.search(i.target)
        # beside the matrices, there are integers: pivots, and whether it went well
        and all(max(shape.dims[-2:], default=1) <= TINY for shape in i.shapes if shape.dtype[0] in "fc")
    )
    for at in dict.fromkeys(map(facts.at, calls)):
        around = [i for i in facts.instructions if facts.at(i) == at and _ALGEBRA.search(i.op_name)]
        seconds = branch_s(facts, program, around)
        if seconds >= TINY_SHARE * program.busiest_s > 0:
            share = min(1.0, seconds / program.busiest_s)
            yield (
                f"{c.called} solves or factors matrices of at most {TINY} rows in each turn of a loop "
                f"({at or c.at}), which takes {share:.0%} of its time: a call of LAPACK takes longer than "
                "their arithmetic. Write the formula out for two or three rows; or, if a matrix does not "
                "depend on the turn before, invert all of them before the loop"
            )


def _tall_jacobians(facts: Facts, c: Compiled) -> Iterator[str]:
    """Yield a note for each `jacrev` whose Jacobian, which the program returns, is far longer than wide."""
    lines, (arguments, results) = {p[:2] for p in facts.places}, facts.layout
    columns = Counter[int]()  # by the number of rows
    backward = any("vmap(transpose(jvp(" in i.op_name for i in facts.instructions)
    for argument in (a for a in arguments if backward and a.dtype[0] in "fb" and a.size):
        ends = {(r.size, r.dims[len(r.dims) - len(argument.dims) :]) for r in results}
        for size in (size for size, dims in ends if dims == argument.dims):
            columns[size // argument.size] += argument.size
    rows, width = min(columns.items(), key=lambda item: item[0] / item[1], default=(0, 1))
    files = {c.at.file, c.defined.rpartition(":")[0]} if rows >= TALL * width else ()
    calls = [(f, call) for f in files for call in statements.calls_in(statements.syntax_tree(f))]
    for file, call in calls:
        names = {statements.last_name(argument) for argument in call.args[:1]}
        of_program = (file, call.lineno) in lines or c.called in names
        if of_program and statements.last_name(call.func) == "jacrev":
            yield (
                f"jax.jacrev at {Place(file, call.lineno, '')} goes back through its function once for each "
                f"of {rows:,} results; jax.jacfwd goes through it once for each of {width:,} numbers in its "
                "arguments, and keeps nothing for the way back"
            )


def _mapped(analysis: Analysis) -> Iterator[str]:
    if analysis.computing_s < BUSY_SHARE * (analysis.log.end - analysis.begin):
        return
    for facts, c in new_programs(analysis):
        for at in dict.fromkeys(facts.at(i) for i in facts.instructions if i.opcode == "while"):
            calls = [call for call in statements.calls_at(at) if not call.keywords]
            if any(ast.unparse(call.func).endswith("lax.map") for call in calls):
                yield (
                    f"{c.called} takes the elements of jax.lax.map at {at} one after the other, though none "
                    "needs another: jax.vmap takes all at once, and batch_size= of jax.lax.map some at a time"
                )


def _unusable(analysis: Analysis) -> Iterator[str]:
    """Yield a note for each large donated argument whose memory no result can take."""
    for facts, c in new_programs(analysis):
        if facts.module.aliases or not facts.text:
            continue
        file, results = c.defined.rpartition(":")[0], facts.layout[1]
        donated = statements.donated_parameters(file, c.called)
        for where, text in c.signature.items():
            name, shape = statements.parameter_name(file, c.called, where), shape_of(text)
            if name in donated and shape and shape.bytes >= MOVED and shape not in results:
                types = ", ".join(f"{dtype_name(s.dtype)}{[*s.dims]}" for s in results[:2])
                yield (
                    f"{name} is donated to {c.called} ({c.at}), but no result has its type, {text}: the "
                    f"results are {types}, so its memory is not used again; give the result that type"
                )


def temporaries_note(analysis: Analysis) -> Iterator[str]:
    large = [pair for pair in new_programs(analysis) if pair[0].temporary_bytes >= TEMPORARY]
    for facts, c in sorted(large, key=lambda pair: pair[0].temporary_bytes)[-1:]:
        lines = (
            facts.at(i)
            for i in facts.instructions
            if i.opcode == "while"
            and "jvp(" in i.op_name
            # random bits have no gradient
            and not re.search("threefry|random_bits|shuffle", i.op_name)
            and any(shape.dtype[0] in "fbc" for shape in i.shapes)
        )
        line = next(filter(None, lines), NOWHERE)
        more = (
            f"; the gradient of the loop at {line} keeps what each turn computes, and jax.checkpoint around "
            "its body computes it again instead"
        )
        size = format_quantity(facts.temporary_bytes, "bytes")
        advised = line and not any(_tall_jacobians(facts, c))  # which keeps nothing
        yield f"temporaries of {c.called}: {size}{more if advised else ''}"
