"""What a function does on the host, which jit cannot take, or would do only once, while it traces."""

import ast
import functools
import importlib
import re
import sys
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from jaxperf.result.formatting import format_list
from jaxperf.watch.grouping import group_by
from jaxperf.watch.observe.source_location import Place, library_of
from jaxperf.watch.source import loop_body, statements

# beginnings of the full names of functions that take arrays to the host, and of others that work there
_TAKING = (
    "PIL.", "csv.", "cv2.", "json.", "logging.", "matplotlib.", "pandas.", "pickle.", "plotly.", "scipy.",
    "seaborn.", "sklearn.",
)  # fmt: skip
ON_HOST = (
    *_TAKING, "gym.", "gymnasium.", "numpy.random.", "os.", "random.", "subprocess.", "time.", "tqdm.",
)  # fmt: skip
# methods of Matplotlib's axes, and of NumPy's generators, which no array has
_DRAWING = {
    "contour", "contourf", "draw", "hist", "imshow", "legend", "plot", "savefig", "scatter", "show",
}  # fmt: skip
_METHODS = _DRAWING | {
    "choice", "integers", "normal", "permutation", "shuffle", "standard_normal", "uniform",
}  # fmt: skip
_TO_HOST = {"array", "asarray", "load", "loadtxt", "save", "savetxt", "savez"}
_MASKS = re.compile(r"jax\.numpy\.(logical_\w+|is(nan|finite|inf|close|in))")
_PLAIN_BASES = ("object", "ABC", "abc.ABC")
_NO_VALUE = ("len", "isinstance", "hasattr", "callable")  # calls whose results are known while tracing


@functools.cache
def host_work(file: str, function: statements.FUNCTION) -> str:
    """Return what keeps jit from taking a function, such as "calls plt.plot in line 4"; "" for nothing.

    The program's own functions that it calls count, too, also those of its other modules. What jnp may
    replace is no such reason: `replaceable_calls` returns that.
    """
    reasons = _with_called(file, function)
    return next((f"{what} in {line}" for _, line, what in reasons if isinstance(what, str)), "")


@functools.cache
def replaceable_calls(file: str, function: statements.FUNCTION) -> dict[str, list[str]]:
    """Return the calls that jnp or jax.scipy may replace, by that name: a text for each line that has some.

    Such a text is "np.sin and np.cos in line 4".
    """
    calls = [
        (statements.imported_name(source, call.func).partition(".")[0], line, ast.unparse(call.func))
        for source, line, call in _with_called(file, function)
        if isinstance(call, ast.Call)
    ]
    replaceable = dict[str, list[str]]()
    for library, of_library in group_by(dict.fromkeys(calls), lambda call: call[0]).items():
        lines = group_by(of_library, lambda call: call[1]).items()
        texts = [f"{format_list([name for *_, name in here])} in {line}" for line, here in lines]
        replaceable["jax.scipy" if library == "scipy" else "jnp"] = texts
    return replaceable


@functools.cache
def needed_changes(file: str, function: statements.FUNCTION) -> str:
    """Return what must change in a function, and in those that it calls, for jit to take it; "" for nothing.

    That is a phrase such as "; print() stays outside, and an if on an array becomes jnp.where".
    """
    nodes = [(source, n) for source, called in all_called(file, function) for n in ast.walk(called)]
    calls = {getattr(n.func, "id", "") for _, n in nodes if isinstance(n, ast.Call)}
    outside = [f"{name}()" for name in ("float", "print") if name in calls]
    phrases = list[str]()
    if outside:
        stay = "stay" if len(outside) > 1 else "stays"
        phrases.append(f"{format_list(outside)} {stay} outside")
    if any(isinstance(n, ast.If | ast.IfExp) and not _is_known(n.test) for _, n in nodes):
        phrases.append("an if on an array becomes jnp.where")
    updates = ((source, n) for source, n in nodes if isinstance(n, ast.Subscript))
    if any(getattr(n.value, "attr", "") == "at" and _is_mask(n.slice, (), source) for source, n in updates):
        phrases.append("an update by a mask becomes jnp.where")
    if any(isinstance(n, ast.ListComp) and all(map(_goes_over_elements, n.generators)) for _, n in nodes):
        phrases.append("a comprehension over examples becomes jax.vmap")
    return f"; {format_list(phrases)}" if phrases else ""


