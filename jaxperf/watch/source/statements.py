"""Statements of the reader's source code: their rows, enclosing nodes, and the arguments of their calls."""

import ast
import builtins
import contextlib
import functools
import linecache
import math
import re
import textwrap
from collections.abc import Iterator
from typing import Any

from jaxperf.errors import warnings_hidden
from jaxperf.watch.grouping import group_by
from jaxperf.watch.observe.source_location import NOWHERE, Place

FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef
_INIT = re.compile(r"(\b\w[\w.]*\.init|(?<![\w.])(?!__)(?:\w+_)?init(?:_\w+)?)\(")
_COMMON = re.compile(r"(np|numpy|jnp|jax|math)\.")
_JITS = {"jit", "pmap", "filter_jit", "filter_pmap"}
_CELL = re.compile(r"<ipython-input-|[\\/]ipykernel_\d+[\\/]")  # in the name of the file of a notebook's cell


@functools.cache
def syntax_tree(file: str) -> ast.Module:
    """Return the syntax tree of a file; an empty one if the file cannot be read or parsed."""
    # Python has warned of the program already; before 3.12, of escape sequences by a `DeprecationWarning`
    escapes = warnings_hidden(DeprecationWarning, "invalid (escape sequence|octal escape|decimal literal)")
    with contextlib.suppress(SyntaxError), warnings_hidden(SyntaxWarning), escapes:
        return ast.parse("".join(linecache.getlines(file)))
    return ast.Module([], [])


def statement_rows(at: Place) -> list[str]:
    """Return the rows of the statement at a line; only the head of a compound statement."""
    node = innermost(at, ast.stmt)
    if node is None:
        return [at.source or "..."]
    last = head_end(node) if getattr(node, "body", None) else node.end_lineno
    return textwrap.dedent("".join(linecache.getlines(at.file)[_begin(node) - 1 : last])).splitlines()


@functools.cache
def _all_nodes(file: str, node_type: Any) -> list[Any]:
    return nodes_in(syntax_tree(file), node_type)


@functools.cache
def _assigned(file: str) -> dict[str, list[ast.expr]]:
    nodes = [(target, node.value) for node in _all_nodes(file, ast.Assign) for target in node.targets]
    by_name = group_by(nodes, lambda pair: ast.unparse(pair[0]))
    return {name: [value for _, value in pairs] for name, pairs in by_name.items()}


def _module_files(file: str) -> list[str]:
    """Return the files that share their names with one: of a notebook all cells, this one last."""
    if not _CELL.search(file):
        return [file]
    return [*(name for name in linecache.cache if _CELL.search(name) and name != file), file]


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


def turns_written(loop: ast.AST, file: str) -> float:
    """Return the number of iterations of a loop over literals, or `range` of them; inf for any other.

    A name that the file assigns once stands for its tuple; a list may grow.
    """
    over = getattr(loop, "iter", None) or next((g.iter for g in getattr(loop, "generators", ())), None)
    if isinstance(over, ast.Name):
        values = _assigned(file).get(over.id, [])
        over = values[0] if len(values) == 1 and isinstance(values[0], ast.Tuple) else None
    if isinstance(over, ast.Tuple | ast.List | ast.Set):
        return math.inf if any(isinstance(e, ast.Starred) for e in over.elts) else len(over.elts)
    if isinstance(over, ast.Call) and last_name(over.func) == "range" and not over.keywords:
        with contextlib.suppress(ValueError, TypeError):
            return len(range(*map(ast.literal_eval, over.args)))
    return math.inf


def calls_at(at: Place) -> list[tuple[str, ast.Call]]:
    return [(ast.unparse(call.func), call) for call in calls_in(innermost(at, ast.stmt))]


def called_at(at: Place) -> set[str]:
    """Return the names of the functions that the statement at a line calls, without their modules."""
    return {name.rpartition(".")[2] for name, _ in calls_at(at)}


def nodes_in(node: ast.AST | None, node_type: Any) -> list[Any]:
    return [n for n in ast.walk(node) if isinstance(n, node_type)] if node else []


