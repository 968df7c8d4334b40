"""The reader's statements, from their source: the rows of one, and what is around it."""

from __future__ import annotations

import ast
import contextlib
import functools
import linecache
import math
import textwrap
from typing import Any

from jaxperf.watch.observe.source_location import Place

FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef
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
    nodes = enclosing_nodes(at, ast.stmt)
    if not nodes:
        return [at.source or "..."]
    node = nodes[-1]
    last = head_end(node) if getattr(node, "body", None) else node.end_lineno
    return textwrap.dedent("".join(linecache.getlines(at.file)[_begin(node) - 1 : last])).splitlines()


def enclosing_nodes(at: Place, kind: Any) -> list[Any]:
    """Return the nodes of one kind of statement around a line, the innermost last."""
    nodes = [n for n in ast.walk(syntax_tree(at.file)) if isinstance(n, kind)]
    return sorted((n for n in nodes if _begin(n) <= at.line <= n.end_lineno), key=_begin)


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
    return any(f.lineno == at.line for f in enclosing_nodes(at, FUNCTION)[-1:])


def gives_a_value(at: Place) -> bool:
    """Return whether a statement assigns something, which the next ones may need."""
    nodes = enclosing_nodes(at, ast.stmt)
    return bool(nodes) and isinstance(nodes[-1], ast.Assign | ast.AugAssign | ast.AnnAssign)


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
