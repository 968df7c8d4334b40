"""What to change for each cause: a snippet with the program's own names, and the section that explains it."""

from __future__ import annotations

import ast
import functools
import textwrap
from collections.abc import Callable

from jaxperf.watching import advice_programs, advice_steps, loop_body, snippets, statements
from jaxperf.watching.finding import Advice, Finding
from jaxperf.watching.place import Place

_TEXTS = {
    "new function": Advice(
        "a new function is jitted on each call",
        """
        - {line}
        + {name} = jax.jit(...)      # once, outside of the loop; what varies is an argument
        + result = {name}({argument})   # in the loop
        """,
        "8.1.3 What traces again",
    ),
    "shape": Advice(
        "an argument's shape varies",
        """
        - {line}
        + valid = len({argument})
        + size = 1 << (valid - 1).bit_length()              # a few sizes in place of many
        + {argument} = np.pad({argument}, [(0, size - valid)] + [(0, 0)] * ({argument}.ndim - 1))
        + result = {name}({argument}, valid)  # and mask with jnp.arange(size) < valid inside
        """,
        "8.1.3 What traces again",
    ),
    "partial batch": Advice(
        "the last batch is smaller and compiles a second program",
        """
        - {line}
        + # give {name} full batches only: drop the last one, or pad it and mask the loss
        + for start in range(0, len(x) - batch + 1, batch):
        +     result = {name}(x[start : start + batch])
        """,
        "8.1.3 What traces again",
    ),
    "static value": Advice(
        "a static argument varies",
        """
        - @functools.partial(jax.jit, static_argnames=...)
        + @jax.jit                   # what changes with each call is an ordinary argument
          {def}
              ...                    # branch on it with jnp.where or lax.cond
          {line}
        """,
        "8.1.3 What traces again",
    ),
    "static object": Advice(
        "a static argument is a new object each time",
        """
          {line}
        + # give {name} what it reads of the object as ordinary arguments, and make only what decides its
        + # structure static; or make the object once; or give its class __eq__ and __hash__, so that equal
        + # objects share a program
        """,
        "8.1.3 What traces again",
    ),
    "dtype": Advice(
        "an argument's dtype varies",
        """
        - {line}
        + {name}(jnp.asarray({argument}, jnp.float32), ...)   # one dtype on every call
        """,
        "8.1.3 What traces again",
    ),
    "weak type": Advice(
        "a Python number becomes an array after the first call",
        """
        - value = 0.1
        + value = jnp.float32(0.1)   # before the first call
          {line}
        """,
        "8.1.3 What traces again",
    ),
    "structure": Advice(
        "an argument's structure varies",
        """
        - {line}
        + # pass {name} the same keys and lengths on every call; None counts as another structure
        """,
        "8.1.3 What traces again",
    ),
    "eager recompiles": Advice(
        "an operation outside of jit compiles again and again",
        """
        - {line}
        + # jit the function around this line, or use NumPy for shapes that vary on the host
        """,
        "8.1.2 Performance",
    ),
    "wait": Advice(
        "the front end waits on each turn of a loop",
        """
        - {line}
        + values.append(value)                # an array: nobody waits
        + values = jax.device_get(values)     # once, after the loop
        """,
        "8.2.2 Making the front end wait",
    ),
    "wait in while": Advice(
        "the front end waits on each turn of a loop",
        """
        - {line}
        + x = jax.lax.while_loop(go_on, turn, x)   # the test and a turn as functions of the arrays
        + # or test every tenth turn, so that the device has the next ones to do meanwhile
        """,
        "8.2.2 Making the front end wait",
    ),
    "wait in if": Advice(
        "the front end waits on each turn of a loop",
        """
        - {line}
        + x = jnp.where(test, one, other)     # or jax.lax.cond, which computes one of them only
        """,
        "8.2.2 Making the front end wait",
    ),
    "logging": Advice(
        "logging waits for the device on each step",
        """
        - {line}
        + if step % 100 == 0:
        +     {line}
        """,
        "8.2.2 Making the front end wait",
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
        "8.3.2 Computing and copying",
    ),
    "numpy": Advice(
        "NumPy computes between two programs",
        """
        - {line}
        + # the same with jnp inside the jitted step: the values never leave the device
        """,
        "8.2.2 Making the front end wait",
    ),
    "transfer": Advice(
        "large NumPy arrays are copied to the device on each call",
        """
        + {argument} = jax.device_put({argument})   # once, or, where it varies, the next one ahead of time
          {line}
        """,
        "8.3.2 Computing and copying",
    ),
    "eager": Advice(
        "operations are dispatched one by one",
        """
          {line}
        + # put the operations around this line into one function of arrays, and jit it once, outside of
        + # loops; keep float(), print() and branches on values out of it
        """,
        "8.1.2 Performance",
    ),
}
_TEXTS |= advice_programs.TEXTS | advice_steps.TEXTS
_MADE: dict[str, Callable[[Place], list[str]]] = {
    "eager": statements.jitted,
    "eager copy": functools.partial(statements.in_function, donated=True),
    "data": snippets.read_ahead,
    "dispatch": snippets.several_steps,
    "needless wait": snippets.without_wait,
}
_OTHER = Advice(
    "it was traced again",
    "  {line}\n+ # keep what the reason names the same on every call",
    "8.1.3 What traces again",
)


def advice(finding: Finding) -> Advice:
    """What to change, with the finding's own statement and names."""
    cause = _cause(finding)
    found = _TEXTS.get(cause, _OTHER)
    rows = textwrap.dedent(found.change).strip("\n").rstrip().splitlines()
    if cause in _MADE and (made := _MADE[cause](finding.at)):
        rows = made
    if finding.cause == "static object":
        rows = statements.made_once(finding.at, finding.name, finding.argument) or rows
    name = finding.name.removeprefix("jit_")
    name = name if name.isidentifier() else "step"  # a lambda
    rows = [row.replace("{argument}", _argument(finding)) for row in rows]
    filled = [line for row in rows for line in _filled(row, finding.at, name)]
    return Advice(found.title, "\n".join(filled), found.section)


def _argument(finding: Finding) -> str:
    """The variable that a call gives for the finding's argument, or "x"; or a list of them, or an option."""
    if finding.cause == "module state":
        return finding.argument or "donate_argnums=0"
    if finding.cause == "constant":
        return finding.argument or "table"
    if finding.cause == "new function":
        return f"x, {finding.argument}" if finding.argument else "x"
    given = statements.given_for(finding.at, finding.name, finding.argument) if finding.argument else None
    return ast.unparse(given) if isinstance(given, ast.Name | ast.Attribute) else "x"


def _cause(finding: Finding) -> str:
    """The cause, and what the line says about it: for a wait, what the value is wanted for."""
    if finding.cause == "wait" and finding.name == "block_until_ready":
        return "needless wait"
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
    return [sign + text.replace("{name}", name).replace("{line}", own[0])]