def calls_in(node: ast.AST | None) -> list[ast.Call]:
    return nodes_in(node, ast.Call)


@functools.cache
def _calls_by_name(file: str) -> dict[str, list[ast.Call]]:
    return group_by(_all_nodes(file, ast.Call), lambda call: last_name(call.func))


def last_name(function: ast.expr) -> str:
    """Return the last part of a function's dotted name: "jit" for `jax.jit`."""
    return ast.unparse(function).rpartition(".")[2]


def definitions(file: str, name: str, node_type: Any = FUNCTION) -> list[Any]:
    """Return the functions, or classes, of a name in a file; else in the last other cell of a notebook."""
    files = reversed(_module_files(file))
    by_file = ([n for n in _all_nodes(f, node_type) if n.name == name] for f in files)
    return next(filter(None, by_file), [])


def defined_at(at: Place) -> Any:
    function = innermost(at, FUNCTION)
    return function if function is not None and function.lineno == at.line else None


def is_method(function: Any) -> bool:
    return [a.arg for a in function.args.args[:1]] == ["self"]


def parameters(function: Any) -> list[str]:
    """Return the names of a function's parameters, first those that calls may give by position."""
    arguments = function.args
    return [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]


def has_operations(at: Place) -> bool:
    """Return whether a statement may do an operation of JAX: an operator, an index, or a call of JAX."""
    statement = innermost(at, ast.stmt)
    return statement is None or bool(nodes_in(statement, ast.Subscript)) or has_operators(at)


def has_operators(at: Place) -> bool:
    """Return whether a statement has an operator outside of its indices, or calls JAX."""
    left, nodes = [innermost(at, ast.stmt) or ast.Pass()], list[ast.AST]()
    for node in left:
        nodes.append(node)
        left += [n for n in ast.iter_child_nodes(node) if n is not getattr(node, "slice", None)]
    operators = ast.BinOp | ast.UnaryOp | ast.Compare | ast.AugAssign
    calls = [n for n in nodes if isinstance(n, ast.Call)]
    return any(isinstance(n, operators) for n in nodes) or call_jax(calls, at.file)


def call_jax(calls: list[ast.Call], file: str) -> bool:
    called = {ast.unparse(call.func).partition(".")[0] for call in calls}
    return any(name in called for name, module in imports(file) if f"{module}.".startswith("jax."))


def in_jitted(at: Place) -> bool:
    return any(_wrapper(d) for f in enclosing_nodes(at, FUNCTION) for d in f.decorator_list)


def jit_wrapper(file: str, function: str) -> str:
    """Return the transformation that jits a function in a file, such as "nnx.jit"; else "jax.jit"."""
    return next(filter(None, map(_wrapper, _jits_of(file, function))), "jax.jit")


def donated_parameters(file: str, function: str) -> set[str]:
    keywords = (keyword for node in _jits_of(file, function) for keyword in nodes_in(node, ast.keyword))
    donated = (k.value for k in keywords if k.arg in ("donate_argnums", "donate_argnames"))
    values = [constant.value for value in donated for constant in nodes_in(value, ast.Constant)]
    arguments = (f"argument {value}" if isinstance(value, int) else str(value) for value in values)
    return {parameter_name(file, function, argument) for argument in arguments}


def _jits_of(file: str, function: str) -> Iterator[ast.expr]:
    """Yield the decorators of a function, and the calls that take it as their first argument."""
    for node in (n for f in _module_files(file) for n in _all_nodes(f, FUNCTION | ast.Call)):
        if isinstance(node, ast.Call) and function in ("<lambda>", *map(ast.unparse, node.args[:1])):
            yield node
        elif isinstance(node, FUNCTION) and node.name == function:
            yield from node.decorator_list


def _wrapper(decorator: ast.expr) -> str:
    """Return the transformation in `@jax.jit`, `@nnx.jit(...)` or `@partial(jax.jit, ...)`; "" for none."""
    if isinstance(decorator, ast.Call):
        inner = decorator.args[:1] if last_name(decorator.func) == "partial" else [decorator.func]
        return next(filter(None, map(_wrapper, inner)), "")
    return ast.unparse(decorator) if last_name(decorator) in _JITS else ""


