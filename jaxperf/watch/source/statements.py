"""Statements of the reader's source code: their rows, enclosing nodes, and the arguments of their calls."""

from __future__ import annotations

import ast
import builtins
import contextlib
import functools
import linecache
import math
import re
import textwrap
from typing import Any

from jaxperf.watch.guard import without_syntax_warnings
from jaxperf.watch.observe.source_location import NOWHERE, Place

FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef
_INIT = re.compile(r"(\b\w[\w.]*\.init|(?<![\w.])(?!__)(?:\w+_)?init(?:_\w+)?)\(")
_COMMON = re.compile(r"(np|numpy|jnp|jax|math)\.")
_JITS = {"jit", "pmap", "filter_jit", "filter_pmap"}


@functools.cache
def syntax_tree(file: str) -> ast.Module:
    """Return the syntax tree of a file; an empty one if the file cannot be read or parsed."""
    try:
        with without_syntax_warnings():
            return ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return ast.Module([], [])


def statement_rows(at: Place) -> list[str]:
    """Return the rows of the statement at a line; only the head of a compound statement."""
    node = innermost(at, ast.stmt)
    if node is None:
        return [at.source or "..."]
    last = head_end(node) if getattr(node, "body", None) else node.end_lineno
    return textwrap.dedent("".join(linecache.getlines(at.file)[_begin(node) - 1 : last])).splitlines()


@functools.cache
def _all_nodes(file: str, kind: Any) -> tuple[Any, ...]:
    return tuple(n for n in ast.walk(syntax_tree(file)) if isinstance(n, kind))


@functools.cache  # rules ask for each sample
def enclosing_nodes(at: Place, kind: Any) -> tuple[Any, ...]:
    """Return the nodes of one type around a line, the innermost last."""
    nodes = _all_nodes(at.file, kind)
    return tuple(sorted((n for n in nodes if _begin(n) <= at.line <= n.end_lineno), key=_begin))


def innermost(at: Place, kind: Any) -> Any:
    """Return the innermost node of one type around a line; None if there is none."""
    return next(reversed(enclosing_nodes(at, kind)), None)


def _begin(node: Any) -> int:
    """Return the first line of a statement with its decorators."""
    return min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])


def head_end(node: Any) -> int:
    """Return the last line of a compound statement's head."""
    return max(node.lineno, _begin(node.body[0]) - 1)


def turns_written(loop: ast.AST) -> float:
    """Return the number of iterations of a loop over `range` of literal numbers; inf for any other."""
    over = getattr(loop, "iter", None) or next((g.iter for g in getattr(loop, "generators", ())), None)
    if isinstance(over, ast.Call) and last_name(over.func) == "range" and not over.keywords:
        with contextlib.suppress(ValueError, TypeError):
            return len(range(*map(ast.literal_eval, over.args)))
    return math.inf


def called_at(at: Place) -> set[str]:
    """Return the names of the functions that the statement at a line calls."""
    return {last_name(call.func) for call in calls_in(innermost(at, ast.stmt))}


def calls_in(node: ast.AST | None) -> list[ast.Call]:
    """Return the calls in a statement or an expression; none for None."""
    return [n for n in ast.walk(node) if isinstance(n, ast.Call)] if node else []


def last_name(function: ast.expr) -> str:
    """Return the last part of a function's dotted name: "jit" for `jax.jit`."""
    return ast.unparse(function).rpartition(".")[2]


def is_definition(at: Place) -> bool:
    """Return whether a line is the `def` of a function."""
    function = innermost(at, FUNCTION)
    return function is not None and function.lineno == at.line


def is_method(at: Place) -> bool:
    """Return whether the function around a line has `self` as its first parameter."""
    function = innermost(at, FUNCTION)
    return function is not None and [a.arg for a in function.args.args[:1]] == ["self"]


def gives_a_value(at: Place) -> bool:
    """Return whether the statement at a line is an assignment."""
    return isinstance(innermost(at, ast.stmt), ast.Assign | ast.AugAssign | ast.AnnAssign)


def yields(at: Place) -> bool:
    """Return whether a statement of a generator gives an item to the caller."""
    statement = innermost(at, ast.stmt)
    return statement is not None and any(isinstance(n, ast.Yield) for n in ast.walk(statement))


def is_test(at: Place) -> bool:
    """Return whether a line is the test of an `if` or a `while`."""
    return isinstance(innermost(at, ast.stmt), ast.If | ast.While)


