"""How operations outside jit become one program: what can be jitted, and in which words advice says so."""

import ast
import functools
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from jaxperf.result.formatting import format_list
from jaxperf.watch.grouping import group_by
from jaxperf.watch.log import DISPATCH, EAGER, Compiled, StackSample, canonical_name
from jaxperf.watch.observe.source_location import Place
from jaxperf.watch.observe.waits import NUMBERS
from jaxperf.watch.report.analysis import Analysis, once
from jaxperf.watch.rules.elements import MOST_NAMED, small_program_s
from jaxperf.watch.rules.libraries import change_of_call, is_tree
from jaxperf.watch.rules.table import Finding
from jaxperf.watch.source import loop_body, statements
from jaxperf.watch.source.call_sites import CallSite
from jaxperf.watch.source.host_work import (
    ON_HOST,
    all_called,
    call_of_numpy,
    call_on_host,
    changing_variables,
    host_work,
    is_tree_of_arrays,
    needed_changes,
    replaceable_calls,
    transformed_function,
)

CALLER_SHARE = 0.1  # a caller with this share of the samples in what it calls is part of the cause
INNER_SHARE = 0.8  # of the operations below a line, that another line must call to be their cause, too
DERIVED_SHARE = 0.2  # of the operations below a line, in a function of which it computes the gradient, too
NAMED_CALLS = 3  # of NumPy in a sentence
LOOP_COSTS = 2  # small programs that compile as long as what a loop of lax adds to a program
LOOP_SHARE = 0.2  # of the operations below a line, that a loop must hold to be named
Chain = tuple[Place, ...]  # the reader's lines on the stack, the innermost first
Line = Callable[[StackSample | Compiled], Place]  # gives the line that a sample or a compilation counts for

# by what can be jitted
WAYS = {
    "function": "Jit {name} as a whole: @{jit} above it{needed}.",
    "part": (
        "Put this line and its neighbors into one jitted function; float() and print() stay outside. Jit "
        "cannot take {name} as a whole, which {argument}."
    ),
    "numpy": (
        "Replace {argument}, and then jit {name} as a whole: @{jit} above it{needed}. What NumPy computed in "
        "float64 is float32 then, unless jax_enable_x64 is on."
    ),
    "lengths": (
        "The length of {argument} varies from call to call of {name}, whose loop jit would unroll and "
        "compile for each length. Compute it with Python's numbers or NumPy, without jnp. Or pad {argument} "
        "to one array of a fixed length, and jit a jax.lax.scan over that."
    ),
    "derived": (
        "{name} is called through {argument}(...), so put {jit} around that once, and call the result: it "
        "is one program with what JAX derives from {name}. An update by a mask becomes jnp.where."
    ),
    "shard_map": (
        "Make jax.jit(jax.shard_map({name}, ...)) once, and call that: outside of jit, each call runs the "
        "operations in {name} one by one, and compiles them again."
    ),
    "elements": (
        "Call {name} for all elements at once, in place of the loop: make "
        "batched = jax.jit(jax.vmap({name})) once, outside of all functions and loops, and call "
        "batched({argument})."
    ),
    "init": "Make jax.jit({name}) once, and call that here: one program in place of many small ones.",
    "made": "{made}",
    "transform": (
        "Put {jit} around {name}(...) once, and call the result here: one program in place of many small "
        "ones."
    ),
    "values": (
        "The size of the result depends on values, so jit cannot take it: compute it with NumPy, as in "
        "np.where(np.asarray(x))."
    ),
    "method": (
        "Move what {name} computes with arrays into a function that takes them, also those of self, and "
        "returns all results; jit that (in an nnx.Module, @nnx.jit above {name} does){needed}."
    ),
    "converts": (
        "Let {name} keep NumPy's arrays, and convert many of them at once where a step needs them: "
        "jnp.asarray(np.stack(rows)). Each conversion here is a copy and a dispatch of its own."
    ),
    "arrays": (
        "Call {argument} once, before the loop, if the values are known there. Otherwise leave the array "
        "to NumPy, as np.asarray(x, np.float32), which a jitted function takes as it is. Each conversion "
        "here is a copy and a dispatch of its own."
    ),
    "host": (
        "Give {name} NumPy's arrays, as jax.device_get returns them: its library works on the host, and each "
        "operation on an array of JAX, as x[:, 0], is a program of its own."
    ),
    "mixed": (
        "Give {name} an array of NumPy: numpy.asarray(x), once, where the array is made. For one of JAX, "
        "NumPy calls the array's own method, which runs outside of jit in each call."
    ),
    "library": (
        "Call {name} inside a function of yours under jax.jit, made once, if the library allows it there "
        "(nothing that prints, and no progress bar). Otherwise a compile cache on disk keeps the programs "
        'from the second start on: jax.config.update("jax_compilation_cache_dir", FOLDER), and 0 for '
        '"jax_persistent_cache_min_compile_time_secs", since they are small.'
    ),
}  # fmt: skip


