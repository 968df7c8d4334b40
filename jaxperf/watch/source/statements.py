"""Statements of the reader's source code: their rows, enclosing nodes, and the arguments of their calls."""

import ast
import builtins
import contextlib
import functools
import itertools
import linecache
import math
import operator
import re
import textwrap
from collections import defaultdict
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from jaxperf.errors import warnings_hidden
from jaxperf.watch.observe.source_location import NOWHERE, Place

PACKAGES = 3  # of one in the other, in which an imported module is looked for
FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef
LOOP = ast.For | ast.While | ast.AsyncFor
ROUND = LOOP | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
TRANSFORMS = {"vmap", "grad", "value_and_grad", "jacfwd", "jacrev", "jacobian", "hessian"}
_JITS = {"jit", "pmap", "filter_jit", "filter_pmap"}
_JOINING = {"append", "concatenate", "concat", "stack", "hstack", "vstack", "column_stack"}
_SIZED = {"arange", "broadcast_to", "empty", "eye", "identity", "ones", "range", "reshape", "tile", "zeros"}
_SIZED_BY_VALUES = {
    "argwhere", "extract", "flatnonzero", "intersect1d", "nonzero", "setdiff1d", "setxor1d", "trim_zeros",
    "union1d", "unique", "unique_all", "unique_counts", "unique_inverse", "unique_values",
}  # fmt: skip
_STAYS = {"print", "input", "append", "block_until_ready", "item", "tolist"}
_TAKES_ALL = {"list", "tuple", "set", "sorted", "map", "min", "max", "sum", "any", "all", "dict"}
_NAMED = ast.Name | ast.Attribute | ast.Subscript | ast.Call
_ARITHMETIC: dict[type, Any] = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}
_INIT = re.compile(r"(\b\w[\w.]*(?:\([^()]*\))?\.init|(?<![\w.])(?!__)(?:\w+_)?init(?:_\w+)?)\(")
_CONVERSIONS = ("numpy.asarray", "numpy.array")
_PLACES = re.compile(r"jax\.(sharding\.\w+|make_mesh|(local_)?devices|device_put)")
_OF_VALUES = {"jax.numpy.asarray", "jax.numpy.array"}
_MAKES_ARRAYS = {"jax.device_put", *_OF_VALUES}
_KEEPS = {"append", "appendleft", "extend", "tuple", "list", "dict", "zip"}
_COMMON = re.compile(r"(np|numpy|jnp|jax|math)\.")
_CELL = re.compile(r"<ipython-input-|[\\/]ipykernel_\d+[\\/]")  # in the name of the file of a notebook's cell


@functools.cache
def syntax_tree(file: str) -> ast.Module:
    """Return the syntax tree of a file; an empty one if the file cannot be read or parsed."""
    # Python has warned of the program already; before 3.12, of escape sequences by a `DeprecationWarning`
    escapes = warnings_hidden(DeprecationWarning, "invalid (escape sequence|octal escape|decimal literal)")
    with contextlib.suppress(SyntaxError), warnings_hidden(SyntaxWarning), escapes:
        return ast.parse("".join(linecache.getlines(file)))
    return ast.Module([], [])


@functools.cache  # rules ask for each function of a file, and some files have many
def nodes_in(node: ast.AST | None, node_type: Any) -> list[Any]:
    return [n for n in ast.walk(node) if isinstance(n, node_type)] if node else []


@functools.cache
def _nodes(file: str) -> list[ast.AST]:
    return list(ast.walk(syntax_tree(file)))


@functools.cache
def _all_nodes(file: str, node_type: Any) -> list[Any]:
    return [n for n in _nodes(file) if isinstance(n, node_type)]


def _module_files(file: str) -> list[str]:
    """Return the files that share their names with one: of a notebook all cells, this one last."""
    cells = [name for name in linecache.cache if _CELL.search(name)] if _CELL.search(file) else []
    return [*(name for name in cells if name != file), file]


def _module_nodes(file: str, node_type: Any) -> list[Any]:
    return [node for name in _module_files(file) for node in _all_nodes(name, node_type)]


@functools.cache
def _nodes_around(file: str, line: int) -> list[Any]:
    """Return all nodes around a line, the innermost last; what they are inside of is around it, too."""
    around, nodes = list[Any](), list[Any]([syntax_tree(file)])
    for node in nodes:
        if hasattr(node, "lineno"):  # the file and a function's parameters have none
            if not _begin(node) <= line <= node.end_lineno:
                continue
            around.append(node)
        nodes += ast.iter_child_nodes(node)
    return sorted(around, key=_begin)


