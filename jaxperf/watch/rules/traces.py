"""Rules about what JAX traces and compiles again, and about debug settings, which make it do so."""

import ast
import itertools
import math
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from jaxperf.jax_internals import DEBUG_FLAGS
from jaxperf.result.formatting import format_list
from jaxperf.retraces import (
    NO_MESH,
    Change,
    Part,
    argument_changes,
    differing_part,
    dimensions,
    shorten_value,
)
from jaxperf.watch.grouping import group_by
from jaxperf.watch.log import DISPATCH, EAGER, TRACE, Compiled, field_owner
from jaxperf.watch.observe.source_location import NOWHERE, Place
from jaxperf.watch.report.analysis import Analysis
from jaxperf.watch.rules.table import (
    ASYNCHRONOUS,
    EXPLAINS,
    TRACED_AGAIN,
    Finding,
    cause,
)
from jaxperf.watch.source import loop_body, statements

_WHILE_TRACING = ("jax_check_tracer_leaks", "jax_enable_checks")
_FOR_NOTHING = ("jax_log_compiles",)  # costs almost nothing: one line per program
_EFFECTS = {
    "jax_disable_jit": "runs jitted functions one operation at a time",
    "jax_debug_nans": "reads every result on the host, so that each call waits for the device",
    "jax_debug_infs": "reads every result on the host, so that each call waits for the device",
}
_DONATIONS = ("donation", "eager copy", "module state")
_READS = ("jax_debug_nans", "jax_debug_infs")  # they read results with `np.asarray`
_ONE_BY_ONE_UNDER = ("jax_disable_jit", *_READS)  # of the latter, a function that gave a NaN
_OTHER_NAMES = {"jax_check_tracer_leaks": "checking_leaks"}  # context managers with another name
_ONE_BY_ONE = ("eager", "eager recompiles", "eager shapes", "new body")
EXPLAINS["jax_disable_jit"] = (*_ONE_BY_ONE, *_DONATIONS)
# JAX does not donate then, and runs a function that gave a NaN again, one operation at a time
EXPLAINS |= dict.fromkeys(_READS, ("wait", *_ONE_BY_ONE, *_DONATIONS))


@cause(
    "debug setting", "debug", ASYNCHRONOUS, "a debug setting of JAX is on",
    "{name} is on, perhaps by {environment_name} in the environment; leave it on only while you look for a "
    "mistake.",
    confidence="bound",
    forms={
        "line": "Leave it on only while you look for the mistake that it finds.",
    },
    choose=lambda f: "line" if f.argument else "",
)  # fmt: skip
def find_debug_settings(analysis: Analysis) -> Iterator[Finding]:
    for flag in DEBUG_FLAGS:
        first = analysis.log.settings.get(flag)
        if first is not None and flag not in _FOR_NOTHING:
            first = first or next((c.at for c in analysis.log.compiled), first)
            reason = f"{flag} is on, which {_EFFECTS.get(flag, 'is for looking for mistakes')}"
            line, again_s = set_at(flag, analysis, first), _one_by_one_s(flag, analysis)
            seconds = _cost_s(flag, analysis) + again_s
            if again_s and flag in _READS:
                reason += "; what gave such a result ran again, one operation at a time, and compiled each"
            yield Finding("debug setting", line or first, seconds, reason, flag, argument=str(line or ""))


def _cost_s(flag: str, analysis: Analysis) -> float:
    """Return the seconds that a setting may cost: tracing, or devices' idle time during dispatch."""
    if flag in _WHILE_TRACING:
        return sum(c.seconds(TRACE) for c in analysis.log.compiled)
    calls = (DISPATCH, EAGER)
    if analysis.log.activity.windows:
        seconds = sum(analysis.idle_at(*calls).values())
        if flag in _READS:  # the calls stay, beside devices
            seconds *= analysis.beside * analysis.alone_beside
            seconds += sum(x.lost_s for x in analysis.lines if x.kind == "np.asarray")
    else:
        seconds = sum(analysis.front_s[kind] for kind in calls)
    return seconds


def _one_by_one_s(flag: str, analysis: Analysis) -> float:
    """Return the seconds of compiling single operations inside functions that a decorator jits."""
    if flag not in _ONE_BY_ONE_UNDER:
        return 0.0
    alone = (c for c in analysis.log.compiled if not c.explained)
    jitted = (c for c in alone if any(map(statements.in_jitted, filter(None, (c.at, *c.callers)))))
    return analysis.compiling_s(jitted)


def set_at(flag: str, analysis: Analysis, first: Place) -> Place | None:
    """Return the line that turns a setting on, from the reader's files; None if it is not found."""
    names = f"({flag.removeprefix('jax_')}|{_OTHER_NAMES.get(flag, flag)})"
    turns_on = re.compile(
        rf"(update|setdefault|setenv)\(.*{names}|environ\[.*{names}|\b{names}\(", re.I | re.S
    )
    places = (p for c in analysis.log.compiled for p in (c.at, *c.callers))
    for file in dict.fromkeys([*(p.file for p in (first, *places)), *analysis.log.modules]):
        nodes = statements.nodes_in(statements.syntax_tree(file), ast.Call | ast.Assign)
        texts = ((node.lineno, ast.unparse(node)) for node in nodes)
        on = [line for line, text in texts if turns_on.search(text) and "False" not in text]
        if on:
            return Place(file, min(on))
    return None


