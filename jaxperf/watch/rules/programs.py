"""Rules about compiled programs: their memory, dtypes, loops, callbacks, and division among devices."""

import ast
import functools
import importlib.metadata
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from jaxperf.hlo import Instruction, shape_of
from jaxperf.known_faults import FAULTS, Fault, faults_of
from jaxperf.result.formatting import format_quantity
from jaxperf.result.intervals import difference, intersection, total_length
from jaxperf.watch.grouping import group_by
from jaxperf.watch.log import CALLBACK, COMPILE, DISPATCH, EAGER, Compiled, ExecutedProgram
from jaxperf.watch.observe import executables
from jaxperf.watch.observe.executables import Facts
from jaxperf.watch.observe.source_location import NOWHERE, Place, library_of
from jaxperf.watch.report.analysis import Analysis, IntervalSet, once
from jaxperf.watch.report.top_programs import containers, cut_off_factor, execution_count
from jaxperf.watch.rules import table
from jaxperf.watch.rules.idle import COPIED, SLOWEST
from jaxperf.watch.rules.table import Finding, cause
from jaxperf.watch.rules.traces import set_at
from jaxperf.watch.source import loop_body, statements

WIDE = ("float64", "double", "complex128")
WIDENED = 1 << 16  # bytes of an array below which its dtype does not matter
LARGE = 1 << 20  # bytes of an array of float64 that is worth reporting


@cause(
    "float64", "float64", table.PRECISION, "float32 becomes float64",
    "Give the other operand the type of the data, as with .astype(np.float32).",
    confidence="bound",
)  # fmt: skip
@cause(
    "all float64", "float64", table.PRECISION, "a program computes in float64",
    'If float32 is enough, make {argument} and all else that {name} gets .astype("float32").',
    confidence="bound",
    forms={
        "call": "If float32 is enough, give {name} arrays of that type, or leave jax_enable_x64 off.",
    },
    choose=lambda f: "" if f.argument else "call",
)  # fmt: skip
def find_float64(analysis: Analysis) -> Iterator[Finding]:
    turned_on = "jax_enable_x64" in analysis.log.settings
    at = set_at("jax_enable_x64", analysis, NOWHERE) if turned_on else None
    where = f" at {at}: {at.source}" if at else ""
    for facts, c, _, program_s in called_programs(analysis):
        narrow = {i.name for i in facts.instructions if i.type.startswith(("f32[", "bf16[", "f16["))}
        doubles = (i for i in facts.instructions if i.type.startswith(("f64", "c128")))
        large = [i for i in doubles if i.shapes and i.shapes[0].bytes >= WIDENED]
        converts = [i for i in large if i.opcode == "convert" and i.type.startswith("f64[")]
        widening = Counter(facts.at(i) for i in converts if narrow & {*i.operands})
        if widening:
            line = next((p for p, _ in widening.most_common() if p), c.at)
            reason = (
                f"{facts.name} turns float32 into float64 here, which moves twice the bytes from there on"
            )
            yield Finding("float64", line, program_s / 2, reason, facts.name)
            continue
        files = {p.file for p in (c.at, *c.callers)}
        given = [shape for shape in facts.layout[0] if shape.dims and shape.dtype[0] in "fbc"]
        mixed = {shape.dtype for shape in given} - {"f64", "c128"}
        # who turns it on in the same file may want it, unless it is for the arrays that the program gets
        unwanted = not mixed and sum(shape.bytes for shape in given) >= LARGE
        unwanted = unwanted or bool(at and at.file not in files)
        others = {p.file for p in (*facts.places, *filter(None, [at])) if not library_of(p.file)}
        if large and unwanted and not any(map(_asks_for_float64, files | others)):
            reason = (
                f"{c.called} computes with arrays of float64, which JAX makes of its own and NumPy's arrays "
                f"while jax_enable_x64 is on{where}; if float32 is enough, it moves half of the bytes"
            )
            made, name = _made(c)
            yield Finding("all float64", made, program_s / 2, reason, facts.name, argument=name)


@functools.cache
def _asks_for_float64(file: str) -> bool:
    """Return whether a file's code names float64, or takes SciPy's solvers, which are made for it."""
    if any(statements.imports_module(file, f"scipy.{solver}") for solver in ("optimize", "integrate")):
        return True
    nodes = ast.walk(statements.syntax_tree(file))
    named = (getattr(n, "attr", "") or getattr(n, "id", "") or getattr(n, "value", "") for n in nodes)
    return any(name in WIDE for name in named)


def _made(c: Compiled) -> tuple[Place, str]:
    """Return the line that assigns the largest argument, and its variable; else the call and ""."""
    sizes = {where: shape.size for where, text in c.signature.items() if (shape := shape_of(text))}
    largest = max(sizes, key=sizes.__getitem__, default="")
    passed = statements.argument_expression(c.at, c.called, largest)
    name = passed.id if isinstance(passed, ast.Name) else ""
    scope = statements.innermost(c.at, statements.FUNCTION) or statements.syntax_tree(c.at.file)
    assigned = (f.node for f in loop_body.flows_of(scope) if name in f.writes)
    before = [n.lineno for n in assigned if n.lineno < c.at.line and not isinstance(n, ast.Expr)]
    return (c.at._replace(line=max(before)), name) if before else (c.at, "")


