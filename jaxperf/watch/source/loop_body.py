"""Data flow between the statements of a loop: which of them wait for a step, and which could run ahead.

A step is a statement of a loop in the reader's code that calls a jitted function, directly or indirectly.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from jaxperf.watch.observe.source_location import Place
from jaxperf.watch.source import statements

LOOP = ast.For | ast.While | ast.AsyncFor
_FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef


class Flow(NamedTuple):
    """A statement, or the head of one with a body: the variables that it reads and those that it changes."""

    node: ast.stmt
    reads: frozenset[str]
    writes: frozenset[str]


def could_run_ahead(at: Place, steps: Collection[Place], called: str = "") -> bool:
    """Whether a statement feeds a step of its loop, and needs nothing that a step has computed.

    Args:
      at: a line of the statement.
      steps: lines that call jitted functions, directly or indirectly.
      called: if the statement is a step, the function among its arguments that is meant.
    """
    loop, own = stepping_loop(at, steps), statements.enclosing(at, ast.stmt)
    if loop is None:
        return False
    flows = _flows(at.file, loop)
    stepping = [f for f in flows if _is_step(f.node, at.file, steps)]
    computed = _reached(_writes(stepping), flows)
    if called:
        calls = (n for n in ast.walk(own[-1]) if isinstance(n, ast.Call) and _last(n.func) == called)
        return any(not _share(_reads(call), computed) for call in calls)
    mine = next((f for f in flows if f.node is own[-1]), None)
    if mine is None or not isinstance(mine.node, ast.Assign | ast.AnnAssign | ast.AugAssign):
        return False
    feeds = any(_share(f.reads, _reached(mine.writes, flows)) for f in stepping if f.node is not mine.node)
    return feeds and not _share(mine.reads, computed) and mine not in stepping


def is_step(at: Place, steps: Collection[Place]) -> bool:
    """Whether the statement at a line is, or calls, one of the steps."""
    own = statements.enclosing(at, ast.stmt)
    return bool(own) and _is_step(own[-1], at.file, steps)


def stepping_loop(at: Place, steps: Collection[Place]) -> ast.stmt | None:
    """The innermost loop around a line, in the same function, that has a step in its body."""
    functions = statements.enclosing(at, _FUNCTION)
    loops = [n for n in statements.enclosing(at, LOOP) if not functions or n.lineno > functions[-1].lineno]
    lines = {p.line for p in steps if p.file == at.file and p.function == at.function}
    for loop in reversed(loops):
        if any(statements.head_end(loop) < line <= loop.end_lineno for line in lines):
            return loop
    return None


def comes_back(at: Place) -> bool:
    """Whether what a statement assigns affects what it reads in the next turn of its loop."""
    loop, own = statements.enclosing(at, LOOP)[-1:], statements.enclosing(at, ast.stmt)[-1:]
    if not loop or not own or own == loop:
        return False
    mine = _flow(own[0])
    return _share(mine.reads, depending(loop[0], at.file, mine.writes) - mine.writes)


def reads_from(at: Place, other: Place) -> bool:
    """Whether a statement reads what another one in its function makes, or is that statement itself."""
    if (at.file, at.function) != (other.file, other.function):
        return False
    mine, making = (statements.enclosing(p, ast.stmt)[-1:] for p in (at, other))
    if not mine or not making or mine == making:
        return mine == making
    around = (statements.enclosing(other, _FUNCTION) or [statements.parsed(other.file)])[-1]
    flows = [_flow(node) for statement in around.body for node in _statements(statement)]
    return _share(_flow(mine[0]).reads, _reached(_flow(making[0]).writes, flows))


def changed_in(loop: ast.stmt, file: str) -> frozenset[str]:
    """Variables that a turn of a loop changes, including its counter."""
    return _writes(_flows(file, loop))


def depending(loop: ast.stmt, file: str, names: Collection[str]) -> frozenset[str]:
    """Variables of a loop that depend on `names`, in this turn or a later one."""
    return _reached(names, _flows(file, loop))


def made_ahead(statement: ast.Assign, loop: ast.stmt, file: str, *, count: str) -> ast.expr | None:
    """What a statement of a loop could compute turns ahead: its value, or the outermost such call in it.

    It reads nothing that a turn of the loop changes, other than the loop's counter `count`.
    """
    changed = changed_in(loop, file) - {count}
    calls = (n for n in ast.walk(statement.value) if isinstance(n, ast.Call))
    return next((n for n in (statement.value, *calls) if not _share(_reads(n), changed)), None)


def _is_step(node: ast.stmt, file: str, steps: Iterable[Place]) -> bool:
    end = statements.head_end(node) if getattr(node, "body", None) else node.end_lineno or node.lineno
    return any(p.file == file and node.lineno <= p.line <= end for p in steps)


@functools.cache
def _flows(file: str, loop: ast.stmt) -> tuple[Flow, ...]:
    """Every statement of a loop, including its head; a function defined inside counts as one statement."""
    return tuple(_flow(node) for node in _statements(loop))


def _statements(node: ast.stmt) -> Iterator[ast.stmt]:
    yield node
    if not isinstance(node, _FUNCTION | ast.ClassDef):
        for child in ast.iter_child_nodes(node):
            bodies = [child] if isinstance(child, ast.stmt) else getattr(child, "body", [])
            for inner in bodies if isinstance(bodies, list) else []:
                yield from _statements(inner)


def _flow(node: ast.stmt) -> Flow:
    match node:
        case ast.Assign(targets=targets, value=value):
            return Flow(node, _reads(value, *targets), _targets(*targets))
        case ast.AugAssign(target=target, value=value):
            return Flow(node, _reads(value) | _targets(target), _targets(target))
        case ast.AnnAssign(target=target, value=ast.expr() as value):
            return Flow(node, _reads(value), _targets(target))
        case ast.For(target=target, iter=value) | ast.AsyncFor(target=target, iter=value):
            return Flow(node, _reads(value), _targets(target))
        case ast.With(items=items) | ast.AsyncWith(items=items):
            made = [i.optional_vars for i in items if i.optional_vars is not None]
            return Flow(node, _reads(*(i.context_expr for i in items)), _targets(*made))
        case ast.If(test=test) | ast.While(test=test):
            return Flow(node, _reads(test), frozenset())
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=owner)) as call):  # values.append(x)
            return Flow(node, _reads(call), _reads(owner))
        case ast.FunctionDef(name=name):
            return Flow(node, _reads(node), frozenset({name}))
    return Flow(node, _reads(node) if not getattr(node, "body", None) else frozenset(), frozenset())


def _reads(*nodes: ast.AST) -> frozenset[str]:
    """The variables in some expressions, by their longest names: "self.table" and not "self"."""
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Name | ast.Attribute) and (name := dotted(node)):
            if isinstance(node.ctx, ast.Load):
                found.add(name)
        else:
            found |= _reads(*ast.iter_child_nodes(node))
    return frozenset(found)


def _targets(*nodes: ast.expr) -> frozenset[str]:
    """The variables that are assigned, fully or in part."""
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Tuple | ast.List):
            found |= _targets(*node.elts)
        elif isinstance(node, ast.Starred | ast.Subscript):
            found |= _targets(node.value)
        elif name := dotted(node):
            found.add(name)
    return frozenset(found)


def dotted(node: ast.AST) -> str:
    """The name "self.table" of an expression that is nothing else, or ""."""
    if isinstance(node, ast.Attribute):
        owner = dotted(node.value)
        return owner and f"{owner}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def _last(node: ast.expr) -> str:
    return dotted(node).rpartition(".")[2]


def _writes(flows: Iterable[Flow]) -> frozenset[str]:
    return frozenset().union(*(f.writes for f in flows))


def _reached(names: Collection[str], flows: Iterable[Flow]) -> frozenset[str]:
    """The variables that depend on `names`, in this turn of the loop or a later one."""
    found, before = frozenset(names), frozenset[str]()
    while found != before:
        before = found
        found |= _writes(f for f in flows if _share(f.reads, before))
    return found


def _share(a: Collection[str], b: Collection[str]) -> bool:
    """Whether two sets have a variable in common, or one has a part of a variable in the other."""
    return any(x == y or x.startswith(y + ".") or y.startswith(x + ".") for x in a for y in b)
