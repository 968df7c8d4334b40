"""What the call in a line passes for an argument, and where an object is made."""

from __future__ import annotations

import ast

from jaxperf.watch.observe.source_location import Place
from jaxperf.watch.source.statements import FUNCTION, enclosing_nodes, last_name, syntax_tree


def made_at(at: Place, kind: str) -> Place | None:
    """Return the line that makes an object of a class; None unless there is exactly one in the file."""
    calls = (n for n in ast.walk(syntax_tree(at.file)) if isinstance(n, ast.Call))
    lines = [call.lineno for call in calls if last_name(call.func) == kind]
    return at._replace(line=lines[0]) if len(lines) == 1 else None


def variable_passed(at: Place, function: str, argument: str) -> str:
    """Return the variable that a call passes for an argument, or the parameter's name if it is none."""
    expression = argument_expression(at, function, argument) if argument else None
    if isinstance(expression, ast.Name | ast.Attribute):
        return ast.unparse(expression)
    return parameter_name(at.file, function, argument)


def argument_expression(at: Place, function: str, argument: str) -> ast.expr | None:
    """Return what the call in a line passes for an argument ("rate", "argument 2"); None if unclear."""
    calls = [n for s in enclosing_nodes(at, ast.stmt)[-1:] for n in ast.walk(s) if isinstance(n, ast.Call)]
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
