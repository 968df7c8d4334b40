"""The reader's statements, from their source: whole ones, heads of functions, and one as a function."""

from __future__ import annotations

import ast
import functools
import itertools
import linecache
import textwrap
from collections.abc import Sequence
from typing import Any, TypeGuard

from jaxperf.watch.observe.names import (
    FUNCTION,
    Assignment,
    bound,
    inputs,
    jax_modules,
    last_name,
    makes_function,
    names,
    objects,
    targets,
)
from jaxperf.watch.observe.source_location import Place

LONGEST = 6  # rows of a loop that is shown whole
_LOOP = ast.For | ast.While | ast.AsyncFor
# their arguments are often sizes, which must not be traced
_OF_SIZES = {
    "arange",
    "broadcast_to",
    "eye",
    "full",
    "key",
    "linspace",
    "ones",
    "PRNGKey",
    "repeat",
    "reshape",
    "tile",
    "zeros",
}
_ON_HOST = {"float", "int", "bool", "print", "item", "tolist", "asarray", "array", "device_get"}


@functools.cache
def parsed(file: str) -> ast.Module:
    """The syntax tree of a file; empty if there is none."""
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return ast.Module([], [])


def whole(at: Place) -> list[str]:
    """The rows of the statement that a line belongs to; if it has a body, its head and "..." for the body."""
    found = enclosing(at, ast.stmt)
    if not found:
        return [at.source or "..."]
    body = getattr(found[-1], "body", None)
    rows = _rows(at.file, _begin(found[-1]), head_end(found[-1]) if body else found[-1].end_lineno or at.line)
    if not body:
        return rows
    return [rows[0].removeprefix("el" if rows[0].startswith("elif") else ""), *rows[1:], "    ..."]


def loop(at: Place) -> list[str]:
    """The rows of the innermost loop around a line (of a long one, its head), or else of its statement."""
    found = enclosing(at, _LOOP)
    if not found:
        return whole(at)
    rows = _rows(at.file, found[-1].lineno, found[-1].end_lineno)
    return rows if len(rows) <= LONGEST else whole(Place(at.file, found[-1].lineno))


def head(file: str, function: str) -> list[str]:
    """The head of a function, "def step(w, x):"; with placeholder arguments if it is not found."""
    for node in ast.walk(parsed(file)):
        if isinstance(node, FUNCTION) and node.name == function:
            return _head(file, node)
    return [f"def {function}(*arguments):"]


def jitted(at: Place) -> list[str]:
    """The rows of a change that puts a line's operations into one program; empty if there is no such change.

    It jits the function around the line if all of that can be traced, or else puts the statement into a
    function of its own.
    """
    around = enclosing(at, FUNCTION)
    found = enclosing(at, ast.stmt)
    if not found:
        return []
    if around and _can_be_traced(around[-1]):
        rows = [
            *_head(at.file, around[-1]),
            *(_indented(whole(at)) if found[-1] is not around[-1] else ["    ..."]),
        ]
        return [f"+ {jit(at.file)}", *(f"  {row}" for row in rows)]
    return in_function(at)


def in_function(at: Place, *, donated: bool = False) -> list[str]:
    """The rows of a change that puts statements into a jitted function; empty if they cannot be traced.

    These are the statement at a line and those around it that call JAX too. With `donated` it is only the
    one, and the variable that it assigns is donated to the function.
    """
    found = enclosing(at, ast.stmt)
    if not found or not _fits(found[-1], at):
        return []
    run = [found[-1]] if donated else _run(found[-1], at)
    read, results = _read(run, at), _results(run, at)
    call = f"update_{results[0]}({', '.join(read)})"
    lines = dict.fromkeys(statement.lineno for statement in run)
    rows = [row for line in lines for row in whole(Place(at.file, line))]
    made = [f"def {call}:", *_indented([*rows, f"return {', '.join(results)}"])]
    return [
        f'+ @functools.partial(jax.jit, donate_argnames="{results[0]}")' if donated else "+ @jax.jit",
        *(f"+ {row}" for row in made),
        *(f"- {row}" for row in rows),
        f"+ {', '.join(results)} = {call}",
    ]


def _fits(statement: ast.stmt, at: Place) -> TypeGuard[Assignment]:
    """Whether a statement assigns variables, reads some, and can be traced."""
    if not isinstance(statement, Assignment) or _on_host(statement):
        return False
    whole_names = all(isinstance(t, ast.Name | ast.Tuple) for t in targets(statement))
    read = _read([statement], at)
    return whole_names and bool(read) and not objects(statement) & {*read}


def _run(statement: Assignment, at: Place) -> list[Assignment]:
    """The statement and those directly around it that fit and call nothing but JAX."""
    bodies = (getattr(n, part, None) for n in ast.walk(parsed(at.file)) for part in ("body", "orelse"))
    body = next(b for b in bodies if isinstance(b, list) and statement in b)
    place = body.index(statement)
    before = itertools.takewhile(lambda s: _joins(s, at), reversed(body[:place]))
    after = itertools.takewhile(lambda s: _joins(s, at), body[place + 1 :])
    return [*reversed(list(before)), statement, *after]