NO_WAY = "no way"  # the form for operations that nothing in the program could put under jit


def way_to_jit(finding: Finding, analysis: Analysis, through: str = "", *, one_call: bool = True) -> Finding:
    """Return a finding with the form of advice that fits its line, and the names that this needs.

    Args:
      finding: of operations outside jit.
      analysis: knows the values that parameters had.
      through: the library that the line calls, if JAX's operations run inside one.
      one_call: whether the change of one call may serve, as one of `_OF_ONE_CALL`.
    """
    below = _chains_below(analysis, finding.at)
    finding = replace(finding, **_form(finding, analysis, through, below, one_call))
    function = statements.innermost(finding.at, statements.FUNCTION)
    if finding.form == "function" and finding.at.line != function.lineno:  # loops around the line, too
        below = _chains_below(analysis, finding.at._replace(line=function.lineno))
    if finding.form in ("", "part", "method", "numpy", *_WHOLE):
        # a loop that calls jitted functions would be unrolled with what they compute
        whole = lines_of(finding.at) if statements.defined_at(finding.at) else ()
        called = [at for _, at in analysis.called if (at.file, at.line) in whole]
        unrolled = _unrolled(analysis, [chain for chain, _ in below], called)
        places = [place for chain, _ in below for place in chain]
        whole_function = finding.form in ("numpy", *_WHOLE)
        kept = kept_values(places) if whole_function else ""
        tested = _values_tested(analysis, places) if whole_function else ""
        file, jitted = finding.at.file, function
        if finding.form == "transform":
            file, jitted = transformed_function(finding.at)
        settings = _settings_passed(analysis, file, jitted) if whole_function and jitted else ""
        finding = replace(finding, besides=" ".join(filter(None, (tested, settings, unrolled, kept))))
        if unrolled:
            finding = replace(finding, costs_s=LOOP_COSTS * small_program_s(analysis))
    if finding.form == "function":
        once = _defined_anew(finding.at, [callers for _, callers in below])
        needed = _needed_in_called(finding.at, [place for chain, _ in below for place in chain])
        finding = replace(finding, besides=" ".join(filter(None, (needed, once, finding.besides))))
    if finding.form == "transform":
        needed = _needed_in(*transformed_function(finding.at))
        finding = replace(finding, besides=f"{needed} {finding.besides}".strip())
    loops = [at.line for at, kind in _loops_of_steps(analysis, [finding.at]) if kind is ast.For]
    if loops and not (finding.form or finding.besides):
        sentence = f"If the loop at line {loops[0]} does nothing else, jax.lax.scan makes one program of it."
        finding = replace(finding, besides=sentence)
    if finding.form in ("method", "numpy", *_WHOLE):
        lines = {finding.at[:2]}
        if function and finding.form != "transform":
            lines = lines_of(finding.at._replace(line=function.lineno))
        twice_s = _compiled_twice_s(analysis, lines)
        finding = replace(finding, costs_s=finding.costs_s + twice_s)
    return finding


def best_way(finding: Finding, analysis: Analysis, through: str, at_line_s: float) -> Finding:
    """Return a finding as `way_to_jit` does, with the change of one call only where that saves most.

    `at_line_s` is what a change at the finding's line alone saves, of its seconds.
    """
    found = way_to_jit(finding, analysis, through)
    if found.form in _OF_ONE_CALL and at_line_s < _MOST * finding.seconds:
        return way_to_jit(finding, analysis, through, one_call=False)
    return found


