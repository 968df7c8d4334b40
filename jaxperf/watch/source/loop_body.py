"""Data flow between the statements of a loop: which of them need a step's result, and which could run ahead.

A step is a statement in a loop of the reader's code that calls a jitted function, directly or indirectly.

`replaced_variables` finds the arguments that a call could donate: those that it replaces and that nothing
else keeps.
"""

import ast
import functools
import itertools
import re
from collections.abc import Collection, Iterable, Iterator
from typing import Any, NamedTuple

from jaxperf.hlo import Shape, shape_of
from jaxperf.watch.log import Compiled
from jaxperf.watch.observe.source_location import Place
from jaxperf.watch.source import statements
from jaxperf.watch.source.statements import LOOP, ROUND, dotted_name

_STORING = {
    "add", "append", "appendleft", "extend", "insert", "put", "put_nowait", "setdefault", "submit", "update",
}  # fmt: skip
OF_A_TYPE = (".shape", ".dtype", ".ndim", ".size", ".sharding")  # attributes of an array that are no arrays
FEW = 32  # a loop with at most so many iterations may be inside a jitted function
_DATA = re.compile("load|batch|data|iter|(?<!off)set|stream|sample|file|train|test|step|epoch")


def replaced_variables(at: Place, callers: tuple[Place, ...] = ()) -> tuple[set[str], set[str]]:
    """Return the variables that a statement passes and replaces, as in `w, loss = step(w, x)`.

    Those that could be donated come first, then those whose old arrays the program still uses. The innermost
    of the lines `callers` called the function around `at`.
    """
    names, function = _replaced(at), statements.innermost(at, statements.FUNCTION)
    scope = function or statements.syntax_tree(at.file)
    around = statements.innermost(at, ast.ClassDef) or scope

    def kept(name: str) -> bool:
        # other methods may read `self.w`
        nodes = ast.walk(around) if "." in name else (flow.node for flow in flows_of(scope))
        return _caller_keeps(callers, function, name) or any(_keeps(node, name) for node in nodes)

    still_used = set(filter(kept, names))
    return names - still_used, still_used


def passed_arguments(c: Compiled, names: Collection[str]) -> Iterator[tuple[str, Shape]]:
    """Yield the argument ("0", "w") and the type of each array that a call takes from variables `names`."""
    # once per argument, which may have hundreds of leaves
    expression = functools.cache(functools.partial(statements.argument_expression, c.at, c.called))
    for where, text in c.signature.items():
        match, array = re.match(r"(?:argument )?(\w+)", where), shape_of(text)
        if names and match and array and dotted_name(expression(match[0])) in names:
            yield match[1], array


def donating_option(arguments: Collection[str]) -> str:
    """Return the option of `jit` that donates arguments, which are given by number or name."""
    arguments = list(dict.fromkeys(arguments))
    numbers = [a for a in arguments if a.isdigit()]
    if len(numbers) == len(arguments):
        return f"donate_argnums={numbers[0] if len(numbers) == 1 else '(' + ', '.join(numbers) + ')'}"
    return f"donate_argnames={tuple(a for a in arguments if not a.isdigit())}"


def _replaced(at: Place) -> set[str]:
    for node in statements.enclosing_nodes(at, ast.Assign):
        passed = reads(*(a for call in statements.calls_in(node.value) for a in call.args))
        return {name for name in _targets(node) if any(f"{p}.".startswith(f"{name}.") for p in passed)}
    return set()


def _keeps(node: ast.AST, name: str) -> bool:
    """Return whether a statement makes a second reference to a variable's arrays, or gives it some."""
    match node:
        case (
            ast.Assign(value=value)
            | ast.AnnAssign(value=ast.expr() as value)
            | ast.AugAssign(value=ast.List() | ast.Tuple() as value)  # `old += [w]`, but not `total += w`
            | ast.Expr(value=ast.Yield(value=ast.expr() as value))
        ):
            kept = _shared(value)
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr=method), args=args)) if method in _STORING:
            kept = _shared(*args)
        case _:
            return False
    if not kept:  # as in most statements, and to look for targets takes longer
        return False
    if name in _targets(node):  # as in `w = start`
        return bool(kept - {name})
    return any(f"{n}.".startswith(f"{name}.") for n in kept)