REPEATS = 3  # traces that count as repeated
SETTLED = 5  # times as much as between two traces was seen of a line after the last one: no other is expected
_ELSEWHERE = ("placement", "cleared", "derived")  # other rules report these, or nothing is wrong
_TURNS = re.compile(r"known_trip_count[^}]*?(\d+)")
_NUMBER = re.compile(r"True|False|-?(\d[\d.e+-]*|inf)|nan")
_FLOAT = re.compile(r"(?:^|(?<=[=( ]))(-?(\d[\d.]*[.e][\d.e+-]*|inf)|nan)(?=[,)]|$)")
_ANYWHERE = ("new function", "weak type")  # never intended, even if another line makes the call
# a single one may be intended: two functions, two values of a flag, two sizes
_HABITS = ("new function", "static value", "shape", "structure")
_OF_CALLERS = ("static value", "shape")  # what a library's function gets from its caller
SHOWN_PARTS = 4  # of what varies, in a reason
_WEAK = ("structure", "shape", "dtype")  # reasons that JAX gives, though the types occurred before
_LENGTHENING = {"append", "concatenate", "concat", "hstack", "vstack", "extend"}
_ARRAY = re.compile(r"\w+\[[\d,]*\]")
_CLASS = re.compile(r"<class '([\w.<>]+)'>")
_STATIC_FIELDS = re.compile(r"<class '[\w.<>]*?(\w+)'> with pytree metadata (.*)", re.S)
_OF_EQUINOX = re.compile(r"dynamic_(?:no)?donate\['(\w+)'\]\[(\d+)\]")  # of `eqx.filter_jit`
_IN_TREE = re.compile(r"(\w+|argument \d+)[.\[].*")