def _goes_over_elements(part: ast.comprehension) -> bool:
    """Return whether a comprehension takes the elements of a variable, and no pairs, as of weights."""
    return isinstance(part.target, ast.Name) and isinstance(part.iter, ast.Name | ast.Attribute)


def _is_known(test: ast.expr) -> bool:
    """Return whether jit can make a test while it traces, as `x is None` or `isinstance(x, list)`."""
    match test:
        case ast.Compare(ops=[ast.Is() | ast.IsNot() | ast.In() | ast.NotIn()]) | ast.Constant():
            return True
        case ast.Compare(left=ast.Call(func=ast.Name(id="type" | "len"))):
            return True
        case ast.Compare(comparators=[ast.Constant(value=str())]):
            return True
        case ast.Call(func=ast.Name(id=name)):
            return name in _NO_VALUE
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return _is_known(operand)
        case ast.BoolOp(values=parts):
            return all(map(_is_known, parts))
    return False


@functools.cache
def _with_called(file: str, function: statements.FUNCTION) -> list[tuple[str, str, str | ast.Call]]:
    """Return what `_host_work` finds in a function and in those that it calls, behind its file and line."""
    reasons = list[tuple[str, str, str | ast.Call]]()
    for source, called in all_called(file, function):
        there = "" if source == file else f"{Path(source).name}, "
        reasons += [(source, f"{there}line {node.lineno}", why) for node, why in _host_work(source, called)]
    return reasons


@functools.cache
def all_called(file: str, function: statements.FUNCTION) -> list[tuple[str, Any]]:
    """Return a function and all of the program's own functions that it calls, each behind its file.

    One that is jitted already is as good in a larger program.
    """
    functions = [(file, function)]
    for known in functions:
        called = _called_functions(*known, known[1].lineno)
        functions += [f for f in called if f not in functions and not statements.is_jitted(f[1])]
    return functions


def _called_functions(file: str, function: Any, line: int) -> Iterator[tuple[str, Any]]:
    """Yield the program's functions that a function at a line calls, each behind its file."""
    for call in statements.calls_in(function):
        yield from _functions_named(file, call.func, line)


def _functions_named(file: str, expression: ast.expr, line: int) -> Iterator[tuple[str, Any]]:
    """Yield the program's functions that a name at a line stands for, each behind its file."""
    called, name = statements.dotted_name(expression), statements.last_name(expression)
    named = statements.definitions(file, name)
    if called not in (name, f"self.{name}"):  # the method of an object, if it can be no other
        known = called.partition(".")[0] in dict(statements.imports(file))
        named = [f for f in named if statements.is_method(f) and len(named) == 1 and not known]
    if named:
        # a file may define a name again, as the second half of a tutorial does
        yield file, max(named, key=lambda f: (f.lineno < line, f.lineno))
        return
    for other in _imported_from(file, called):
        yield from ((other, f) for f in statements.definitions(other, name)[-1:])


def _imported_from(file: str, called: str) -> Iterator[str]:
    """Yield the program's own modules from which a name such as "step" or "turns.step" may come."""
    first, _, rest = called.partition(".")
    for name, meaning in sorted(statements.imports(file)):
        module = meaning if rest and name == first else meaning.rpartition(".")[0]
        other = getattr(sys.modules.get(module), "__file__", None)
        if name in ("*", first) and other and not library_of(other):
            yield other