def _shared(*nodes: ast.AST) -> set[str]:
    """Return the variables whose arrays are part of values; whatever computes returns new arrays."""
    names = set[str]()
    for node in nodes:
        match node:
            case ast.Name() | ast.Attribute():
                names |= {name for name in [ast.unparse(node)] if not name.endswith(OF_A_TYPE)}
            case ast.Subscript(value=inner, slice=ast.Constant(value=str())) | ast.Starred(value=inner):
                names |= _shared(inner)
            case ast.Tuple() | ast.List() | ast.Dict() | ast.BoolOp():
                names |= _shared(*ast.iter_child_nodes(node))
            case ast.IfExp(body=body, orelse=other):
                names |= _shared(body, other)
    return names


def _caller_keeps(callers: tuple[Place, ...], function: Any, name: str) -> bool:
    parameters = statements.parameters(function) if function else []
    if not callers or name not in parameters or function.name not in statements.called_at(callers[0]):
        return False
    passed = statements.argument_expression(callers[0], function.name, f"argument {parameters.index(name)}")
    return isinstance(passed, ast.Name | ast.Attribute) and ast.unparse(passed) not in _replaced(callers[0])


class Flow(NamedTuple):
    """The variables that a statement, or the head of a compound statement, reads and writes."""

    node: ast.stmt
    reads: frozenset[str]
    writes: frozenset[str]


def could_run_ahead(at: Place, steps: Collection[Place], called: str = "") -> bool:
    """Return whether a step of the loop needs a statement, which itself needs no result of a step.

    Of a statement that is a step itself, the function `called` in its arguments is judged.
    """
    loop, statement = stepping_loop(at, steps), statements.innermost(at, ast.stmt)
    if loop is None:
        return False
    flows = _flows(loop)
    stepping = [f for f in flows if _is_step(f.node, at.file, steps)]
    computed = reached(_writes(stepping), flows)
    if called:
        calls = (call for call in statements.calls_in(statement) if statements.last_name(call.func) == called)
        return any(not share(reads(call), computed) for call in calls)
    flow = _flow(statement)
    if flow in stepping or not isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign):
        return False
    made = reached(flow.writes, flows)
    return any(share(f.reads, made) for f in stepping) and not share(flow.reads, computed)


def between_steps(at: Place, steps: Collection[Place]) -> bool:
    """Return whether a step of a loop needs what a statement makes, which itself needs a step's result.

    Then neither can run beside the other. A call such as `problem.solve()` may also change what `problem` was
    made of in the loop, but for what steps return, since arrays of JAX do not change.
    """
    statement = statements.innermost(at, ast.stmt)
    for loop in _loops(at):
        flows = _flows(loop)
        stepping = [f for f in flows if f.node is not statement and _is_step(f.node, at.file, steps)]
        if not stepping or statement is loop:
            continue
        flow, computed = _flow(statement), _writes(stepping)
        made = flow.writes
        if isinstance(statement, ast.Expr):
            # a call does not change a loop's own variable either
            others = [f for f in flows if f not in stepping and not isinstance(f.node, ast.For)]
            made = (_made_of(made, others) & _writes(others)) - computed
        needed = any(share(f.reads, reached(made, flows)) for f in stepping)
        if needed and share(flow.reads, reached(computed, flows)):
            return True
    return False


def is_step(at: Place, steps: Collection[Place]) -> bool:
    statement = statements.innermost(at, ast.stmt)
    return statement is not None and _is_step(statement, at.file, steps)


def _is_step(node: ast.stmt, file: str, steps: Iterable[Place]) -> bool:
    return any(p.file == file and node.lineno <= p.line <= statements.head_end(node) for p in steps)


