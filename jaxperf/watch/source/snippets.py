"""Changes that are built from the statements of a loop; each is empty if the statements do not allow it."""

from __future__ import annotations

import ast
import copy
import linecache

from jaxperf.watch.observe import names
from jaxperf.watch.observe.source_location import Place
from jaxperf.watch.source import loop_body, statements

AHEAD = 4  # batches that are read ahead
_PUTS = {"array", "asarray", "device_put"}
_JITS = {"jit", "pmap", "filter_jit", "filter_pmap"}


def read_ahead(at: Place) -> list[str]:
    """Let threads make what a statement assigns, or passes to a step, some turns of its loop ahead."""
    found, around = statements.enclosing(at, ast.stmt), statements.enclosing(at, loop_body.LOOP)
    match found[-1:], around[-1:]:
        case [ast.Assign(targets=[target]) as statement], [loop]:
            pass
        case _:
            return []
    count = loop.target.id if isinstance(loop, ast.For) and isinstance(loop.target, ast.Name) else ""
    value = loop_body.made_ahead(statement, loop, at.file, count=count)
    if value is None:
        return []
    if count in {n.id for n in ast.walk(value) if isinstance(n, ast.Name)} and count:
        turns = _first_and_later(loop.iter)
        if not turns[0]:
            return []
        first, later = _submitted(value, count, ""), _submitted(value, count, turns[1])
        start, threads = f"deque({first} for {count} in {turns[0]})", AHEAD
    else:  # what is not told which batch to make keeps its own count, and cannot run in several threads
        later = f"pool.submit(lambda: {ast.unparse(value)})"
        start, threads = f"deque({later} for _ in range({AHEAD}))", 1
    turn = ast.unparse(statement.value).replace(ast.unparse(value), "coming.popleft().result()", 1)
    return [
        f"+ pool = ThreadPoolExecutor({threads})     # before the loop: read ahead while devices compute",
        f"+ coming = {start}",
        *(f"- {row}" for row in statements.whole(at)),
        f"+ {ast.unparse(target)} = {turn}",
        f"+ coming.append({later})",
    ]


def _first_and_later(turns: ast.expr) -> tuple[str, str]:
    """The first turns of a `range`, and what takes its variable so many turns further; empty for others."""
    match turns:
        case ast.Call(func=ast.Name(id="range"), args=[_], keywords=[]):
            return f"range({AHEAD})", f" + {AHEAD}"
        case ast.Call(func=ast.Name(id="range"), args=[_, _], keywords=[]):
            return f"{ast.unparse(turns)}[:{AHEAD}]", f" + {AHEAD}"
        case ast.Call(func=ast.Name(id="range"), args=[_, _, step], keywords=[]):
            return f"{ast.unparse(turns)}[:{AHEAD}]", f" + {AHEAD} * ({ast.unparse(step)})"
    return "", ""


def _submitted(value: ast.expr, count: str, later: str) -> str:
    """The call that makes a thread compute an expression, now or for a later value of the loop's variable."""
    if isinstance(value, ast.Call) and not value.keywords and loop_body.dotted(value.func):
        words = [value.func, *value.args]
        return f"pool.submit({', '.join(_renamed(w, count, count + later) for w in words)})"
    return f"pool.submit(lambda {count}: {ast.unparse(value)}, {count}{later})"