@cause(
    "new function", "retrace", TRACED_AGAIN, "a new function is jitted on each call",
    "Apply {wrapper} to {name} once, at the module's level or before the loop; what varies is an argument.",
    forms={
        "values": (
            "Apply {wrapper} to {name} once, at the module's level or before the loop, with {argument} as "
            "arguments."
        ),
        "objects": (
            "Apply {wrapper} to {name} once, at the module's level or before the loop, and make {argument} "
            "once, before that; numbers and arrays that vary are arguments."
        ),
        "optimizer": (
            "Apply {wrapper} to {name} once, at the module's level or before the loop, and make {argument} "
            "once, before that. If its rate varies, that is part of the state: with "
            "optax.inject_hyperparams(optax.adam)(learning_rate=0.1) in place of optax.adam(0.1), "
            'state.hyperparams["learning_rate"] = jnp.float32(0.2) changes it.'
        ),
    },
    choose=lambda f: "values" if f.argument else "",
)  # fmt: skip
@cause(
    "shape", "retrace", TRACED_AGAIN, "an argument's shape varies",
    "Pad {argument}{axis}, and mask the rest in {name}, unless the size is part of the result:\n"
    "import numpy as np\n"
    "x, axis = np.ones((64, 300), np.float32), 1\n"
    "rest = (1 << (x.shape[axis] - 1).bit_length()) - x.shape[axis]\n"
    "x = np.pad(x, [(0, rest if i == axis else 0) for i in range(x.ndim)])    # 512: few sizes",
    confidence="bound",
    forms={
        "grows": (
            "Make {argument} as long as it will be{axis}, before the loop; in each turn, set one element of "
            "it, and take the result of {name} at the last element that is set. Where {name} reads what is "
            "beyond that, mask it:\n"
            "import jax.numpy as jnp\n"
            "tokens = jnp.zeros((4, 128), jnp.int32)    # 128: the final length\n"
            "tokens = tokens.at[:, 7].set(1)    # in turn 7, in place of jnp.concatenate"
        ),
        "indices": (
            "Pad {argument}{axis} with a value that {name} leaves out, unless the size is part of the "
            "result: its numbers may be indices, and 0 is one.\n"
            "import numpy as np\n"
            "x, axis, unused = np.ones((64, 300), np.int32), 1, -1\n"
            "rest = (1 << (x.shape[axis] - 1).bit_length()) - x.shape[axis]\n"
            "widths = [(0, rest if i == axis else 0) for i in range(x.ndim)]    # to 512: few sizes\n"
            "x = np.pad(x, widths, constant_values=unused)    # where x == unused, nothing counts"
        ),
    },
)  # fmt: skip
@cause(
    "partial batch", "retrace", TRACED_AGAIN, "the last batch is smaller and compiles a second program",
    "Give {name} full batches only: drop the last one in training, or pad it and mask the loss.",
)  # fmt: skip
@cause(
    "static value", "retrace", TRACED_AGAIN, "a static argument varies",
    "Make {argument} an ordinary argument of {name}, unless it is a size or a number of turns, and branch "
    "on it with jnp.where or lax.cond:\n"
    "import jax\n"
    "step = jax.jit(lambda w, rate: w - rate * w)    # no argument is static\n"
    "step(1.0, 0.1), step(1.0, 0.2)    # traced once",
    forms={
        "module": (
            "Make {argument} of {name} a variable of Flax, so that nnx.jit gets it as an array: "
            "nnx.Variable(jnp.array(0)) in place of 0. Or keep it outside of the module."
        ),
    },
)  # fmt: skip
@cause(
    "static object", "retrace", TRACED_AGAIN, "a static argument is a new object each time",
    "Make {argument} once, before the loop, and change it no more, since {name} would not see that; or give "
    "{name} what it reads of it as ordinary arguments; or give its class __eq__ and __hash__, as "
    "@dataclass(frozen=True) does, so that equal objects share a program.",
    forms={
        "fields": (
            "Pass {argument} to {name} as ordinary arguments; or register the object's class, and those of "
            "objects in it, as pytrees with what varies as leaves, and make the object no static argument.\n"
            "import jax\n"
            "class Kernel:\n"
            "    def __init__(self, scale): self.scale = scale\n"
            "    decay = jax.jit(lambda self, x: x / self.scale)    # self is not static\n"
            'jax.tree_util.register_dataclass(Kernel, ["scale"], [])\n'
            "Kernel(0.1).decay(1.0), Kernel(0.2).decay(1.0)    # traced once"
        ),
    },
)  # fmt: skip
@cause(
    "static part", "retrace", TRACED_AGAIN, "a static part of an argument is a new object each time",
    "Make the {argument} of {name} once, before the loop, and give each new {name} the same object.",
    forms={
        "module": (
            "Make the {argument} of {name} once, in its __init__, or keep it in a local variable: a module "
            "that stores a new object in each call is another one for nnx.jit, which compiles again."
        ),
    },
)  # fmt: skip
@cause(
    "dtype", "retrace", TRACED_AGAIN, "an argument's dtype varies",
    "Give {name} one dtype on every call: jnp.asarray({argument}, jnp.float32).",
)  # fmt: skip
@cause(
    "weak type", "retrace", TRACED_AGAIN, "a Python number becomes an array after the first call",
    "Begin with an array of a dtype, before the first call of {name}: jnp.float32(0.1) in place of 0.1, "
    "jnp.full(n, 0.1, jnp.float32) in place of jnp.full(n, 0.1).",
    forms={
        "tree": (
            "Give the numbers in {argument} a dtype where they are made: jnp.float32(0.1) in place of 0.1, "
            "jnp.full(n, 0.1, jnp.float32) in place of jnp.full(n, 0.1). If a library makes them, convert "
            "all once, before the first call of {name}: {argument} = jax.tree.map(lambda x: jnp.asarray(x, "
            "jnp.result_type(x)) if isinstance(x, float | jax.Array) else x, {argument})."
        ),
    },
)  # fmt: skip
@cause(
    "structure", "retrace", TRACED_AGAIN, "an argument's structure varies",
    "Pass {name} the same keys and lengths on every call, as one padded array in place of a list whose "
    "length varies; None counts as another structure.",
    forms={
        "static fields": (
            "Make the numbers that vary data of the class of {argument}, so that {name} gets them as arrays: "
            "fields without static=True, data_fields, or the first part of what tree_flatten returns."
        ),
    },
)  # fmt: skip
def find_retraces(analysis: Analysis) -> Iterator[Finding]:
    """Find the reader's functions that were traced and compiled again, one finding per reason.

    The first trace from a line and its callers does not count, since training and testing may differ. A
    function of a library counts where the reader calls it with other static values or shapes.
    """
    objects = list[Finding]()
    called = (c for c in analysis.log.compiled if c.explained or _calls_it(c))
    traced = (c for c in called if _kind(c) not in _ELSEWHERE)
    for group in group_by(traced, lambda c: c.defined or c.name).values():
        again: dict[str, list[Compiled]] = defaultdict(list)
        known = {(group[0].at, group[0].callers)}
        for i, c in enumerate(group[1:], start=1):
            kind, way = _kind(c), (c.at, c.callers)
            if kind in _WEAK and _weakly_other(c, group[:i]):
                kind = "weak type"
            if way in known or kind in _ANYWHERE:
                again[kind].append(c)
            known.add(way)
        if group[0].owner:  # the rest is the library's own
            again = defaultdict(list, {kind: again[kind] for kind in _OF_CALLERS})
        again["new function"] = [c for c in _known_before(group, _program) if c in again["new function"]]
        if again["new function"] and _settled(analysis, [group[0], *again["new function"]]):
            del again["new function"]
        again["structure"] = [c for c in again["structure"] if not all(map(_of_another_class, c.changes))]
        static = all(_STATIC_FIELDS.match(change.now) for c in again["structure"] for change in c.changes)
        of_equal_types = len({c.arrays for c in group}) == 1
        # a captured number may be a size, too
        for kind, may in {"static value": True, "structure": static, "new function": of_equal_types}.items():
            if again[kind] and may:
                again[kind] = _for_the_value_alone(analysis, group, again[kind])
        for kind, repeats in ((kind, repeats) for kind, repeats in again.items() if repeats):
            if kind not in _HABITS or _habit(repeats) or (kind == "shape" and _partial_batch(repeats)):
                finding = _retrace(analysis, kind, group, repeats)
                if finding.cause == "static object":
                    objects.append(finding)
                elif finding.seconds:
                    yield finding
    yield from _made_once(objects)


