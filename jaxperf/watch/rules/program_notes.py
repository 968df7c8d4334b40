"""What compiled programs do that is worth knowing, though nobody can tell what a change would save."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from jaxperf.report.formatting import format_quantity
from jaxperf.result import Block, Note
from jaxperf.watch.observe.compiles import COMPILE, Compiled
from jaxperf.watch.observe.executables import Facts, array_bytes
from jaxperf.watch.observe.instructions import OPERANDS, ProgramInstruction, parse_instructions
from jaxperf.watch.observe.source_location import NOWHERE, Place
from jaxperf.watch.observe.windows import ExecutedProgram, canonical_name
from jaxperf.watch.report.analysis import Analysis
from jaxperf.watch.rules.programs import called_programs
from jaxperf.watch.source import statements

COLLECTIVES = ("all-reduce", "all-gather", "all-to-all", "reduce-scatter", "collective-permute")
MOVED = 1 << 20  # bytes per call that are worth a line
TEMPORARY = 64 << 20  # bytes
A_SHARE = 0.2  # of the run, or of a program
MOST = 0.5  # of a program's time
CACHED_S = 1.0  # of compiling, from which on JAX's cache on disk keeps a program by default
_CONDITION = re.compile(r"condition=%?([\w.-]+)")
_BODY = re.compile(r"body=%?([\w.-]+)")
_BRANCHES = ("cond", "switch")
_HEAVY = ("while", "dot", "convolution", "custom-call", "sort")
_GROUPS = re.compile(r"feature_group_count=(\d+)")


def note_blocks(analysis: Analysis) -> Iterator[Block]:
    """Yield one line for each thing that was seen."""
    for facts, c, program_s in called_programs(analysis):
        program = analysis.record.seen.programs[canonical_name(facts.name)]
        if program_s >= A_SHARE * analysis.computing_s:
            instructions = list(parse_instructions(facts.text))
            for line in (*_collectives(facts, c, instructions), *_branches(facts, c, instructions)):
                yield Note(line)
            yield from map(Note, _grouped(facts, c, program, instructions))
    yield from map(Note, _cache(analysis))


def _collectives(facts: Facts, c: Compiled, instructions: list[ProgramInstruction]) -> Iterator[str]:
    """Yield what devices send to each other: in the condition of a loop, or many bytes."""
    conditions = {m[1] for i in instructions if i.opcode == "while" for m in [_CONDITION.search(i.text)] if m}
    bodies = {m[1] for i in instructions if i.opcode == "while" for m in [_BODY.search(i.text)] if m}
    by_name = {i.name: i for i in instructions}
    for i in instructions:
        kind = i.opcode.removesuffix("-start")
        if kind not in COLLECTIVES or len(facts.devices) < 2:
            continue
        at = facts.at(i.text)
        where = f" at {at if at != NOWHERE else c.at}"
        if i.within in conditions:
            yield (
                f"{c.called} has an {kind} in the condition of a loop{where}: all devices agree in each turn "
                "whether to go on; under jax.shard_map each device has a loop of its own"
            )
        elif (
            kind != "all-reduce" and (moved := sum(array_bytes(*a) for a in arrays_in_type(i.type))) >= MOVED
        ):
            source = _source(i, by_name, facts)
            how = "in each turn of a loop" if i.within in bodies else "per call"
            also = f", from what {source} makes" if source not in (NOWHERE, at) else ""
            yield (
                f"{c.called} has an {kind} of {i.type.partition('{')[0]}, {format_quantity(moved, 'bytes')} "
                f"{how}{where}{also}: an array is not split as its use needs it; a sharding of its own "
                "(jax.lax.with_sharding_constraint) before that line keeps the parts where they are"
            )


def arrays_in_type(kind: str) -> list[tuple[str, str]]:
    """Return the arrays, as dtype and dimensions, in a type of a program's text."""
    return re.findall(r"([a-z]+\d*)\[([\d,]*)\]", kind)


def _source(i: ProgramInstruction, by_name: dict[str, ProgramInstruction], facts: Facts) -> Place:
    """Return the line of the reader's that made an instruction's operand."""
    for _ in range(8):
        operands = [by_name[n] for n in OPERANDS.findall(i.text.partition(" = ")[2]) if n in by_name]
        if not operands:
            return NOWHERE
        i = operands[0]
        if (at := facts.at(i.text)) != NOWHERE:
            return at
    return NOWHERE


