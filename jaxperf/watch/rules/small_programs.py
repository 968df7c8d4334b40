"""Rules about the small programs of operations outside jit: many, for each shape, or of very many arrays."""

import ast
import functools
import itertools
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from jaxperf.result.formatting import format_count, format_list
from jaxperf.retraces import argument_changes, dimensions
from jaxperf.watch.grouping import group_by
from jaxperf.watch.log import COMPILE, Compiled, StackSample, canonical_name
from jaxperf.watch.observe.source_location import Place
from jaxperf.watch.report.analysis import Analysis, once
from jaxperf.watch.rules.elements import as_one, is_operation, keys_apart, small_program_s, takes_apart
from jaxperf.watch.rules.jit_advice import (
    INNER_SHARE,
    NO_WAY,
    WAYS,
    Line,
    best_way,
    jittable_call,
    kept_values,
    only_computes,
    operations_of,
    outermost,
    takes_object,
)
from jaxperf.watch.rules.libraries import change_of_call
from jaxperf.watch.rules.table import (
    LEAST_S,
    PERFORMANCE,
    TRACED_AGAIN,
    Finding,
    cause,
    findings_of,
    least_saving_s,
)
from jaxperf.watch.rules.traces import REPEATS, find_library_functions
from jaxperf.watch.source import loop_body, statements
from jaxperf.watch.source.host_work import call_on_host

SMALL_S = 0.2  # seconds that one program in place of many small ones must save
SMALL_PROGRAMS = 10  # at a line outside jit that are worth one program
MANY = 100  # arrays that one operation takes, from which on compiling takes long
UNNAMED = "<unnamed function>"  # what JAX calls a part of `shard_map`
SEVERAL = 4  # operations at a line that compile for each shape, of which jit makes one program a shape
SETTLED_S = 0.02  # seconds at a line behind its last program, after which its shapes have all come
# of what a random draw takes to compile: what it saves to be part of a program, and what another one in the
# program takes; measured on networks of 2 to 9 layers with equal and with different shapes
DRAW_SAVED, DRAW_AGAIN = 0.15, 0.5
_FUNCTIONS = statements.FUNCTION | ast.Lambda
_DRAWS = re.compile(r"_?(truncated_|multivariate_)?(normal|uniform)")
_OPTIMIZER_STATE = re.compile(r"\b(mu|nu|trace|opt_state|sum_of_squares)\b")


@cause(
    "eager recompiles", "retrace", PERFORMANCE, "operations outside of jit compile one by one",
    "Put this line and its neighbors into one function of arrays, and jit that; sizes are static arguments, "
    "and float() and print() stay outside.",
    forms=WAYS,
)  # fmt: skip
@cause(
    "eager shapes", "retrace", TRACED_AGAIN, "an operation outside of jit compiles for each shape",
    "Jit would compile for each shape just the same. Pad to a few sizes, and mask the rest; or use NumPy for "
    "what varies on the host.",
    confidence="bound",
    forms={
        "values": (
            "The size of the result depends on values, so jit would not take it. Use NumPy here and for what "
            "comes from it: np.asarray(x)[np.asarray(mask)], np.where(np.asarray(x)). Or keep all elements, "
            "so that the size stays: jnp.where(mask, x, 0), with the count jnp.sum(mask)."
        ),
        "growing": (
            "Collect the parts in a Python list, and make one jnp.concatenate or jnp.stack of them after the "
            "loop (inside jit, jax.lax.scan stacks them)."
        ),
        "needed": (
            "Make an array of the final size once, and set its rows: x = x.at[i].set(row). All parts so far "
            "are used in each turn here; what uses them masks the rows that are not set yet."
        ),
        "several": (
            "Jit {name} as a whole: it compiles one program for each shape, in place of one for each "
            "operation and shape. An update by a mask becomes jnp.where. To compile fewer, pad to a few "
            "sizes, and mask the rest."
        ),
        "lines": (
            "Put this and what reads its result into one jitted function: it compiles one program for each "
            "shape, in place of one for each operation and shape. To compile fewer, pad to a few sizes, and "
            "mask the rest; or use NumPy for what varies on the host."
        ),
        "method": (
            "Move what {name} computes with arrays into a function that takes all of them, also those of "
            "self, and jit that: it compiles one program for each shape, in place of one for each operation "
            "and shape. To compile fewer, pad to a few sizes, and mask the rest."
        ),
    },
)  # fmt: skip
@cause(
    "new body", "retrace", TRACED_AGAIN, "a loop outside of jit gets a new body in each call",
    "Put this call into a function under jax.jit, made once, whose arguments are what the body uses. What "
    "calls NumPy or SciPy on them calls jax.numpy or jax.scipy then.",
)  # fmt: skip
def find_eager_recompiles(analysis: Analysis) -> Iterator[Finding]:
    """Find lines at which a library jits anew, or many small programs are compiled outside `jit`.

    What one program would compile just the same does not count: of a program for new shapes, jit saves what
    every program costs, however small, but not what its operation costs.
    """
    line = outermost(analysis)
    varying, others = list[Finding](), list[Compiled]()
    for at, compiled in group_by(_small_programs(analysis, line), line).items():
        found = _for_each_shape(analysis, at, compiled)
        if found is None:
            others += compiled
        elif found.cause == "eager shapes":
            varying.append(found)
        else:
            yield found
    yield from _of_one_class(_sources(varying))
    yield from _of_calls(_one_program_each(analysis, line, others))