@functools.cache  # rules ask for each sample
def enclosing_nodes(at: Place, kind: Any) -> tuple[Any, ...]:
    """Return the nodes of one type around a line, the innermost last."""
    return tuple(n for n in _nodes_around(at.file, at.line) if isinstance(n, kind))


def innermost(at: Place, kind: Any) -> Any:
    """Return the innermost node of one type around a line; None if there is none."""
    return next(reversed(enclosing_nodes(at, kind)), None)


def function_of(at: Place) -> tuple[str, str, int]:
    """Return what identifies the function of a line: its file, name and line, as of two classes' `step`."""
    return at.file, at.function, getattr(innermost(at, FUNCTION), "lineno", 0)


def _begin(node: Any) -> int:
    """Return the first line of a statement with its decorators."""
    return min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])


def head_end(node: Any) -> int:
    """Return the last line of a compound statement's head, or of a simple statement."""
    body = getattr(node, "body", None)
    return max(node.lineno, _begin(body[0]) - 1) if body else node.end_lineno


def statement_rows(at: Place) -> list[str]:
    """Return the rows of the statement at a line; only the head of a compound statement."""
    node = innermost(at, ast.stmt)
    if node is None:
        return [at.source or "..."]
    rows = linecache.getlines(at.file)[_begin(node) - 1 : head_end(node)]
    while len(rows) > 1 and rows[-1].strip()[:1] in ("", "#"):  # comments behind the head
        rows.pop()
    return textwrap.dedent("".join(rows)).splitlines()


def is_import(at: Place) -> bool:
    return isinstance(innermost(at, ast.stmt), ast.Import | ast.ImportFrom)


def dotted_name(node: ast.AST | None) -> str:
    """Return the dotted name that is the whole expression, such as "self.table"; else ""."""
    if isinstance(node, ast.Attribute):
        owner = dotted_name(node.value)
        return owner and f"{owner}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def last_name(node: ast.AST) -> str:
    """Return the last part of a dotted name: "jit" for `jax.jit`, and "init" for `net(3).init`; else ""."""
    return getattr(node, "attr", "") or getattr(node, "id", "")


@functools.cache
def imports(file: str) -> set[tuple[str, str]]:
    """Return the names that a module (or a notebook) imports and what they stand for: ("nnx", "flax.nnx")."""
    names = set[tuple[str, str]]()
    for node in _module_nodes(file, ast.Import | ast.ImportFrom):
        module = f"{node.module or ''}." if isinstance(node, ast.ImportFrom) else ""
        names.update((a.asname or a.name.partition(".")[0], module + a.name) for a in node.names)
    return names


def imports_module(file: str, module: str) -> bool:
    return any(f"{name}.".startswith(f"{module}.") for _, name in imports(file))


def imported_name(file: str, node: ast.AST) -> str:
    """Return the full name of an expression by what a file imports: "jax.numpy.sin" for `jnp.sin`; or ""."""
    root, dot, rest = ast.unparse(node).partition(".")
    # of a name that is imported from several modules, JAX's is rather meant than NumPy's
    meaning = dict(sorted(imports(file), reverse=True)).get(root, "")
    return meaning and meaning + dot + rest


@functools.cache
def _assigned(file: str, name: str) -> list[ast.expr]:
    """Return the expressions whose values a file assigns to a variable."""
    return [n.value for n in _all_nodes(file, ast.Assign) if name in map(ast.unparse, n.targets)]


def definitions(file: str, name: str, node_type: Any = FUNCTION) -> list[Any]:
    """Return the functions, or classes, of a name in a file; else in the last other cell of a notebook."""
    files = reversed(_module_files(file))
    by_file = ([n for n in _all_nodes(f, node_type) if n.name == name] for f in files)
    return next(filter(None, by_file), [])


def defined_at(at: Place) -> Any:
    function = innermost(at, FUNCTION)
    return function if function is not None and function.lineno == at.line else None


def parameters(function: Any) -> list[str]:
    """Return the names of a function's parameters, first those that calls may give by position."""
    arguments = function.args
    return [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]


def is_method(function: Any) -> bool:
    return parameters(function)[:1] == ["self"]