@cause(
    "moved", "transfer", table.DATA_PARALLEL, "arrays are copied between devices on each call",
    "Before the loop, call jax.device_put once for them with the sharding that {name} needs: "
    'NamedSharding(mesh, P()) gives each device a copy, P("data") a share.',
)  # fmt: skip
def find_moves(analysis: Analysis) -> Iterator[Finding]:
    moving = [(c, at) for c, at in analysis.called if sum(c.moved.values()) >= COPIED]
    if not moving:
        return
    dispatching = analysis.idle_at(DISPATCH, EAGER)
    beside_s = _copied_beside_computing(analysis)
    waits = intersection(difference(analysis.steady, analysis.busy), analysis.log.activity.queued)
    for c, at in moving:
        program, size = analysis.ran(c), sum(c.moved.values())
        if program is None:
            continue
        largest = max(c.moved, key=c.moved.__getitem__)
        more = f" and {len(c.moved) - 1} more arguments" if len(c.moved) > 1 else ""
        count = max(len(facts.devices) for facts in analysis.programs[c.program])
        reason = (
            f"each call of {c.called} copies {format_quantity(size, 'bytes')}, {largest}{more}, to its "
            f"{count} devices: they lie on others, or not on all"
        )
        waited_s = analysis.in_run(waits) + beside_s * size * program.calls * analysis.scale(program)
        seconds = dispatching.get(at, 0.0) + waited_s
        yield Finding("moved", at, seconds, reason, c.called, argument=largest)


def _copied_beside_computing(analysis: Analysis) -> float:
    """Return the seconds that devices lose while they compute for each byte that is copied between them.

    An accelerator copies beside its computation. On a CPU, a copy takes a core, which the devices share. The
    bytes are those that calls and `device_put` copied in the profiler's windows.
    """
    activity, busy = analysis.log.activity, IntervalSet(analysis.busy)
    copying_s = sum(busy.within(start, end) for start, end in activity.copying)
    moved = {c.program: sum(c.moved.values()) for c, _ in analysis.called if c.moved}
    nbytes = sum(size * activity.program(name).calls for name, size in moved.items())
    nbytes += sum(put.nbytes for put in analysis.log.puts if put.moved and analysis.windows.of(put))
    # other programs have the cores for a part of a copy's time
    return copying_s * (1 - analysis.beside) * analysis.alone_beside / max(1, nbytes)


@cause(
    "replicated", "program", table.DATA_PARALLEL, "each device computes the whole batch",
    "Divide the batch, and give each device a copy of the rest: jax.device_put(batch, NamedSharding(mesh, "
    "P('data'))), with the name of the mesh's axis.",
    confidence="bound",
)  # fmt: skip
def find_replicated_work(analysis: Analysis) -> Iterator[Finding]:
    """Find matrix products that every device computes as a whole, because all arguments are replicated."""
    for facts, c, _, program_s in called_programs(analysis):
        count = len(facts.devices)
        splits = [p.split for p in c.placements.values() if len(p.devices) == count > 1]
        replicated = splits and all("(" in split and "'" not in split for split in splits)
        apart = (i.collective or i.opcode == "partition-id" for i in facts.instructions)
        if replicated and facts.module.matrix_dtype and not any(apart):
            reason = (
                f"each of the {count} devices computes all of {c.called}: none of its arguments is divided"
            )
            yield Finding("replicated", c.at, program_s * (1 - 1 / count), reason, c.called)


@cause(
    "loop agreement", "program", table.DATA_PARALLEL, "devices agree in each turn of a loop whether to go on",
    "Where {name} is jitted, jit jax.shard_map of the same function, with the mesh and the sharding of its "
    "arguments: each device then has a loop of its own, and goes on only as long as its elements need it.",
    confidence="bound",
)  # fmt: skip
def find_agreeing_loops(analysis: Analysis) -> Iterator[Finding]:
    """Find loops in whose conditions devices wait for one another, though the turns themselves do not."""
    for facts, c, program, program_s in called_programs(analysis):
        loops = [i for i in facts.instructions if i.opcode == "while"]
        conditions, bodies = _CONDITION.findall(" ".join(i.text for i in loops)), {i.called for i in loops}
        collectives = [i for i in facts.instructions if i.collective]
        agreeing = [i for i in collectives if i.computation in conditions]
        if agreeing and program.busiest_s and not any(i.computation in bodies for i in collectives):
            share = program.op_s({i.name for i in agreeing}.__contains__) / program.busiest_s
            reason = (
                f"{c.called} has an {agreeing[0].collective} in the condition of this loop, in which devices "
                f"spend {share:.0%} of its time"
            )
            at = facts.at(agreeing[0]) or c.at
            yield Finding("loop agreement", at, program_s * min(1.0, share), reason, c.called)


