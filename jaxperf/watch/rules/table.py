"""The table of causes: what each is called, of which kind it is, how to find it, and what to change.

A cause is one entry in one place: a `Cause` beside the function that finds it, in a module of this package.
`jaxperf watch --fail-on`, the advice of the report, the gallery and the documentation are views of `CAUSES`.
"""

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from jaxperf.errors import JaxperfError
from jaxperf.flags import did_you_mean
from jaxperf.result.formatting import format_list, format_quantity
from jaxperf.watch.log import IMPORT
from jaxperf.watch.observe.source_location import NOWHERE, Place
from jaxperf.watch.report.analysis import Analysis, once
from jaxperf.watch.rules.libraries import change_of_call, in_names_of, library_of_file
from jaxperf.watch.source import statements
from jaxperf.watch.source.host_work import needed_changes

LEAST_SHARE = 0.05  # share of the run that a finding must save
LEAST_S = 0.02  # seconds that a finding must save
LARGE = 64 << 20  # bytes to free that are worth a finding, whatever the seconds
KINDS = (
    "retrace", "sync", "transfer", "eager", "data", "python", "memory", "program", "float64", "debug",
    "version",
)  # fmt: skip
ANY = "any"  # of `--fail-on`: all kinds
# by how the seconds of a cause are known
SAVES = {"measured": "saves", "estimated": "saves about", "bound": "saves at most"}

# sections of the chapter
SYNCHRONIZE = "8.2.2 Synchronization functions: making the front end wait"
COMMUNICATE = "8.3.2 Parallel computation and communication"
PERFORMANCE = "8.1.2 Computational performance"
MEMORY = "8.2.4 The impact of asynchronous computation on memory"
PRECISION = "Mixed precision"
FORBIDDEN = "8.1.3 What tracing forbids"
SYMBOLIC = "8.1.2 Getting the symbolic program"
ASYNCHRONOUS = "8.2.1 Asynchronous computation in JAX"
COMMITTED = "Committed and uncommitted arrays"
DATA_PARALLEL = "8.4.1 Data parallelism"
AHEAD = "8.2.3 Using asynchronous computation to improve performance"
TRACED_AGAIN = "8.1.3 When is a function traced again?"
VERSIONS = "the page JAX by version"


@dataclass(frozen=True)
class Finding:
    cause: str  # the name of its entry in `CAUSES`
    at: Place  # the line of code
    seconds: float  # what a change could save in this run
    reason: str  # what was seen, in one sentence
    name: str = ""  # the function, call or operation that the advice names
    memory_bytes: int = 0  # what a change would free; 0 if it frees no memory
    argument: str = ""  # the {argument} of the advice, such as "rate", "argument 2" or an option of `jit`
    static: tuple[str, ...] = ()  # parameters that `jit` must take as static arguments
    axis: str = ""  # of the argument, whose size varies; "" if that is unknown
    # which of the cause's changes fits, or the library whose words fit; "" if the cause chooses by the line
    form: str = ""
    besides: str = ""  # a sentence that follows the change; "" for none
    costs_s: float = 0.0  # what the change itself costs, of the seconds above
    within: frozenset[Any] = frozenset()  # the functions in which nearly all that it concerns ran


@dataclass(frozen=True)
class Cause:
    """One entry of the table.

    A change is a template for what `advice_for` fills in, such as {name} and {argument}. Below its first
    line comes an example: complete code that shows such a change.
    """

    name: str  # its key: in findings, in the gallery and in the JSON of a report
    kind: str  # what `--fail-on` calls it, with others of its kind
    section: str  # of the chapter, that explains it
    title: str  # the cause in the user's words
    usual: str  # what to change, if `choose` names no other form
    # how its seconds are known: "measured" where they were timed, "estimated" where windows of the profiler
    # stand for the whole run, "bound" where a change may save much less
    confidence: str = ""
    forms: Mapping[str, str] = field(default_factory=dict)  # other changes, by name
    choose: Callable[[Finding], str] = lambda finding: ""  # the form that fits a finding, by name


@dataclass(frozen=True)
class Advice:
    """What to change about a finding: title, change, section and example, with the program's own names."""

    title: str
    change: str
    section: str
    example: str = ""


Finder = Callable[[Analysis], Iterator[Finding]]
CAUSES: dict[str, Cause] = {}
RULES: list[Finder] = []
EXPLAINS: dict[str, tuple[str, ...]] = {}  # the causes that a debug setting of JAX is to blame for


def cause(*entry: Any, **more: Any) -> Callable[[Finder], Finder]:
    """Enter a cause, whose fields these are, and the function that finds it into the table."""

    def enter(finder: Finder) -> Finder:
        made = Cause(*entry, **more)
        known = made.confidence or ("measured" if made.kind == "retrace" else "estimated")
        CAUSES[made.name] = replace(made, confidence=known)
        if finder not in RULES:
            RULES.append(finder)
        return finder

    return enter