def has_effects(function: Any) -> bool:
    """Return whether a function does on the host what can be left out of the part that jit takes."""
    called = {last_name(call.func) for call in calls_in(function)}
    return bool(called & _STAYS or nodes_in(function, ast.With | ast.While))


def in_jitted(at: Place) -> bool:
    return any(map(is_jitted, enclosing_nodes(at, FUNCTION)))


def is_jitted(function: Any) -> bool:
    """Return whether a function's decorator jits it."""
    return any(map(_wrapper, function.decorator_list))


def jit_wrapper(file: str, function: str) -> str:
    """Return the transformation that jits a function in a file, such as "nnx.jit"; else "jax.jit"."""
    return next(filter(None, map(_wrapper, _jits_of(file, function))), "jax.jit")


def donated_parameters(file: str, function: str) -> set[str]:
    keywords = (keyword for node in _jits_of(file, function) for keyword in nodes_in(node, ast.keyword))
    donated = [k for k in keywords if k.arg in ("donate_argnums", "donate_argnames")]
    values = [constant.value for keyword in donated for constant in nodes_in(keyword, ast.Constant)]
    arguments = (f"argument {value}" if isinstance(value, int) else str(value) for value in values)
    return {parameter_name(file, function, argument) for argument in arguments}


def _jits_of(file: str, function: str) -> list[ast.expr]:
    """Return the decorators of a function, and the calls that take it as their first argument."""
    return [jit for name in _module_files(file) for jit in _jits_in(name).get(function, ())]


@functools.cache
def _jits_in(file: str) -> dict[str, list[ast.expr]]:
    """Return what may jit the functions of a file, by their names; any call may jit a lambda."""
    jits: dict[str, list[ast.expr]] = defaultdict(list)
    for node in _all_nodes(file, FUNCTION | ast.Call):
        if isinstance(node, FUNCTION):
            jits[node.name] += node.decorator_list
            continue
        jits["<lambda>"].append(node)
        for argument in node.args[:1]:
            if isinstance(argument, ast.Name):
                jits[argument.id].append(node)
    return jits


def _wrapper(decorator: ast.expr) -> str:
    """Return the transformation in `@jax.jit`, `@nnx.jit(...)` or `@partial(jax.jit, ...)`; "" for none."""
    if isinstance(decorator, ast.Call):
        inner = decorator.args[:1] if last_name(decorator.func) == "partial" else [decorator.func]
        return next(filter(None, map(_wrapper, inner)), "")
    return ast.unparse(decorator) if last_name(decorator) in _JITS else ""


def in_module(at: Place) -> bool:
    node = innermost(at, ast.ClassDef)
    return node is not None and _is_module(at.file, node.name)


def _is_module(file: str, name: str) -> bool:
    """Return whether a class is derived from a library's `Module`, directly or by way of others."""
    names = [(file, name)]
    for known_in, known in names:
        # a notebook may define `class Net(Net)` again
        classes = [c for c in _module_nodes(known_in, ast.ClassDef) if c.name == known]
        bases = {(known_in, last_name(base)) for c in classes for base in c.bases}
        if not classes:
            module, _, original = dict(imports(known_in)).get(known, "").rpartition(".")
            bases = {(str(path), original) for path in _files_of(known_in, module)}
        names += bases.difference(names)
    return any(known == "Module" for _, known in names[1:])


def _files_of(file: str, module: str) -> Iterator[Path]:
    """Yield the file of a module that lies beside the one that imports it, or beside one of its packages."""
    for folder in [*Path(file).parents][:PACKAGES] if module else []:
        path = folder.joinpath(*module.split("."))
        yield from filter(Path.is_file, (path.with_suffix(".py"), path / "__init__.py"))


def turns_written(loop: ast.AST, file: str) -> float:
    """Return the number of iterations of a loop over literals, or `range` of them; inf for any other.

    A name that the file binds once stands for its tuple or its number; a list may grow.
    """
    over = getattr(loop, "iter", None) or next((g.iter for g in getattr(loop, "generators", ())), None)
    if isinstance(over, ast.Name):
        value = _bound_once(file, over.id)
        over = value if isinstance(value, ast.Tuple) else None
    if isinstance(over, ast.Tuple | ast.List | ast.Set):
        return math.inf if any(isinstance(e, ast.Starred) for e in over.elts) else len(over.elts)
    if isinstance(over, ast.Call) and last_name(over.func) == "range" and not over.keywords:
        with contextlib.suppress(ValueError, TypeError):
            return len(range(*(_number(file, argument) for argument in over.args)))
    return math.inf