CONSTANT = 1 << 20  # bytes of constants in a program that are worth reporting
SMALL = 1 << 12  # bytes of a constant that does not count
COMPILED = 60e6  # bytes/s at which constants compile, at most
_CONDITION = re.compile(r"condition=%?([\w.-]+)")
_IN_MODULE = re.compile(r"(?:argument )?(\w+)\.")
COMPILE_S = 0.5  # seconds of compiling that make an unrolled loop with few iterations worth reporting
CONSTANT_SHARE = 0.2  # share of a program's time in work that it need not do, which is worth reporting
MANY = 20  # instructions of a function that make it a costly branch, however light each of them is
_HEAVY = ("while", "dot", "convolution", "custom-call", "sort")
EVALUATION_SHARE = 0.3  # share of the devices' time in an evaluation that is worth a finding
TURNS = 3  # calls of a step in windows that say how often other programs run beside it
EACH_TURN = 0.8  # calls for each step, from which on they are made in each turn
LARGE_FACTOR = 10  # of a fault, from which on the whole program is slow, where no window saw instructions
UNEQUAL = 1.3  # the most work on one device over the mean


@cause(
    "donation", "memory", table.MEMORY, "an argument is copied that the result replaces",
    "Where {name} is jitted, give jax.jit donate_argnums or donate_argnames of the argument that the result "
    "replaces. The old array is gone then, under every name.",
    confidence="bound",
    forms={
        "arguments": (
            "Jit {name} with {argument}: the result then takes the memory of what it replaces, and the old "
            "array is gone, under every name."
        ),
    },
    choose=lambda f: "arguments" if f.argument else "",
)  # fmt: skip
@cause(
    "module state", "python", table.MEMORY, "nnx.jit copies the state of a module in each call",
    "Jit {name} with {argument}: the module's new arrays then take the memory of the old ones, which are "
    "gone, under every name; nnx.clone(model, arrays=True) makes a copy that stays.",
    confidence="bound",
)  # fmt: skip
def find_donations(analysis: Analysis) -> Iterator[Finding]:
    """Find programs that could donate an argument: the caller, or nnx.jit, replaces it by the result."""
    for facts, c, program, program_s in called_programs(analysis):
        if c.through == "flax":
            matches = ((_IN_MODULE.match(where), shape_of(text)) for where, text in c.signature.items())
            passed = [(match[1], array) for match, array in matches if match and array]
            cause, which, every = "module state", "of its modules' state", False
        else:
            names, still_used = loop_body.replaced_variables(c.at, c.callers)
            passed, every = list(loop_body.passed_arguments(c, names)), bool(names and not still_used)
            which = f" ({', '.join(sorted(names))})" if still_used else ""
            cause, which = "donation", f"of the same types as arguments that the caller replaces{which}"
        shared = facts.unshared_bytes(None if every else [array for _, array in passed])
        if shared:
            size = format_quantity(shared, "bytes")
            reason = f"{facts.name} returns {size} {which}, and each call makes new memory for them"
            option = loop_body.donating_option([argument for argument, _ in passed]) if passed else ""
            copied_s = _copied_s(analysis, facts, program, program_s, shared)
            yield Finding(cause, c.at, copied_s, reason, facts.name, shared, option)


@cause(
    "eager copy", "eager", table.MEMORY, "an array is copied to change a part of it",
    "Do so in a function under jax.jit with donate_argnums of the array, which then changes in place. The "
    "old array is gone then, under every name.",
    confidence="bound",
)  # fmt: skip
def find_eager_copies(analysis: Analysis) -> Iterator[Finding]:
    updates = [c for c in analysis.log.compiled if not c.explained and _changes_part(c.at)]
    looks = Counter(s.at for s in analysis.of_kinds(EAGER) if updates)
    for facts, c, program, program_s in called_programs(analysis, {c.program: c for c in updates}):
        if facts.old or not (shared := facts.unshared_bytes()):
            continue
        lines = {p[:2] for p in facts.places}
        made = [u.at for u in updates if u.program == facts.program and u.at[:2] in lines] or [c.at]
        # copies fill the queue, and the front end then waits at the next update, of another array
        others = {u.at for u in updates}.difference(made)
        sampled = (at for at, _ in looks.most_common() if at not in others and _changes_part(at))
        size = format_quantity(shared, "bytes")
        reason = f"each call copies an array of {size}, of which it changes a part"
        copied_s = _copied_s(analysis, facts, program, program_s, shared)
        yield Finding("eager copy", next(sampled, made[0]), copied_s, reason, facts.name, shared)


def _changes_part(at: Place) -> bool:
    """Return whether a statement is an update like `x = x.at[i].set(y)`."""
    for node in statements.enclosing_nodes(at, ast.Assign):
        parts = [n.value for n in ast.walk(node.value) if isinstance(n, ast.Attribute) and n.attr == "at"]
        return bool({ast.unparse(t) for t in node.targets} & set(map(ast.unparse, parts)))
    return False


def _copied_s(
    analysis: Analysis, facts: Facts, program: ExecutedProgram, program_s: float, shared: int
) -> float:
    """Return the device seconds in which a program copies `shared` bytes of its arguments in each call."""
    scale = analysis.scale(program)
    copied_s = program.op_s(_copies_of_arguments(facts).__contains__) * scale
    # all calls may have been made before a window
    times = max(program.calls, execution_count(program, facts))
    return min(copied_s, program_s, times * scale * shared / SLOWEST)


def _copies_of_arguments(facts: Facts) -> set[str]:
    """Return the instructions that copy an argument as it is, not into another layout, which stays."""
    return {
        i.name
        for i in facts.instructions
        if i.computation == facts.module.entry and "copy" in i.name and "transpose" not in i.name
        for argument in facts.module.operands(i)
        if argument.opcode == "parameter" and argument.type in i.type
    }