def _small_programs(analysis: Analysis, line: Line) -> list[Compiled]:
    """Return the programs of operations outside of jit, without those that another change serves."""
    # lines at which a library jits anew
    anew = Counter((c.at, c.name) for c in analysis.log.compiled if c.owner and not c.changes)
    libraries = {at for (at, _), times in anew.items() if times > 1}
    libraries |= {f.at for f in findings_of(analysis, find_library_functions)}
    keys = {id(c) for c in keys_apart(analysis)}
    return [
        c
        for c in analysis.log.compiled
        # JAX does not explain each trace of a function that it traces very often
        if _is_derived(c) or (is_operation(c) and not takes_apart(c) and c.program not in analysis.jitted)
        if id(c) not in keys
        # an import is no function that a reader could jit; `cache_notes` says what keeps its programs
        if not statements.is_import(c.at) and not {c.at, line(c)} & libraries
    ]


def _is_derived(c: Compiled) -> bool:
    """Return whether a program is what `grad` or `vmap`, outside of jit, made of a jitted function."""
    return c.explained and COMPILE in c.stages and any(change.kind == "derived" for change in c.changes)


def _for_each_shape(analysis: Analysis, at: Place, compiled: list[Compiled]) -> Finding | None:
    """Return the finding of a line whose operations get new shapes, or new bodies; None for another line."""
    # not lines that each have a shape of their own
    alike = group_by(compiled, lambda c: (c.at, c.name)).values()
    again = max(alike, key=len)
    cause = _cause_at(analysis, at, again) if len(again) >= 2 * REPEATS else "eager recompiles"
    if cause == "eager recompiles":
        return None
    repeating = [group for group in alike if len(group) >= REPEATS]
    repeats = [c for group in repeating for c in group[1:]]
    name, times = again[0].name, len(again)
    reason = f"{name}, outside of jit, was compiled {times} times here, for {EAGER_CAUSES[cause]}"
    finding = Finding(cause, at, analysis.compiling_s(repeats), reason, name)
    if cause == "new body":
        return finding
    if _mostly(analysis, repeats, statements.size_by_values) or _takes_by_mask(analysis, at):
        return replace(finding, form="values")
    if _mostly(analysis, repeats, statements.joins):
        return replace(finding, form="needed" if loop_body.needed_in_turns(at) else "growing")
    if len(repeating) < SEVERAL or not _jittable(analysis, at):
        return finding
    # of each shape, one program is left, and what the operations themselves take
    each_s = small_program_s(analysis)
    saved_s = sum(min(each_s, analysis.compiling_s([c])) for c in repeats) - each_s * (times - 1)
    function = statements.innermost(at, statements.FUNCTION)
    return replace(
        finding,
        # jit would keep what a method reads of its object as it was
        form="method" if statements.is_method(function) else "several",
        name=function.name,
        reason=f"{reason}, and so were {len(repeating) - 1} more operations",
        seconds=saved_s,
        besides=kept_values(p for c in compiled for p in (c.at, *itertools.takewhile(at.__ne__, c.callers))),
    )