def _needed_in_called(at: Place, places: Iterable[Place]) -> str:
    """Return what must change in functions that one calls in ways that its source does not tell; or ""."""
    function = statements.innermost(at, statements.FUNCTION)
    called = {(p.file, statements.innermost(p, statements.FUNCTION)) for p in places}
    unknown = sorted(
        (file, f.lineno, f) for file, f in called.difference(all_called(at.file, function)) if f is not None
    )
    return " ".join(filter(None, (_needed_in(file, f) for file, _, f in unknown)))


def _needed_in(file: str, function: Any) -> str:
    """Return a sentence about what must change in a function for jit to take it; "" for nothing."""
    needed = needed_changes(file, function).removeprefix("; ") if function else ""
    return f"In {function.name}, {needed}." if needed else ""


def _settings_passed(analysis: Analysis, file: str, function: Any) -> str:
    """Return how a function gets dictionaries of settings once it is jitted; "" if it takes none."""
    known = statements.parameters(function)
    settings = [name for name in analysis.settings_passed(file, function.name) if name in known]
    if not settings:
        return ""
    given = ", ".join(f"{name}={name}" for name in settings)
    return (
        f"Give it {format_list(settings)} by functools.partial({function.name}, {given}), not in the call: "
        "jit makes arrays of a dictionary's numbers, also of sizes, and takes no text."
    )


def _values_tested(analysis: Analysis, places: Iterable[Place]) -> str:
    """Return at which lines Python needs values in functions that jit is to take; "" for none.

    What `needed_changes` names is left out: an `if`, and calls of `float`.
    """
    functions = {(place.file, place.function) for place in places}
    # with what they call elsewhere: a second call compiles nothing, and may be too short for samples
    called = set(functions)
    for call in operations_of(analysis):
        chain = [(place.file, place.function) for place in (call.at, *call.callers)]
        outer = max((i for i, function in enumerate(chain) if function in functions), default=0)
        called.update(chain[:outer])
    lines = {w.at for w in analysis.waits if w.kind in NUMBERS and (w.at.file, w.at.function) in called}
    tested = sorted(at for at in lines if not (_branches(at) or "float" in statements.called_at(at)))
    if not tested:
        return ""
    return (
        f"Before that, change {format_list([*map(str, tested[:MOST_NAMED])])}, where Python tests or counts "
        "with the value of an array: jit has no values while it traces."
    )


def _branches(at: Place) -> bool:
    statement = statements.innermost(at, ast.stmt)
    return isinstance(statement, ast.If) or bool(statements.nodes_in(statement, ast.IfExp))


def _defined_anew(at: Place, callers_below: Iterable[Chain]) -> str:
    """Return where to define the function around a line, if it is defined again and again; "" if not.

    `callers_below` has the lines on the stack above the function: that which calls it comes first.
    """
    function, *around = reversed(statements.enclosing_nodes(at, statements.FUNCTION))
    loop = statements.innermost(at._replace(line=function.lineno), statements.LOOP)
    if loop is not None and all(loop.lineno > outer.lineno for outer in around[:1]):
        return f"Define {function.name} once, before the loop at line {loop.lineno}."
    calling = (place for callers in callers_below for place in callers[1:])
    if around and any(statements.innermost(place, statements.LOOP) for place in calling):
        return f"Define {function.name} once, outside of {around[0].name}, each call of which makes it anew."
    return ""


def kept_values(places: Iterable[Place]) -> str:
    """Return which variables the functions around some lines must get as arguments; "" for none."""
    functions = {(at.file, statements.innermost(at, statements.FUNCTION)) for at in places}
    for file, function in sorted((f for f in functions if f[1]), key=lambda f: (f[0], f[1].lineno)):
        changing = changing_variables(file, function)
        if len(changing) == 1:
            return (
                f"Give {function.name} {changing[0]} as an argument (a static one, if it is a size): it "
                "changes around it, and jit would keep the first value."
            )
        if changing:
            return (
                f"Give {function.name} {format_list(changing)} as arguments (static ones, if they are "
                "sizes): they change around it, and jit would keep the first values."
            )
    return ""


def _compiled_twice_s(analysis: Analysis, lines: set[tuple[str, int]]) -> float:
    """Return the seconds of compiling jitted functions that are called inside some lines, and outside.

    A program of these lines holds them, too. If they were compiled for calls on both sides, each side has
    programs of its own already.
    """

    def is_inside(chain: Chain) -> bool:
        return any(place[:2] in lines for place in chain)

    seconds, compiled = 0.0, group_by((c for c in analysis.log.compiled if c.explained), lambda c: c.program)
    for program, chains in _calls_of(analysis).items():
        made = compiled.get(program, [])
        if len(set(map(is_inside, chains))) == 2 > len({is_inside((c.at, *c.callers)) for c in made}):
            seconds += analysis.compiling_s(made)
    return seconds