def made_at(at: Place, kind: str) -> Place | None:
    """Return the only line in the file that creates an object of class `kind`; None if it is not unique."""
    lines = [call.lineno for call in _calls_by_name(at.file).get(kind, ())]
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
    statement, over = innermost(at, ast.stmt), list[ast.expr]()
    for node in ast.walk(statement) if statement else ():
        match node:
            case (
                ast.For(iter=value) | ast.comprehension(iter=value) | ast.Starred(value=value, ctx=ast.Load())
            ):
                over.append(value)
            case ast.Assign(targets=[ast.Tuple() | ast.List(), *_], value=value):
                over.append(value)
            case ast.Call(func=ast.Name(id=name), args=[*_, value]) if name in _TAKES_ALL:
                over.append(value)
    for value in over:
        called = last_name(value.func) if isinstance(value, ast.Call) else ""
        if isinstance(value, ast.Call) and called in ("enumerate", "zip", "reversed"):
            over += value.args
        elif called not in ("", "range", "items", "leaves") or isinstance(
            value, ast.Name | ast.Attribute | ast.Subscript
        ):
            return ast.unparse(value)
    return ""


def transforms(at: Place) -> str:
    """Return the transformation whose result a statement calls, such as "jax.vmap"; "" for none."""
    for name, call in calls_at(at):
        made = [call.func] if isinstance(call.func, ast.Call) else _assigned(at.file).get(name, [])
        names = [ast.unparse(value.func) for value in made if isinstance(value, ast.Call)]
        if names and len(names) == len(made) and {n.rpartition(".")[2] for n in names} <= TRANSFORMS:
            return names[0]
    return ""


def each_element(at: Place, function: str) -> str:
    """Return xs if a line is `[f(x) for x in xs]`, or `values.append(f(x))` in `for x in xs`; else ""."""
    statement, loop = innermost(at, ast.stmt), innermost(at, ast.For)
    rounds = [(node.elt, node.generators) for node in nodes_in(statement, ast.ListComp)]
    match statement:
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr="append"), args=[element])) if loop:
            rounds.append((element, [loop]))
    for element, generators in rounds:
        variables = [ast.unparse(generator.target) for generator in generators]
        calls = [call for call in calls_in(element) if last_name(call.func) == function]
        if [[ast.unparse(a) for a in call.args] for call in calls] == [variables] and len(variables) == 1:
            return re.sub(r"^range\b", "jnp.arange", ast.unparse(generators[0].iter))
    return ""


TRANSFORMS = {"vmap", "grad", "value_and_grad", "jacfwd", "jacrev", "jacobian", "hessian"}


def size_by_values(at: Place) -> bool:
    """Return whether the size of what a statement computes depends on values, as that of `jnp.where(x)`."""
    for name, call in calls_at(at):
        last, sized = name.rpartition(".")[2], any(keyword.arg == "size" for keyword in call.keywords)
        where = last == "where" and len(call.args) == 1
        if not sized and (where or last in ("nonzero", "argwhere", "flatnonzero", "unique")):
            return True
    return False


_JOINING = {"append", "concatenate", "concat", "stack", "hstack", "vstack", "column_stack", "c_", "r_"}


def joins(at: Place) -> bool:
    return any(name.rpartition(".")[2] in _JOINING and _COMMON.match(name) for name, _ in calls_at(at))


def grows(at: Place) -> bool:
    """Return whether a statement makes a variable longer, as `x = jnp.append(x, y)` does."""
    statement = innermost(at, ast.stmt)
    if not isinstance(statement, ast.Assign) or not joins(at):
        return False
    read = {node.id for node in nodes_in(statement.value, ast.Name)}
    return bool(read & {ast.unparse(target) for target in statement.targets})


def init_call(at: Place) -> str:
    """Return "model.init" if a line calls it outside jit, for a network or an optimizer; else ""."""
    match = _INIT.search(at.source)
    defines = at.source.startswith(("def ", "async def ", "class ", "@"))
    return match[1] if match and not defines and "jit(" not in at.source else ""