def _settled(analysis: Analysis, traces: list[Compiled]) -> bool:
    """Return whether a line stopped to make new functions, and went on: it calls a few, each again and again.

    `jit(grad(f, 0))` and `jit(grad(f, 1))` are two functions of one `f`, which are made once.
    """
    at, ends = traces[-1].at, [max(end for _, end in c.stages.values()) for c in traces]
    seen = [(s.end, 1) for s in analysis.samples if s.at == at]
    seen += [(wait.end, wait.times) for wait in analysis.waits if wait.at == at]
    *rounds, after = (
        sum(times for moment, times in seen if begin < moment <= end)
        for begin, end in itertools.pairwise([*ends, math.inf])
    )
    return after > SETTLED * max(1, *rounds)


def _calls_it(c: Compiled) -> bool:
    """Return whether the reader's line calls a library's jitted function itself."""
    return bool(c.owner) and c.called in statements.called_at(c.at)


def _made_once(objects: list[Finding]) -> Iterator[Finding]:
    """Yield one finding for the functions that get the same new object, which is to be made once."""
    for (_, reason), group in group_by(objects, lambda f: (f.at.file, f.reason.partition(": ")[2])).items():
        dearest = max(group, key=lambda f: f.seconds)
        if len(group) > 1:
            names, seconds = format_list([f.name for f in group]), sum(f.seconds for f in group)
            reason = f"{names} were traced again and again, {seconds:.2g} s for the repeats: {reason}"
            argument = statements.parameter_name(dearest.at.file, dearest.name, dearest.argument)
            dearest = replace(dearest, seconds=seconds, name=names, reason=reason, argument=argument)
        yield dearest


def _weakly_other(c: Compiled, before: Iterable[Compiled]) -> list[str]:
    """Return the arguments that are weakly typed in a call or in an equal one before, not in both."""
    other = (sorted(c.weak ^ earlier.weak) for earlier in before if earlier.signature == c.signature)
    return next(filter(None, other), [])


def _known_before(group: list[Compiled], program: Callable[[Compiled], object]) -> Iterator[Compiled]:
    """Yield the traces for which one of the same program, or an unknown one, came before."""
    known = {program(group[0])}
    for c in group[1:]:
        if program(c) in known or not c.signature:
            yield c
        known.add(program(c))


def _program(c: Compiled) -> tuple[object, ...]:
    """Return what decides a function's program besides its code: padded types, and what jit cannot take."""
    values = [(name, _plain_value(value)) for name, value in (*c.closure.items(), *c.signature.items())]
    fixed = (v for v in values if not _NUMBER.fullmatch(v[1]) and not _ARRAY.fullmatch(v[1]))
    # what the function captures would be its arguments
    captured = tuple(item for item in {**c.refers_to, **c.fields}.items() if _ARRAY.fullmatch(item[1]))
    return _padded(c.arrays), captured, tuple((name, _FLOAT.sub("", text)) for name, text in fixed)


def _padded(arrays: Iterable[tuple[str, str]]) -> tuple[object, ...]:
    """Return the types of arrays whose dimensions are padded to powers of two."""
    return tuple(
        (name, text.partition("[")[0], *((n - 1).bit_length() for n in dimensions(text)))
        for name, text in arrays
    )


def _for_the_value_alone(
    analysis: Analysis, group: list[Compiled], repeats: list[Compiled]
) -> list[Compiled]:
    """Return the repeats for which a static value decides no shape, number of turns, or operations.

    XLA folds constants, so even a float that chooses nothing may change the operations. An object's other
    values may choose them: then those repeats count for which these values were known before.
    """
    lines = {(c.at.file, c.at.line) for c in group}
    named = [f for f in analysis.programs.get(group[0].program, ()) if f.text and not f.old]
    traced = [f for f in named if lines & {(p.file, p.line) for p in f.places}]
    programs = traced or named  # other functions may have the same name
    forms = {(*f.layout, *_TURNS.findall(f.text)) for f in programs}
    operations = {tuple(i.opcode for i in f.instructions) for f in programs}
    arrays = {c.arrays for c in group}
    if len(programs) <= len(arrays) < len(group):  # calls with equal arrays have one program
        return repeats
    varied, choices = _varied_fields(group), set(map(_choices, group[: len(programs)]))
    if varied and 1 < len(choices) <= max(len(forms), len(operations)):
        return [c for c in _known_before(group, _choices) if c in repeats]
    if len(forms) == len(programs) > 1:
        return []
    changes = (change for c in repeats for change in c.changes)
    values = {change.now for change in changes if change.kind in ("static value", "structure")}
    numbers = all(map(_NUMBER.fullmatch, values)) or len({_FLOAT.sub("", v) for v in values}) == 1
    return repeats if varied or numbers or len(operations) <= 1 else []


