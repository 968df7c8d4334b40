"""The reader's statements, from their source: the rows of one, what is around it, and what its calls pass."""

from __future__ import annotations

import ast
import contextlib
import functools
import linecache
import math
import re
import textwrap
from typing import Any

from jaxperf.watch.observe.source_location import Place

FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef
_INIT = re.compile(r"(\w[\w.]*\.init)\(")
_JITS = {"jit", "pmap", "filter_jit", "filter_pmap"}


@functools.cache
def syntax_tree(file: str) -> ast.Module:
    """Return the syntax tree of a file; empty if there is none."""
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return ast.Module([], [])


def statement_rows(at: Place) -> list[str]:
    """Return the rows of the statement around a line; of one with a body, its head."""
    node = innermost(at, ast.stmt)
    if node is None:
        return [at.source or "..."]
    last = head_end(node) if getattr(node, "body", None) else node.end_lineno
    return textwrap.dedent("".join(linecache.getlines(at.file)[_begin(node) - 1 : last])).splitlines()


@functools.cache  # rules ask about the line of each sample, and the walk is through the whole file
def enclosing_nodes(at: Place, kind: Any) -> tuple[Any, ...]:
    """Return the nodes of one kind of statement around a line, the innermost last."""
    nodes = [n for n in ast.walk(syntax_tree(at.file)) if isinstance(n, kind)]
    return tuple(sorted((n for n in nodes if _begin(n) <= at.line <= n.end_lineno), key=_begin))


def innermost(at: Place, kind: Any) -> Any:
    """Return the innermost node of one kind around a line; None if there is none."""
    return next(reversed(enclosing_nodes(at, kind)), None)


def _begin(node: Any) -> int:
    """Return the first line of a statement, that of its decorators if it has any."""
    return min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])


def head_end(node: Any) -> int:
    """Return the last line before a body."""
    return max(node.lineno, _begin(node.body[0]) - 1)


def turns_written(loop: ast.AST) -> float:
    """Return the turns of a loop over `range` of numbers; inf for any other."""
    over = getattr(loop, "iter", None) or next((g.iter for g in getattr(loop, "generators", ())), None)
    if isinstance(over, ast.Call) and last_name(over.func) == "range" and not over.keywords:
        with contextlib.suppress(ValueError, TypeError):  # an argument is no number
            return len(range(*map(ast.literal_eval, over.args)))
    return math.inf


def last_name(function: ast.expr) -> str:
    """Return the name of a function without what it is an attribute of: "jit" of `jax.jit`."""
    return ast.unparse(function).rpartition(".")[2]


def is_definition(at: Place) -> bool:
    """Return whether a line begins a function."""
    function = innermost(at, FUNCTION)
    return function is not None and function.lineno == at.line


def is_method(at: Place) -> bool:
    """Return whether the function around a line has a `self`."""
    function = innermost(at, FUNCTION)
    return function is not None and [a.arg for a in function.args.args[:1]] == ["self"]


def gives_a_value(at: Place) -> bool:
    """Return whether a statement assigns something, which the next ones may need."""
    return isinstance(innermost(at, ast.stmt), ast.Assign | ast.AugAssign | ast.AnnAssign)


def in_jitted(at: Place) -> bool:
    """Return whether a line is in a function that a decorator jits."""
    return any(_wrapper(d) for f in enclosing_nodes(at, FUNCTION) for d in f.decorator_list)


def jit_wrapper(file: str, function: str) -> str:
    """Return what jits a function in a file, as "nnx.jit" does; "jax.jit" if that is not written there."""
    for node in ast.walk(syntax_tree(file)):
        if isinstance(node, FUNCTION) and node.name == function:
            wrappers = [_wrapper(d) for d in node.decorator_list]
        elif isinstance(node, ast.Call) and node.args and function in (ast.unparse(node.args[0]), "<lambda>"):
            wrappers = [_wrapper(node.func)]
        else:
            continue
        if wrapper := next(filter(None, wrappers), ""):
            return wrapper
    return "jax.jit"


def _wrapper(decorator: ast.expr) -> str:
    """Return what jits in `@jax.jit`, `@nnx.jit(...)` or `@partial(jax.jit, ...)`; "" if nothing does."""
    if isinstance(decorator, ast.Call):
        inner = decorator.args[:1] if last_name(decorator.func) == "partial" else [decorator.func]
        return next(filter(None, map(_wrapper, inner)), "")
    return ast.unparse(decorator) if last_name(decorator) in _JITS else ""


def made_at(at: Place, kind: str) -> Place | None:
    """Return the line that makes an object of a class; None unless there is exactly one in the file."""
    calls = (n for n in ast.walk(syntax_tree(at.file)) if isinstance(n, ast.Call))
    lines = [call.lineno for call in calls if last_name(call.func) == kind]
    return at._replace(line=lines[0]) if len(lines) == 1 else None


def init_call(at: Place) -> str:
    """Return "model.init" for a line that calls `init` of a network or an optimizer outside jit, else ""."""
    match = _INIT.search(at.source)
    return match[1] if match and "jit(" not in at.source else ""


def variable_passed(at: Place, function: str, argument: str) -> str:
    """Return the variable that a call passes for an argument, or the parameter's name if it is none."""
    expression = argument_expression(at, function, argument) if argument else None
    if isinstance(expression, ast.Name | ast.Attribute):
        return ast.unparse(expression)
    return parameter_name(at.file, function, argument)


def argument_expression(at: Place, function: str, argument: str) -> ast.expr | None:
    """Return what the call in a line passes for an argument ("rate", "argument 2"); None if unclear."""
    statement = innermost(at, ast.stmt)
    calls = [n for n in ast.walk(statement) if isinstance(n, ast.Call)] if statement else []
    named = [call for call in calls if last_name(call.func) == function]
    position, keyword = argument.removeprefix("argument "), parameter_name(at.file, function, argument)
    values = [value for call in named or calls for value in _values_for(call, position, keyword)]
    return values[0] if len(values) == 1 else None


def parameter_name(file: str, function: str, argument: str) -> str:
    """Return the name of an argument that may be known by its position only."""
    names, position = _parameters(file, function), argument.removeprefix("argument ")
    return names[int(position)] if position.isdigit() and int(position) < len(names) else argument


def _parameters(file: str, function: str) -> list[str]:
    """Return a function's positional parameters; none unless there is exactly one such function."""
    functions = [n for n in ast.walk(syntax_tree(file)) if isinstance(n, FUNCTION) and n.name == function]
    return (
        [a.arg for a in [*functions[0].args.posonlyargs, *functions[0].args.args]]
        if len(functions) == 1
        else []
    )


def _values_for(call: ast.Call, position: str, keyword: str) -> list[ast.expr]:
    """Return what a call passes for an argument."""
    by_place = [call.args[int(position)]] if position.isdigit() and int(position) < len(call.args) else []
    return by_place + [k.value for k in call.keywords if k.arg == keyword]