@once
def findings_of(analysis: Analysis, finder: Finder) -> list[Finding]:
    """Return what a rule finds; an error in it costs its findings only."""
    part = f"findings ({finder.__name__})"
    return analysis.log.losses.ask(part, lambda: list(finder(analysis)), [])


@once
def find_causes(analysis: Analysis) -> list[Finding]:
    """Return the findings that could save enough time or memory, the most seconds first.

    The seconds of a finding are what the change would save in this run: time of repeated work, or time in
    which devices were idle for that reason.
    """
    log, least_s = analysis.log, least_saving_s(analysis)
    if not log.names_causes:
        return []
    found = itertools.chain.from_iterable(findings_of(analysis, finder) for finder in RULES)
    settled = {cause for setting in log.settings for cause in EXPLAINS.get(setting, ())}
    # the costliest for each cause and line, which programs of several sizes may share
    by_cost = sorted(found, key=lambda f: (f.seconds, f.memory_bytes))
    worst = {(f.cause, f.at): f for f in by_cost if f.cause not in settled}
    merged = _together(list(worst.values()))
    candidates = [replace(f, seconds=max(0.0, f.seconds - f.costs_s)) for f in merged]
    findings = [f for f in candidates if f.seconds >= least_s or f.memory_bytes >= LARGE]
    run_s = log.wall_s - analysis.front_s[IMPORT]
    findings = [replace(_beside(f, findings), seconds=min(f.seconds, run_s)) for f in findings]
    return sorted(findings, key=lambda f: (-f.seconds, f.at))


def lines_beside(at: Place, others: Sequence[Place]) -> str:
    """Return "line 3 and b.py:5": places as a sentence about one names them."""
    return format_list([f"line {p.line}" if p.file == at.file else str(p) for p in others])


def least_saving_s(analysis: Analysis) -> float:
    """Return the seconds that a finding must save, unless it frees memory.

    Savings and the run count without the time in which other programs had the core.
    """
    return max(LEAST_S, LEAST_SHARE * analysis.run_s)


ONE_A_SHAPE = ("several", "method")  # forms of a change that jits a whole function, for each shape
_SERVED = ("eager recompiles", "new body", "library function", "dispatch")  # by jit of a whole function


def _together(findings: list[Finding]) -> list[Finding]:
    """Return one finding for all that one change makes one program."""
    left = findings
    several = [f for f in findings if f.cause == "eager shapes" and f.form in ONE_A_SHAPE]
    for whole in [*several, *(f for f in findings if f.cause == "eager" and f.seconds > f.costs_s)]:
        if whole not in left:
            continue
        served = ("eager",) if whole in several else _SERVED
        same = [whole, *(f for f in left if f.cause in served and _serves(whole, f))]
        # at one line, what costs most gives the name; how much of it is compiling depends on the machine
        named = (f for f in same if f.at == whole.at and (f is whole or f.cause != "eager recompiles"))
        dearest = max(named, key=lambda f: f.seconds)
        left = [*(f for f in left if f not in same), _joined(dearest, same)]
    # a loop over an array that becomes a scan takes along what is dispatched in it
    for loop in [f for f in left if f.form == "derived" and f.cause == "iterated array"]:
        same = [loop, *(f for f in left if f.cause in _WHOLE and _holds(loop.at, f.at, statements.LOOP))]
        left = [*(f for f in left if f not in same), _joined(loop, same)]
    # a loop whose steps become one program takes along the small operations between them
    for step in [f for f in left if f.cause == "dispatch"]:
        eager = (f for f in left if f.cause == "eager" and f.seconds < step.seconds)
        same = [f for f in eager if _in_one_loop(f.at, step.at)]
        if same:
            lines = lines_beside(step.at, sorted(f.at for f in same))
            more = f"What is dispatched one by one at {lines} goes into the same program."
            whole = replace(_joined(step, [step, *same]), reason=step.reason, besides=more)
            left = [*(f for f in left if f not in (step, *same)), whole]
    # an array on the host needs no wait in what its elements are given to
    reads = [f for f in left if f.cause in ("element reads", "iterated array")]
    given = {(f.at.file, name) for f in reads for name in statements.called_at(f.at)}
    return [f for f in left if f.cause != "wait" or (f.at.file, f.at.function) not in given]


def _joined(finding: Finding, same: list[Finding]) -> Finding:
    """Return a finding with the seconds and the reasons of all that its change serves."""
    seconds, costs_s = sum(f.seconds for f in same), max(f.costs_s for f in same)
    return replace(finding, seconds=seconds, costs_s=costs_s, reason="; ".join(f.reason for f in same))


_WHOLE = ("eager", "eager recompiles")  # jit of a function
_OF_ARGUMENTS = ("weak type", "dtype", "shape", "structure", "static value", "static object", "static part")


