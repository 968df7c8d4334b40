"""Arrays of JAX whose elements Python takes one by one: over which it iterates, or which it indexes."""

import re
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace

from jaxperf.result.formatting import format_count, format_list
from jaxperf.watch.grouping import group_by
from jaxperf.watch.log import COMPILE, EAGER, Compiled, StackSample, Wait
from jaxperf.watch.observe.sampler import WIDE_S
from jaxperf.watch.observe.source_location import Place
from jaxperf.watch.report.analysis import Analysis, WaitingLine, once
from jaxperf.watch.rules.table import SYNCHRONIZE, Finding, cause, lines_beside
from jaxperf.watch.source import loop_body, statements

MOST_NAMED = 10  # lines in a sentence
_READ_OFTEN = 20  # elements, from which on one copy of the array is worth it
_SLICED_S = 0.5e-3  # in which an operation takes one element of an array, at most
USUAL = 2  # times what the fastest quarter of small programs takes: more is what an operation takes
MANY_KEYS = 5  # times what an operation takes to compile: the program that takes dozens of keys apart
_KEYS = re.compile("key|rng|seed|split")  # of random numbers, which NumPy cannot hold
_NUMBERS = re.compile(r"([\w.]+\.)?(arange|linspace)\(")
_TAKING = {"dynamic_slice", "gather", "slice", "squeeze"}  # programs that take elements
# and those that make keys of random numbers, and take one
_OF_KEYS = {"threefry_split", "threefry_fold_in", "threefry_seed", "unstack", *_TAKING}


def is_operation(c: Compiled) -> bool:
    return not c.explained and not c.owner and COMPILE in c.stages and bool(c.at) and c.cleared is None


def takes_apart(c: Compiled) -> bool:
    """Return whether a program takes an array apart over which Python iterates, but not one of keys."""
    return _unstacks(c) and not _of_keys(c)