@functools.cache  # rules ask for each sample
def loop_of_steps(
    at: Place, data: frozenset[str] = frozenset(), iterated: frozenset[int] = frozenset()
) -> Any:
    """Return the innermost loop around a line within its function that is not a loop over layers; else None.

    That is a statement or a comprehension. A loop over layers has few iterations, or goes over a parameter of
    the function, such as `self.layers` or weights, unless its name suggests data, or it is one of `data`,
    or its line is one of those that were seen to iterate over an array.
    """
    function = statements.innermost(at, statements.FUNCTION)
    parameters = _parameters_and_parts(function) if function else set()
    for loop in _loops(at, ROUND):
        rounds = [] if isinstance(loop, ast.While) else getattr(loop, "generators", [loop])
        names = frozenset().union(*(_iterated(each.iter) for each in rounds))
        passed = rounds and all(name.partition(".")[0] in parameters for name in names)
        few = statements.turns_written(loop, at.file) <= FEW
        seen = bool(data & names) or loop.lineno in iterated
        over_data = seen or any(_DATA.search(name.lower()) for name in names)
        inside = not isinstance(loop, LOOP) or statements.head_end(loop) < at.line
        if inside and (over_data or not (passed or few)):
            return loop
    return None


@functools.cache  # for each line of a function
def _parameters_and_parts(function: Any) -> set[str]:
    """Return a function's parameters, and the variables that are parts of them: `*hidden, last = weights`."""
    names = {*statements.parameters(function)}
    for flow in flows_of(function):
        value = getattr(flow.node, "value", None)
        while isinstance(value, ast.Subscript):
            value = value.value
        if isinstance(flow.node, ast.Assign) and dotted_name(value).partition(".")[0] in names:
            names |= flow.writes
    return names


def _iterated(value: ast.expr) -> frozenset[str]:
    """Return the variables over which a loop goes, as in `enumerate(zip(keys, jnp.sort(x)))`; and "range"."""
    if not isinstance(value, ast.Call) or not value.args:
        return reads(value)
    counts = {"range"} & {statements.last_name(value.func)}
    return frozenset(counts).union(*map(_iterated, value.args))


def _loops(at: Place, kind: Any = LOOP) -> list[Any]:
    """Return the loops around a line within its function, the innermost first."""
    first = getattr(statements.innermost(at, statements.FUNCTION), "lineno", 0)
    return [loop for loop in reversed(statements.enclosing_nodes(at, kind)) if loop.lineno >= first]


def stepping_loop(at: Place, steps: Collection[Place]) -> ast.stmt | None:
    """Return the innermost loop around a line in its function that has a step in its body; else None."""
    lines = {p.line for p in steps if p.file == at.file and p.function == at.function}
    bodies = ((loop, range(statements.head_end(loop) + 1, loop.end_lineno + 1)) for loop in _loops(at))
    return next((loop for loop, body in bodies if not lines.isdisjoint(body)), None)


def use_in_loop(at: Place) -> str:
    """Return what a statement's result decides in its loop: what it reads in the "next turn", or a "test"."""
    loop, statement = statements.innermost(at, LOOP), statements.innermost(at, ast.stmt)
    if loop is None or loop is statement:
        return ""
    flow = _flow(statement)
    made = reached(flow.writes, _flows(loop))
    if share(flow.reads, made - flow.writes):
        return "next turn"
    tests = (node.test for node in statements.nodes_in(loop, ast.If | ast.While | ast.IfExp))
    return "test" if any(share(reads(test), made) for test in tests) else ""


def is_only_kept(at: Place, step: Place) -> bool:
    """Return whether a loop only prints, logs or keeps a statement's result, and its step needs its own."""
    loop, statement = statements.innermost(at, LOOP), statements.innermost(at, ast.stmt)
    stepping = statements.innermost(step, ast.stmt)
    if loop is None or loop is not statements.innermost(step, LOOP) or use_in_loop(at):
        return False
    flows, flow = _flows(loop), _flow(stepping)
    made = reached(_flow(statement).writes, flows)
    using = [f for f in flows if f.node is statement or share(f.reads, made)]
    needed = share(flow.reads, reached(flow.writes, flows))
    return needed and all(f.node is not stepping and _only_keeps(f) for f in using)