@once
def _calls_of(analysis: Analysis) -> dict[str, set[Chain]]:
    """Return the lines on the stack of calls of jitted functions, by the program's name."""
    log, chains, programs = analysis.log, defaultdict[str, set[Chain]](set), defaultdict[Place, set[str]](set)
    calls: list[tuple[str, Compiled | CallSite]] = [(c.program, c) for c in log.compiled if c.explained]
    calls += [(canonical_name(site.program), site) for site in log.call_sites if site.program]
    for program, call in calls:
        chains[program].add((call.at, *call.callers))
        programs[call.at].add(program)
    for sample in analysis.of_kinds(DISPATCH):
        for program in programs[sample.at]:
            chains[program].add((sample.at, *sample.callers))
    return chains


def _form(
    finding: Finding, analysis: Analysis, through: str, below: list[tuple[Chain, Chain]], one_call: bool
) -> dict[str, Any]:
    """Return the fields of a finding that depend on its line: the form of advice, and its names."""
    at, called = finding.at, statements.outermost_call(finding.at)
    definition, function = statements.defined_at(at), statements.innermost(at, statements.FUNCTION)
    if statements.size_by_values(at):
        return {"form": "values"}
    if one_call and (init := statements.init_call(at)):
        quoted = ", ".join(f'"{parameter}"' for parameter in _static(analysis, at.file, init))
        named = f", static_argnames=({quoted},)" if quoted else statements.static_options(at, init)
        return {"form": "init", "name": init + named}
    for place in dict.fromkeys([at, *(place for chain, _ in below for place in chain)]):
        if varying := _of_many_lengths(analysis, place):
            name = statements.innermost(place, statements.FUNCTION).name
            return {"form": "lengths", "name": name, "argument": varying}
    if sharded := _sharded(place for parts in below for part in parts for place in part):
        return {"form": "shard_map", "name": sharded}
    name, takes = getattr(function, "name", ""), _jit_takes(analysis, at)
    # another function of this name, as of another class, may have other parameters
    parameters = statements.parameters(function) if function else []
    static = tuple(known for known in _static(analysis, at.file, name) if known in parameters)
    calls = {place for _, callers in below for place in callers[0 if definition else 1 :][:1]}
    if function and calls and takes:
        if definition and (transform := _derived_by(calls, name)):
            return {"form": "derived", "name": name, "argument": transform, "static": static}
        elements = [over for call in sorted(calls) if (over := statements.each_element(call, name))]
        # jit would keep what a method reads of its object; other callers may need one result before the next
        kept = static or statements.is_method(function) or takes_object(analysis, at)
        if len(elements) == len(calls) and not kept:
            arrays = ", ".join(f"jnp.asarray({array})" for array in elements[0])
            return {"form": "elements", "name": name, "argument": arrays}
    # a whole function is jitted with the transformations in it
    if one_call and not definition and (transform := statements.transforms(at)):
        file, inner = transformed_function(at)
        known = _static(analysis, file, inner.name) if inner else ()
        static = tuple(name for name in known if name in statements.parameters(inner))
        return {"form": "transform", "name": transform, "static": static}
    if one_call and (made := statements.made_module(at)):
        return {"form": "made", "name": made}
    if function and statements.only_makes_arrays(at):
        return {"form": "converts", "name": name}
    if one_call and not definition and statements.innermost(at, statements.ROUND):
        converted = statements.conversions(at)
        if converted:
            return {"form": "arrays", "argument": format_list(converted)}
    if not definition:
        if shows := call_on_host(at):
            return {"form": "host", "name": shows}
        if called and through not in ("", "jax", "jaxlib", "numpy"):
            form = through
            if not change_of_call(through, called):
                form = _of_a_library(analysis, at, called, through)
            return {"form": form, "name": called}
        if function is None:
            return {}
        kept = _not_taken(analysis, at, function) or takes_object(analysis, at)
        replaceable = replaceable_calls(at.file, function)
        if replaceable and not kept:
            whole = _jit_takes(analysis, at, replaced=True) and not statements.is_method(function)
            looped = any(_loops_of_steps(analysis, [at]))
            if whole and not (statements.has_effects(function) or looped):
                parts = (f"{', '.join(calls)} by {library}'s" for library, calls in replaceable.items())
                replaced = " and ".join(parts)
                return {"form": "numpy", "name": name, "argument": replaced, "static": static}
            if one_call and (mixed := call_of_numpy(at)):
                return {"form": "mixed", "name": mixed}
            kept = " and ".join(
                f"calls {_first(calls)}, which {library} may replace"
                for library, calls in replaceable.items()
            )
        if kept:
            return {"form": "part", "name": name, "argument": kept}
        if finding.cause == "eager" or not takes or statements.has_effects(function):
            return {}
    if statements.is_method(function):
        return {"form": "method", "name": name}
    return {"form": "function", "name": name, "static": static}


