"""What to change for each cause: a snippet with the program's own names, and the section that explains it."""

from __future__ import annotations

import ast
import functools
import textwrap
from collections.abc import Callable

from jaxperf.watch.advice import programs, steps, traces
from jaxperf.watch.finding import Advice, Finding
from jaxperf.watch.observe.source_location import Place
from jaxperf.watch.source import loop_body, snippets, source_arguments, statements

_TEXTS = {
    "wait": Advice(
        "the front end waits on each turn of a loop",
        """
        - {line}
        + values.append(value)                # an array: nobody waits
        + values = jax.device_get(values)     # once, after the loop
        """,
        "8.2.2 Synchronization functions: making the front end wait",
    ),
    "wait in while": Advice(
        "the front end waits on each turn of a loop",
        """
        - {line}
        + x = jax.lax.while_loop(go_on, turn, x)   # the test and a turn as functions of the arrays
        + # or test every tenth turn, so that the device has the next ones to do meanwhile
        """,
        "8.2.2 Synchronization functions: making the front end wait",
    ),
    "wait in if": Advice(
        "the front end waits on each turn of a loop",
        """
        - {line}
        + x = jnp.where(test, one, other)     # or jax.lax.cond, which computes one of them only
        """,
        "8.2.2 Synchronization functions: making the front end wait",
    ),
    "logging": Advice(
        "logging waits for the device on each step",
        """
        - {line}
        + if step % 100 == 0:
        +     {line}
        """,
        "8.2.2 Synchronization functions: making the front end wait",
    ),
    "data": Advice(
        "devices wait for data",
        """
        + pool = ThreadPoolExecutor(4)        # read ahead while the device computes
        + coming = deque(pool.submit(read, i) for i in range(4))
        - {line}
        + while coming:
        +     x = coming.popleft().result()   # and submit the next one
        """,
        "8.3.2 Parallel computation and communication",
    ),
    "numpy": Advice(
        "NumPy computes between two programs",
        """
        - {line}
        + # the same with jnp inside the jitted step: the values never leave the device
        """,
        "8.2.2 Synchronization functions: making the front end wait",
    ),
    "transfer": Advice(
        "large NumPy arrays are copied to the device on each call",
        """
        + {argument} = jax.device_put({argument})   # once, or, where it varies, the next one ahead of time
          {line}
        """,
        "8.3.2 Parallel computation and communication",
    ),
    "eager": Advice(
        "operations are dispatched one by one",
        """
          {line}
        + # put the operations around this line into one function of arrays, and jit it once, outside of
        + # loops; keep float(), print() and branches on values out of it
        """,
        "8.1.2 Computational performance",
    ),
}
_TEXTS |= programs.TEXTS | steps.TEXTS | traces.TEXTS
_WAITS = {  # waits that are not needed
    "block_until_ready": "needless wait",
    "effects_barrier": "needless wait",
}
_MADE: dict[str, Callable[[Place], list[str]]] = {
    "eager": statements.jitted,
    "eager copy": functools.partial(statements.in_function, donated=True),
    "eager shapes": snippets.preallocated,
    "new body": snippets.with_its_body,
    "data": snippets.read_ahead,
    "dispatch": snippets.several_steps,
    "needless wait": snippets.without_wait,
    "put again": snippets.put_once,
}
_OTHER = Advice(
    "it was traced again",
    "  {line}\n+ # keep what the reason names the same on every call",
    "8.1.3 When is a function traced again?",
)


def advice(finding: Finding) -> Advice:
    """What to change, with the finding's own statement and names."""
    cause = _cause(finding)
    found = _TEXTS.get(cause, _OTHER)
    rows = textwrap.dedent(found.change).strip("\n").rstrip().splitlines()
    if cause in _MADE and (made := _MADE[cause](finding.at)):
        rows = made
    if finding.cause == "static object":
        rows = source_arguments.made_once(finding.at, finding.name, finding.argument) or rows
    if finding.cause == "new function" and not finding.argument:  # else what varies would stay the first
        rows = snippets.jitted_once(finding.at) or rows
    if finding.cause == "new function":
        rows = snippets.defined_once(finding.at, finding.name) or rows
    if finding.cause == "static part":
        rows = source_arguments.part_made_once(finding.at, finding.name) or rows
    name = finding.name.removeprefix("jit_")
    name = name if name.isidentifier() else "step"  # a lambda
    rows = [row.replace("{argument}", _argument(finding)) for row in rows]
    rows = [row.replace("{jit}", snippets.jit_used(finding.at.file)) for row in rows]
    filled = [line for row in rows for line in _filled(row, finding.at, name)]
    return Advice(found.title, "\n".join(filled), found.section)


def _argument(finding: Finding) -> str:
    """The variable that a call gives for the finding's argument, or "x"; or a list of them, or an option."""
    if finding.cause == "module state":
        return finding.argument or "donate_argnums=0"
    if finding.cause == "constant":
        return finding.argument or "table"
    if finding.cause in ("all float64", "static part"):
        return finding.argument
    if finding.cause == "new function":
        return f"x, {finding.argument}" if finding.argument else "x"
    given = (
        source_arguments.given_for(finding.at, finding.name, finding.argument) if finding.argument else None
    )
    return ast.unparse(given) if isinstance(given, ast.Name | ast.Attribute) else "x"


def _cause(finding: Finding) -> str:
    """The cause, and what the line says about it: for a wait, what the value is wanted for."""
    if finding.cause == "wait" and finding.name in _WAITS:
        return _WAITS[finding.name]
    if finding.cause == "put again" and not statements.enclosing(finding.at, loop_body.LOOP):
        return "put again in a function"
    if finding.cause == "all float64" and not finding.argument:
        return "all float64 at a call"
    if finding.cause == "debug setting" and finding.argument:
        return "debug setting in a line"
    if finding.cause == "wait" and loop_body.comes_back(finding.at):
        return "wait for the next turn"
    if finding.cause == "python" and statements.gives_a_value(finding.at):
        return "python for the next step"
    keyword = statements.whole(finding.at)[0].partition(" ")[0]
    return f"wait in {keyword}" if finding.cause == "wait" and keyword in ("while", "if") else finding.cause


def _filled(row: str, at: Place, name: str) -> list[str]:
    """A row of a change with the program's own statement or function in it, as many rows as that takes."""
    sign, text = row[:2], row[2:]
    own = statements.head(at.file, name)
    if "{def}" not in text:
        own = statements.loop(at) if "{loop}" in text else statements.whole(at)
    if sign == "- " and own[-1] == "    ...":
        own = own[:-1]
    for mark in ("{line}", "{def}", "{loop}"):
        if text.strip() == mark:
            return [sign + text.replace(mark, line) for line in own]
    text = text.replace("{name}", name).replace("{NAME}", name.upper())
    return [sign + text.replace("{line}", own[0])]