def _joins(statement: ast.stmt, at: Place) -> bool:
    """Whether a statement fits and calls nothing but JAX, with nothing that could be a size or an axis."""
    if not _fits(statement, at) or makes_function(statement.value):
        return False
    calls, modules = [n for n in ast.walk(statement) if isinstance(n, ast.Call)], jax_modules(parsed(at.file))
    roots = {ast.unparse(c.func).partition(".")[0] for c in calls}
    options = [a for c in calls for a in [*c.args[1:], *(k.value for k in c.keywords)]]
    passed = {n for option in options for n in names(option, ast.Load)} - modules
    known = bool(calls) and roots <= modules and passed <= _made_by_jax(at.file)
    return known and not {last_name(c.func) for c in calls} & _OF_SIZES


@functools.cache
def _made_by_jax(file: str) -> set[str]:
    """Variables of a file that somewhere get what JAX has computed."""
    modules, found = jax_modules(parsed(file)), set[str]()
    for statement in (n for n in ast.walk(parsed(file)) if isinstance(n, Assignment)):
        calls = (n.func for n in ast.walk(statement.value) if isinstance(n, ast.Call))
        if any(ast.unparse(f).partition(".")[0] in modules for f in calls):
            found |= {n for target in targets(statement) for n in names(target, ast.Store)}
    return found


def _read(run: Sequence[Assignment], at: Place) -> list[str]:
    """The variables that statements read before they assign them."""
    bodies, read, written = [parsed(at.file), *enclosing(at, FUNCTION)], [], set()
    for statement in run:
        read += [n for n in inputs(statement, bodies) if n not in written]
        written |= set(_written([statement]))
    return list(dict.fromkeys(read))


def _written(run: Sequence[Assignment]) -> list[str]:
    found = (n for s in run for target in targets(s) for n in names(target, ast.Store))
    return list(dict.fromkeys(found))


def _results(run: Sequence[Assignment], at: Place) -> list[str]:
    """What the statements assign and the rest of their function, or their own next turn, reads."""
    around = enclosing(at, FUNCTION)
    inside = {n for s in run for n in ast.walk(s)}
    rest = (n for n in ast.walk(around[-1] if around else parsed(at.file)) if n not in inside)
    read = {n.id for n in rest if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    written = _written(run)
    if len(run) == 1:
        return written
    return [n for n in written if n in read or n in _read(run, at)] or written[-1:]


def _head(file: str, function: Any) -> list[str]:
    rows, first = _rows(file, function.lineno, head_end(function)), function.body[0]
    if first.lineno > function.lineno:
        return rows
    return [rows[0][: first.col_offset - function.col_offset].rstrip()]  # its body is on the same line


def enclosing(at: Place, kind: Any) -> list[Any]:
    """Nodes of one kind of statement around a line, the innermost last."""
    nodes = [n for n in ast.walk(parsed(at.file)) if isinstance(n, kind)]
    return sorted((n for n in nodes if _begin(n) <= at.line <= n.end_lineno), key=_begin)


def _begin(node: Any) -> int:
    """The first line of a statement, that of its decorators if it has any."""
    return min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])


def _rows(file: str, first: int, last: int) -> list[str]:
    return textwrap.dedent("".join(linecache.getlines(file)[first - 1 : last])).rstrip().splitlines()


def _indented(rows: list[str]) -> list[str]:
    return [f"    {row}" for row in rows]


def head_end(node: Any) -> int:
    """The last line before a body."""
    return max(node.lineno, _begin(node.body[0]) - 1)


def _can_be_traced(function: ast.stmt) -> bool:
    """Whether a function is plain arithmetic: not a method, no loop or branch, nothing that needs a value."""
    assert isinstance(function, FUNCTION)
    arguments = [a.arg for a in function.args.args]
    plain = isinstance(function, ast.FunctionDef) and not function.decorator_list and arguments
    other = _LOOP | ast.If | ast.Yield | ast.YieldFrom | ast.Global | ast.Nonlocal | ast.Attribute
    stored = (n for n in ast.walk(function) if isinstance(n, other))
    unfit = [n for n in stored if not isinstance(n, ast.Attribute) or isinstance(n.ctx, ast.Store)]
    return bool(plain) and arguments[0] not in ("self", "cls") and not unfit and not _on_host(function)


def _on_host(node: ast.AST) -> bool:
    """Whether a node calls what needs an array's value."""
    calls = [n.func for n in ast.walk(node) if isinstance(n, ast.Call)]
    return any((getattr(f, "id", "") or getattr(f, "attr", "")) in _ON_HOST for f in calls)


def gives_a_value(at: Place) -> bool:
    """Whether a statement assigns something, which the next ones may need."""
    found = enclosing(at, ast.stmt)
    return bool(found) and isinstance(found[-1], ast.Assign | ast.AugAssign | ast.AnnAssign)


def jit(file: str) -> str:
    """The decorator to jit with: it depends on whether a file uses modules that keep state, or arrays."""
    imported = bound(parsed(file))
    return "@nnx.jit" if "nnx" in imported else "@eqx.filter_jit" if "eqx" in imported else "@jax.jit"