@cause(
    "shuffled draws", "program", table.PERFORMANCE, "all rows are sorted at random to draw a few",
    "jax.random.choice without replacement, and permutation, sort all indices at random in each call. Draw "
    "with jax.random.randint if a row may come twice; or make one permutation for many turns, of which each "
    "takes the next part.",
    confidence="bound",
)  # fmt: skip
@cause(
    "one-hot product", "program", table.PERFORMANCE, "a product with one-hot rows does what an index does",
    "To take rows, index them: table[indices]. To add up rows by index, use jax.ops.segment_sum(rows, "
    "indices, num_segments), or x.at[indices].add(rows). The product goes through all zeros, too.",
    confidence="bound",
)  # fmt: skip
def find_costly_ways(analysis: Analysis) -> Iterator[Finding]:
    """Find programs of which much is work that JAX has a cheaper operation for."""
    for facts, c, program, program_s in called_programs(analysis):
        sorts = [i for i in facts.instructions if i.opcode == "sort" and "_shuffle" in i.op_name]
        products = list(_one_hot_products(facts))
        for name, found, does in (
            ("shuffled draws", sorts, "sorts all indices at random"),
            ("one-hot product", products, "multiplies with rows that are zero but for a one"),
        ):
            seconds = program.seconds_of(found)
            # a window may have seen none of an execution's time
            share = min(1.0, sum(seconds.values()) / program.busiest_s) if program.busiest_s else 0.0
            if share >= CONSTANT_SHARE:
                at = _dearest(facts, seconds) or c.at
                yield Finding(name, at, program_s * share, f"{share:.0%} of {c.called} {does}", c.called)


def _one_hot_products(facts: Facts) -> Iterator[Instruction]:
    """Yield what makes large one-hot rows, and the products with them."""
    for i in facts.instructions:
        dot = i.opcode == "dot" or any(j.opcode == "dot" for j in facts.module.inside(i))
        for part in (i, *(facts.module.operands(i) if dot else ())):
            if "_one_hot" in part.op_name and part.bytes >= LARGE:
                yield i
                break


@cause(
    "both branches", "program", table.PERFORMANCE, "vmap computes both sides of a branch",
    "If all elements branch alike, as by a counter, keep what decides out of vmap (in_axes=None): the branch "
    "stays one. Otherwise choose the elements first (sort or gather them), or use jax.lax.map, which "
    "branches for one element after the other.",
    confidence="bound",
)  # fmt: skip
def find_selected_branches(analysis: Analysis) -> Iterator[Finding]:
    for facts, c, program, program_s in called_programs(analysis):
        for at, sides in selected_branches(facts):
            costs = sorted(branch_s(facts, program, side) for side in sides)
            # an element needs one side: of several costly ones, that is the costliest at most
            if seconds := costs[0] if len(costs) == 1 else sum(costs[:-1]):
                share = min(1.0, seconds / program.busiest_s)
                reason = (
                    f"under vmap, this branch is a select: {c.called} computes both sides for every element, "
                    f"and if none needed the other side, it would save {share:.0%} of its time"
                )
                yield Finding("both branches", at, program_s * share, reason, c.called)


def selected_branches(facts: Facts) -> Iterator[tuple[Place, list[list[Instruction]]]]:
    """Yield each `lax.cond` that `vmap` has turned into a select, and its costly branches' instructions."""
    selects = [i for i in facts.instructions if i.opcode == "select" and "/select_n" in i.op_name]
    named = dict(_branching(at) for at in {facts.at(i): 0 for i in selects if "vmap(" in i.op_name})
    # what decides is the same for all elements there, and the select is another operation's
    branching = (facts.at(i) for i in facts.instructions if i.opcode == "conditional")
    for at in (NOWHERE, *(_branching(at)[0] for at in branching)):
        named.pop(at, None)
    inside: dict[str, list[Instruction]] = defaultdict(list)
    for i in facts.instructions if named else ():
        for function in {p.function.rpartition(".")[2] for p in facts.module.frames(i)}:
            inside[function].append(i)
    for at, names in named.items():
        functions = [
            function
            for function in sorted(names & inside.keys())
            if len(inside[function]) >= MANY or any(i.opcode in _HEAVY for i in inside[function])
        ]
        if functions:
            yield (
                at,
                [[i for i in inside[f] if _branch_calls(at, f, facts.module.frames(i))] for f in functions],
            )


def _branching(at: Place) -> tuple[Place, set[str]]:
    """Return the line of the `lax.cond` or `lax.switch` around a line, and the names in its branches."""
    calls = statements.calls_in(statements.innermost(at, ast.stmt))
    calls = [call for call in calls if call.lineno <= at.line <= (call.end_lineno or call.lineno)]
    calls = [call for call in calls if statements.last_name(call.func) in ("cond", "switch")]
    branches = [b for call in calls for b in (*call.args[1:3], *(k.value for k in call.keywords))]
    return (at._replace(line=calls[0].lineno) if calls else NOWHERE), _names(*branches)


def _names(*nodes: ast.AST) -> set[str]:
    """Return all names in expressions, such as "step" of self.step."""
    return {getattr(n, "id", "") or getattr(n, "attr", "") for node in nodes for n in ast.walk(node)} - {""}


