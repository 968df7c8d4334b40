"""A section's script taken apart for a notebook: what comes before JAX, imports, the statements of `main`.

Scripts have one form: imports and `Config`, `FLAGS = script.parse(...)`, the other imports, definitions, and
`main(config, story)`. Code under an `if` above `FLAGS` is left out. Each statement of `main` comes with the
definitions that it needs, unless they came before.
"""

from __future__ import annotations

import ast
import itertools
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_Named = ast.FunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign


@dataclass(frozen=True)
class Step:
    """A statement of `main`.

    Attributes:
      source: the statement.
      definitions: what it needs, each after its own dependencies.
      names: the names in it, including the functions that it passes to the story.
    """

    source: str
    definitions: tuple[str, ...]
    names: frozenset[str]


@dataclass(frozen=True)
class Script:
    """A script's parts; `config` and `story` are the names that `main` gives its arguments."""

    setup: str
    imports: str
    config: str
    story: str
    settings: str
    steps: tuple[Step, ...]


def take_apart(source: str, settings: Mapping[str, Any]) -> Script | None:
    """The parts of a script that ran with these settings; None if it does not have a section's form."""
    try:
        return _parts(source, settings)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _parts(source: str, settings: Mapping[str, Any]) -> Script | None:
    tree, lines = ast.parse(source), source.split("\n")
    named = [node for node in tree.body if isinstance(node, _Named)]
    found = {name: node for node in named for name in _defines(node)}
    main, flags, config = (found.get(name) for name in ("main", "FLAGS", "Config"))
    if not isinstance(main, ast.FunctionDef) or not flags or not isinstance(config, ast.ClassDef):
        return None
    if len(main.args.args) != 2 or "\r" in source:  # ends a line for Python, but not for us
        return None
    at = tree.body.index(flags)
    first = int(ast.get_docstring(tree) is not None)
    imports = [n for n in tree.body[at:] if isinstance(n, ast.Import | ast.ImportFrom)]
    return Script(
        setup=_joined(lines, [n for n in tree.body[first:at] if not isinstance(n, ast.If)]),
        imports=_joined(lines, imports),
        config=main.args.args[0].arg,
        story=main.args.args[1].arg,
        settings=_call(config, settings),
        steps=tuple(_steps(lines, main, {k: v for k, v in found.items() if v in tree.body[at + 1 :]})),
    )


def _defines(node: _Named) -> list[str]:
    """The names that a statement at the top level defines."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return [n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)]


def _steps(lines: Sequence[str], main: ast.FunctionDef, found: Mapping[str, _Named]) -> Iterator[Step]:
    """`main` as steps; if it returns early, which only a function can, one step that calls it."""
    arguments = ", ".join(a.arg for a in main.args.args)
    call = ast.parse(f"main({arguments})").body
    body = [n for n in main.body if not (isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant))]
    whole = any(isinstance(n, ast.Return) for statement in body for n in _own(statement))
    come: set[ast.AST] = set() if whole else {main}
    for statement in call if whole else body:
        yield Step(
            source=f"main({arguments})" if whole else _cut(lines, statement),
            definitions=tuple(_cells(lines, list(_needed(statement, found, come)))),
            names=frozenset(_names(main if whole else statement)),
        )


def _own(node: ast.AST) -> Iterator[ast.AST]:
    """A node and what is in it, without the insides of functions."""
    yield node
    if not isinstance(node, ast.FunctionDef | ast.Lambda):
        for child in ast.iter_child_nodes(node):
            yield from _own(child)


def _names(node: ast.AST) -> set[str]:
    """The names in a node, and those of the functions of modules that it passes on (`tracing.prints`)."""
    names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    calls = [n for n in ast.walk(node) if isinstance(n, ast.Call)]
    return names | {a.attr for call in calls for a in call.args if isinstance(a, ast.Attribute)}


def _needed(node: ast.AST, found: Mapping[str, _Named], come: set[ast.AST]) -> Iterator[ast.stmt]:
    """The definitions that a node needs and that have not come yet, each after its own dependencies."""
    names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    for needed in sorted((found[name] for name in names & found.keys()), key=lambda n: n.lineno):
        if needed not in come:
            come.add(needed)
            yield from _needed(needed, found, come)
            yield needed


def _cells(lines: Sequence[str], nodes: Sequence[ast.stmt]) -> Iterator[str]:
    """Definitions as cells: one per function or class, and one per group of consecutive constants."""
    for constants, some in itertools.groupby(nodes, lambda n: isinstance(n, ast.Assign | ast.AnnAssign)):
        if constants:
            yield _joined(lines, list(some))
        else:
            yield from (_cut(lines, node) for node in some)


def _start(lines: Sequence[str], node: ast.stmt) -> int:
    """Index of a statement's first line; its decorators and the comments right above it are part of it."""
    first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))]) - 1
    while first and lines[first - 1].lstrip().startswith("#"):
        first -= 1
    return first


def _cut(lines: Sequence[str], node: ast.stmt) -> str:
    """A statement as the file has it, moved to the left margin."""
    code = textwrap.dedent("\n".join(lines[_start(lines, node) : node.end_lineno]))
    try:
        same = ast.dump(ast.parse(code)) == ast.dump(ast.Module([node], []))
    except SyntaxError:
        same = False
    return code if same else ast.unparse(node)  # a string in it extends further left, or ";" joins two


def _joined(lines: Sequence[str], nodes: Sequence[ast.stmt]) -> str:
    """Top-level statements, with one empty line between those that the file separates."""
    words = ""
    for before, node in zip([None, *nodes], nodes):
        apart = before and _start(lines, node) > (before.end_lineno or 0)
        words += "\n" * (bool(before) + bool(apart)) + _cut(lines, node)
    return words


def _call(config: ast.ClassDef, settings: Mapping[str, Any]) -> str:
    """`Config(...)` with the settings that are not the defaults."""
    fields = [n for n in config.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)]
    words = [
        f"{name}={_value(field.annotation, settings[name])}"
        for field in fields
        if (name := getattr(field.target, "id", "")) in settings and not _is_default(field, settings[name])
    ]
    return f"{config.name}({', '.join(words)})"


def _is_default(field: ast.AnnAssign, value: Any) -> bool:
    try:
        return bool(field.value and ast.literal_eval(field.value) == value)
    except (ValueError, TypeError):  # a call; its value is not known here
        return False


def _value(annotation: ast.expr, value: Any) -> str:
    """A setting as Python code; in JSON, nested dataclasses and paths have lost their types."""
    kind = annotation.slice if isinstance(annotation, ast.Subscript) else annotation
    name = ast.unparse(kind.elts[0] if isinstance(kind, ast.Tuple) else kind)
    if isinstance(value, Mapping):
        return f"{name}({', '.join(f'{k}={v!r}' for k, v in value.items() if k.isidentifier())})"
    return f"Path({value!r})" if isinstance(value, str) and "Path" in ast.unparse(annotation) else repr(value)