def _first(calls: list[str]) -> str:
    """Return the first of many calls, such as "np.sin in line 3, np.cos in line 4"."""
    more = f" and {len(calls) - NAMED_CALLS} more" if len(calls) > NAMED_CALLS else ""
    return f"{', '.join(calls[:NAMED_CALLS])}{more}"


def _of_a_library(analysis: Analysis, at: Place, called: str, library: str) -> str:
    """Return the form of advice on a call of a library, by what it returns: an object, arrays or nothing."""
    if f"{library}.".startswith(ON_HOST):
        return "host"
    # it tests or counts with values, which a trace does not have
    if analysis.reads_inside(at, library):
        return NO_WAY
    root, _, method = called.partition(".")
    # `circuit.rotate(0)` changes its object
    if isinstance(statements.innermost(at, ast.stmt), ast.Expr) and method:
        return "library" if root in dict(statements.imports(at.file)) else ""
    # what `Dense(8)(x)` and `Dense(8).apply(w, x)` return is no object of `Dense`
    used = any(statements.calls_in(call.func) for call in statements.calls_at(at))
    made = called.rpartition(".")[2][:1].isupper() and not used and not is_tree(at.file, called)
    return NO_WAY if made else "library"


# changes of one call, which take nothing of the lines around it
_OF_ONE_CALL = ("init", "transform", "made", "arrays", "mixed")
_MOST = 0.8  # of what a change could save, at the line whose call alone is changed
# changes that jit all that a line or a function calls
_WHOLE = ("function", "transform", "derived", "elements")


def in_one_program(findings: list[Finding], analysis: Analysis) -> Iterator[Finding]:
    """Yield findings, each with the seconds of those that its own change puts into the same program."""
    seconds = {finding.at: finding.seconds for finding in findings}
    whole = {finding.at: lines_of(finding.at) for finding in findings if finding.form in _WHOLE}
    for inner in findings:
        callers_below = [callers for _, callers in _chains_below(analysis, inner.at)]
        for at, lines in whole.items():
            if at == inner.at or not {at, inner.at} <= seconds.keys():
                continue
            reached = sum(_reaches(analysis, lines, callers) for callers in callers_below)
            if reached >= INNER_SHARE * len(callers_below) > 0:
                seconds[at] += seconds.pop(inner.at)
    # a line that derives a function which is to be jitted, such as `gradient(x)`, is cheap then, too
    for outer in (f for f in findings if f.form not in _WHOLE):
        chains = [chain for chain, _ in _chains_below(analysis, outer.at)]
        for at, lines in whole.items():
            inside = sum(any((p.file, p.line) in lines for p in chain) for chain in chains)
            if {at, outer.at} <= seconds.keys() and inside >= DERIVED_SHARE * len(chains) > 0:
                seconds[at] += seconds.pop(outer.at)
    # what the lines of one loop call goes into the program that is made of them
    loops = {f.at: statements.innermost(f.at, loop_body.LOOP) for f in findings if f.form not in _WHOLE}
    for inner in sorted(findings, key=lambda f: f.seconds):
        larger = [at for at in loops if at in seconds and seconds[at] > seconds.get(inner.at, math.inf)]
        callers_below = [callers for _, callers in _chains_below(analysis, inner.at)]
        around = [{statements.innermost(p, loop_body.LOOP) for p in callers} for callers in callers_below]
        looped = Counter(
            at for each in around for at in larger if loops[at] is not None and loops[at] in each
        )
        if looped.total() >= INNER_SHARE * len(callers_below) > 0:
            seconds[max(looped, key=looped.__getitem__)] += seconds.pop(inner.at)
    return (replace(f, seconds=seconds[f.at]) for f in findings if f.at in seconds)