def _branch_calls(at: Place, function: str, frames: Sequence[Place]) -> bool:
    """Return whether the branch at a line has called the function, rather than another line that names it.

    JAX calls a branch, and what called JAX is not among the frames then.
    """
    last = max(n for n, p in enumerate(frames) if p.function.rpartition(".")[2] == function)
    callers = [statements.innermost(p, ast.stmt) for p in frames[last + 1 : last + 2]]
    return any(
        caller is None or caller is statements.innermost(at, ast.stmt) or function not in _names(caller)
        for caller in callers
    )


def branch_s(facts: Facts, program: ExecutedProgram, branch: list[Instruction]) -> float:
    around = containers(facts, {op for _, op in program.ops})
    return sum(program.seconds_of(i for i in branch if i.name not in around).values())


@cause(
    "unrolled", "program", table.FORBIDDEN, "Python unrolls a loop while tracing",
    "Write the loop as jax.lax.fori_loop, or as jax.lax.scan, over stacked weights or inputs where turns "
    "have their own. An array that grows in it needs its final length from the start.",
    forms={
        "array": "Call JAX's own function for the whole array, such as jnp.sum in place of Python's sum, and "
        "jax.vmap in place of a comprehension.",
    },
)  # fmt: skip
def find_unrolled_loops(analysis: Analysis) -> Iterator[Finding]:
    costs = (analysis.compiling_s([c]) for c in analysis.log.compiled if COMPILE in c.stages)
    least_s = min(costs, default=0.0)
    equal = group_by(analysis.log.compiled, lambda x: (x.program, x.defined))
    seconds = {function: analysis.compiling_s(same) for function, same in equal.items()}
    for facts, c in new_programs(analysis):
        # of a library's function, it is a call alone that is known
        same = equal.get((c.program, c.defined), [])
        compiling_s = seconds.get((c.program, c.defined), 0.0)
        if compiling_s < table.least_saving_s(analysis):  # reading a program takes long
            continue
        # each program and the body of its loop cost what every small program costs
        unrolled_s = max(0.0, compiling_s - 2 * least_s * len(same))
        taken = group_by((i for i in facts.instructions if i.operation == "unstack"), facts.at)
        elements = {at: _elements_taken(same) for at, same in taken.items()}
        long = c.total_s >= COMPILE_S
        enough = executables.IN_A_ROW if long else executables.EQUAL_COUNT
        iterated = [at for at, count in elements.items() if at and count >= enough]
        outside = (c.at, *c.callers)
        loops = executables.unrolled_loops(facts, few=long, outside=outside)
        if not loops:
            loops = executables.loops_over_rows(facts, few=long, outside=outside)
        if loops:
            (loop, *others), share = loops, sum(x.share for x in loops)
            reason = (
                f"{c.called} holds the operations of all turns of this loop, such as {loop.iterations} "
                f"{loop.operation}, since Python unrolled it"
            )
            if others:
                reason += f"; the same is so at {table.lines_beside(loop.at, [x.at for x in others])}"
            saved_s = unrolled_s * share * (1 - 1 / loop.iterations)
            yield Finding("unrolled", loop.at, saved_s, reason, c.called)
        elif iterated:
            shares = _shares_below(facts, iterated)
            at = max(shares, key=shares.__getitem__)
            reason = f"{c.called} takes the elements of an array one by one here, as Python iterates over it"
            saved_s = unrolled_s * shares[at] * (1 - 1 / elements[at])
            yield Finding("unrolled", at, saved_s, reason, c.called, form="array")


def _shares_below(facts: Facts, lines: Sequence[Place]) -> dict[Place, float]:
    """Return the share of a program's operations that come from each line, or from what it calls."""
    stacks = [{p[:2] for p in facts.module.frames(i)} for i in facts.instructions]
    known = [stack for stack in stacks if stack]
    return {at: sum(at[:2] in stack for stack in known) / len(known) for at in lines}


def _elements_taken(slices: list[Instruction]) -> int:
    """Return how many elements are taken; fusion copies a slice, and JAX takes the words of a key apart."""
    return len({*executables.ROW.findall(" ".join(i.text for i in slices))})


@cause(
    "constant", "memory", table.SYMBOLIC, "a large array is compiled into a program",
    "Put {argument} on the device once, with jax.device_put, and pass it to {name}, which only refers to "
    "it, as an argument. What {name} computes from it alone, compute once, and pass that.",
    confidence="bound",
)  # fmt: skip
def find_constants(analysis: Analysis) -> Iterator[Finding]:
    for facts, c in new_programs(analysis):
        if not c.at or library_of(c.defined.rpartition(":")[0]):
            continue
        constants = [shape for shape in facts.constants() if shape.bytes >= SMALL]
        names = [name for name, text in c.refers_to.items() if shape_of(text) in constants]
        if (total := sum(shape.bytes for shape in constants)) >= CONSTANT:
            which = f" ({', '.join(names)})" if names else ""
            reason = (
                f"{format_quantity(total, 'bytes')} of arrays{which} are constants of {c.called}, which "
                "compiling takes through all its stages, and which each program holds once more"
            )
            seconds = min(c.seconds(COMPILE), total / COMPILED)
            yield Finding("constant", c.at, seconds, reason, c.called, total, argument=(names or [""])[0])