def _choices(c: Compiled) -> tuple[tuple[str, str], ...]:
    """Return what a call has besides floats, also in objects, which may choose operations."""
    values = {**c.closure, **c.signature, **c.fields}
    return tuple((name, _FLOAT.sub("", _plain_value(text))) for name, text in values.items())


def _varied_fields(group: list[Compiled]) -> dict[str, Change]:
    """Return the first change of each number in an object, by name."""
    first: dict[str, Change] = {}
    for old, new in itertools.pairwise(group):
        for change in argument_changes(old.fields, new.fields):
            if _NUMBER.fullmatch(change.before) and _NUMBER.fullmatch(change.now):
                first.setdefault(change.what, change)
    return first


def _kind(c: Compiled) -> str:
    """Return the reason for a trace; if there are several, the one that explains the others."""
    kinds = {change.kind for change in c.changes}
    order = (
        "cleared", "derived", "structure", "static value", "shape", "dtype", "placement", "weak type",
        "setting", "other",
    )  # fmt: skip
    return next((kind for kind in order if kind in kinds), "new function")


def _of_another_class(change: Change) -> bool:
    """Return whether another class of the program or of a library makes another structure, as of a model."""
    classes = (_CLASS.fullmatch(text) for text in (change.before, change.now))
    return all(c and "." in c[1] and not c[1].startswith("builtins.") for c in classes)


def _habit(repeats: list[Compiled]) -> bool:
    return Counter(c.at for c in repeats).most_common(1)[0][1] >= REPEATS - 1