def _one_program_each(
    analysis: Analysis, line: Line, compiled: list[Compiled]
) -> list[tuple[Finding, list[Compiled]]]:
    """Return the findings of which one jitted function each could hold many programs, and these programs.

    It holds all lines of a function that have few programs each, or all that a line calls in several
    functions.
    """
    call = functools.partial(jittable_call, analysis)
    found, left = list[tuple[Finding, list[Compiled]]](), compiled
    for level, place, least_s in (
        (line, line, max(SMALL_S, least_saving_s(analysis))),
        (functools.partial(_neighbors, analysis, line), line, SMALL_S),
        (call, call, SMALL_S),
    ):
        groups, left = group_by(left, level).values(), []
        for group in groups:
            joined = _in_one_program(place, group)
            saved_s = _saving_s(analysis, line, joined)
            most = max(map(len, group_by(group, lambda c: (c.at, c.name)).values()))
            if (len(group) < SMALL_PROGRAMS and most < 2 * REPEATS) or saved_s < least_s:
                left += group
                continue
            finding = _one_by_one(analysis, place, joined, saved_s)
            alone_s = _saving_s(analysis, line, [c for c in joined if place(c) == finding.at])
            finding = best_way(finding, analysis, _library_at(finding.at, joined), alone_s)
            if finding.form != NO_WAY:
                found.append((finding, joined))
    return [(_with_the_same(analysis, line, finding, joined, left), joined) for finding, joined in found]


def _neighbors(analysis: Analysis, line: Line, c: Compiled) -> tuple[Any, ...]:
    """Return a key of the lines that one function could hold with an operation.

    A call that makes a model has no neighbors.
    """
    at, loop = line(c), statements.innermost(line(c), statements.LOOP)
    if _makes(at):
        return (at,)
    if call_on_host(at):
        return "calls on the host", at.file, at.function
    function = statements.innermost(at, statements.FUNCTION)
    if function is None or only_computes(analysis, at):
        return (statements.neighborhood(at) or at,)
    # no function of a part holds lines before, in and behind a loop
    if loop is not None:
        return "loop", at.file, loop.lineno
    ends = [other.end_lineno for other in statements.nodes_in(function, statements.LOOP)]
    return "behind a loop", at.file, at.function, max([end for end in ends if end < at.line], default=0)


def _saving_s(analysis: Analysis, line: Line, compiled: list[Compiled]) -> float:
    """Return what one program in place of these saves: all that is compiled once more, and a part."""
    first, each_s = _different(compiled), small_program_s(analysis)
    again_s = analysis.compiling_s(compiled) - analysis.compiling_s(first)
    # each call of a function with other shapes needs a program of its own
    left_s = each_s * len({_callers_of_function(c, line(c)) for c in first})
    saved_s = sum(min(each_s, analysis.compiling_s([c])) for c in first) - left_s
    return again_s + saved_s + _saved_on_draws_s(analysis, first)


def _with_the_same(
    analysis: Analysis, line: Line, finding: Finding, joined: list[Compiled], left: list[Compiled]
) -> Finding:
    """Return a finding with the other functions that run the same operations, which need the same change.

    Args:
      joined: the programs that the finding's function would hold.
      left: the programs that no finding holds, some of which may be theirs.
    """
    others = [(f.name, f) for f in _running_the_same(analysis, finding.at, joined)]
    if finding.form == "init":
        others = [(name, None) for name in _applied_beside(analysis, finding, len(joined))]
    loops_s = finding.costs_s  # of each of these functions
    for name, function in others:
        theirs = [c for c in left if function in _functions_of(c)]
        saved_s = _saving_s(analysis, line, theirs) if theirs else -small_program_s(analysis)
        more = (
            f"Do the same with {name}, which runs most of these operations, too: it would compile them just "
            "the same."
        )
        finding = replace(
            finding,
            seconds=finding.seconds + saved_s,
            besides=f"{finding.besides} {more}".strip(),
            costs_s=finding.costs_s + loops_s,
        )
    return finding