def has_operations(at: Place) -> bool:
    """Return whether a statement may do an operation of JAX: an operator, an index, or a call of JAX."""
    statement = innermost(at, ast.stmt)
    nodes = list(ast.walk(statement)) if statement else []
    operators = ast.BinOp | ast.UnaryOp | ast.Compare | ast.Subscript | ast.AugAssign
    calls = (ast.unparse(n.func) for n in nodes if isinstance(n, ast.Call))
    return (
        not nodes
        or any(isinstance(n, operators) for n in nodes)
        or any(name.partition(".")[0] in _names_of_jax(at.file) for name in calls)
    )


@functools.cache
def _names_of_jax(file: str) -> frozenset[str]:
    """Return the names that a file's imports give to JAX and its parts, such as "jnp"."""
    names: set[str] = set()
    for node in ast.walk(syntax_tree(file)):
        if isinstance(node, ast.Import):
            modules = [(alias.name, alias.asname or alias.name.partition(".")[0]) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules = [(node.module, alias.asname or alias.name) for alias in node.names]
        else:
            continue
        names.update(name for module, name in modules if module.partition(".")[0] == "jax")
    return frozenset(names)


def is_branch(at: Place) -> bool:
    """Return whether a line tests for what only Python can do: leave the block, or change an attribute."""
    node = innermost(at, ast.stmt)
    if not isinstance(node, ast.If):
        return False
    inside = [n for statement in (*node.body, *node.orelse) for n in ast.walk(statement)]
    leaves = ast.Break | ast.Continue | ast.Return | ast.Raise
    return any(
        isinstance(n, leaves) or (isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store))
        for n in inside
    )


def in_jitted(at: Place) -> bool:
    """Return whether a line is in a function that a decorator jits."""
    return any(_wrapper(d) for f in enclosing_nodes(at, FUNCTION) for d in f.decorator_list)


def jit_wrapper(file: str, function: str) -> str:
    """Return the transformation that jits a function in a file, such as "nnx.jit"; else "jax.jit"."""
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
    """Return the transformation in `@jax.jit`, `@nnx.jit(...)` or `@partial(jax.jit, ...)`; "" for none."""
    if isinstance(decorator, ast.Call):
        inner = decorator.args[:1] if last_name(decorator.func) == "partial" else [decorator.func]
        return next(filter(None, map(_wrapper, inner)), "")
    return ast.unparse(decorator) if last_name(decorator) in _JITS else ""


def donated_parameters(file: str, function: str) -> set[str]:
    """Return the parameters that the decorator of a function, or the call that jits it, donates."""
    names: set[str] = set()
    for node in ast.walk(syntax_tree(file)):
        calls: list[ast.expr] = []
        if isinstance(node, FUNCTION) and node.name == function:
            calls = node.decorator_list
        elif isinstance(node, ast.Call) and node.args and ast.unparse(node.args[0]) == function:
            calls = [node]
        for keyword in (k for call in calls if isinstance(call, ast.Call) for k in call.keywords):
            with contextlib.suppress(ValueError):
                if keyword.arg in ("donate_argnums", "donate_argnames"):
                    value = ast.literal_eval(keyword.value)
                    values = value if isinstance(value, tuple | list) else (value,)
                    names |= {
                        parameter_name(file, function, f"argument {v}" if isinstance(v, int) else v)
                        for v in values
                    }
    return names


def is_plain_map(call: ast.Call) -> bool:
    """Return whether a call is `jax.lax.map` of one element after the other."""
    return ast.unparse(call.func) in ("jax.lax.map", "lax.map") and not call.keywords


def made_at(at: Place, kind: str) -> Place | None:
    """Return the only line in the file that creates an object of class `kind`; None if it is not unique."""
    lines = [call.lineno for call in calls_in(syntax_tree(at.file)) if last_name(call.func) == kind]
    return at._replace(line=lines[0]) if len(lines) == 1 else None


LOOP = ast.For | ast.While | ast.AsyncFor
ROUND = LOOP | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


def neighborhood(at: Place) -> Place:
    """Return one place, with a line of 0 or below, for lines that one jitted function could hold.

    Those are the lines of a function, or of a loop of the module; NOWHERE for other lines of a module.
    """
    if innermost(at, FUNCTION) is not None:
        return at._replace(line=0)
    loop = innermost(at, LOOP)
    return at._replace(line=-loop.lineno) if loop is not None else NOWHERE


def is_import(at: Place) -> bool:
    """Return whether a line imports a module."""
    return isinstance(innermost(at, ast.stmt), ast.Import | ast.ImportFrom)


def outermost_call(at: Place) -> str:
    """Return what a statement's outermost call calls, such as "mcmc.run", but not float or np.asarray."""
    node = innermost(at, ast.stmt)
    if getattr(node, "body", None) or isinstance(node, FUNCTION):
        node = getattr(node, "iter", None) or getattr(node, "test", None)
    names = (ast.unparse(call.func) for call in calls_in(node))
    named = (n for n in names if all(part.isidentifier() for part in n.split(".")))
    return next((n for n in named if not _COMMON.match(n) and not hasattr(builtins, n)), "")