@once
def small_program_s(analysis: Analysis) -> float:
    """Return what every small program costs; one that costs more compiles its operation for longer."""
    costs_s = sorted(analysis.compiling_s([c]) for c in analysis.log.compiled if is_operation(c)) or [0.0]
    return min(statistics.median(costs_s), USUAL * costs_s[len(costs_s) // 4])


@once
def keys_apart(analysis: Analysis) -> list[Compiled]:
    """Return the programs that take many keys of random numbers apart, and so compile for long."""
    least_s = MANY_KEYS * small_program_s(analysis)
    keys = [c for c in analysis.log.compiled if is_operation(c) and _unstacks(c) and _of_keys(c)]
    return [c for c in keys if c.total_s > least_s]


def _unstacks(c: Compiled) -> bool:
    return c.name.strip("_") == "unstack" and "unstack(" not in c.at.source


def _iterated(analysis: Analysis, at: Place) -> str:
    return statements.iterated(at, analysis.log.iterated_variables.get(at, ()))


def _of_keys(c: Compiled) -> bool:
    typed = any("key<" in text for text in c.signature.values())
    return typed or any(_KEYS.search(statements.iterated(at)) for at in (c.at, c.inner))


@once
def taken_apart(analysis: Analysis) -> dict[Place, set[tuple[str, int]]]:
    """Return the lines that iterate over arrays, each with all lines that only handle the elements.

    An element that Python does not read goes back to the device: what handles it would not change. Of a call
    whose library iterates, no line only handles the elements.
    """
    programs = [c for c in analysis.log.compiled if is_operation(c) and takes_apart(c)]
    # what a library does when it is imported is no iteration of the reader's
    apart = {c.at: c.through for c in programs if not statements.is_import(c.at)}
    libraries = (at for at, through in apart.items() if through not in ("", "jax", "jaxlib", "numpy"))
    read = read_lines(analysis)
    lines = {at: {(at.file, line) for line in loop_body.lines_of_elements(at)} for at in sorted(apart)}
    handling = {at: inside if inside & read else {(at.file, at.line)} for at, inside in lines.items()}
    return handling | {at: set[tuple[str, int]]() for at in libraries}


@once
def read_lines(analysis: Analysis) -> set[tuple[str, int]]:
    """Return the lines that wait for what may be an element of an array."""
    return {wait.at[:2] for wait in _reads(analysis)}


@once
def _reads(analysis: Analysis) -> list[Wait]:
    """Return the waits but those of a library for what it computes with JAX, which is no element."""
    computes = {(c.at, c.through) for c in analysis.log.compiled if is_operation(c) and not takes_apart(c)}
    libraries = analysis.log.waiting_libraries
    return [w for w in analysis.waits if (w.at, libraries.get((w.kind, w.at))) not in computes]


def only_keys(analysis: Analysis, at: Place) -> bool:
    """Return whether all that runs outside of jit in a function splits keys of random numbers."""
    function = statements.function_of(at)
    lines = {c.at for c in analysis.log.compiled if statements.function_of(c.at) == function}
    looped = [line for line in lines if line == at or statements.innermost(line, loop_body.LOOP)]
    names = set().union(*(analysis.outside_jit.get(line, ()) for line in looped))
    return "threefry_split" in names and names <= _OF_KEYS


def element_read(analysis: Analysis, at: Place) -> str:
    """Return the arrays of which a line reads one element after the other, itself or in a library; or ""."""
    if arrays := _of_jax(analysis, at, loop_body.element_read(at)):
        return arrays
    calls = {c.at for c in analysis.log.compiled if c.explained}
    calls |= {site.at for site in analysis.log.call_sites if site.program}
    calls |= {caller for s in analysis.samples for caller in s.callers}
    # what a function of the program returns is no element
    return "" if at in calls else elements_taken(analysis, at)


def elements_taken(analysis: Analysis, at: Place) -> str:
    """Return the arrays whose elements a line takes one by one, and Python reads, there or in what it calls.

    All that runs there outside of jit takes elements.
    """
    arrays = _of_jax(analysis, at, loop_body.element_read(at, any_use=True))
    names = analysis.outside_jit.get(at)
    # a line that has compiled nothing runs programs of lines before it
    only_takes = names <= _TAKING if names else not statements.has_operators(at)
    if not arrays or not only_takes:
        return ""
    called = statements.called_at(at)
    reads = sum(
        x.count for x in analysis.lines if x.at == at or (x.at.file == at.file and x.at.function in called)
    )
    return arrays if reads >= _READ_OFTEN else ""


def _of_jax(analysis: Analysis, at: Place, arrays: str) -> str:
    """Return those of a line's arrays ("x, y") that were not seen to be NumPy's."""
    return ", ".join(name for name in arrays.split(", ") if name not in analysis.log.host_arrays.get(at, ()))


def element_reads(analysis: Analysis, lines: list[tuple[WaitingLine, str]]) -> Finding:
    """Return the finding for lines that read elements of arrays one by one, and that one change serves."""
    count, waited_s = 0, defaultdict[Place, float](float)
    for line, _ in lines:
        here = [w for w in analysis.waits if (w.at, w.kind) == (line.at, line.kind)]
        # `counts[x[i]] += 1` converts each element twice, and the second time nothing comes to the host
        waits = [w for w in here if w.nbytes] or here
        elements = sum(w.times for w in waits)
        count += elements
        # the first may wait for the array
        waited_s[line.at] += statistics.median(w.end - w.start for w in waits) * elements
    at, *others = sorted(waited_s, key=lambda place: (-waited_s[place], place))
    slicing = [s for s in analysis.samples if s.kind == EAGER and s.at in waited_s]
    sliced_s = min(_slicing_s(analysis, slicing), count * _SLICED_S)
    compiled = (c for c in analysis.log.compiled if not c.explained and c.at in waited_s)
    seconds = sum(waited_s.values()) + sliced_s + analysis.compiling_s(compiled)
    names = ", ".join(dict.fromkeys(name for _, arrays in lines for name in arrays.split(", ")))
    where = ""
    if others:
        where = f", here and at {format_list([f'line {place.line}' for place in sorted(others)])}"
    reason = (
        f"{count} elements of {names} come to the host one by one{where}, and each is sliced by a program of "
        "its own and waited for"
    )
    return Finding("element reads", at, seconds, reason, lines[0][0].kind, argument=names)


def _slicing_s(analysis: Analysis, samples: list[StackSample]) -> float:
    """Return the seconds of samples that saw how elements are sliced.

    That takes a fraction of a millisecond, so a sample that is far longer is of something else for the rest:
    a library or the garbage collector may have kept Python's lock.
    """
    return sum(min(analysis.front(sample), WIDE_S) for sample in samples)


@cause(
    "iterated array", "sync", SYNCHRONIZE, "Python iterates over an array of JAX",
    "Bring it to the host first: iterate over numpy.asarray({argument}), or over {argument}.tolist(). JAX "
    "compiles a program that takes the array apart, for each length, and each element is an array.",
    forms={
        "library": (
            "Give {name} NumPy's arrays, such as numpy.asarray(x): an array of JAX over which it iterates is "
            "taken apart by a program, which JAX compiles for each length."
        ),
        "nested": (
            "Bring each of {argument} to the host first: iterate over numpy.asarray(x), or over x.tolist(), "
            "in its place. JAX compiles a program that takes the array apart, for each length, and each "
            "element is an array."
        ),
        "numbers": (
            "Iterate over Python's range, or make the array with NumPy, in place of {argument}: JAX compiles "
            "a program that takes the array apart, for each length, and each element is an array."
        ),
        "derived": (
            "Compute with the whole of {argument} along its first axis (jnp.sum, jnp.prod, jax.vmap), or "
            "make the loop a jax.lax.scan over it. Under jax.grad or jax.vmap, as here, NumPy cannot take it."
        ),
        "keys": (
            "Keep the keys as one array: key, keys = keys[0], keys[1:] in place of unpacking them, jax.vmap "
            "or jax.lax.scan over all of them, and jax.random.fold_in(key, i) in a loop. JAX compiles a "
            "program that takes the array apart, for each length."
        ),
    },
)  # fmt: skip
def find_iterated_arrays(analysis: Analysis) -> Iterator[Finding]:
    """Find loops and comprehensions over arrays, which compile a program that takes them apart."""
    operations = [c for c in analysis.log.compiled if is_operation(c)]
    loops, found = taken_apart(analysis), list[tuple[object, Finding, list[Place]]]()
    for nest in _nests(loops):
        at = nest[0]
        lines = set().union(*(loops[loop] for loop in nest))
        reads = [w for w in _reads(analysis) if (w.at.file, w.at.line) in lines]
        apart = [c for c in operations if c.at in nest and takes_apart(c)]
        # what computes the array itself stays
        taking = (c for c in operations if c.at not in nest or takes_apart(c) or c.name in _TAKING)
        programs = [c for c in taking if c.at[:2] in lines]
        seconds = analysis.compiling_s(programs if reads else apart)
        if reads:
            # a few reads wait for the array itself, which one copy waits for, too
            seconds += sum(w.times for w in reads) * statistics.median(w.end - w.start for w in reads)
            samples = [s for s in analysis.of_kinds(EAGER) if (s.at.file, s.at.line) in lines]
            seconds += _slicing_s(analysis, samples)
        names, library = _arrays(analysis, nest), apart[0].through
        form = "library" if library not in ("", "jax", "jaxlib", "numpy") else ""
        name = statements.outermost_call(at) if form else format_list(names)
        what = name
        if form:
            what = f"an array that {library} iterates over"
        elif any(c.under for c in apart):
            form = "derived"
        elif all(map(_NUMBERS.match, names)):
            form = "numbers"
        elif reads and names[1:]:
            what, form = f"each of {name}", "nested"
        reason = (
            f"{what} is taken apart by a program of its own, compiled {format_count(len(apart), 'time')} in "
            f"{analysis.compiling_s(apart):.2g} s, and its elements are {'read' if reads else 'handled'} one "
            "by one"
        )
        finding = Finding("iterated array", at, seconds, reason, name, argument=name, form=form)
        # one library, or the lines of one function, need one change
        together = (library,) if form == "library" else (form, statements.neighborhood(at) or at)
        found.append((together, finding, nest))
    # what a library does with keys is none of the reader's
    own = [c for c in keys_apart(analysis) if c.through in ("", "jax", "jaxlib")]
    for at, keys in group_by(own, lambda c: c.at).items():
        seconds, name = analysis.compiling_s(keys), _iterated(analysis, at) or "the keys"
        reason = (
            f"{name} is taken apart by a program of its own, compiled {format_count(len(keys), 'time')} in "
            f"{seconds:.2g} s"
        )
        yield Finding("iterated array", at, seconds, reason, name, argument=name, form="keys")
    for group in group_by(found, lambda each: each[0]).values():
        nested = [at for *_, nest in group for at in nest]
        yield as_one([finding for _, finding, _ in group], _others_of_their_types(analysis, nested))


def as_one(findings: list[Finding], besides: str = "") -> Finding:
    """Return one finding for lines that need the same change, with a sentence on what it does besides."""
    dearest, *others = sorted(findings, key=lambda finding: -finding.seconds)
    besides = besides or dearest.besides
    if others:
        lines = _first_lines(dearest.at, sorted(finding.at for finding in others))
        besides = f"Do the same at {lines}, of which the seconds count here. {besides}"
    return replace(dearest, seconds=sum(f.seconds for f in findings), besides=besides.strip())


def _nests(loops: Mapping[Place, set[tuple[str, int]]]) -> list[list[Place]]:
    """Return the loops over arrays: together, outer ones first, those whose elements one line handles."""
    nests = list[list[Place]]()
    for at in loops:  # in the order of their lines
        outer = next((nest for nest in nests if loops[nest[0]] & loops[at]), None)
        if outer is None:
            nests.append([at])
        else:
            outer.append(at)
    return nests


def _arrays(analysis: Analysis, nest: list[Place]) -> list[str]:
    """Return the arrays over which loops iterate, but those that are elements of another one's array."""
    outer = (at.source.partition(" in ")[0] for at in nest[:-1])
    elements = {name for head in outer for name in re.findall(r"\w+", head)}
    names = dict.fromkeys(_iterated(analysis, at) or "the array" for at in nest)
    return [name for name in names if name not in elements] or ["the array"]


def _others_of_their_types(analysis: Analysis, nested: list[Place]) -> str:
    """Return a sentence about the other lines that iterate over such arrays; "" for none."""
    alike = [places for places in analysis.log.iterated.values() if not places.isdisjoint(nested)]
    others = sorted(set().union(*alike) - {*nested})
    if not others:
        return ""
    lines = _first_lines(nested[0], others)
    return f"Do the same at {lines}: such arrays are taken apart there, too, by the same program."


def _first_lines(at: Place, others: list[Place]) -> str:
    """Return lines as a sentence about another one names them, and how many more there are."""
    more = f" and {len(others) - MOST_NAMED} more" if len(others) > MOST_NAMED else ""
    return f"{lines_beside(at, others[:MOST_NAMED])}{more}"