def _running_the_same(analysis: Analysis, at: Place, compiled: list[Compiled]) -> list[Any]:
    """Return the other functions of a file that run most operations of a function, too, outside of jit.

    They compile none of these programs, since the function did so before.
    """
    function = statements.innermost(at, statements.FUNCTION)
    if function is None:
        return []
    ran, made = set[Any](), defaultdict[Any, set[str]](set)
    for operation in operations_of(analysis):
        # JAX may have been tracing then, as the body of a loop
        if isinstance(operation, StackSample) and not analysis.front(operation):
            continue
        functions = _functions_of(operation)
        if function not in functions:
            ran.update(functions)
        if isinstance(operation, Compiled):
            for each in functions:
                made[each].add(operation.name)
    needed = list[tuple[str, frozenset[str]]]()
    for c in compiled:
        inside = (p for p in (c.at, *c.callers) if statements.innermost(p, statements.FUNCTION) is function)
        statement = statements.innermost(next(inside, c.at), ast.stmt)
        needed.append((c.name, _operations_at(statement)))

    def runs_them(other: Any) -> bool:
        operations = _operations_at(other)
        same = sum(name not in made[other] and needs <= operations for name, needs in needed)
        return 2 * same > len(needed)

    in_file = statements.nodes_in(statements.syntax_tree(at.file), statements.FUNCTION)
    return [other for other in in_file if other in ran and runs_them(other)]


def _applied_beside(analysis: Analysis, finding: Finding, number: int) -> list[str]:
    """Return "net.apply in line 9" if the function that calls `net.init` also calls that outside of jit.

    That line compiles few of the `number` programs that `net.init` does, since they are there already.
    """
    at, (owner, _, method) = finding.at, finding.name.partition(",")[0].rpartition(".")
    scope = statements.innermost(at, statements.FUNCTION) or statements.syntax_tree(at.file)
    inside = {node for node in statements.nodes_in(scope, _FUNCTIONS) if node is not scope}
    compiled = Counter(c.at.line for c in analysis.log.compiled if is_operation(c) and c.at.file == at.file)
    lines = [
        call.lineno
        for call in statements.calls_in(scope)
        if method == "init" and statements.dotted_name(call.func) == f"{owner}.apply"
        if 2 * compiled[call.lineno] < number
        if inside.isdisjoint(statements.enclosing_nodes(at._replace(line=call.lineno), _FUNCTIONS))
    ]
    return [f"{owner}.apply in line {line}" for line in lines[:1]]


def _functions_of(event: StackSample | Compiled) -> list[Any]:
    """Return the functions on the stack of an operation, the innermost first."""
    functions = (statements.innermost(place, statements.FUNCTION) for place in (event.at, *event.callers))
    return [function for function in functions if function is not None]


@functools.cache
def _operations_at(node: ast.AST | None) -> frozenset[str]:
    """Return the operators and the names of the called functions in some code, but not in functions in it."""
    inner = [f for f in statements.nodes_in(node, statements.FUNCTION) if f is not node]
    inside = {part for function in inner for part in ast.walk(function)}
    operators = {type(n.op).__name__ for n in statements.nodes_in(node, ast.BinOp) if n not in inside}
    return frozenset(
        operators.union(ast.unparse(c.func) for c in statements.calls_in(node) if c not in inside)
    )


def _callers_of_function(c: Compiled, at: Place) -> tuple[Place, ...]:
    """Return the lines that call the function around a line, of those that led to an operation."""
    chain = (c.at, *c.callers)
    function = statements.function_of(at)
    inside = [i for i, p in enumerate(chain) if statements.function_of(p) == function]
    return chain[inside[-1] + 1 :] if inside else ()


def _mostly(analysis: Analysis, compiled: list[Compiled], is_so: Callable[[Place], bool]) -> bool:
    """Return whether most of the seconds of compiling are at lines of which something is so."""
    those = [c for c in compiled if is_so(c.at)]
    return 2 * analysis.compiling_s(those) > analysis.compiling_s(compiled)