_TAKES_ALL = {"list", "tuple", "set", "sorted", "map", "min", "max", "sum", "any", "all", "dict"}


def iterated(at: Place) -> str:
    """Return the variable over which a line's loop, comprehension, `min` or unpacking goes; "" for none."""
    over = [n.iter for n in enclosing_nodes(at, ast.For)[-1:] if n.lineno == at.line]
    statement = innermost(at, ast.stmt)
    for node in ast.walk(statement) if statement else ():
        if isinstance(node, ast.comprehension):
            over.append(node.iter)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in _TAKES_ALL:
            over += node.args[-1:]
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple | ast.List):
            over.append(node.value)
        if isinstance(node, ast.Starred) and isinstance(node.ctx, ast.Load):  # plot(*points)
            over.append(node.value)
    for expression in over:
        inner = expression.args if isinstance(expression, ast.Call) and last_name(expression.func) in (
            "enumerate", "zip", "reversed"
        ) else [expression]  # fmt: skip
        for each in inner:
            if isinstance(each, ast.Name | ast.Attribute | ast.Subscript):
                return ast.unparse(each)
            if isinstance(each, ast.Call) and last_name(each.func) not in ("range", "items", "leaves"):
                return ast.unparse(each)
    return ""


def transforms(at: Place) -> str:
    """Return the transformation whose result a statement calls, such as "jax.vmap"; "" for none."""
    for call in calls_in(innermost(at, ast.stmt)):
        if isinstance(call.func, ast.Call) and last_name(call.func.func) in _TRANSFORMS:
            return ast.unparse(call.func.func)
    return ""


_TRANSFORMS = {"vmap", "grad", "value_and_grad", "jacfwd", "jacrev", "jacobian", "hessian"}


def size_by_values(at: Place) -> bool:
    """Return whether the size of what a statement computes depends on values, as that of `jnp.where(x)`."""
    for call in calls_in(innermost(at, ast.stmt)):
        one = last_name(call.func) == "where" and len(call.args) == 1
        if (one or last_name(call.func) in ("nonzero", "argwhere", "flatnonzero", "unique")) and not any(
            keyword.arg == "size" for keyword in call.keywords
        ):
            return True
    return False


_JOINING = {"append", "concatenate", "concat", "stack", "hstack", "vstack", "column_stack", "c_", "r_"}


def joins(at: Place) -> bool:
    """Return whether a statement joins arrays to a longer one, as `x = jnp.append(x, y)` does."""
    calls = (ast.unparse(call.func) for call in calls_in(innermost(at, ast.stmt)))
    return any(name.rpartition(".")[2] in _JOINING and _COMMON.match(name) for name in calls)


def init_call(at: Place) -> str:
    """Return "model.init" if a line calls it outside jit, for a network or an optimizer; else ""."""
    match = _INIT.search(at.source)
    defines = at.source.startswith(("def ", "async def ", "class ", "@"))
    return match[1] if match and not defines and "jit(" not in at.source else ""


