"""The reader's statements, from their source: the rows of one, and what is around it."""

from __future__ import annotations

import ast
import functools
import linecache
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


def last_name(function: ast.expr) -> str:
    """Return the name of a function without what it is an attribute of: "jit" of `jax.jit`."""
    return ast.unparse(function).rpartition(".")[2]


def gives_a_value(at: Place) -> bool:
    """Return whether a statement assigns something, which the next ones may need."""
    nodes = enclosing_nodes(at, ast.stmt)
    return bool(nodes) and isinstance(nodes[-1], ast.Assign | ast.AugAssign | ast.AnnAssign)


def in_jitted(at: Place) -> bool:
    """Return whether a line is in a function that a decorator jits."""
    return any(_jits(d) for f in enclosing_nodes(at, FUNCTION) for d in f.decorator_list)


def _jits(decorator: ast.expr) -> bool:
    """Return whether a decorator jits: `@jax.jit`, `@nnx.jit(...)` or `@partial(jax.jit, ...)`."""
    if isinstance(decorator, ast.Call):
        inner = decorator.args[:1] if last_name(decorator.func) == "partial" else [decorator.func]
        return any(last_name(n) in _JITS for n in inner)
    return last_name(decorator) in _JITS