def _of_calls(findings: list[tuple[Finding, list[Compiled]]]) -> Iterator[Finding]:
    """Yield findings, but not those whose programs are in the call of a library that another one jits."""
    seconds = {i: finding.seconds for i, (finding, _) in enumerate(findings)}
    for outer, (call, _) in enumerate(findings):
        if not change_of_call(call.form, call.name):
            continue
        for i, (_, compiled) in enumerate(findings):
            inside = sum(call.at in c.callers for c in compiled)
            if i != outer and {i, outer} <= seconds.keys() and inside >= INNER_SHARE * len(compiled):
                seconds[outer] += seconds.pop(i)
    return (replace(findings[i][0], seconds=seconds_in_all) for i, seconds_in_all in seconds.items())


def _different(compiled: list[Compiled]) -> list[Compiled]:
    """Return the compilations but those of an operation's program that equals an earlier one, if known.

    One program would hold each part that is derived of a jitted function, and compile it, too.
    """
    keys = {id(c): id(c if _is_derived(c) else c.facts or c) for c in compiled}
    return list({keys[id(c)]: c for c in reversed(compiled)}.values())


def _saved_on_draws_s(analysis: Analysis, compiled: list[Compiled]) -> float:
    """Return what one program saves on random draws beyond what it saves on each operation; may be negative.

    It holds a draw for each weight and each call, where those of one shape share a program outside of jit.
    """
    draws = [c for c in compiled if _DRAWS.fullmatch(c.name)]
    if not draws:
        return 0.0
    draws_s = analysis.compiling_s(draws)
    calls = 0
    for (function, name), same in group_by(draws, lambda c: (_block(c.at), c.name.lstrip("_"))).items():
        named = [call for call in statements.calls_in(function) if statements.last_name(call.func) == name]
        calls += max(0, len(named) - len(same))
    again = max(calls, _weights_alike(analysis))
    return DRAW_SAVED * draws_s - DRAW_AGAIN * again * draws_s / len(draws)


@once
def compiled_elsewhere_s(analysis: Analysis, at: Place) -> float:
    """Return what a program of a line's function compiles once more, since other lines need it, too.

    That is what the operations that it calls took where they were compiled, beyond any small program.
    """
    block, each_s = _block(at), small_program_s(analysis)
    names = {statements.last_name(call.func) for call in statements.calls_in(block)}
    called = [c for c in analysis.log.compiled if is_operation(c) and c.name.lstrip("_") in names]
    seconds = 0.0
    for same in group_by(called, lambda c: c.name).values():
        if not any(_block(place) is block for c in same for place in (c.at, *c.callers)):
            seconds += max(0.0, min(analysis.compiling_s([c]) for c in same) - each_s)
    return seconds


def _block(at: Place) -> ast.AST | None:
    return statements.innermost(at, statements.FUNCTION) or statements.innermost(at, statements.LOOP)


@once
def _weights_alike(analysis: Analysis) -> int:
    """Return how many weights have the shape of another one: the most that a jitted function takes."""
    alike = 0
    for c in analysis.log.compiled:
        names = ((name, dimensions(text)) for name, text in c.arrays if c.explained)
        dims = [d for name, d in names if len(d) > 1 and not _OPTIMIZER_STATE.search(name)]
        alike = max(alike, len(dims) - len(set(dims)))
    return alike


def _makes(at: Place) -> str:
    return statements.init_call(at) or statements.made_module(at)


def _in_one_program(line: Callable[[Compiled], Place], compiled: list[Compiled]) -> list[Compiled]:
    """Return those of some programs that a jitted function would hold in their place.

    The call that makes a model does not hold its own arguments, and holds a copy for each turn of a loop.
    """
    at = line(compiled[0])
    if not _makes(at):
        return compiled
    inside = {id(c): [*itertools.takewhile(at.__ne__, (c.at, *c.callers))] for c in compiled}
    within = [c for c in compiled if inside[id(c)]] or compiled
    return [c for c in within if not any(statements.innermost(p, statements.ROUND) for p in inside[id(c)])]