def _retrace(analysis: Analysis, kind: str, group: list[Compiled], repeats: list[Compiled]) -> Finding:
    first, at, seconds = group[0], statistics.mode(c.at for c in repeats), analysis.compiling_s(repeats)
    changes = [change for c in repeats for change in c.changes if change.kind == kind]
    file, _, line = first.defined.rpartition(":")
    away = kind == "new function" and line.isdigit() and (file, int(line)) != (at.file, at.line)
    of = f" of {Place(file, int(line))}" if away else ""
    times = f"{first.called}{of} was traced {len(repeats) + 1} times, {seconds:.2g} s for the repeats"

    def finding(cause: str, reason: str, name: str = first.called, **more: Any) -> Finding:
        return Finding(cause, at, seconds, f"{times}: {reason}", name, **more)

    if kind == "new function":
        reason, captured = "each call makes a new function object", _closed_over([first, *repeats])
        if captured:
            reason += ", and " + _shown([f"{c.what} in its closure {_how(c)}" for c in captured])
        # an object that is made anew, such as an optimizer, would be another static part of each call
        objects = [c for c in captured if _another_object(c) and not _ARRAY.match(c.now)]
        names, besides = ", ".join(change.what for change in objects or captured), ""
        for where, _ in first.arrays:
            shapes = {c.signature.get(where) for c in repeats}
            if 2 * len(shapes) > len(group) and len(shapes) >= REPEATS:
                passed = statements.variable_passed(at, first.called, where)
                reason += f", and {passed} has another shape, too"
                besides = f"Pad {passed} to a few sizes, too: each shape compiles a program of its own."
        form = "objects" if objects else ""
        if any("GradientTransformation" in change.now for change in objects):
            form = "optimizer"
        return finding(kind, reason, argument=names, form=form, besides=besides)
    if kind == "structure" and (owner := _new_static_fields(changes)):
        part = "optimizer (tx)" if "Gradient" in changes[0].now else "objects in static fields"
        reason = f"static fields of {owner} are other objects each time, and are compared by identity"
        return finding("static part", reason, owner, argument=part)
    if kind == "static value" and (varied := _varied_of(changes, group)):
        owner = field_owner(changes[0].what)
        parameter = statements.parameter_name(at.file, first.called, owner)
        fields = [parameter + name.removeprefix(owner) for name in varied]
        numbers = _shown([f"{name} {_how(change)}" for name, change in zip(fields, varied.values())])
        reason = f"static {parameter} is another object each time: {numbers}"
        return finding(
            "static object", reason, argument=format_list(fields), form="fields",
            besides=_equal_objects(owner, group),
        )  # fmt: skip
    if kind == "static value" and (changed := _changed_part(changes)):
        before, now = changed
        files = dict.fromkeys([at.file, file, *analysis.log.modules])
        sets = (statements.attribute_set_at(other, now.owner, now.name) for other in files)
        changing = next(filter(None, sets), None)
        made = statements.made_at(at, now.owner)
        where = ""
        if changing:
            where = f", which {changing} sets,"
        elif made:
            where = f", which {made} makes,"
        how = f"is another {now.kind} each time, and is compared by identity"
        if before != now:
            how = f"goes from {before.kind} to {now.kind}"
        return finding(
            "static part" if before == now else "static value",
            f"{now.name} of the {now.owner}{where} {how}", now.owner, argument=now.name,
            form="" if before == now and not changing else "module",
        )  # fmt: skip
    if kind == "static value" and all(map(_another_object, changes)):
        what, value = changes[0].what, shorten_value(_plain_value(changes[0].now))
        return finding("static object", f"static {what} is another {value} each time", argument=what)
    if not changes:  # JAX named another difference, from a call that is nearer
        leaves = _weakly_other(repeats[0], group[: group.index(repeats[0])])
        strong, weak = ("weak", "strong"), ("strong", "weak")
        changes = [Change(kind, leaf, *(weak if leaf in repeats[0].weak else strong)) for leaf in leaves]
    changes = [replace(change, what=_readable(change.what, at, repeats[0])) for change in changes]
    descriptions = list(dict.fromkeys(map(str, changes)))
    reason = _shown(descriptions, 2)
    if kind != "other":
        reason = f"{kind} of {reason}"
    cause = "partial batch" if kind == "shape" and _partial_batch(repeats) else kind
    what, form, axis = changes[0].what, "", ""
    if cause == "shape":
        calls = {c.arrays for c in group}
        if calls - {()} and len(calls) > 1:  # padding saves the rest
            seconds *= (len(calls) - len(set(map(_padded, calls)))) / (len(calls) - 1)
        of_one = [c for c in changes if c.what == what]
        sizes = [dimensions(of_one[0].before), *(dimensions(c.now) for c in of_one)]
        steps = [[b - a for a, b in zip(*pair)] for pair in itertools.pairwise(sizes)]
        axes = sorted({str(i) for step in steps for i, n in enumerate(step) if n})
        axis = format_list(axes) if axes else ""
        by_one = len(steps) >= REPEATS and len(axes) == 1 and all(sum(step) == 1 for step in steps)
        if by_one and _lengthened(at, first.called, what, file):
            form = "grows"
        elif re.match(r"u?int|s\d|u\d|i\d|bool|pred", of_one[0].now):
            form = "indices"
    if kind == "structure" and all(map(_other_static_numbers, changes)):
        form = "static fields"
    if kind == "weak type" and (tree := _IN_TREE.fullmatch(what)):
        what, form = statements.variable_passed(at, first.called, tree[1], file), "tree"
    besides = ""
    if kind == "structure" and " of length " in changes[0].now:
        argument = next((c.what for c in repeats[0].changes if c.kind == kind), "")
        besides = _over_all(file, first.called, argument)
    return finding(cause, reason, argument=what, form=form, axis=axis, besides=besides)


def _over_all(file: str, called: str, argument: str) -> str:
    """Return what happens to a jitted function's loop over an argument that gets its full length; or ""."""
    name = statements.parameter_name(file, called, field_owner(argument))
    for function in statements.definitions(file, called)[-1:]:
        for loop in statements.nodes_in(function, ast.For | ast.comprehension):
            if name in loop_body.reads(loop.iter):
                return (
                    f"The loop over {name} at {Place(file, loop.iter.lineno)} becomes jax.lax.scan, which a "
                    "mask tells what is padded: jit would unroll it at the full length."
                )
    return ""


def _lengthened(at: Place, called: str, argument: str, file: str) -> bool:
    """Return whether the loop around a call makes an argument longer, so that it is no new input."""
    loop = statements.innermost(at, loop_body.LOOP)
    passed = statements.argument_expression(at, called, argument, file)
    if loop is None or passed is None:
        return False
    flows, names = loop_body.flows_of(loop), loop_body.reads(passed)
    made = loop_body.reached(names, flows)
    longer = (f for f in flows if loop_body.share(f.writes, names) and loop_body.share(f.reads, made))
    return any(statements.called_at(at._replace(line=f.node.lineno)) & _LENGTHENING for f in longer)


def _changed_part(changes: list[Change]) -> tuple[Part, Part] | None:
    """Return the part of a Flax graph that differs, in a call and in the next one; None for other values.

    JAX compares each call with the first, which may have added attributes to a module. So later calls are
    compared with each other.
    """
    graphs = [changes[0].before, *(change.now for change in changes if change.what == changes[0].what)]
    if len(graphs) > 2:
        del graphs[0]
    for earlier, later in itertools.pairwise(graphs):
        before, now = differing_part(later, earlier), differing_part(earlier, later)
        if before and now and (before.name, before.owner) == (now.name, now.owner):
            return before, now
    return None