def _bound_once(file: str, name: str) -> ast.expr | None:
    """Return the expression that a name stands for in a whole file; None if it may stand for several."""
    names = [n for n in _all_nodes(file, ast.Name) if n.id == name and isinstance(n.ctx, ast.Store)]
    parameter = any(a.arg == name for a in _all_nodes(file, ast.arg))
    values = _assigned(file, name)
    return values[0] if len(names) == len(values) == 1 and not parameter else None


def _number(file: str, node: ast.expr) -> Any:
    match node:
        case ast.Name(id=name):
            value = _bound_once(file, name)
            return value.value if isinstance(value, ast.Constant) else None
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            return _ARITHMETIC[type(op)](_number(file, left), _number(file, right))
    return ast.literal_eval(node)


def neighborhood(at: Place) -> Place:
    """Return one place, with a line of 0 or below, for lines that one jitted function could hold.

    Those are the lines of a function, or of a loop of the module; NOWHERE for other lines of a module.
    """
    if innermost(at, FUNCTION) is not None:
        return at._replace(line=0)
    loop = innermost(at, LOOP)
    return at._replace(line=-loop.lineno) if loop is not None else NOWHERE


def iterated(at: Place, arrays: Collection[str] = ()) -> str:
    """Return the variable over which a line's loop, comprehension, `min` or unpacking goes; "" for none.

    Of several, as in a call of `zip`, it is one of the arrays, if these are known.
    """
    over, found = list[ast.expr](), list[str]()
    # a loop's body may stand behind its head, on the same line
    begun = (node for node in enclosing_nodes(at, ast.stmt) if _begin(node) == at.line)
    for node in nodes_in(next(begun, innermost(at, ast.stmt)), ast.AST):
        match node:
            case (
                ast.For(iter=value)
                | ast.comprehension(iter=value)
                | ast.Starred(value=value, ctx=ast.Load())
                | ast.Assign(targets=[ast.Tuple() | ast.List(), *_], value=value)
            ):
                over.append(value)
            case ast.Call(func=ast.Name(id=name), args=[*_, value]) if name in _TAKES_ALL:
                over.append(value)
    while over:
        value = over.pop(0)
        called = last_name(value.func) if isinstance(value, ast.Call) else ""
        if isinstance(value, ast.Call) and called in ("enumerate", "zip", "reversed"):
            over[:0] = value.args  # before what the body iterates over
        elif isinstance(value, _NAMED) and called not in ("range", "items", "leaves"):
            found.append(ast.unparse(value))
    known = (name for name in found if name in arrays or re.split(r"[.\[]", name)[0] in arrays)
    return next(known, found[0] if found else "")


def each_element(at: Place, function: str) -> list[str]:
    """Return xs and ys if a line is `[f(x, y) for x, y in zip(xs, ys)]`, or appends f(x, y) in a `for`."""
    statement, loop = innermost(at, ast.stmt), innermost(at, ast.For)
    rounds = [(node.elt, node.generators) for node in nodes_in(statement, ast.ListComp)]
    match statement:
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr="append"), args=[element])) if loop:
            rounds.append((element, [loop]))
    for element, generators in rounds:
        target, over = generators[0].target, [generators[0].iter]
        variables = [target]
        match over:
            case [ast.Call(func=ast.Name(id="zip"), args=args)] if isinstance(target, ast.Tuple):
                over, variables = args, target.elts
        calls = [call for call in calls_in(element) if last_name(call.func) == function]
        passed = [[ast.unparse(argument) for argument in call.args] for call in calls]
        over = [_inside_bar(value) for value in over]
        if passed == [[*map(ast.unparse, variables)]] and len(generators) == 1:
            return [re.sub(r"^range\b", "jnp.arange", ast.unparse(value)) for value in over]
    return []


def _inside_bar(over: ast.expr) -> ast.expr:
    """Return the iterable that a progress bar goes over."""
    match over:
        case ast.Call(func=called, args=[inside, *_]) if last_name(called) in ("tqdm", "track"):
            return inside
    return over


def calls_in(node: ast.AST | None) -> list[ast.Call]:
    return nodes_in(node, ast.Call)


def calls_at(at: Place) -> list[ast.Call]:
    return calls_in(innermost(at, ast.stmt))


def called_at(at: Place) -> set[str]:
    """Return the names of the functions that the statement at a line calls, without their modules."""
    return {last_name(call.func) for call in calls_at(at)} - {""}


