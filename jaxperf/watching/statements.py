"""The reader's statements, from their source: whole ones, heads of functions, and one as a function."""

from __future__ import annotations

import ast
import builtins
import functools
import linecache
import textwrap
from collections.abc import Iterator
from typing import Any

from jaxperf.watching.place import Place

LONGEST = 6  # rows of a loop that is shown whole
_FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef
_LOOP = ast.For | ast.While | ast.AsyncFor
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
        if isinstance(node, _FUNCTION) and node.name == function:
            return _head(file, node)
    return [f"def {function}(*arguments):"]


def jitted(at: Place) -> list[str]:
    """The rows of a change that puts a line's operations into one program; empty if there is no such change.

    It jits the function around the line if all of that can be traced, or else puts the statement into a
    function of its own.
    """
    around = enclosing(at, _FUNCTION)
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
    """The rows of a change that puts a statement into a jitted function; empty if that cannot be traced.

    With `donated`, the variable that the statement assigns is donated to the function.
    """
    found = enclosing(at, ast.stmt)
    statement = found[-1] if found else None
    if not isinstance(statement, ast.Assign | ast.AugAssign) or _on_host(statement):
        return []
    results = [n for target in _targets(statement) for n in _names(target, ast.Store)]
    whole_names = all(isinstance(t, ast.Name | ast.Tuple) for t in _targets(statement))
    read = inputs(statement, at.file, enclosing(at, _FUNCTION))
    if not whole_names or not read or objects(statement) & {*read}:
        return []
    rows, call = whole(at), f"update_{results[0]}({', '.join(read)})"
    made = [f"def {call}:", *_indented([*rows, f"return {', '.join(results)}"])]
    return [
        f'+ @functools.partial(jax.jit, donate_argnames="{results[0]}")' if donated else "+ @jax.jit",
        *(f"+ {row}" for row in made),
        *(f"- {row}" for row in rows),
        f"+ {', '.join(results)} = {call}",
    ]


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
    named = [call for call in calls if _last_name(call.func) == function]
    position, keyword = argument.removeprefix("argument "), _keyword(at.file, function, argument)
    found = [value for call in named or calls for value in _given(call, position, keyword)]
    return found[0] if len(found) == 1 else None


def _keyword(file: str, function: str, argument: str) -> str:
    """The name of an argument that may be known by its position only."""
    names, position = _parameters(file, function), argument.removeprefix("argument ")
    return names[int(position)] if position.isdigit() and int(position) < len(names) else argument


def _parameters(file: str, function: str) -> list[str]:
    """The names of a function's positional parameters; none unless there is exactly one such function."""
    found = [n for n in ast.walk(parsed(file)) if isinstance(n, _FUNCTION) and n.name == function]
    return [a.arg for a in [*found[0].args.posonlyargs, *found[0].args.args]] if len(found) == 1 else []


def _given(call: ast.Call, position: str, keyword: str) -> list[ast.expr]:
    """What a call passes for an argument."""
    by_place = [call.args[int(position)]] if position.isdigit() and int(position) < len(call.args) else []
    return by_place + [k.value for k in call.keywords if k.arg == keyword]


def _last_name(function: ast.expr) -> str:
    return ast.unparse(function).rpartition(".")[2]


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
    assert isinstance(function, _FUNCTION)
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
    imported = _bound(parsed(file))
    return "@nnx.jit" if "nnx" in imported else "@eqx.filter_jit" if "eqx" in imported else "@jax.jit"


def plain_names(target: ast.expr) -> list[str]:
    """The variables that a statement assigns; empty if it assigns parts of objects."""
    parts = target.elts if isinstance(target, ast.Tuple) else [target]
    names = [n.id for n in parts if isinstance(n, ast.Name)]
    return names if len(names) == len(parts) else []


def _targets(statement: ast.Assign | ast.AugAssign) -> list[ast.expr]:
    return statement.targets if isinstance(statement, ast.Assign) else [statement.target]


def _names(node: ast.AST, context: type[ast.expr_context]) -> Iterator[str]:
    found = (n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, context))
    return iter(dict.fromkeys(found))


def inputs(statement: ast.Assign | ast.AugAssign, file: str, around: list[ast.stmt]) -> list[str]:
    """Variables that a statement reads, without functions, modules and names of its own comprehensions."""
    known = set(vars(builtins)) | _bound(parsed(file)).union(*map(_bound, around))
    read = list(_free(statement))
    if isinstance(statement, ast.AugAssign):
        read = [*_names(statement.target, ast.Store), *read]
    return [n for n in dict.fromkeys(read) if n not in known]


def _free(node: ast.AST) -> Iterator[str]:
    """Variables that are read, other than those of a node's own lambdas and comprehensions."""
    if isinstance(node, ast.Name):
        yield from [node.id] if isinstance(node.ctx, ast.Load) else []
        return
    own: set[str] = set()
    if isinstance(node, ast.Lambda):
        own = {a.arg for a in ast.walk(node.args) if isinstance(a, ast.arg)}
    for part in getattr(node, "generators", []):
        own |= {*_names(part.target, ast.Store)}
    yield from (n for child in ast.iter_child_nodes(node) for n in _free(child) if n not in own)


def objects(node: ast.AST) -> set[str]:
    """Variables of which the code reads attributes that no array has."""
    from numpy import ndarray  # which the program that is watched imports itself

    read = [n for n in ast.walk(node) if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name)]
    return {ast.unparse(n.value) for n in read if n.attr != "at" and not hasattr(ndarray, n.attr)}


def _bound(node: ast.AST) -> set[str]:
    """Names that the statements of a body bind to functions, classes and modules."""
    found: set[str] = set()
    for child in getattr(node, "body", []):
        if isinstance(child, _FUNCTION | ast.ClassDef):
            found.add(child.name)
        elif isinstance(child, ast.Import | ast.ImportFrom):
            found |= {(a.asname or a.name).split(".")[0] for a in child.names}
        elif isinstance(child, ast.Assign) and _makes_function(child.value):
            found |= {n for target in child.targets for n in _names(target, ast.Store)}
    return found


def _makes_function(value: ast.expr) -> bool:
    if isinstance(value, ast.Call):
        return _last_name(value.func) in (
            "jit",
            "grad",
            "value_and_grad",
            "vmap",
            "partial",
        )
    return isinstance(value, ast.Lambda)