def _beside(finding: Finding, findings: list[Finding]) -> Finding:
    """Return a finding with what its change needs of other findings."""
    others = [f.at for f in findings if f.cause in _OF_ARGUMENTS and _takes_along(finding, f.at)]
    if finding.cause not in _WHOLE or not others:
        return finding
    # jit traces all of it
    more = (
        f"First change {lines_beside(finding.at, sorted(others))}: what is traced again there would make all "
        "of this be traced again."
    )
    return replace(finding, besides=f"{finding.besides} {more}".strip())


def _takes_along(finding: Finding, at: Place) -> bool:
    """Return whether a change makes one program of a function that holds a line, or of a line's loop."""
    return _holds(finding.at, at) or (finding.form in _OF_STEPS and _in_one_loop(finding.at, at))


def _in_one_loop(one: Place, other: Place) -> bool:
    loop = statements.innermost(one, statements.LOOP)
    return loop is not None and statements.innermost(other, statements.LOOP) is loop


# changes that make one program of a step's lines
_OF_STEPS = {"", "part", "optax"}
# changes that make one program of neighboring lines
_NEIGHBORS = {"", "part", "numpy", "lengths"}


def _serves(finding: Finding, other: Finding) -> bool:
    """Return whether jit at a finding's line, its function or its neighbors takes another one, too."""
    outer, inner = finding.at, other.at
    neighbors = statements.neighborhood(outer) == statements.neighborhood(inner) != NOWHERE
    if neighbors and other.cause == "eager recompiles" and {finding.form, other.form} <= _NEIGHBORS:
        return True
    return outer == inner or statements.defined_at(outer) in other.within or _holds(outer, inner)


def _holds(outer: Place, inner: Place, kind: Any = statements.FUNCTION) -> bool:
    """Return whether a line begins the definition of a function, or a loop, around another line."""
    around = statements.enclosing_nodes(inner, kind) if outer.file == inner.file else ()
    return any(node.lineno == outer.line for node in around)


_OTHER = Cause(
    "other", "retrace", TRACED_AGAIN, "it was traced again",
    "Keep what the reason names the same on every call.", "measured",
)  # fmt: skip


def advice_for(finding: Finding) -> Advice:
    """Return the advice for a finding, with its own names filled in."""
    cause, name = cause_of(finding), finding.name.removeprefix("jit_")
    form = finding.form or cause.choose(finding)
    words = change_of_call(form, name) or cause.forms.get(form, cause.usual)
    template, _, example = words.partition("\n")
    library = library_of_file(finding.at.file)
    change = template.format(
        name=name,
        environment_name=name.upper(),
        argument=_argument(finding),
        axis=f" along axis {finding.axis}" if finding.axis else "",
        wrapper=statements.jit_wrapper(finding.at.file, name),
        jit=_jit(library.jit, finding.static),
        made=library.makes.format(name=name),
        steps=library.steps,
        needed=_needed(finding.at),
    )
    change = in_names_of(finding.at.file, f"{change} {finding.besides}".strip())
    return Advice(cause.title, change, cause.section, example)


def _needed(at: Place) -> str:
    function = statements.defined_at(at) or statements.innermost(at, statements.FUNCTION)
    return needed_changes(at.file, function) if function else ""


def _jit(jit: str, static: tuple[str, ...]) -> str:
    """Return the transformation that jits a function with these static arguments; Equinox finds them."""
    if not static or jit == "eqx.filter_jit":
        return jit
    names = ", ".join(f'"{name}"' for name in static)
    return f"functools.partial({jit}, static_argnames=({names},))"


def _argument(finding: Finding) -> str:
    """Return the finding's argument: a static one by its parameter's name, others by the variable passed."""
    if finding.cause.startswith("static"):
        return statements.parameter_name(finding.at.file, finding.name, finding.argument)
    passed = statements.variable_passed(finding.at, finding.name, finding.argument)
    return passed or "the array"


def parse_kinds(text: str) -> frozenset[str]:
    """Return the kinds in a comma-separated list, such as "retrace,sync"; none for "".

    Raises:
      JaxperfError: the list has an unknown kind, or commas alone.
    """
    named, known = frozenset(filter(None, text.split(","))), (*KINDS, ANY)
    if text and not named:
        raise JaxperfError(f"--fail-on {text!r} names no kind; it takes {', '.join(known)}")
    unknown = sorted(named.difference(known))
    if unknown:
        nearest = did_you_mean(unknown[0], known)
        raise JaxperfError(f"--fail-on has no kind {unknown[0]!r}{nearest}; it takes {', '.join(known)}")
    return named


def cause_of(finding: Finding) -> Cause:
    return CAUSES.get(finding.cause, _OTHER)


def failures(findings: Collection[Finding], wanted: Collection[str]) -> Iterator[str]:
    for finding in findings:
        cause, saving = cause_of(finding), format_quantity(finding.seconds, "s")
        if cause.kind in wanted or ANY in wanted:
            saves = SAVES[cause.confidence]
            yield f"error: --fail-on {cause.kind}: {cause.title}, {finding.at}: {saves} {saving}"