_SUMS = {"sum", "mean", "max", "min", "prod", "any", "all", "norm", "var", "std"}


def only_sums(at: Place, called: str) -> bool:
    """Return whether a statement calls a function, as `jnp.cos`, only within what it sums or the like."""
    calls = [call for call in calls_at(at) if last_name(call.func) == called]
    sums = (call for call in calls_at(at) if last_name(call.func) in _SUMS)
    inside = {node for call in sums for node in ast.walk(call)}
    return bool(calls) and inside.issuperset(calls)


def outermost_call(at: Place) -> str:
    """Return what a statement's outermost call calls, such as "mcmc.run", but not float or np.asarray."""
    node = innermost(at, ast.stmt)
    if getattr(node, "body", None) or isinstance(node, FUNCTION):
        node = getattr(node, "iter", None) or getattr(node, "test", None)
    names = filter(None, (dotted_name(call.func) for call in calls_in(node)))
    return next((n for n in names if not _COMMON.match(n) and not hasattr(builtins, n)), "")


def jax_calls(node: ast.AST | None, file: str) -> list[ast.Call]:
    return [call for call in calls_in(node) if imported_name(file, call.func).startswith("jax.")]


def only_places(at: Place) -> bool:
    """Return whether a statement asks JAX for meshes, shardings or places of arrays only."""
    names = {imported_name(at.file, call.func) for call in jax_calls(innermost(at, ast.stmt), at.file)}
    return bool(names) and all(map(_PLACES.fullmatch, names))


def only_makes_arrays(at: Place) -> bool:
    """Return whether the function around a line only makes arrays of what it is given, and keeps them."""
    function = innermost(at, FUNCTION)
    names = [imported_name(at.file, call.func) or last_name(call.func) for call in calls_in(function)]
    computing = nodes_in(function, ast.BinOp | ast.UnaryOp | ast.Compare | ast.AugAssign)
    return bool(_MAKES_ARRAYS.intersection(names)) and not computing and {*names} <= _MAKES_ARRAYS | _KEEPS


def conversion_calls(at: Place) -> list[ast.Call]:
    """Return the calls that make arrays of values in a statement: `jnp.array(x)` and `jnp.asarray(x)`."""
    calls = jax_calls(innermost(at, ast.stmt), at.file)
    return [call for call in calls if imported_name(at.file, call.func) in _OF_VALUES]


def conversions(at: Place) -> list[str]:
    """Return the texts of the calls that make arrays in a statement, if JAX does no more there."""
    statement, made = innermost(at, ast.stmt), conversion_calls(at)
    computing = nodes_in(statement, ast.BinOp | ast.UnaryOp | ast.Compare | ast.AugAssign | ast.Subscript)
    if computing or len(made) < len(jax_calls(statement, at.file)):
        return []
    return list(dict.fromkeys(map(ast.unparse, made)))


def has_operations(at: Place) -> bool:
    """Return whether a statement may do an operation of JAX: an operator, an index, or a call of JAX."""
    return bool(nodes_in(innermost(at, ast.stmt), ast.Subscript)) or has_operators(at)


def has_operators(at: Place) -> bool:
    """Return whether a statement has an operator outside of its indices, or calls JAX; True if unknown."""
    statement = innermost(at, ast.stmt)
    indices = [n for indexed in nodes_in(statement, ast.Subscript) for n in ast.walk(indexed.slice)]
    operators = nodes_in(statement, ast.BinOp | ast.UnaryOp | ast.Compare | ast.AugAssign)
    computing = [*operators, *jax_calls(statement, at.file)]
    return statement is None or any(node not in indices for node in computing)


def transforms(at: Place) -> str:
    """Return the transformation whose result a statement calls, such as "jax.vmap"; "" for none."""
    return next((ast.unparse(call.func) for call in transforming_calls(at)), "")


def transforming_calls(at: Place) -> list[ast.Call]:
    """Return what makes a function that a statement calls, if that is a transformation: `grad(f)`."""
    for call in calls_at(at):
        direct = isinstance(call.func, ast.Call)
        made = [call.func] if direct else _assigned(at.file, ast.unparse(call.func))
        calls = [value for value in made if isinstance(value, ast.Call)]
        if calls and len(calls) == len(made) and {last_name(c.func) for c in calls} <= TRANSFORMS:
            return calls
    return []