def _reaches(analysis: Analysis, lines: set[tuple[str, int]], callers: Chain) -> bool:
    """Return whether a line is among the callers, and jit takes those below it."""
    taken = [*itertools.takewhile(functools.partial(_jit_takes, analysis), callers)]
    return any((place.file, place.line) in lines for place in callers[: len(taken) + 1])


def lines_of(at: Place) -> set[tuple[str, int]]:
    """Return a line, or all lines of the function that it defines."""
    last = getattr(statements.defined_at(at), "end_lineno", at.line)
    return {(at.file, line) for line in range(at.line, last + 1)}


def _static(analysis: Analysis, file: str, function: str) -> tuple[str, ...]:
    known = analysis.static_parameters(file, function)
    # a size is static, also if it varies
    values = analysis.log.parameters.get((file, function), {})
    sizes = [
        name for name in statements.sizes_in(file, function) if any(map(str.isdigit, values.get(name, ())))
    ]
    return tuple(dict.fromkeys([*known, *statements.literal_parameters(file, function), *sizes]))


@once
def _chains_below(analysis: Analysis, at: Place) -> list[tuple[Chain, Chain]]:
    """Return the stacks of operations outside jit, up to a line or into its function, and the callers."""
    lines, definition = lines_of(at), statements.defined_at(at) is not None
    chains = [(call.at, *call.callers) for call in operations_of(analysis)]
    parts = []
    for chain in chains:
        within = [i for i, place in enumerate(chain) if (place.file, place.line) in lines]
        if definition and within:  # a loop in the function would be unrolled
            parts.append((chain[: within[-1] + 1], chain[within[-1] + 1 :]))
        elif within:  # a loop around the line stays; a generator expression on it is a frame of its own
            parts.append((chain[: within[0]], chain[within[-1] :]))
    return parts


def operations_of(analysis: Analysis) -> list[StackSample | Compiled]:
    """Return the samples and the compilations of operations outside jit."""
    samples = (s for s in analysis.samples if s.kind == EAGER)
    return [*samples, *(c for c in analysis.log.compiled if not c.explained)]


def _sharded(places: Iterable[Place]) -> str:
    """Return the function around some line that `shard_map` gets in its file; "" for none."""
    for file, name in dict.fromkeys((place.file, place.function) for place in places):
        tree = statements.syntax_tree(file)
        calls = [c for c in statements.calls_in(tree) if statements.last_name(c.func) == "shard_map"]
        passed = {statements.last_name(arg) for call in calls for arg in call.args[:1]}
        decorators = [ast.unparse(d) for f in statements.definitions(file, name) for d in f.decorator_list]
        if name in passed or any("shard_map" in text for text in decorators):
            return name
    return ""


def _derived_by(calls: set[Place], function: str) -> str:
    """Return the transformation through which lines call a function, such as "jax.grad"; "" for none."""
    if any(function in statements.called_at(at) for at in calls):
        return ""
    files = dict.fromkeys(at.file for at in calls)
    made = (call for file in files for call in statements.calls_in(statements.syntax_tree(file)))
    for call in made:
        transforms = statements.last_name(call.func) in statements.TRANSFORMS
        if transforms and function in map(statements.last_name, call.args[:1]):
            return ast.unparse(call.func)
    return ""


def _unrolled(analysis: Analysis, chains: list[Chain], called: list[Place]) -> str:
    """Return what must happen to Python's loops, and to arrays that grow in them, before jit; "" for none.

    Args:
      chains: the stacks of operations outside jit.
      called: the lines that call jitted functions.
    """
    loops, growing = Counter[tuple[Place, type]](), Counter[Place]()
    for chain in chains:
        looped = list(_loops_of_steps(analysis, chain))
        loops.update(looped[:1])
        growing.update({place for place in chain if looped and statements.grows(place)})
    # one over the elements of an array may have few samples, but is unrolled just the same
    over_many = [loop for loop in loops if loop[0].line in analysis.long_iterations.get(loop[0].file, ())]
    most = [loop for loop, held in loops.most_common(1) if held >= max(1, LOOP_SHARE * len(chains))]
    around = next(itertools.chain(over_many, most, _loops_of_steps(analysis, called)), None)
    if around is None:
        return ""
    at, kind = around
    way = _WAYS.get(kind, "jax.vmap or jax.lax.map")
    words = (
        f"Before that, write the loop at {at} as {way}, or jit its body alone: jit unrolls Python's loops, "
        "and many turns compile for minutes."
    )
    if growing:
        lines = " and ".join(map(str, sorted(growing)[:2]))
        words += f" What grows at {lines} needs its final size before the loop, and x.at[i].set(...) in it."
    return words