def _branches(facts: Facts, c: Compiled, instructions: list[ProgramInstruction]) -> Iterator[str]:
    """Yield calls of `lax.cond` that `vmap` has turned into a select, where a branch is costly."""
    heavy = [(p.file, p.line) for i in instructions if i.opcode in _HEAVY for p in facts.around(i.text)]
    selects = (
        i for i in instructions if i.opcode == "select" and "vmap(" in i.text and "/select_n" in i.text
    )
    for at in dict.fromkeys(facts.at(i.text) for i in selects):
        lines = _lines_of_branches(at)
        if any(file == at.file and line in lines for file, line in heavy):
            yield (
                f"under vmap, the branch at {at} is a select: {c.called} computes both sides for every "
                "element. Choose the elements first (sort or gather them), or use jax.lax.map, which "
                "branches for one element after the other"
            )


def _lines_of_branches(at: Place) -> set[int]:
    """Return the lines of the functions among which a statement's `lax.cond` or `lax.switch` chooses."""
    statement = statements.enclosing_nodes(at, ast.stmt)[-1:]
    calls = [n for s in statement for n in ast.walk(s) if isinstance(n, ast.Call)]
    argument_nodes = {
        id(n): n for call in calls if statements.last_name(call.func) in _BRANCHES for n in ast.walk(call)
    }.values()
    named = {n.id for n in argument_nodes if isinstance(n, ast.Name)}
    nodes = ast.walk(statements.syntax_tree(at.file))
    functions = [n for n in nodes if isinstance(n, statements.FUNCTION) and n.name in named]
    bodies = [*functions, *(n for n in argument_nodes if isinstance(n, ast.Lambda) and n.lineno != at.line)]
    return {line for n in bodies for line in range(n.lineno, (n.end_lineno or n.lineno) + 1)}


def _grouped(
    facts: Facts, c: Compiled, program: ExecutedProgram, instructions: list[ProgramInstruction]
) -> Iterator[str]:
    """Yield convolutions in groups of channels that take most of a program's time."""
    total_s = program.op_s(facts.steps.__contains__)
    for i in instructions:
        groups = _GROUPS.search(i.text) if i.opcode in ("convolution", "custom-call") else None
        names = {i.name, *(user.name for user in instructions if f"calls=%{i.within}," in user.text)}
        taken_s = program.op_s(names.__contains__) if groups and int(groups[1]) > 1 else 0.0
        if total_s and taken_s >= MOST * total_s and groups:
            at = facts.at(i.text)
            yield (
                f"a convolution in {groups[1]} groups takes {taken_s / total_s:.0%} of {c.called}'s time "
                f"({at if at != NOWHERE else c.at}); compilers often reach a small share of the machine "
                "there: compare it with a sum of shifted products, one for each position of the kernel"
            )


def _cache(analysis: Analysis) -> Iterator[str]:
    """Yield what a compile cache on disk would save, where none is set."""
    r = analysis.record
    kept_s = sum(s for c in r.compiled if (s := c.seconds(COMPILE)) >= CACHED_S)
    if not r.compile_cache and kept_s >= A_SHARE * r.wall_s:
        yield (
            f"each start compiles for {format_quantity(kept_s, 's')} of {format_quantity(r.wall_s, 's')} "
            "what a compile cache on disk would keep: "
            'jax.config.update("jax_compilation_cache_dir", FOLDER) before the '
            "first call saves most of it from the second start on"
        )


def temporaries_note(analysis: Analysis) -> Iterator[str]:
    """Yield the program with the most temporaries, if many, and the scan whose gradient needs them."""
    called = {canonical_name(c.name): c for c, _ in analysis.called}
    new = [f for f in analysis.record.programs if not f.old and canonical_name(f.name) in called]
    facts = max(new, key=lambda f: f.temporary_bytes, default=None)
    if facts is None or facts.temporary_bytes < TEMPORARY:
        return
    name, size = called[canonical_name(facts.name)].called, format_quantity(facts.temporary_bytes, "bytes")
    message = f"temporaries of {name}: {size}"
    scans = (i for i in parse_instructions(facts.text) if i.opcode == "while" and "jvp(" in i.text)
    lines = [line for i in scans if (line := facts.at(i.text)) != NOWHERE]
    if lines:
        message += (
            f"; the gradient of the loop at {lines[0]} keeps what each turn computes, and jax.checkpoint "
            "around its body computes it again instead"
        )
    yield message