def size_by_values(at: Place) -> bool:
    """Return whether the size of what a statement computes depends on values, as that of `jnp.where(x)`."""
    return any(map(is_sized_by_values, calls_at(at)))


def is_sized_by_values(call: ast.Call) -> bool:
    if any(keyword.arg == "size" for keyword in call.keywords):
        return False
    name = last_name(call.func)
    return name in _SIZED_BY_VALUES or (name == "where" and len(call.args) == 1)


def joins(at: Place) -> bool:
    called = [call.func for call in calls_at(at) if last_name(call.func) in _JOINING]
    return any(_COMMON.match(ast.unparse(function)) for function in called)


def grows(at: Place) -> bool:
    """Return whether a statement makes a variable longer, as `x = jnp.append(x, y)` does."""
    statement = innermost(at, ast.stmt)
    if not isinstance(statement, ast.Assign) or not joins(at):
        return False
    read = {node.id for node in nodes_in(statement.value, ast.Name)}
    return bool(read & {ast.unparse(target) for target in statement.targets})


def made_at(at: Place, kind: str) -> Place | None:
    """Return the only line in the file that creates an object of class `kind`; None if it is not unique."""
    lines = [call.lineno for call in _all_nodes(at.file, ast.Call) if last_name(call.func) == kind]
    return at._replace(line=lines[0]) if len(lines) == 1 else None


def attribute_set_at(file: str, kind: str, attribute: str) -> Place | None:
    """Return the first line at which a method of a class sets an attribute of its object; else None.

    `__init__` does not count.
    """
    methods = (nodes_in(c, FUNCTION) for c in definitions(file, kind, ast.ClassDef))
    for function in itertools.chain(*methods):
        for node in nodes_in(function, ast.Assign | ast.AugAssign | ast.AnnAssign):
            targets = getattr(node, "targets", None) or [node.target]
            if function.name != "__init__" and f"self.{attribute}" in map(ast.unparse, targets):
                return Place(file, node.lineno, function.name)
    return None


def made_module(at: Place) -> str:
    """Return the class of the module that a statement makes, such as "Net" or "eqx.nn.MLP"; else ""."""
    called = outermost_call(at)
    name = called.rpartition(".")[2]
    libraries = any(imports_module(at.file, library) for library in ("flax.nnx", "equinox"))
    if not name[:1].isupper() or not libraries:
        return ""
    layer = called.startswith(("nnx.", "eqx.", "equinox.")) and name not in ("Rngs", "Optimizer")
    return called if layer or _is_module(at.file, name) else ""


def init_call(at: Place) -> str:
    """Return "model.init" if a line calls it outside jit, for a network or an optimizer; else ""."""
    match = _INIT.search(at.source)
    defines = at.source.startswith(("def ", "async def ", "class ", "@"))
    return match[1] if match and not defines and "jit(" not in at.source else ""


def only_converts(at: Place) -> bool:
    """Return whether NumPy only makes arrays at a statement, as in `losses.append(np.asarray(loss))`."""
    statement = innermost(at, ast.stmt) or ast.Pass()
    calls = {n: imported_name(at.file, n.func) for n in ast.walk(statement) if isinstance(n, ast.Call)}
    used = [*ast.iter_child_nodes(statement), *(value for call in calls for value in call.args)]
    of_numpy = [call for call, name in calls.items() if name.startswith("numpy.")]
    return bool(of_numpy) and all(calls[call] in _CONVERSIONS and call in used for call in of_numpy)


def _passed(call: ast.Call) -> dict[str, ast.expr]:
    """Return the expressions that a call passes, by position ("0") and by keyword ("rate")."""
    by_keyword = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
    return {str(i): value for i, value in enumerate(call.args)} | by_keyword


def _parameters(file: str, function: str, one_of_them: str = "") -> list[str]:
    """Return the parameters of a function that a file defines once; of a lambda, if it has `one_of_them`."""
    functions = definitions(file, function)
    if function == "<lambda>":
        functions = [f for f in _all_nodes(file, ast.Lambda) if one_of_them in parameters(f)]
    return parameters(functions[0]) if len(functions) == 1 else []


def parameter_name(file: str, function: str, argument: str) -> str:
    """Return the parameter's name for "argument 2"; the argument itself if that is unknown."""
    names, position = _parameters(file, function), argument.removeprefix("argument ")
    return names[int(position)] if position.isdigit() and int(position) < len(names) else argument