def imports(file: str) -> set[tuple[str, str]]:
    """Return the names that a module (or a notebook) imports and what they stand for: ("nnx", "flax.nnx")."""
    names = set[tuple[str, str]]()
    for node in (n for f in _module_files(file) for n in _all_nodes(f, ast.Import | ast.ImportFrom)):
        module = f"{node.module or ''}." if isinstance(node, ast.ImportFrom) else ""
        names.update((a.asname or a.name.partition(".")[0], module + a.name) for a in node.names)
    return names


def imports_module(file: str, module: str) -> bool:
    return any(f"{name}.".startswith(f"{module}.") for _, name in imports(file))


def in_module(at: Place) -> bool:
    node = innermost(at, ast.ClassDef)
    return node is not None and _is_module(node, at.file)


def _is_module(node: ast.ClassDef, file: str) -> bool:
    classes = [node]  # and those that it is derived from; a notebook may define `class Net(Net)` again
    for known in classes:
        bases = [last_name(base) for base in known.bases]
        if "Module" in bases:
            return True
        all_classes = (c for f in _module_files(file) for c in _all_nodes(f, ast.ClassDef))
        classes += [c for c in all_classes if c.name in bases and c not in classes]
    return False


def made_module(at: Place) -> str:
    """Return the class of the module that a statement makes, such as "Net" or "eqx.nn.MLP"; else ""."""
    called = outermost_call(at)
    name = called.rpartition(".")[2]
    libraries = any(imports_module(at.file, library) for library in ("flax.nnx", "equinox"))
    if not name[:1].isupper() or not libraries:
        return ""
    layer = called.startswith(("nnx.", "eqx.", "equinox.")) and name not in ("Rngs", "Optimizer")
    classes = definitions(at.file, name, ast.ClassDef)
    return called if layer or any(_is_module(c, at.file) for c in classes) else ""


_STAYS = {"print", "input", "append", "block_until_ready", "item", "tolist"}


def has_effects(function: Any) -> bool:
    """Return whether a function does on the host what can be left out of the part that jit takes."""
    called = {last_name(call.func) for call in calls_in(function)}
    return bool(called & _STAYS or nodes_in(function, ast.With | ast.While))


@functools.cache  # rules ask for each sample
def literal_parameters(file: str, function: str) -> tuple[str, ...]:
    """Return the parameters for which all calls in a file pass an integer, a text or a tuple of integers."""
    names = _parameters(file, function)
    calls = _calls_by_name(file).get(function, ())
    passed = {name: [v for c in calls for v in _values_for(c, str(i), name)] for i, name in enumerate(names)}
    return tuple(name for name, values in passed.items() if values and all(map(_is_size, values)))


def static_options(at: Place, function: str) -> str:
    """Return ", static_argnums=(1,)" for the arguments of a call that are sizes in the source; else ""."""
    for name, call in calls_at(at):
        if name == function:
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
    calls = calls_at(at)
    named = [(name, call) for name, call in calls if name.rpartition(".")[2] == function]
    position, keyword = argument.removeprefix("argument "), parameter_name(at.file, function, argument)
    values = [value for _, call in named or calls for value in _values_for(call, position, keyword)]
    return values[0] if len(values) == 1 else None


def parameter_name(file: str, function: str, argument: str) -> str:
    """Return the parameter's name for "argument 2"; the argument itself if that is unknown."""
    names, position = _parameters(file, function), argument.removeprefix("argument ")
    return names[int(position)] if position.isdigit() and int(position) < len(names) else argument


def _parameters(file: str, function: str) -> list[str]:
    functions = definitions(file, function)
    return parameters(functions[0]) if len(functions) == 1 else []


def _values_for(call: ast.Call, position: str, keyword: str) -> list[ast.expr]:
    """Return the expressions that a call passes for an argument, by position and by keyword."""
    by_place = [call.args[int(position)]] if position.isdigit() and int(position) < len(call.args) else []
    return by_place + [k.value for k in call.keywords if k.arg == keyword]
