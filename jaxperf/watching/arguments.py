"""What the call in a line passes for an argument, and how to make that only once."""

from __future__ import annotations

import ast

from jaxperf.watching.names import FUNCTION, last_name
from jaxperf.watching.place import Place
from jaxperf.watching.statements import enclosing, parsed, whole


def made_once(at: Place, function: str, argument: str) -> list[str]:
    """The rows of a change that makes an argument once; empty if the call's statement does not make it."""
    rows, given = whole(at), given_for(at, function, argument)
    keyword = _keyword(at.file, function, argument)
    value = ast.unparse(given) if isinstance(given, ast.Call) else ""
    changed = "\n".join(rows).replace(value, keyword) if value and keyword.isidentifier() else ""
    if not changed or changed == "\n".join(rows):
        return []
    return [
        f"+ {keyword} = {value}   # once, before the loop",
        *(f"- {row}" for row in rows),
        *(f"+ {row}" for row in changed.splitlines()),
    ]


def given_for(at: Place, function: str, argument: str) -> ast.expr | None:
    """What the call in a line passes for an argument ("rate", "argument 2"); None if that is not clear."""
    calls = [n for s in enclosing(at, ast.stmt)[-1:] for n in ast.walk(s) if isinstance(n, ast.Call)]
    named = [call for call in calls if last_name(call.func) == function]
    position, keyword = argument.removeprefix("argument "), _keyword(at.file, function, argument)
    found = [value for call in named or calls for value in _given(call, position, keyword)]
    return found[0] if len(found) == 1 else None


def _keyword(file: str, function: str, argument: str) -> str:
    """The name of an argument that may be known by its position only."""
    names, position = _parameters(file, function), argument.removeprefix("argument ")
    return names[int(position)] if position.isdigit() and int(position) < len(names) else argument


def _parameters(file: str, function: str) -> list[str]:
    """The names of a function's positional parameters; none unless there is exactly one such function."""
    found = [n for n in ast.walk(parsed(file)) if isinstance(n, FUNCTION) and n.name == function]
    return [a.arg for a in [*found[0].args.posonlyargs, *found[0].args.args]] if len(found) == 1 else []


def _given(call: ast.Call, position: str, keyword: str) -> list[ast.expr]:
    """What a call passes for an argument."""
    by_place = [call.args[int(position)]] if position.isdigit() and int(position) < len(call.args) else []
    return by_place + [k.value for k in call.keywords if k.arg == keyword]