def _only_keeps(flow: Flow) -> bool:
    """Return whether a statement is `log(x)`, or sets a variable, whose old value it does not read."""
    match flow.node:
        case ast.Expr(value=ast.Call()):
            return True
        case ast.Assign(targets=targets):
            fields = itertools.chain(*(statements.nodes_in(target, ast.Attribute) for target in targets))
            stored = (n for n in fields if isinstance(n.ctx, ast.Store))
            return not any(stored) and not share(flow.reads, flow.writes)
    return False


def element_read(at: Place, *, any_use: bool = False) -> str:
    """Return the arrays of which a statement reads one element after the other, as "x, y"; "" for none.

    The index varies with a loop or a comprehension, as in `float(x[i])`, and the loop does not change the
    array. With `any_use`, the statement need not bring the elements to the host.
    """
    loop, statement = statements.innermost(at, LOOP), statements.innermost(at, ast.stmt)
    if statement is None or statement is loop:
        return ""
    # the lines of a block are statements of their own
    head = statement.test if isinstance(statement, ast.If | ast.While) else statement
    flows, rounds = _flows(loop) if loop else (), statements.nodes_in(head, ast.comprehension)
    varying = _writes(flows) | _targets(*(n.target for n in rounds))
    changed = _writes(f for f in flows if f.node is not loop)
    nodes = [*ast.walk(head)]
    if not any_use:
        calls = statements.calls_in(head)
        nodes = [c.args[0] for c in calls if c.args and ast.unparse(c.func) in ("float", "int", "bool")]
        nodes += [c.func.value for c in calls if isinstance(c.func, ast.Attribute) and c.func.attr == "item"]
        # an `if` reads what it tests, or compares
        nodes += _tested(head, statement)
    indexed = [n for n in nodes if isinstance(n, ast.Subscript) and isinstance(n.ctx, ast.Load)]
    names = dict.fromkeys(dotted_name(n.value) for n in indexed if share(reads(n.slice), varying))
    return ", ".join(name for name in names if name and not share({name}, changed))


def _tested(head: ast.AST, statement: ast.stmt) -> list[ast.expr]:
    """Return what a statement tests or compares: its own test, and those of `a if test else b` in it."""
    wholes = [n.test for n in ast.walk(head) if isinstance(n, ast.IfExp)]
    wholes += itertools.chain(*(n.ifs for n in ast.walk(head) if isinstance(n, ast.comprehension)))
    if isinstance(statement, ast.If | ast.While | ast.Assert):
        wholes.append(statement.test)
    tests = itertools.chain(*(t.values if isinstance(t, ast.BoolOp) else [t] for t in wholes))
    tested = [t.operand if isinstance(t, ast.UnaryOp) else t for t in tests]
    compared = [[t.left, *t.comparators] for t in tested if isinstance(t, ast.Compare)]
    return [*tested, *itertools.chain(*compared)]


def lines_of_elements(at: Place) -> set[int]:
    """Return the lines that use the elements of what a line iterates over, and call no function of JAX."""
    loop = statements.innermost(at, ast.stmt)
    users = [loop] if loop is not None else []
    if isinstance(loop, ast.For):
        elements = _targets(loop.target)
        users = [f.node for f in _flows(loop) if f.node is not loop and share(f.reads, elements)]
    simple = [node for node in users if not statements.jax_calls(node, at.file)]
    return {at.line}.union(*(range(n.lineno, (n.end_lineno or n.lineno) + 1) for n in simple))


def reads_from(at: Place, other: Place) -> bool:
    """Return whether a statement reads what another one in its function computes, or is the same one."""
    if statements.function_of(at) != statements.function_of(other):
        return False
    reading, making = (statements.innermost(p, ast.stmt) for p in (at, other))
    if reading is making or reading is None or making is None:
        return reading is making
    scope = statements.innermost(other, statements.FUNCTION) or statements.syntax_tree(other.file)
    return share(_flow(reading).reads, reached(_flow(making).writes, flows_of(scope)))


