"""Find the arguments that a call could donate: those that it replaces and that nothing else keeps."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator
from typing import Any

from jaxperf.hlo import Shape, shape_of
from jaxperf.watch.observe.compiles import Compiled
from jaxperf.watch.observe.source_location import Place
from jaxperf.watch.source import loop_body, statements

_STORING = {
    "add",
    "append",
    "appendleft",
    "extend",
    "insert",
    "put",
    "put_nowait",
    "setdefault",
    "submit",
    "update",
}
_OF_A_TYPE = {"shape", "dtype", "ndim", "size", "sharding"}  # attributes of an array that are not arrays


def replaced_variables(at: Place, callers: tuple[Place, ...] = ()) -> tuple[set[str], set[str]]:
    """Return the variables that a statement passes and replaces, as in `w, loss = step(w, x)`.

    Args:
      at: a line of the statement.
      callers: the lines that called its function, the innermost first.

    Returns:
      Those that could be donated, and those whose old arrays the program still uses.
    """
    names, function = _replaced(at), statements.innermost(at, statements.FUNCTION)
    body = function or statements.syntax_tree(at.file)
    around = statements.innermost(at, ast.ClassDef) or body  # other methods may read `self.w`
    still_used = {name for name in names if _caller_reads(callers, function, name)}
    for name in names:
        scope = around if "." in name else body
        if any(_keeps(node, name, scope) for node in _inside(scope, all_functions="." in name)):
            still_used.add(name)
    return names - still_used, still_used


def passed_arguments(c: Compiled, names: Collection[str]) -> Iterator[tuple[str, Shape]]:
    """Yield the argument ("0", "w") and the type of each array that a call takes from variables `names`."""
    leaves = [
        (re.match(r"(?:argument )?(\w+)", where), shape_of(text)) for where, text in c.signature.items()
    ]
    arrays = [(match, array) for match, array in leaves if match and array]
    passed = {  # once per argument, which may have hundreds of leaves
        argument: statements.argument_expression(c.at, c.called, argument)
        for argument in (dict.fromkeys(match[0] for match, _ in arrays) if names else ())
    }
    for match, array in arrays:
        expression = passed.get(match[0])
        if isinstance(expression, ast.Name | ast.Attribute) and ast.unparse(expression) in names:
            yield match[1], array


def donating_option(arguments: Collection[str]) -> str:
    """Return the option of `jit` that donates arguments, which are given by number or name."""
    arguments = list(dict.fromkeys(arguments))
    numbers = [a for a in arguments if a.isdigit()]
    if len(numbers) == len(arguments):
        return f"donate_argnums={numbers[0] if len(numbers) == 1 else '(' + ', '.join(numbers) + ')'}"
    return f"donate_argnames={tuple(a for a in arguments if not a.isdigit())}"


def _replaced(at: Place) -> set[str]:
    """Return the variables ("w", "self.w") that a statement passes to a call and then assigns."""
    for node in statements.enclosing_nodes(at, ast.Assign):
        assigned = {name for target in node.targets for name in _assigned(target)}
        calls = statements.calls_in(node.value)
        return assigned & {name for call in calls for a in call.args for name in _names(a, ast.Load)}
    return set()


def _assigned(target: ast.expr) -> Iterator[str]:
    """Yield the variables that an assignment changes, fully or in part."""
    match target:
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            for part in parts:
                yield from _assigned(part)
        case ast.Starred(value=inner) | ast.Subscript(value=inner):
            yield from _assigned(inner)
        case _:
            yield ast.unparse(target)


def _names(node: ast.AST, context: Any) -> Iterator[str]:
    """Return the variables in an expression, including "self" of "self.w".

    Args:
      node: the expression.
      context: `ast.Load` for variables that are read, `ast.Store` for those that are assigned.
    """
    variables = (n for n in ast.walk(node) if isinstance(n, ast.Name | ast.Attribute))
    return (ast.unparse(n) for n in variables if isinstance(n.ctx, context))


def _inside(node: ast.AST, *, all_functions: bool) -> Iterator[ast.AST]:
    """Yield the statements in a function, class or module; those of nested ones only if `all_functions`."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.expr):
            yield child
            if all_functions or not isinstance(child, statements.FUNCTION | ast.ClassDef):
                yield from _inside(child, all_functions=all_functions)


def _keeps(node: ast.AST, name: str, scope: ast.AST) -> bool:
    """Return whether a statement keeps a second reference to a variable's arrays beyond the next call."""
    match node:
        case (
            ast.Assign(value=value)
            | ast.AnnAssign(value=ast.expr() as value)
            | ast.AugAssign(value=ast.List() | ast.Tuple() as value)  # `old += [w]`, but not `total += w`
        ):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            shared = {*_shared(value)}
            if name in {n for target in targets for n in _assigned(target)}:  # as in `w = start`
                return any(n != name and _is_read_again(n, node, scope) for n in shared)
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr=method), args=args)) if method in _STORING:
            shared = {n for argument in args for n in _shared(argument)}
        case ast.Expr(value=ast.Yield(value=ast.expr() as value)):
            shared = {*_shared(value)}
        case _:
            return False
    return any(n == name or n.startswith(f"{name}.") for n in shared)


def _shared(value: ast.expr) -> Iterator[str]:
    """Yield the variables whose arrays are part of an expression's value; a call returns new arrays."""
    parts: list[ast.expr] = []
    match value:
        case ast.Name() | ast.Attribute():
            if getattr(value, "attr", "") not in _OF_A_TYPE:
                yield ast.unparse(value)
        case ast.Subscript(value=inner, slice=ast.Constant(value=str())) | ast.Starred(value=inner):
            parts = [inner]
        case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Dict(values=parts) | ast.BoolOp(values=parts):
            pass
        case ast.IfExp(body=body, orelse=other):
            parts = [body, other]
    for part in parts:
        yield from _shared(part)


def _is_read_again(name: str, statement: ast.stmt, scope: ast.AST) -> bool:
    """Return whether another statement reads a variable, or this one does in the next iteration."""
    inside = {id(n) for n in ast.walk(statement)}
    others = [n for n in ast.walk(scope) if id(n) not in inside]
    if any(name in _names(n, ast.Load) for n in others if isinstance(n, ast.Name | ast.Attribute)):
        return True
    loops = [n for n in others if isinstance(n, loop_body.LOOP) and any(m is statement for m in ast.walk(n))]
    return any(name not in _names(loop, ast.Store) for loop in loops)


def _caller_reads(callers: tuple[Place, ...], function: Any, name: str) -> bool:
    """Return whether the caller of a function later reads the variable that it passes for a parameter."""
    parameters = [a.arg for a in function.args.args] if function else []
    statement = statements.innermost(callers[0], ast.stmt) if callers and name in parameters else None
    names = [statements.last_name(call.func) for call in statements.calls_in(statement)]
    if not statement or function.name not in names:
        return False
    passed = statements.argument_expression(callers[0], function.name, f"argument {parameters.index(name)}")
    if not isinstance(passed, ast.Name | ast.Attribute) or (variable := ast.unparse(passed)) in _replaced(
        callers[0]
    ):
        return False
    scope = statements.innermost(callers[0], statements.FUNCTION) or statements.syntax_tree(callers[0].file)
    return _is_read_again(variable, statement, scope)