def _renamed(node: ast.expr, name: str, new: str) -> str:
    class Rename(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.expr:
            return ast.parse(new, mode="eval").body if node.id == name else node

    return ast.unparse(Rename().visit(copy.deepcopy(node)))


def several_steps(at: Place) -> list[str]:
    """Put turns of a loop into one program, where a statement makes from some variables their next values."""
    found, around = statements.enclosing(at, ast.stmt), statements.enclosing(at, loop_body.LOOP)
    match found[-1:], around[-1:]:
        case [ast.Assign(targets=[target], value=ast.Call()) as statement], [loop]:
            results = names.plain_names(target)
        case _:
            return []
    called = {loop_body.dotted(n.func) for n in ast.walk(statement) if isinstance(n, ast.Call)}
    read = names.inputs(statement, [statements.parsed(at.file), *statements.enclosing(at, ast.FunctionDef)])
    inputs = [n for n in read if n not in called]
    carried = [n for n in results if n in inputs]
    if not carried or names.objects(statement) or statements.jit(at.file) != "@jax.jit":
        return []
    varying = sorted((loop_body.changed_in(loop, at.file) - {*results}) & {*inputs})
    if {*varying} & loop_body.depending(loop, at.file, results):
        return []  # the host computes something from one turn's results for the next
    fixed = [n for n in inputs if n not in (*carried, *varying)]
    others, rows = [n for n in results if n not in carried], statements.whole(at)
    call = f"several({', '.join([*carried, *fixed, *(f'all_{n}' for n in varying)])})"
    over = _group([f"all_{n}" for n in varying]) if varying else "length=100"
    return [
        "+ @jax.jit",
        f"+ def {call}:      # a hundred turns in one program, say",
        "+     def turn(carry, now):",
        f"+         {_group(carried)} = carry",
        *([f"+         {_group(varying)} = now"] if varying else []),
        *(f"+         {row}" for row in rows),
        f"+         return {_group(carried)}, {_group(others) if others else None}",
        f"+     return jax.lax.scan(turn, {_group(carried)}, {over})",
        *(f"- {row}" for row in rows),
        f"+ {_group(carried)}, {_group([f'all_{n}' for n in others]) if others else '_'} = {call}",
    ]


def _group(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"({', '.join(names)})"


def without_wait(at: Place) -> list[str]:
    """The statement without `block_until_ready`, which moves to after the loop."""
    found = statements.enclosing(at, ast.stmt)
    match found[-1:]:
        case [ast.Expr(value=ast.Call())]:
            left = []
        case [ast.Assign() as statement]:
            left = [f"+ {ast.unparse(_Unwaited().visit(copy.deepcopy(statement)))}"]
        case _:
            return []
    rows = statements.whole(at)
    after = rows if not left else [f"jax.block_until_ready({ast.unparse(found[-1].targets[0])})"]
    return [
        *(f"- {row}" for row in rows),
        *left,
        "+ # nothing here needs the value; after the loop, once:",
        *(f"+ {row}" for row in after),
    ]


class _Unwaited(ast.NodeTransformer):
    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if loop_body.dotted(node.func).rpartition(".")[2] == "block_until_ready" and node.args:
            return node.args[0]
        if isinstance(node.func, ast.Attribute) and node.func.attr == "block_until_ready":
            return node.func.value
        return node


def put_once(at: Place) -> list[str]:
    """Copy an array to the device before the loop, where a statement does so on its way to something else."""
    found = statements.enclosing(at, ast.stmt)[-1:]
    calls = [n for n in ast.walk(found[0]) if isinstance(n, ast.Call)] if found else []
    puts = [c for c in calls if names.last_name(c.func) in _PUTS and c.args]
    if len(puts) != 1 or getattr(found[0], "value", None) is puts[0]:
        return []
    rows, array = statements.whole(at), puts[0].args[0]
    text = _text(puts[0], at.file)
    if not isinstance(array, ast.Name | ast.Attribute) or sum(row.count(text) for row in rows) != 1:
        return []
    name = f"{names.last_name(array)}_on_device"
    return [
        f"+ {name} = {text}     # before the loop, once",
        *(f"- {row}" for row in rows),
        *(f"+ {row.replace(text, name)}" for row in rows),
    ]


def jitted_once(at: Place) -> list[str]:
    """Jit a function before the loop, where each turn does so in a call or in an earlier statement."""
    statement, loops = statements.enclosing(at, ast.stmt)[-1:], statements.enclosing(at, loop_body.LOOP)
    if not loops or statement == loops[-1:]:
        return []
    called = [n.func for n in ast.walk(statement[0]) if isinstance(n, ast.Call)]
    made = next((f for f in called if _jits(f)), None)
    if made is None:
        return _assigned_once({loop_body.dotted(f) for f in called}, loops[0], at.file)
    rows, text = statements.whole(at), _text(made, at.file)
    if not _same_each_turn(made, loops[-1], at.file) or sum(row.count(text) for row in rows) != 1:
        return []
    first = made.args[0] if isinstance(made, ast.Call) and made.args else None
    name = f"jitted_{names.last_name(first)}" if isinstance(first, ast.Name | ast.Attribute) else "jitted"
    return [
        f"+ {name} = {text}     # before the loop, once",
        *(f"- {row}" for row in rows),
        *(f"+ {row.replace(text, name)}" for row in rows),
    ]


def defined_once(at: Place, name: str) -> list[str]:
    """Define a function with its decorator at the module's level, instead of in a function or a loop."""
    found = [
        n for n in ast.walk(statements.parsed(at.file)) if isinstance(n, names.FUNCTION) and n.name == name
    ]
    jits = [d for f in found for d in f.decorator_list if _decorates(d)]
    if len(found) != 1 or len(jits) != 1 or found[0] in statements.parsed(at.file).body:
        return []
    head = [f"@{ast.unparse(jits[0])}", *statements.head(at.file, name)]
    return [
        f"- {head[0]}     # in line {jits[0].lineno}",
        *(f"- {row}" for row in head[1:]),
        f"+ {head[0]}     # once, at the module's level; what varies is an argument",
        *(f"+ {row}" for row in head[1:]),
        "+     ...",
    ]


def _decorates(node: ast.expr) -> bool:
    """Whether a decorator jits: `@jax.jit`, `@nnx.jit(...)` or `@partial(jax.jit, ...)`."""
    if isinstance(node, ast.Call):
        inner = node.args[:1] if names.last_name(node.func) == "partial" else [node.func]
        return any(names.last_name(n) in _JITS for n in inner)
    return names.last_name(node) in _JITS


def in_jitted(at: Place) -> bool:
    """Whether a line is in a function that a decorator jits."""
    return any(_decorates(d) for f in statements.enclosing(at, names.FUNCTION) for d in f.decorator_list)


def jit_used(file: str) -> str:
    """What a file calls to jit, such as "nnx.jit"; what suits its imports if that is not clear."""
    nodes = [n for n in ast.walk(statements.parsed(file)) if isinstance(n, ast.Attribute)]
    used = {name for n in nodes if n.attr in _JITS and (name := loop_body.dotted(n))}
    return used.pop() if len(used) == 1 else statements.jit(file).removeprefix("@")


def _assigned_once(called: set[str], loop: ast.stmt, file: str) -> list[str]:
    """Move the statement of a loop that jits one of the functions that are called to before its loop."""
    for node in ast.walk(loop):
        match node:
            case ast.Assign(targets=[target], value=value) if (
                _jits(value) and loop_body.dotted(target) in called
            ):
                here = Place(file, node.lineno)
                if _same_each_turn(value, statements.enclosing(here, loop_body.LOOP)[-1], file):
                    first, *rest = statements.whole(here)
                    return [
                        f"+ {first}     # before the loop, once",
                        *(f"+ {row}" for row in rest),
                        f"- {first}     # in line {node.lineno}",
                        *(f"- {row}" for row in rest),
                    ]
    return []


def _jits(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and names.last_name(node.func) in _JITS


def _same_each_turn(node: ast.expr, loop: ast.stmt, file: str) -> bool:
    changed = {name.partition(".")[0] for name in loop_body.changed_in(loop, file)}
    return not changed & {*names.free(node)}


def _text(node: ast.expr, file: str) -> str:
    return ast.get_source_segment("".join(linecache.getlines(file)), node) or ""


def preallocated(at: Place) -> list[str]:
    """Let an array that a loop lengthens have its final length from the start."""
    match statements.enclosing(at, ast.stmt)[-1:]:
        case [
            ast.Assign(
                targets=[ast.Name(id=name)],
                value=ast.Call(
                    func=ast.Attribute(attr="concatenate"),
                    args=[
                        ast.List(elts=[ast.Name(id=first), more]) | ast.Tuple(elts=[ast.Name(id=first), more])
                    ],
                    keywords=[],
                ),
            )
        ] if first == name:
            pass
        case _:
            return []
    new = ast.unparse(more)
    return [
        f"+ filled = len({name})     # before the loop, once; LONGEST is as long as it can get",
        f"+ {name} = jnp.zeros((LONGEST, *{name}.shape[1:]), {name}.dtype).at[:filled].set({name})",
        *(f"- {row}" for row in statements.whole(at)),
        f"+ {name} = jax.lax.dynamic_update_slice_in_dim({name}, {new}, filled, 0)",
        f"+ filled += len({new})",
    ]


def with_its_body(at: Place) -> list[str]:
    """Put a loop's call into a jitted function, which is made once and then needs no new body."""
    named = {n.name for n in ast.walk(statements.parsed(at.file)) if isinstance(n, ast.FunctionDef)}
    found = statements.enclosing(at, ast.stmt)[-1:]
    read = {n.id for n in ast.walk(found[0]) if isinstance(n, ast.Name)} if found else set()
    return [] if named & read else statements.in_function(at)
