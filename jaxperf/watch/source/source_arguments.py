"""What the call in a line passes for an argument, and how to make that only once."""

from __future__ import annotations

import ast
import linecache

from jaxperf.watch.observe.names import FUNCTION, free, last_name
from jaxperf.watch.observe.source_location import Place
from jaxperf.watch.source.statements import enclosing, parsed, whole


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


def part_made_once(at: Place, kind: str) -> list[str]:
    """The rows of a change that makes a part of an object once; empty if no one call makes both.

    Args:
      at: where a function is called.
      kind: the object's class, whose call makes the part, as in `Optimizer(model, optax.adam(1e-3))`.
    """
    made = _making(at, kind)
    parts = (
        [a for a in (*made.args, *(k.value for k in made.keywords)) if isinstance(a, ast.Call)]
        if made
        else []
    )
    if made is None or len(parts) != 1:
        return []
    here = at._replace(line=made.lineno)
    source = "".join(linecache.getlines(at.file))
    rows, text = whole(here), ast.get_source_segment(source, parts[0]) or ""
    name = last_name(parts[0].func).lower()
    changed = "\n".join(rows).replace(text, name)
    around = {n.id for n in ast.walk(parsed(at.file)) if isinstance(n, ast.Name)}
    turns = {
        n.id for loop in enclosing(here, ast.For) for n in ast.walk(loop.target) if isinstance(n, ast.Name)
    }
    if not text or changed == "\n".join(rows) or name in around or turns & {*free(parts[0])}:
        return []
    return [
        f"+ {name} = {text}   # once, before the loop",
        *(f"- {row}" for row in rows),
        *(f"+ {row}" for row in changed.splitlines()),
    ]


def made_at(at: Place, kind: str) -> Place | None:
    """The line that makes an object of a class; None unless there is exactly one in the file."""
    made = _making(at, kind)
    return at._replace(line=made.lineno) if made else None


def _making(at: Place, kind: str) -> ast.Call | None:
    calls = [n for n in ast.walk(parsed(at.file)) if isinstance(n, ast.Call) and last_name(n.func) == kind]
    return calls[0] if len(calls) == 1 else None


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