_CARRIED = ", which carries arrays whose dtypes and shapes stay"
# others are comprehensions
_WAYS = {ast.While: f"jax.lax.while_loop{_CARRIED}", ast.For: f"jax.lax.scan or fori_loop{_CARRIED}"}


def _loops_of_steps(analysis: Analysis, places: Iterable[Place]) -> Iterator[tuple[Place, type]]:
    """Yield the line of the loop of steps around each line that is in one, and what kind of loop it is."""
    for at in places:
        iterated = analysis.iterated_lines.get(at.file, frozenset())
        loop = loop_body.loop_of_steps(at, analysis.data_passed(at), iterated)
        rounds = [getattr(part, "iter", None) for part in getattr(loop, "generators", [loop])]
        over = loop_body.reads(*filter(None, rounds))
        if loop and not over & _short_lists(analysis, at.file, at.function):
            yield at._replace(line=loop.lineno), type(loop)


@once
def _short_lists(analysis: Analysis, file: str, function: str) -> set[str]:
    """Return the parameters of a function that were lists of few elements, over which jit may unroll."""
    known, lengths = analysis.log.parameters, analysis.list_lengths(file, function)
    # not one that was an array, too
    listed = {name for name, ns in lengths.items() if len(ns) == len(known[file, function][name])}
    return {name for name in listed if max(lengths[name]) <= loop_body.FEW}


def outermost(analysis: Analysis) -> Line:
    """Return a function that maps a sample to its line, or to a calling line that dispatches as much.

    It also maps a compilation.

    `jax.grad(loss)(w)` dispatches operations in `loss`, and those that `grad` derives at its own line: one
    cause on two lines, whose samples alternate. A caller that dispatches only before or after a whole loop is
    not the cause.
    """
    samples = sorted((s for s in analysis.samples if s.kind == EAGER), key=lambda s: s.start)
    chain_of = _chains(analysis)
    inside: dict[Place, list[float]] = defaultdict(list)
    for s in samples:
        for caller in chain_of(s)[1:]:
            inside[caller].append(s.start)
    # callers that dispatch between two operations of what they call
    own = ((chain_of(s)[0], s.start) for s in samples)
    counts = Counter(at for at, start in own if at in inside and inside[at][0] < start < inside[at][-1])

    @functools.cache  # many samples have one stack
    def line_of(whole: Chain, chain: Chain) -> Place:
        if init := next(filter(statements.init_call, whole), None):
            return init
        for inner, outer in reversed([*itertools.pairwise(whole)]):
            # the line that makes the module whose `__init__` runs
            if inner.function == "__init__" and statements.in_module(inner):
                return outer
        least = {at: max(1, CALLER_SHARE * len(inside.get(at, ()))) for at in chain}
        beyond = (i for i in range(len(chain) - 1, 0, -1) if counts[chain[i]] >= least[chain[i]])
        chain = chain[next(beyond, 0) :]
        return _function_in_loop(analysis, chain) or chain[0]

    return lambda s: line_of((s.at, *s.callers), chain_of(s))


def _chains(analysis: Analysis) -> Callable[[StackSample | Compiled], Chain]:
    """Return a function that gives the lines of a sample or a compilation, the innermost first.

    What runs in a function that `vmap` or `grad` transforms belongs to the line that calls the transformed
    function: one program could hold all of it. A function that several lines transform, or call as it is, is
    itself what they share.
    """
    ways: dict[tuple[str, str, int], Counter[Place]] = defaultdict(Counter)
    for s in operations_of(analysis):
        ways[statements.function_of(s.at)][s.under] += 1

    def chain_of(s: StackSample | Compiled) -> Chain:
        counts = ways[statements.function_of(s.at)]
        alone = counts[s.under] > (1 - CALLER_SHARE) * counts.total()
        return s.callers[s.callers.index(s.under) :] if alone and s.under in s.callers else (s.at, *s.callers)

    return chain_of