def argument_expression(at: Place, function: str, argument: str, file: str = "") -> ast.expr | None:
    """Return the expression that a call passes for an argument ("rate", "argument 2"); None if unclear.

    `file` defines the function, if the call is in another one.
    """
    names = [name for name in _parameters(file, function, argument) if name != "self"]
    position = str(names.index(argument)) if argument in names else argument.removeprefix("argument ")
    keys = {position, argument, parameter_name(at.file, function, argument)}
    calls = calls_at(at)
    named = [call for call in calls if last_name(call.func) == function]
    passed = [_passed(call) for call in named or calls]
    values = [arguments[key] for arguments in passed for key in keys & arguments.keys()]
    return values[0] if len(values) == 1 else None


def variable_passed(at: Place, function: str, argument: str, file: str = "") -> str:
    """Return the variable that a call passes for an argument, or the parameter's name if there is none."""
    expression = argument_expression(at, function, argument, file)
    if isinstance(expression, ast.Name | ast.Attribute):
        return ast.unparse(expression)
    return parameter_name(at.file, function, argument)


@functools.cache  # rules ask for each sample
def literal_parameters(file: str, function: str) -> tuple[str, ...]:
    """Return the parameters for which all calls in a file pass an integer, a text or a tuple of integers."""
    calls = [_passed(call) for call in _all_nodes(file, ast.Call) if last_name(call.func) == function]
    literal = []
    for i, name in enumerate(_parameters(file, function)):
        values = [call[key] for call in calls for key in (str(i), name) if key in call]
        if values and all(map(_is_size, values)):
            literal.append(name)
    return tuple(literal)


@functools.cache  # rules ask for each sample
def sizes_in(file: str, function: str) -> tuple[str, ...]:
    """Return the parameters of a function that it uses as sizes: in `jnp.zeros(n)`, `range(n)` or `x[:n]`."""
    names = _parameters(file, function)
    defined = next(iter(definitions(file, function)), None)
    calls = [call for call in calls_in(defined) if last_name(call.func) in _SIZED]
    bounds = [part for call in calls for part in call.args]
    bounds += [bound for s in nodes_in(defined, ast.Slice) for bound in (s.lower, s.upper) if bound]
    used = {n.id for bound in bounds for n in nodes_in(bound, ast.Name)}
    return tuple(name for name in names if name in used)


def sizes_of_fields(call: ast.Call, names: Collection[str]) -> list[str]:
    """Return the values of some dictionaries that a call takes as sizes: in `jnp.zeros(options["width"])`."""
    if last_name(call.func) not in _SIZED:
        return []
    parts = [part for argument in call.args for part in nodes_in(argument, ast.Subscript)]
    named = (part for part in parts if isinstance(getattr(part.slice, "value", None), str))
    return [ast.unparse(part) for part in named if dotted_name(part.value) in names]


def static_options(at: Place, function: str) -> str:
    """Return ", static_argnums=(1,)" for arguments that are sizes or functions in the source; else ""."""
    calls = (call for call in calls_at(at) if ast.unparse(call.func) == function)
    passed = [(key, value) for call in [*calls][:1] for key, value in _passed(call).items()]
    static = [key for key, value in passed if _is_size(value) or _is_function(at.file, value)]
    numbers = [key for key in static if key.isdigit()]
    names = [f'"{key}"' for key in static if not key.isdigit()]
    options = ("static_argnums", numbers), ("static_argnames", names)
    return "".join(f", {option}=({', '.join(keys)},)" for option, keys in options if keys)


def _is_function(file: str, value: ast.expr) -> bool:
    """Return whether an expression is a lambda, or the name of a function that a file defines."""
    named = isinstance(value, ast.Name) and (definitions(file, value.id) or _assigned(file, value.id))
    return any(isinstance(node, FUNCTION | ast.Lambda) for node in (value, *(named or ())))


def _is_size(value: ast.expr) -> bool:
    """Return whether an expression is written as an integer, a text, or a tuple with integers."""
    with contextlib.suppress(ValueError):
        literal = ast.literal_eval(value)
        parts = literal if isinstance(literal, tuple) else (literal,)
        return all(isinstance(part, int | str) for part in parts)
    # `(images, labels)` may be arrays, unlike `(64, width)`
    written = [e.value for e in getattr(value, "elts", ()) if isinstance(e, ast.Constant)]
    return isinstance(value, ast.Tuple) and any(isinstance(number, int) for number in written)