@cause(
    "constant work", "program", table.PERFORMANCE, "a program computes the same in each call",
    "Compute it once, in a jitted function of its own, and pass the result to {name} as an argument.",
    forms={
        "loop": "Compute it before the loop, and let the loop's function or branch use the result. If "
        "jax.checkpoint wraps the function of a scan, prevent_cse=False lets XLA do so, too.",
    },
)  # fmt: skip
def find_constant_work(analysis: Analysis) -> Iterator[Finding]:
    for facts, c, program, program_s in called_programs(analysis):
        yield from _same_in_loops(facts, c, program, program_s)
        # windows may have seen the begin of an execution, and the rest of it depends
        if program.cut_off or not facts.layout[0]:
            continue
        seconds = program.seconds_of(executables.independent_instructions(facts, facts.module.entry))
        total_s, fixed_s = program.op_s(facts.steps.__contains__), sum(seconds.values())
        runs = max(program.calls, len(program.run_s))
        if total_s and fixed_s >= CONSTANT_SHARE * total_s and runs >= 2:
            reason = (
                f"{fixed_s / total_s:.0%} of each call of {c.called} goes to what depends on none of its "
                "arguments, and gives the same each time"
            )
            once = 1 / (runs * max(1.0, analysis.scale(program)))  # it is computed in any case
            saved_s = program_s * fixed_s / total_s * (1 - once)
            yield Finding("constant work", _dearest(facts, seconds) or c.at, saved_s, reason, c.called)


def _same_in_loops(
    facts: Facts, c: Compiled, program: ExecutedProgram, program_s: float
) -> Iterator[Finding]:
    executions = len(program.run_s) or program.calls or 1  # or parts of them
    runs = Counter[str]()
    for (_, op), times in program.ops.items():
        runs[op] += len(times)
    for loop in (i for i in facts.instructions if i.opcode == "while"):
        seconds = program.seconds_of(executables.same_in_each_turn(facts, loop))
        for i in seconds:
            # each execution needs it once, and if an outer loop repeats this one, so does each of its turns
            once = max(executions / max(runs[i.name], executions), 1 / (loop.trips or runs[i.name] or 1))
            seconds[i] *= 1 - once
        repeated_s = sum(seconds.values())
        if repeated_s > CONSTANT_SHARE * program.busiest_s:
            share = min(1.0, repeated_s / program.busiest_s)
            reason = (
                f"{share:.0%} of {c.called} goes to what is the same in each turn of its loop, and which XLA "
                "leaves there, as it does in a branch and in what jax.checkpoint computes again"
            )
            at = _dearest(facts, seconds) or c.at
            yield Finding("constant work", at, program_s * share, reason, c.called, form="loop")


def _dearest(facts: Facts, seconds: Mapping[Instruction, float]) -> Place:
    return next(filter(None, map(facts.at, sorted(seconds, key=lambda i: -seconds[i]))), NOWHERE)


@cause(
    "forward twice", "program", table.PERFORMANCE, "a value and its gradient are computed by two programs",
    "Compute both in one program: jax.value_and_grad of the function, under jax.jit, returns the value that "
    "{name} computes once more.",
)  # fmt: skip
def find_forward_twice(analysis: Analysis) -> Iterator[Finding]:
    """Find programs whose matrix products another program of the same loop computes, too, for a gradient."""
    calls = []
    for facts, c, _, program_s in called_programs(analysis):
        # a function of the reader's may make the call for the loop
        loops = (statements.innermost(at, statements.LOOP) for at in (c.at, *c.callers))
        calls.append((c, program_s, next(filter(None, loops), None), _products(facts)))
    for c, program_s, loop, products in calls:
        derives = any(backward for *_, backward in products)
        for gradient, _, other_loop, others in calls if loop and products and not derives else ():
            same = other_loop is loop and {t for _, t in gradient.arrays} == {t for _, t in c.arrays}
            # a number that only the value gets makes another function of it; the gradient may have a rate
            same = same and Counter(c.numbers) <= Counter(gradient.numbers)
            # a line of the loop itself may compute with other data
            if same and all(statements.innermost(at, statements.LOOP) is loop for at in (c.at, gradient.at)):
                same = loop_body.same_sources(c.at, gradient.at, loop)
            if same and products < others and any(backward for *_, backward in others):
                reason = (
                    f"the program that line {gradient.at.line} calls computes the {products.total()} matrix "
                    f"products of {c.called}, too, for the same arguments in the same loop"
                )
                seconds = program_s + analysis.compiling_s([c])  # there is no such program then
                yield Finding("forward twice", c.at, seconds, reason, c.called)
                break