@functools.cache
def imports(file: str) -> frozenset[str]:
    """Return the modules that a file imports, also with the names that it imports from them: "flax.nnx"."""
    names: set[str] = set()
    for node in ast.walk(syntax_tree(file)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.update([node.module, *(f"{node.module}.{alias.name}" for alias in node.names)])
    return frozenset(names)


def is_module(at: Place) -> bool:
    """Return whether a line is in a class of which objects are modules, as `class Net(nnx.Module)` says."""
    classes = {n.name: n for n in ast.walk(syntax_tree(at.file)) if isinstance(n, ast.ClassDef)}
    left, seen = [innermost(at, ast.ClassDef)], list[Any]()
    while left:
        node = left.pop()
        if node is None or node in seen:
            continue
        seen.append(node)
        bases = [last_name(base) for base in node.bases]
        if "Module" in bases:
            return True
        left += [classes.get(base) for base in bases]
    return False


def made_module(at: Place) -> str:
    """Return the class of the module that a statement makes, such as "Net" or "eqx.nn.MLP"; else ""."""
    called = outermost_call(at)
    name = called.rpartition(".")[2]
    if not name[:1].isupper() or not {"flax.nnx", "equinox"} & imports(at.file):
        return ""
    classes = [n for n in ast.walk(syntax_tree(at.file)) if isinstance(n, ast.ClassDef) and n.name == name]
    layer = called.startswith(("nnx.", "eqx.", "equinox.")) and name not in ("Rngs", "Optimizer")
    return called if layer or any(is_module(at._replace(line=n.lineno)) for n in classes) else ""


_STAYS = {"print", "open", "input", "savefig", "show", "append", "block_until_ready", "item", "tolist"}


def only_computes(function: Any) -> bool:
    """Return whether a function seems only to compute with its arguments, so that jit takes it."""
    arguments = [] if function is None else [*function.args.args, *function.args.kwonlyargs]
    if function is None or function.name in ("main", "__init__") or {a.arg for a in arguments} <= {"self"}:
        return False
    inside = list(ast.walk(function))
    called = {last_name(call.func) for call in inside if isinstance(call, ast.Call)}
    effects = ast.With | ast.While | ast.Yield | ast.Global | ast.Nonlocal | ast.Import | ast.ImportFrom
    return not called & _STAYS and not any(isinstance(node, effects) for node in inside)


def defines(file: str, function: str) -> bool:
    """Return whether a file defines a function of this name outside of classes, once."""
    named = [n for n in ast.walk(syntax_tree(file)) if isinstance(n, FUNCTION) and n.name == function]
    return len(named) == 1 and [a.arg for a in named[0].args.args[:1]] != ["self"]


def literal_parameters(file: str, function: str) -> tuple[str, ...]:
    """Return the parameters for which all calls in a file pass an integer, a text or a tuple of integers."""
    names = _parameters(file, function)
    calls = [call for call in calls_in(syntax_tree(file)) if last_name(call.func) == function]
    passed = {name: [v for c in calls for v in _values_for(c, str(i), name)] for i, name in enumerate(names)}
    return tuple(name for name, values in passed.items() if values and all(map(_is_size, values)))


def static_options(at: Place, function: str) -> str:
    """Return ", static_argnums=(1,)" for the arguments of a call that are sizes in the source; else ""."""
    for call in calls_in(innermost(at, ast.stmt)):
        if ast.unparse(call.func) == function:
            sizes = [str(i) for i, value in enumerate(call.args) if _is_size(value)]
            names = [f'"{k.arg}"' for k in call.keywords if k.arg and _is_size(k.value)]
            return "".join(
                f", {option}=({', '.join(values)},)"
                for option, values in (("static_argnums", sizes), ("static_argnames", names))
                if values
            )
    return ""


def _is_size(value: ast.expr) -> bool:
    """Return whether an expression is written as an integer, a text, or a tuple of integers."""
    with contextlib.suppress(ValueError):
        literal = ast.literal_eval(value)
        parts = literal if isinstance(literal, tuple) else (literal,)
        return all(isinstance(part, int | str) for part in parts)
    return isinstance(value, ast.Tuple)


def variable_passed(at: Place, function: str, argument: str, file: str = "") -> str:
    """Return the variable that a call passes for an argument, or the parameter's name if there is none.

    `file` defines the function, if the call is in another one.
    """
    expression = argument_expression(at, function, argument) if argument else None
    names = [name for name in _parameters(file, function) if name != "self"] if file else []
    if expression is None and argument in names:
        expression = argument_expression(at, function, f"argument {names.index(argument)}")
    if isinstance(expression, ast.Name | ast.Attribute):
        return ast.unparse(expression)
    return parameter_name(at.file, function, argument)


def argument_expression(at: Place, function: str, argument: str) -> ast.expr | None:
    """Return the expression that a call passes for an argument ("rate", "argument 2"); None if unclear."""
    calls = calls_in(innermost(at, ast.stmt))
    named = [call for call in calls if last_name(call.func) == function]
    position, keyword = argument.removeprefix("argument "), parameter_name(at.file, function, argument)
    values = [value for call in named or calls for value in _values_for(call, position, keyword)]
    return values[0] if len(values) == 1 else None


def parameter_name(file: str, function: str, argument: str) -> str:
    """Return the parameter's name for "argument 2"; the argument itself if that is unknown."""
    names, position = _parameters(file, function), argument.removeprefix("argument ")
    return names[int(position)] if position.isdigit() and int(position) < len(names) else argument


def _parameters(file: str, function: str) -> list[str]:
    """Return a function's positional parameters; none unless there is exactly one such function."""
    functions = [n for n in _all_nodes(file, FUNCTION) if n.name == function]
    return (
        [a.arg for a in [*functions[0].args.posonlyargs, *functions[0].args.args]]
        if len(functions) == 1
        else []
    )


def _values_for(call: ast.Call, position: str, keyword: str) -> list[ast.expr]:
    """Return the expressions that a call passes for an argument, by position and by keyword."""
    by_place = [call.args[int(position)]] if position.isdigit() and int(position) < len(call.args) else []
    return by_place + [k.value for k in call.keywords if k.arg == keyword]