def _host_work(file: str, function: statements.FUNCTION) -> Iterator[tuple[Any, str | ast.Call]]:
    """Yield the nodes that keep jit from taking a function, each with the reason, or as what jnp replaces."""
    # variables whose values depend on more than the types of the function's arguments
    flows = [flow._replace(reads=_without_types(flow.reads)) for flow in loop_body.flows_of(function)]
    passed = {*statements.parameters(function)} - {"self"}
    data = loop_body.reached(passed, flows)
    computed = [
        f.writes for f in flows if isinstance(f.node, ast.Assign) and _takes_value(f.node, file, data)
    ]
    values = loop_body.reached(set[str]().union(*computed), flows)
    numpys = set[str]()  # variables that are arrays of NumPy
    masks = set[str]()
    for flow in flows:
        if isinstance(flow.node, ast.Assign) and _is_mask(flow.node.value, masks, file):
            masks |= flow.writes
    for node in ast.walk(function):
        match node:
            case ast.Yield() | ast.YieldFrom() | ast.Await():
                yield node, "hands control back"
            case ast.Global(names=names) | ast.Nonlocal(names=names):
                yield node, f"assigns {names[0]} of the scope around it"
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=made)):
                if statements.imported_name(file, made).startswith("numpy."):
                    numpys.add(name)
            case ast.Subscript(value=ast.Name(id=name), ctx=ast.Store()) if name in numpys:
                yield node, f"sets elements of {name}, an array of NumPy,"
            case ast.Subscript(slice=ast.Call(func=ast.Name(id="int"), args=[index])) if loop_body.share(
                _without_types(loop_body.reads(index)), values
            ):
                yield node, f"takes {ast.unparse(index)} as the index of an object of Python"
            # an update by a mask, as `x.at[x < 0].set(0)`, becomes jnp.where
            case ast.Subscript(value=taken, slice=index) if getattr(taken, "attr", "") != "at":
                for part in getattr(index, "elts", [index]):
                    if _is_mask(part, masks, file) and loop_body.share(
                        _without_types(loop_body.reads(part)), data
                    ):
                        yield node, f"takes elements by the mask {ast.unparse(part)}"
            case ast.If(test=test) | ast.Assert(test=test) if (
                isinstance(node, ast.Assert) or statements.nodes_in(node, ast.Raise)
            ) and _takes_value(test, file, data, values):
                yield node, "tests a value to raise an error"
            case ast.Return(value=ast.Call(func=ast.Name(id=name))) if _is_plain_class(file, name):
                yield node, f"returns an object of {name}, a class that jit does not know,"
            case ast.Call(func=called):
                name, full = ast.unparse(called), statements.imported_name(file, called)
                owner, _, method = name.rpartition(".")
                if _has_twin(full):
                    yield node, node
                elif full.startswith(ON_HOST) or name == "open":
                    yield node, f"calls {name}"
                elif sizes := statements.sizes_of_fields(node, passed):
                    yield node, f"takes {sizes[0]} as a size"
                elif full.startswith(("jax.", "numpy.")) and loop_body.share(
                    _without_types(loop_body.reads(*node.args)), data
                ):
                    if statements.is_sized_by_values(node):
                        yield node, f"calls {name}, the size of whose result depends on values,"
                    # `np.asarray` brings values to the host, as `float` does, and stays outside
                    elif full.startswith("numpy."):
                        yield node, f"calls {name}" if method in _TO_HOST else node
                elif owner in passed and method in ("append", "extend"):
                    yield node, f"changes {owner}, a list that it is given,"
                elif owner and not full and method in _METHODS:
                    yield node, f"calls {name}"


@functools.cache
def changing_variables(file: str, function: statements.FUNCTION) -> tuple[str, ...]:
    """Return the variables of the scopes around a function that it reads, and that change between its calls.

    jit would keep their first values.
    """
    names = sorted(statements.nodes_in(function, ast.Name), key=lambda n: (n.lineno, n.col_offset))
    local = {n.id for n in names if isinstance(n.ctx, ast.Store)}.union(statements.parameters(function))
    enclosing = statements.enclosing_nodes(Place(file, function.lineno), statements.FUNCTION)
    scopes = [statements.syntax_tree(file), *(f for f in enclosing if f is not function)]
    changing = set[str]().union(*map(_changing, scopes))
    return tuple(name for name in dict.fromkeys(n.id for n in names) if name in changing - local)


@functools.cache
def _changing(scope: Any) -> frozenset[str]:
    """Return the variables that a scope assigns twice, or changes in a loop."""
    loops = statements.nodes_in(scope, statements.LOOP)
    assigned, looped = Counter[str](), set[str]()
    for flow in loop_body.flows_of(scope):
        if isinstance(flow.node, statements.FUNCTION | ast.ClassDef | ast.Import | ast.ImportFrom):
            continue
        written = {name.partition(".")[0] for name in flow.writes}
        if not isinstance(flow.node, ast.Expr):
            assigned.update(written & flow.writes)
        if any(loop.lineno <= flow.node.lineno <= loop.end_lineno for loop in loops):
            looped |= written
    return frozenset(looped.union(name for name, times in assigned.items() if times > 1))


@functools.cache
def _has_twin(full: str) -> bool:
    """Return whether jax.scipy has a function of SciPy; its solvers are others."""
    module, _, name = full.rpartition(".")
    if not module.startswith("scipy.") or module.startswith("scipy.optimize"):
        return False
    try:
        return hasattr(importlib.import_module(f"jax.{module}"), name)
    except ImportError:
        return False