@cause(
    "evaluation", "program", table.PERFORMANCE, "each step is followed by an evaluation that takes long",
    "Call {name} in every tenth step only, or on fewer rows. What the step computes anyway, such as its "
    "loss, it can return.",
    confidence="bound",
)  # fmt: skip
def find_evaluations(analysis: Analysis) -> Iterator[Finding]:
    """Find programs that run once a step, and whose few numbers are only printed, logged or kept."""
    calls = []
    for facts, c, program, program_s in called_programs(analysis):
        # a function of the reader's may make the call for the loop
        at = next((p for p in (c.at, *c.callers) if statements.innermost(p, statements.LOOP)), NOWHERE)
        few = 0 < sum(shape.bytes for shape in facts.layout[1]) <= SMALL
        calls.append((c, program, program_s, at, few))
    twice = {f.at for f in table.findings_of(analysis, find_forward_twice)}
    for c, program, program_s, at, few in calls:
        dear = program_s >= EVALUATION_SHARE * analysis.computing_s > 0
        if not few or not dear or c.at in twice:
            continue
        steps = [
            step.called
            for step, ran, _, other, _ in calls
            if ran.calls >= TURNS
            and program.calls >= EACH_TURN * ran.calls
            and loop_body.is_only_kept(at, other)
        ]
        if steps:
            share = min(1.0, program_s / analysis.computing_s)
            reason = (
                f"{c.called} runs in each turn beside {steps[0]} and takes {share:.0%} of the devices' time, "
                "but the loop only prints, logs or keeps its result"
            )
            yield Finding("evaluation", c.at, program_s, reason, c.called)


def _products(facts: Facts) -> Counter[tuple[Place, str, bool]]:
    """Count matrix products by their lines, their operations, and whether they are a gradient's."""
    return Counter(
        (facts.at(i), i.operation, "transpose(" in i.op_name)
        for i in facts.instructions
        if i.opcode in executables.MULTIPLYING and i.operation in executables.PRODUCTS
    )


@cause(
    "callback", "program", table.ASYNCHRONOUS, "the program stops for Python on the host",
    "Do the same with jnp or lax, if that is faster: time it first. On a CPU, what jnp sorts for, such as "
    "jnp.median, may take longer than NumPy.",
    forms={
        "debug": (
            "Leave it out where nobody reads it, put jax.lax.cond around it so that it runs in few turns, "
            "or return the value, and print it after the call."
        ),
    },
    choose=lambda f: "debug" if "debug." in f.at.source else "",
)  # fmt: skip
def find_callbacks(analysis: Analysis) -> Iterator[Finding]:
    sampled = [(s.start, s.end) for s in (*analysis.of_kinds(CALLBACK), *analysis.log.called_back)]
    # JAX also calls the reader's functions to trace them
    sampled_s = total_length(difference(sampled, analysis.compiling.stretches))
    seconds = dict[tuple[str, Place], float]()
    for facts, c in new_programs(analysis):
        program = analysis.ran(facts)
        for op, line in facts.callbacks():
            seen_s = program.op_s(op.__eq__) * analysis.scale(program) if program else 0.0
            seconds[facts.name, line or c.at] = seconds.get((facts.name, line or c.at), 0.0) + seen_s
    # windows may have missed it; of several, those that they saw, since an error check is rarely called
    missed = len(seconds) == 1 or not any(seconds.values())
    for (name, at), seen_s in seconds.items():
        reason = f"each call of {name} stops for Python on the host here"
        yield Finding("callback", at, max(seen_s, sampled_s if missed else 0.0), reason, name)


@cause(
    "shards", "program", table.DATA_PARALLEL, "one device gets more work than the others",
    'Give all devices equal shares: jax.device_put(x, NamedSharding(mesh, P("data"))) over a jax.make_mesh '
    "of all of them.",
    confidence="bound",
)  # fmt: skip
def find_unequal_shards(analysis: Analysis) -> Iterator[Finding]:
    for name, programs in analysis.programs.items():
        by_devices = group_by(programs, lambda facts: facts.devices)
        flops = {devices: max(f.flops for f in same) for devices, same in by_devices.items()}
        program = analysis.log.activity.programs.get(name)
        at = next((at for c, at in analysis.called if c.program == name), NOWHERE)
        apart = len({d for devices in flops for d in devices}) == sum(map(len, flops))
        # several functions may have one name, as lambdas do
        defined = {c.defined for c in analysis.log.compiled if c.explained and c.program == name}
        if program is None or not at or len(flops) < 2 or not apart or len(defined) > 1:
            continue
        most, mean = max(flops.values()), sum(flops.values()) / len(flops)
        if min(flops.values()) and most >= UNEQUAL * mean:
            busy_s = program.busiest_s * analysis.scale(program)
            reason = (
                f"{name} computes {format_quantity(most, 'FLOP')} per call on one device and "
                f"{format_quantity(mean, 'FLOP')} in the mean of {len(flops)}, and the others wait for it"
            )
            yield Finding("shards", at, busy_s * (1 - mean / most) * analysis.beside, reason, name)


@cause(
    "known fault", "version", table.VERSIONS,
    "the installed version of JAX has a fault that this program meets",
    "Take another version.",
    confidence="bound",
    forms={fault.issue: f"{fault.way_out[0].upper()}{fault.way_out[1:]}." for fault in FAULTS},
    choose=lambda f: f.argument,  # the issue
)  # fmt: skip
def find_known_faults(analysis: Analysis) -> Iterator[Finding]:
    for fault, facts, call, at in met_faults(analysis):
        if fault.factor:
            slow_s = _slow_s(analysis, fault, facts) * (1 - 1 / fault.factor)
            reason = _reason(fault, call)
            yield Finding("known fault", at, slow_s, reason, call.called, argument=fault.issue)