def _function_in_loop(analysis: Analysis, chain: Chain) -> Place | None:
    """Return the `def`, or a lambda's call, of the outermost function in a loop of steps; else None."""
    looped = next((i for i, at in enumerate(chain) if any(_loops_of_steps(analysis, [at]))), 0)
    inside = [*itertools.takewhile(functools.partial(_jit_takes, analysis), chain[:looped])]
    while inside and takes_object(analysis, inside[-1]):
        inside.pop()
    if not inside:
        return None
    if inside[-1].function == "<lambda>":
        return chain[len(inside)]
    function = statements.innermost(inside[-1], statements.FUNCTION)
    return inside[-1]._replace(line=function.lineno) if function else None


def jittable_call(analysis: Analysis, c: Compiled) -> Place:
    """Return the outermost line above an operation that calls only functions that jit takes.

    In a loop, it is the line of the operation itself.
    """
    chain = (c.at, *c.callers)
    inside = [*itertools.takewhile(functools.partial(only_computes, analysis), chain)]
    whole = chain[: len(inside) + 1]
    looped = any(statements.innermost(at, statements.ROUND) for at in whole)
    return c.at if looped else whole[-1]


def only_computes(analysis: Analysis, at: Place) -> bool:
    """Return whether the function around a line could become one program as it is."""
    function = statements.innermost(at, statements.FUNCTION)
    return function is not None and _jit_takes(analysis, at) and not statements.has_effects(function)


def _jit_takes(analysis: Analysis, at: Place, *, replaced: bool = False) -> bool:
    """Return whether jit takes the function around a line: it has arguments, and does no work of the host.

    It may call NumPy if jnp has `replaced` that.
    """
    function = statements.innermost(at, statements.FUNCTION)
    if function is None or at.function == "<lambda>":
        return True
    static = _static(analysis, at.file, function.name)
    varying = {*statements.parameters(function)}.difference(static) or function.args.vararg
    kept = function.name == "__init__" or _not_taken(analysis, at, function)
    return bool(varying) and not kept and (replaced or not replaceable_calls(at.file, function))


def _not_taken(analysis: Analysis, at: Place, function: Any) -> str:
    """Return what keeps jit from taking the function around a line, such as "calls open in line 4"; or ""."""
    lists = analysis.lists_of_many_lengths(at.file, function.name)
    listed = next(iter(lists), "") or _of_many_lengths(analysis, at)
    takes = f"takes {listed}, a list of another length on each call" if listed else ""
    return host_work(at.file, function) or takes


def takes_object(analysis: Analysis, at: Place) -> str:
    """Return why jit cannot be put on the function around a line itself, though on one around it; or ""."""
    function = statements.innermost(at, statements.FUNCTION)
    known = statements.parameters(function) if function else []
    for name, (file, made) in analysis.objects_passed(at.file, at.function).items():
        if name in known and not (file and is_tree_of_arrays(file, made)):
            return (
                f"takes {name}, an object of {made} that jit does not know in full, unless as a static "
                "argument that never changes"
            )
    return ""


def _of_many_lengths(analysis: Analysis, at: Place) -> str:
    """Return what the function around a line loops over, or operations take, in ever other lengths; or "".

    It is a parameter. The lengths of lists were seen. Those of an array show in operations that join what a
    loop over it makes.
    """
    function = statements.innermost(at, statements.FUNCTION)
    if function is None:
        return ""
    lists = analysis.lists_of_many_lengths(at.file, function.name)
    joins = (at.file, function.name, function.lineno) in analysis.joins_many_lengths
    if not (lists or joins):  # as in nearly all functions, of which rules ask for each sample
        return ""
    rounds = [loop.iter for loop in statements.nodes_in(function, ast.For | ast.comprehension)]
    # the arguments of `range` are numbers
    rounds = [over for over in rounds if statements.last_name(getattr(over, "func", over)) != "range"]
    over = {name.partition(".")[0] for name in loop_body.reads(*rounds)}
    calls = statements.jax_calls(function, at.file)
    taken = over | loop_body.reads(*(a for call in calls for a in call.args))
    varying = {*lists} & taken | (over if joins else set())
    return next((name for name in statements.parameters(function) if name in varying), "")