def _one_by_one(
    analysis: Analysis, line: Callable[[Compiled], Place], compiled: list[Compiled], saved_s: float
) -> Finding:
    lines = group_by(compiled, line)
    at = max(lines, key=lambda each: (len(lines[each]), analysis.compiling_s(lines[each])))
    dearest = max(group_by(compiled, lambda c: c.name).values(), key=analysis.compiling_s)
    again = len(compiled) - len(_different(compiled))
    reason = (
        f"{len(compiled)} small programs are compiled here, {analysis.compiling_s(compiled):.2g} s in all, "
    )
    if 2 * again > len(compiled):
        reason += f"for operations outside of jit, and {again} of them equal an earlier one"
    else:
        reason += "one for each operation outside of jit and each shape"
    if dearest[0].name != UNNAMED:
        reason += f"; the dearest is {dearest[0].name}, {analysis.compiling_s(dearest):.2g} s"
    ran = Counter(function for c in compiled for function in set(_functions_of(c)))
    within = frozenset(function for function, count in ran.items() if count >= INNER_SHARE * len(compiled))
    return Finding("eager recompiles", at, saved_s, reason, at.function, within=within)


def _library_at(at: Place, compiled: list[Compiled]) -> str:
    """Return the library that a line itself calls, if operations run there; else ""."""
    own = [c for c in compiled if c.at == at] or compiled  # JAX does not trace each of them anew
    return statistics.mode([c.through for c in own if c.through] or [""])


def _cause_at(analysis: Analysis, at: Place, again: list[Compiled]) -> str:
    """Return why an operation compiles again at a line; layers have many sizes, but once."""
    cause = eager_cause(again)
    if cause == "eager recompiles" and (_takes_by_mask(analysis, at) or statements.size_by_values(at)):
        cause = "eager shapes"
    looped = any(statements.innermost(p, statements.ROUND) for c in again for p in (c.at, *c.callers))
    if cause == "eager shapes" and not (looped and _keeps_compiling(analysis, at, again)):
        cause = "eager recompiles"
    return cause


def _sources(findings: list[Finding]) -> Iterator[Finding]:
    """Yield what makes arrays of varying shapes, each with the findings of statements that read them."""
    left = sorted(findings, key=lambda finding: finding.at)
    while left:
        source = left.pop(0)
        readers = [f for f in left if loop_body.reads_from(f.at, source.at)]
        left = [f for f in left if f not in readers]
        if readers:
            lines = format_list([f"line {f.at.line}" for f in readers])
            seconds = source.seconds + sum(f.seconds for f in readers)
            reason = f"{source.reason}; what reads its result compiles as often, at {lines}"
            source = replace(source, seconds=seconds, reason=reason)
        if len(readers) > 1 and not any(f.form for f in (source, *readers)):
            source = replace(source, form="lines")
        yield source