def _new_static_fields(changes: list[Change]) -> str:
    """Return the class whose static fields are new objects that print the same; "" for anything else."""
    pairs = [(_STATIC_FIELDS.match(c.before), _STATIC_FIELDS.match(c.now)) for c in changes]
    same = [b[1] for a, b in pairs if a and b and _plain_value(a[2]) == _plain_value(b[2])]
    return same[0] if same and len(same) == len(pairs) else ""


def _other_static_numbers(change: Change) -> bool:
    """Return whether static fields of one class differ in numbers alone."""
    same = _NUMBER.sub("", change.before) == _NUMBER.sub("", change.now)
    return same and bool(_STATIC_FIELDS.match(change.now))


def _varied_of(changes: list[Change], group: list[Compiled]) -> dict[str, Change]:
    """Return the numbers in static objects that differ, if all that changes is such objects.

    Those count that differ between calls of one form, if there are any.
    """
    owners = {field_owner(change.what) for change in changes}
    varied: dict[str, Change] = {}
    for alike in group_by(group, _choices).values():
        varied = _varied_fields(alike) | varied
    varied = varied or _varied_fields(group)
    varied = {name: change for name, change in varied.items() if field_owner(name) in owners}
    return varied if {field_owner(name) for name in varied} == owners else {}


def _equal_objects(owner: str, group: list[Compiled]) -> str:
    """Return what equal objects that are compared by identity would save, if there are any."""
    objects = set[tuple[str, tuple[str, ...]]]()
    for c in group:
        values = (_plain_value(text) for name, text in c.fields.items() if field_owner(name) == owner)
        objects.add((c.signature.get(owner, ""), tuple(values)))
    different = len({values for _, values in objects})
    if different == len(objects):
        return ""
    return (
        f"The {len(objects)} objects have {different} different values: with __eq__ and __hash__, as "
        "@dataclass(frozen=True) makes them, equal ones would share a program."
    )


def _readable(what: str, at: Place, c: Compiled) -> str:
    """Return the name of an argument's leaf in the user's words, where Equinox numbers leaves."""
    if not (leaf := _OF_EQUINOX.match(what)):
        return what
    first = [where for where in c.signature if re.match(r"argument 0\b", where)]
    rest = [where for where in c.signature if where not in first and not where.startswith("self")]
    leaves, number = first if leaf[1] == "first" else rest, int(leaf[2])
    found = re.match(r"(argument \d+|\w+)(.*)", leaves[number]) if number < len(leaves) else None
    if found is None:
        return f"leaf {number} of its arguments"
    return statements.variable_passed(at, c.called, found[1]) + found[2]


def _closed_over(traces: list[Compiled]) -> list[Change]:
    """Return the first difference of each closure variable or default of new functions."""
    first: dict[str, Change] = {}
    for old, new in itertools.pairwise(traces):
        for change in argument_changes(old.closure, new.closure) if old.closure else ():
            first.setdefault(change.what, change)
    outside = {*traces[0].closure, "self"}
    fields = [change for change in _varied_fields(traces).values() if field_owner(change.what) in outside]
    owners = {field_owner(change.what) for change in fields}
    return [*(change for change in first.values() if change.what not in owners), *fields]


def _how(change: Change) -> str:
    before, now = (shorten_value(_plain_value(value)) for value in (change.before, change.now))
    return f"is another {now}" if _another_object(change) else f"goes from {before} to {now}"


def _shown(parts: list[str], most: int = SHOWN_PARTS) -> str:
    more = [f"and {len(parts) - most} more"] if len(parts) > most else []
    return "; ".join(parts[:most] + more)


def _plain_value(value: str) -> str:
    """Return a printed value without its address and the enclosing functions of its class."""
    return re.sub(r" at 0x[0-9a-f]+|[\w.]+\.<locals>\.", "", value)


def _another_object(change: Change) -> bool:
    return _plain_value(change.before) == _plain_value(change.now)


def _partial_batch(repeats: list[Compiled]) -> bool:
    """Return whether the only repeat is for a smaller leading dimension, as of an epoch's last batch."""
    changes = (change for c in repeats for change in c.changes if change.kind == "shape")
    pairs = [(dimensions(change.before), dimensions(change.now)) for change in changes]
    smaller = all(before and now and before[1:] == now[1:] and now[0] < before[0] for before, now in pairs)
    return len(repeats) == 1 and smaller and len({(before[0], now[0]) for before, now in pairs}) == 1