def needed_in_turns(at: Place) -> bool:
    """Return whether what a statement assigns is used in the same turn of its loop, or by other methods."""
    statement, loop = statements.innermost(at, ast.stmt), statements.innermost(at, LOOP)
    made = _targets(statement)
    if loop is None:
        return any("." in name for name in made)
    return any(share(flow.reads, made) for flow in _flows(loop) if flow.node is not statement)


@functools.cache
def _flows(node: ast.stmt) -> tuple[Flow, ...]:
    """Return the flow of each statement in a loop, with its head; a nested function counts as one."""
    return tuple(map(_flow, _statements(node)))


def flows_of(scope: Any) -> list[Flow]:
    return [flow for node in scope.body for flow in _flows(node)]


def _statements(node: ast.AST) -> Iterator[ast.stmt]:
    if isinstance(node, ast.stmt):
        yield node
    if not isinstance(node, statements.FUNCTION | ast.ClassDef):
        for child in ast.iter_child_nodes(node):
            yield from _statements(child)


def _flow(node: ast.stmt) -> Flow:
    if isinstance(node, statements.FUNCTION | ast.ClassDef):
        return Flow(node, reads(node), frozenset({node.name}))
    inner = ast.stmt | ast.ExceptHandler | ast.match_case
    head = [child for child in ast.iter_child_nodes(node) if not isinstance(child, inner)]
    read, written = reads(*head), _targets(*head)
    match node:
        case ast.AugAssign():
            read |= written
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=owner))):  # values.append(x)
            written |= reads(owner)
    return Flow(node, read, written)


def reads(*nodes: ast.AST) -> frozenset[str]:
    """Return the variables in some expressions by their full names: "self.table" rather than "self"."""
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Name | ast.Attribute) and (name := dotted_name(node)):
            if isinstance(node.ctx, ast.Load):
                names.add(name)
        else:
            names |= reads(*ast.iter_child_nodes(node))
    return frozenset(names)


def _targets(*nodes: ast.AST) -> frozenset[str]:
    """Return the variables that are assigned in nodes, fully or in part."""
    names: set[str] = set()
    for node in nodes:
        if isinstance(getattr(node, "ctx", None), ast.Store):
            while isinstance(node, ast.Starred | ast.Subscript):
                node = node.value
            names.add(dotted_name(node))
        if not isinstance(node, ast.comprehension):  # whose variables are its own
            names |= _targets(*ast.iter_child_nodes(node))
    return frozenset(names - {""})


def _writes(flows: Iterable[Flow]) -> frozenset[str]:
    return frozenset().union(*(f.writes for f in flows))


def reached(names: Collection[str], flows: Iterable[Flow]) -> frozenset[str]:
    """Return the variables that depend on `names`, in this iteration of the loop or a later one."""
    dependent, before = frozenset(names), frozenset[str]()
    while dependent != before:
        before = dependent
        dependent |= _writes(flow for flow in flows if share(flow.reads, before))
    return dependent


def _made_of(names: frozenset[str], flows: Collection[Flow]) -> frozenset[str]:
    """Return variables and those that the statements of a loop make them of."""
    before = frozenset[str]()
    while names != before:
        before = names
        names |= frozenset().union(*(flow.reads for flow in flows if share(flow.writes, before)))
    return names


def same_sources(at: Place, other: Place, loop: Any) -> bool:
    """Return whether a line in a loop needs nothing from outside of it that another line does not need."""
    flows = flows_of(loop)
    known = {call.func.id for call in statements.calls_in(loop) if isinstance(call.func, ast.Name)}
    known |= {*_writes(flows), *(name for name, _ in statements.imports(at.file))}

    def sources(place: Place) -> set[str]:
        needed = _made_of(_flow(statements.innermost(place, ast.stmt)).reads, flows)
        return {name.partition(".")[0] for name in needed} - known

    return sources(at) <= sources(other)


def share(a: Collection[str], b: Collection[str]) -> bool:
    """Return whether two sets share a variable, or one has an attribute of a variable in the other."""
    return any(x == y or x.startswith(y + ".") or y.startswith(x + ".") for x in a for y in b)