def _of_one_class(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Yield findings, as one those of a class whose methods need the same change for arrays of its own."""

    def change(finding: Finding) -> tuple[Any, str]:
        within = statements.innermost(finding.at, ast.ClassDef)
        return within if within and not finding.form else finding.at, finding.form

    for same in group_by(findings, change).values():
        yield as_one(same)


def _keeps_compiling(analysis: Analysis, at: Place, compiled: list[Compiled]) -> bool:
    """Return whether new shapes keep coming at a line: most of its calls came before the last program."""
    last = max(end for c in compiled for _, end in c.stages.values())
    before_s, after_s = 0.0, 0.0
    for s in analysis.samples:
        if at in (s.at, *s.callers) or compiled[0].at == s.at:
            before_s += analysis.front(s) if s.end <= last else 0.0
            after_s += analysis.front(s) if s.start >= last else 0.0
    return after_s <= max(before_s, SETTLED_S)


@cause(
    "many arrays", "retrace", PERFORMANCE, "very many arrays are taken one by one",
    "XLA compiles a program with all of them as arguments. Join them on the host: bring them there with "
    "jax.device_get({argument}), which takes the whole list, and call np.stack or np.concatenate. In a "
    "jitted function, jax.lax.scan returns them stacked.",
    forms={
        "jitted": (
            "Give {name} one array in place of the list {argument}: np.stack(jax.device_get({argument})), "
            "whose rows it then takes, and the same for other lists."
        ),
        "joined": (
            "Join them on the host: np.stack(jax.device_get({argument})), which takes the whole list. In a "
            "jitted function, jax.lax.scan returns them stacked."
        ),
    },
)  # fmt: skip
def find_many_arrays(analysis: Analysis) -> Iterator[Finding]:
    operations = [c for c in analysis.log.compiled if is_operation(c)]
    taken = {
        name: max((len(facts.layout[0]) for facts in analysis.programs.get(name, ())), default=0)
        for name in {c.program for c in operations if c.total_s >= LEAST_S}
    }
    many = (c for c in operations if taken.get(c.program, 0) >= MANY and c.total_s >= LEAST_S)
    for at, compiled in group_by(many, lambda c: c.at).items():
        name, seconds = max(compiled, key=lambda c: c.total_s).name, analysis.compiling_s(compiled)
        passed = statements.argument_expression(at, name, "argument 0")
        argument = ast.unparse(passed) if isinstance(passed, ast.Name | ast.Attribute) else "the list"
        reason = (
            f"{name} takes up to {taken[canonical_name(name)]:,} arrays here, and compiling its program "
            f"took {seconds:.2g} s"
        )
        yield Finding("many arrays", at, seconds, reason, name, argument=argument)
    yield from _joined_arrays(analysis)
    for c, at in analysis.called:
        # arrays of one type in one list; a model's layers have several types, or lists of their own
        lists = Counter((name.rpartition("[")[0], text) for name, text in c.arrays if name.endswith("]"))
        long = Counter({listed: count for (listed, _), count in lists.items() if listed and count >= MANY})
        if long:
            calls_s = analysis.dispatched_s(at)
            ((longest, count),) = long.most_common(1)
            reason = (
                f"{c.called} takes {len(c.arrays):,} arrays here, {count:,} of them in one list, and each is "
                "an argument of its program"
            )
            share, listed = long.total() / len(c.arrays), statements.variable_passed(at, c.called, longest)
            seconds = (analysis.compiling_s([c]) + calls_s) * share
            yield Finding("many arrays", at, seconds, reason, c.called, argument=listed, form="jitted")


def _jittable(analysis: Analysis, at: Place) -> bool:
    """Return whether jit may be put on the function around a line as it is."""
    return only_computes(analysis, at) and not takes_object(analysis, at)


def _joined_arrays(analysis: Analysis) -> Iterator[Finding]:
    """Yield findings for lines at which jnp.array gets a list of very many arrays."""
    for at, puts in group_by((p for p in analysis.log.puts if p.arrays), lambda put: put.at).items():
        seconds = sum(put.end - put.start - analysis.waiting.of(put) for put in puts)
        lists = [call.args[0] for call in statements.conversion_calls(at) if call.args]
        argument = ast.unparse(lists[0]) if len(lists) == 1 else "the list"
        times = format_count(len(puts), "time")
        reason = f"{argument} has {puts[-1].arrays:,} arrays, which JAX joins one by one here, {times}"
        yield Finding("many arrays", at, seconds, reason, argument, argument=argument, form="joined")


def _takes_by_mask(analysis: Analysis, at: Place) -> bool:
    """Return whether a line seems to index with a boolean array, which JAX reads to count the elements."""
    statement = statements.innermost(at, ast.stmt)
    read = any((x.at, x.kind) == (at, "np.asarray") and x.count >= REPEATS for x in analysis.lines)
    return read and any(isinstance(n, ast.Subscript) for n in ast.walk(statement or ast.Pass()))


EAGER_CAUSES = {
    "eager shapes": "new shapes",
    "new body": "a new body function each time",
    "eager recompiles": "new shapes or constants",  # a number in a library's call may be a size
}


def eager_cause(compiled: list[Compiled]) -> str:
    """Return what most often differs between consecutive calls of an operation outside jit."""
    causes = itertools.starmap(_eager_cause, itertools.pairwise(compiled))
    return statistics.mode([*causes] or ["eager recompiles"])


def _eager_cause(before: Compiled, now: Compiled) -> str:
    if any(change.kind == "new body" for change in now.changes):
        return "new body"
    changes = argument_changes(before.signature, now.signature)
    # the size of `jnp.ones(n)` is no argument of its program
    results = [c.facts.layout[1] for c in (before, now) if c.facts is not None and not changes]
    sized = len(set(results)) > 1 or any(
        c.kind == "shape" or c.what.startswith("shape") or c.before == "nothing" or c.now.startswith("slice(")
        for c in changes
    )
    return "eager shapes" if sized else "eager recompiles"