def _takes_value(node: ast.AST, file: str, data: Collection[str], values: Collection[str] = ()) -> bool:
    """Return whether code computes with arrays of `data`, or reads `values`, and not only their types."""
    arguments: list[ast.expr] = []
    for call in statements.calls_in(node):
        name, full = ast.unparse(call.func), statements.imported_name(file, call.func)
        if name in _NO_VALUE:
            return False
        if name == "float" or full.startswith(("jax.", "numpy.")):
            arguments += call.args
    taken, read = (_without_types(loop_body.reads(*nodes)) for nodes in (arguments, [node]))
    return loop_body.share(taken, data) or loop_body.share(read, values)


def _is_mask(node: ast.expr, masks: Collection[str], file: str) -> bool:
    """Return whether an expression is an array of booleans: a comparison, or what is made of `masks`."""
    match node:
        case ast.Compare(ops=[ast.Lt() | ast.LtE() | ast.Gt() | ast.GtE() | ast.Eq() | ast.NotEq()]):
            return True
        case ast.BinOp(left=left, op=ast.BitAnd() | ast.BitOr() | ast.BitXor(), right=right):
            return _is_mask(left, masks, file) or _is_mask(right, masks, file)
        case ast.UnaryOp(op=ast.Invert(), operand=operand):
            return _is_mask(operand, masks, file)
        case ast.Call(func=called):
            return bool(_MASKS.fullmatch(statements.imported_name(file, called)))
    return statements.dotted_name(node) in masks


@functools.cache
def call_on_host(at: Place) -> str:
    """Return the outermost call of a statement if that takes arrays to the host, as "plt.plot"; else ""."""
    called = statements.outermost_call(at)
    full = statements.imported_name(at.file, ast.parse(called or "0", mode="eval").body)
    owner, _, method = called.rpartition(".")
    return called if full.startswith(_TAKING) or (owner and not full and method in _DRAWING) else ""


def call_of_numpy(at: Place) -> str:
    """Return the function whose result a statement is, if it is NumPy's, as "np.argsort"; "" for another."""
    match statements.innermost(at, ast.stmt):
        case ast.Assign(value=ast.Call(func=called)) | ast.Return(value=ast.Call(func=called)):
            full = statements.imported_name(at.file, called)
            if full.startswith("numpy.") and statements.last_name(called) not in _TO_HOST:
                return ast.unparse(called)
    return ""


def transformed_function(at: Place) -> tuple[str, Any]:
    """Return the function that a statement transforms, as f in `vmap(grad(f))(x)`, and its file."""
    line = getattr(statements.innermost(at, statements.FUNCTION), "lineno", at.line)
    transformed: Any = next(iter(statements.transforming_calls(at)), None)
    while (
        isinstance(transformed, ast.Call) and statements.last_name(transformed.func) in statements.TRANSFORMS
    ):
        transformed = next(iter(transformed.args), None)
    found = _functions_named(at.file, transformed, line) if transformed is not None else iter(())
    return next(found, ("", None))


@functools.cache
def is_tree_of_arrays(file: str, name: str) -> bool:
    """Return whether JAX may know all that the objects of a class hold: it is a pytree, or has a base.

    What methods set later is no part of it.
    """
    classes = statements.definitions(file, name, ast.ClassDef)[:1]
    methods = [f for c in classes for f in statements.nodes_in(c, statements.FUNCTION)]
    stores = {f.name: set().union(*(flow.writes for flow in loop_body.flows_of(f))) for f in methods}
    first = stores.pop("__init__", set())
    later = {name for written in stores.values() for name in written - first if name.startswith("self.")}
    return not classes or not (later or _is_plain_class(file, name))


def _is_plain_class(file: str, name: str) -> bool:
    """Return whether a name is that of a class of a file that JAX does not know as a pytree."""
    for node in statements.definitions(file, name, ast.ClassDef)[:1]:
        decorators = (getattr(decorator, "func", decorator) for decorator in node.decorator_list)
        plain = all(statements.imported_name(file, d) == "dataclasses.dataclass" for d in decorators)
        registered = any(
            statements.last_name(call.func).startswith("register") and name in map(ast.unparse, call.args[:1])
            for call in statements.calls_in(statements.syntax_tree(file))
        )
        bases = map(ast.unparse, node.bases)
        derived = all(base in _PLAIN_BASES or _is_plain_class(file, base) for base in bases)
        return plain and derived and not registered
    return False


def _without_types(names: frozenset[str]) -> frozenset[str]:
    return frozenset(name for name in names if not name.endswith(loop_body.OF_A_TYPE))