@cause(
    "placement", "retrace", TRACED_AGAIN,
    "a function is compiled again for arguments that are placed in another way",
    "Place the arguments of {name} in one way before every call: all of them by jax.device_put with one "
    "device or sharding, which commits them to it, or none of them.",
    forms={
        "mesh": (
            "Put {argument} on the mesh of the other arguments before the first call of {name}, with the "
            "sharding that {name} returns it with: {argument} = jax.device_put({argument}, "
            "jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())), if it is not split."
        ),
    },
)  # fmt: skip
def find_placements(analysis: Analysis) -> Iterator[Finding]:
    """Find functions compiled again because arguments of equal types had another placement."""
    again, calls = list[Compiled](), set[object]()
    for c in analysis.log.compiled:
        call = c.defined, c.at, c.callers
        placed = [x for x in c.changes if x.kind == "placement" and x.what]
        # another line may call it for other arrays, which are on a mesh on purpose
        wanted = bool(placed) and placed[0].before == NO_MESH and call not in calls
        if c.explained and placed and not wanted and _kind(c) == "placement":
            again.append(replace(c, changes=tuple(placed)))
        calls.add(call)
    for group in group_by(again, lambda c: c.defined or c.name).values():
        at, first = statistics.mode(c.at for c in group), group[0]
        seconds, changes = analysis.compiling_s(group), first.changes
        more = f"; and so for {len(changes) - 1} more arguments" if len(changes) > 1 else ""
        what, form, where = changes[0].what, "", " on equal devices"
        if changes[0].before == NO_MESH:
            file, tree = first.defined.rpartition(":")[0], _IN_TREE.fullmatch(what)
            what = statements.variable_passed(at, first.called, tree[1] if tree else what, file)
            form, where = "mesh", ""
        reason = (
            f"{first.called} was compiled {len(group) + 1} times for arguments of equal types{where}, "
            f"{seconds:.2g} s for the repeats: placement of {changes[0]}{more}"
        )
        if at:
            yield Finding("placement", at, seconds, reason, first.called, argument=what, form=form)


@cause(
    "cleared", "retrace", TRACED_AGAIN, "jax.clear_caches makes the next calls compile again",
    "Leave it out; if memory grows, make the jitted functions once and give them few shapes.",
)  # fmt: skip
def find_cleared_caches(analysis: Analysis) -> Iterator[Finding]:
    cleared = (c for c in analysis.log.compiled if c.cleared)
    for at, again in group_by(cleared, lambda c: c.cleared or NOWHERE).items():
        seconds, names = analysis.compiling_s(again), ", ".join({c.called: None for c in again})
        reason = (
            f"jax.clear_caches makes JAX forget its programs: {shorten_value(names)} took {seconds:.2g} s "
            f"to be traced and compiled {len(again)} times more"
        )
        yield Finding("cleared", at, seconds, reason, "clear_caches")


_INSIDE_JIT = (
    "Or call it inside a function of yours under jax.jit, made once, if the library allows it there (no "
    "progress bar, nothing that prints or loops over values): within one program, the library's own jit "
    "costs nothing. "
)
_CACHE = (
    "A compile cache on disk keeps programs that took a second or more, for equal ones in this run and for "
    "the next start: "
    'jax.config.update("jax_compilation_cache_dir", FOLDER).'
)


@cause(
    "library function", "retrace", TRACED_AGAIN, "a library compiles one of its functions again and again",
    f"Make one call of {{argument}} serve all cases, as jax.vmap over what varies. {_INSIDE_JIT}{_CACHE}",
    confidence="bound",
    forms={
        "variable": (
            "Make jax.jit({argument}) once, before the loop, and call that here: within one program, the "
            "library's own jit costs nothing."
        ),
        # it needs numbers, which a trace does not have
        "reads": f"Make one call of {{argument}} serve all cases, as jax.vmap over what varies. {_CACHE}",
    },
)  # fmt: skip
def find_library_functions(analysis: Analysis) -> Iterator[Finding]:
    """Find functions that a library jits anew in each call, or gives new objects as static arguments."""
    owned = (c for c in analysis.log.compiled if c.owner and c.at and not statements.is_import(c.at))
    for group in group_by(owned, lambda c: (c.owner, c.defined)).values():
        repeats = [
            c
            for c in _known_before(group, _types_in_library)
            # JAX names what differs from the nearest call; one program of the caller compiles it once
            if not any(x.kind == "static value" and not _another_object(x) for x in c.changes)
        ]
        if not repeats or not _habit(repeats):
            continue
        changed = any(x.kind != "shape" for c in repeats for x in c.changes)
        seconds = analysis.compiling_s(repeats)
        how = "static arguments that are new objects" if changed else "a new function object"
        reason = (
            f"{group[0].name} of {group[0].owner} was traced {len(repeats) + 1} times, "
            f"{seconds:.2g} s for the repeats: each call brings {how}"
        )
        at = statistics.mode(c.at for c in repeats)
        called = statements.outermost_call(at)
        form = "variable" if changed and called.isidentifier() else ""
        if analysis.reads_inside(at, group[0].owner):
            form = "reads"
        yield Finding("library function", at, seconds, reason, group[0].name, argument=called, form=form)


def _types_in_library(c: Compiled) -> tuple[object, ...]:
    """Return the types of what the reader passes, and the shapes that the library itself varies."""
    return c.arrays, *((x.what, x.now) for x in c.changes if x.kind == "shape")
