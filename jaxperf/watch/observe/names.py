"""The names that a program's code reads, assigns and imports, from its syntax tree."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable, Iterator

FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef
Assignment = ast.Assign | ast.AugAssign


def last_name(function: ast.expr) -> str:
    """The name of a function without what it is an attribute of: "jit" of `jax.jit`."""
    return ast.unparse(function).rpartition(".")[2]


def plain_names(target: ast.expr) -> list[str]:
    """The variables that a statement assigns; empty if it assigns parts of objects."""
    parts = target.elts if isinstance(target, ast.Tuple) else [target]
    found = [n.id for n in parts if isinstance(n, ast.Name)]
    return found if len(found) == len(parts) else []


def targets(statement: Assignment) -> list[ast.expr]:
    """What a statement assigns to."""
    return statement.targets if isinstance(statement, ast.Assign) else [statement.target]


def names(node: ast.AST, context: type[ast.expr_context]) -> Iterator[str]:
    """The variables that code reads (`ast.Load`) or assigns (`ast.Store`), each once."""
    found = (n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, context))
    return iter(dict.fromkeys(found))


def inputs(statement: Assignment, bodies: Iterable[ast.AST]) -> list[str]:
    """Variables that a statement reads, without names of its own comprehensions.

    Functions, classes and modules are left out: what is bound to names in `bodies`, a module and functions.
    """
    known = set(vars(builtins)).union(*map(bound, bodies))
    read = list(free(statement))
    if isinstance(statement, ast.AugAssign):
        read = [*names(statement.target, ast.Store), *read]
    return [n for n in dict.fromkeys(read) if n not in known]


def free(node: ast.AST) -> Iterator[str]:
    """Variables that are read, other than those of a node's own lambdas and comprehensions."""
    if isinstance(node, ast.Name):
        yield from [node.id] if isinstance(node.ctx, ast.Load) else []
        return
    own: set[str] = set()
    if isinstance(node, ast.Lambda):
        own = {a.arg for a in ast.walk(node.args) if isinstance(a, ast.arg)}
    for part in getattr(node, "generators", []):
        own |= {*names(part.target, ast.Store)}
    yield from (n for child in ast.iter_child_nodes(node) for n in free(child) if n not in own)


def objects(node: ast.AST) -> set[str]:
    """Variables of which the code reads attributes that no array has."""
    from numpy import ndarray  # which the program that is watched imports itself

    read = [n for n in ast.walk(node) if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name)]
    return {ast.unparse(n.value) for n in read if n.attr != "at" and not hasattr(ndarray, n.attr)}


def bound(node: ast.AST) -> set[str]:
    """Names that the statements of a body bind to functions, classes and modules."""
    found: set[str] = set()
    for child in getattr(node, "body", []):
        if isinstance(child, FUNCTION | ast.ClassDef):
            found.add(child.name)
        elif isinstance(child, ast.Import | ast.ImportFrom):
            found |= {(a.asname or a.name).split(".")[0] for a in child.names}
        elif isinstance(child, ast.Assign) and makes_function(child.value):
            found |= {n for target in child.targets for n in names(target, ast.Store)}
    return found


def makes_function(value: ast.expr) -> bool:
    """Whether an expression makes a function."""
    if isinstance(value, ast.Call):
        return last_name(value.func) in (
            "jit",
            "grad",
            "value_and_grad",
            "vmap",
            "partial",
        )
    return isinstance(value, ast.Lambda)


def jax_modules(tree: ast.AST) -> set[str]:
    """Names that imports give to JAX and its modules."""
    imports = [n for n in ast.walk(tree) if isinstance(n, ast.Import | ast.ImportFrom)]
    found = set()
    for node in imports:
        inside = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
        whole_names = [(f"{inside}{a.name}", a.asname or a.name.partition(".")[0]) for a in node.names]
        found |= {name for path, name in whole_names if path.partition(".")[0] == "jax"}
    return found