def _slow_s(analysis: Analysis, fault: Fault, facts: Facts) -> float:
    """Return the device seconds of the instructions that a fault hits.

    The profiler's windows may be shorter than one execution, and then see neither it nor its instructions.
    """
    hits = fault.hits(facts.module)
    inside = {i.computation for i in hits}
    names = {i.name for i in hits} | {i.name for i in facts.instructions if i.called in inside}
    whole = fault.factor >= LARGE_FACTOR
    for seen, _, program, program_s in called_programs(analysis):
        if seen is facts:
            hit_s = min(program_s, program.op_s(names.__contains__) * analysis.scale(program))
            return program_s if whole and not hit_s else hit_s
    return analysis.computing_s if whole else 0.0


def fault_notes(analysis: Analysis) -> Iterator[str]:
    for fault, _, call, at in met_faults(analysis):
        if not fault.factor:
            yield f"{_reason(fault, call)} ({at}); {fault.way_out}"


def _reason(fault: Fault, call: Compiled) -> str:
    version = importlib.metadata.version("jaxlib")
    times = f", up to {fault.factor:g} times longer" if fault.factor else ""
    return f"{call.called} has {fault.name}; with jaxlib {version} {fault.symptom}{times} ({fault.issue})"


@once
def met_faults(analysis: Analysis) -> list[tuple[Fault, Facts, Compiled, Place]]:
    """Return the faults that the reader's programs meet, each once a line: with the call and the line."""
    import jax

    version, kind = importlib.metadata.version("jaxlib"), jax.local_devices()[0].device_kind
    met: dict[tuple[str, Place], tuple[Fault, Facts, Compiled, Place]] = {}
    for facts in analysis.log.programs:
        call = analysis.jitted.get(facts.program)
        if call is None:
            continue
        for fault in faults_of(version, facts.platform, kind):
            for instruction in fault.hits(facts.module):
                at = facts.at(instruction) or call.at
                met.setdefault((fault.issue, at), (fault, facts, call, at))
    return list(met.values())


def called_programs(
    analysis: Analysis, calls: Mapping[str, Compiled] | None = None
) -> Iterator[tuple[Facts, Compiled, ExecutedProgram, float]]:
    """Yield programs that ran in windows: facts, the call that made each, what was seen, device seconds.

    These are programs of the reader's functions, or those for whose names `calls` has a call.
    """
    for facts in analysis.log.programs:
        program = analysis.ran(facts)
        c = _call(analysis, facts) if calls is None else calls.get(facts.program)
        if program and c and c.at and program.devices:
            busy_s = program.busiest_s * _parts(analysis, facts.program)[id(facts)]
            if program.cut_off:  # instructions that a window cut off have no events
                busy_s *= cut_off_factor(analysis)
            yield facts, c, program, busy_s * analysis.scale(program)


@once
def _parts(analysis: Analysis, name: str) -> dict[int, float]:
    """Return which part of what windows saw of a name each program has, by the id of its facts.

    Windows have only a program's name. If several programs share it, an execution is that of the program
    whose instructions it ran; of several such programs, it is an equal part of each.
    """
    programs, record = analysis.programs[name], analysis.log.activity.programs[name]
    if len(programs) == 1:  # reading a program takes long
        return {id(programs[0]): 1.0}
    runs: Mapping[frozenset[str], float] = record.runs or {
        frozenset([op]): sum(times) for (_, op), times in record.ops.items()
    }
    names = {id(facts): {i.name for i in facts.instructions} for facts in programs}
    seen = {op for _, op in record.ops}

    def apart(ran: frozenset[str], facts: Facts) -> tuple[int, int]:
        missing = (facts.steps & seen) - ran if record.runs else ()
        return len(ran - names[id(facts)]), len(missing)

    seconds = dict.fromkeys(names, 0.0)
    for ran, run_s in runs.items():
        by_difference = group_by(programs, functools.partial(apart, ran))
        nearest = by_difference[min(by_difference)]
        for facts in nearest:
            seconds[id(facts)] += run_s / len(nearest)
    seen_s = sum(seconds.values())
    return {key: part_s / seen_s if seen_s else 1.0 for key, part_s in seconds.items()}


def new_programs(analysis: Analysis) -> Iterator[tuple[Facts, Compiled]]:
    calls = ((facts, _call(analysis, facts)) for facts in analysis.log.programs if not facts.old)
    return ((facts, c) for facts, c in calls if c)


def _call(analysis: Analysis, facts: Facts) -> Compiled | None:
    """Return the call that made a program: one with its name, preferably at a line of its instructions."""
    by_line = _calls_of_programs(analysis).get(facts.program)
    if by_line is None:
        return None
    lines = {p[:2] for p in facts.places} if len(by_line) > 1 else set()
    c, at = next((call for line, call in by_line.items() if line in lines), next(iter(by_line.values())))
    return replace(c, at=at)


@once
def _calls_of_programs(analysis: Analysis) -> dict[str, dict[tuple[str, int], tuple[Compiled, Place]]]:
    """Return the first call of each program from each line, by the program's name and by the line."""
    calls: dict[str, dict[tuple[str, int], tuple[Compiled, Place]]] = defaultdict(dict)
    for c, at in analysis.called:
        calls[c.program].setdefault(c.at[:2], (c, at))
    return calls
