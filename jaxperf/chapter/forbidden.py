"""Section 8.1.3 and its second exercise: what tracing forbids, tried for real, and the JAX way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxperf.script import Story


def divide_if_large(x: Any) -> Any:
    """An `if` that asks for a value."""
    if x.sum() > 1:
        return x / x.sum()
    return x


def divide_with_cond(x: Any) -> Any:
    """The same, with both branches in the program."""
    return jax.lax.cond(x.sum() > 1, lambda v: v / v.sum(), lambda v: v, x)


def sum_in_python(x: Any) -> Any:
    """A `for` over the rows, which tracing unrolls."""
    total = 0.0
    for row in x:
        total = total + row.sum()
    return total


def sum_with_scan(x: Any) -> Any:
    """The same, as one loop in the program."""
    return jax.lax.scan(lambda total, row: (total + row.sum(), None), 0.0, x)[0]


def double_in_numpy(x: Any) -> Any:
    """NumPy on the value, as Gluon's `asnumpy` allows."""
    return np.asarray(x) * 2


def double_with_callback(x: Any) -> Any:
    """NumPy, called from the program."""
    return jax.pure_callback(lambda v: np.asarray(v) * 2, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


def add_in_place(a: Any, b: Any) -> Any:
    """`+=`, which gives the name `a` to a new array."""
    a += b
    return a


def set_all(a: Any, b: Any) -> Any:
    """An assignment to all elements."""
    a[:] = a + b
    return a


def set_all_at(a: Any, b: Any) -> Any:
    """The same, as a new array."""
    return a.at[:].set(a + b)


def set_first(a: Any) -> Any:
    """An assignment to one element."""
    a[0] = 1.0
    return a


def set_first_at(a: Any) -> Any:
    """The same, as a new array."""
    return a.at[0].set(1.0)


@dataclass(frozen=True)
class Trial:
    """Something that the book or an exercise tries in a compiled network.

    Attributes:
      name: used in the names of its facts.
      words: what a reader sees.
      fn: does it; `expected` is what it gives in NumPy for `args`.
      instead: what to write in JAX, in words; `way` is a function that does so.
    """

    name: str
    words: str
    fn: Callable[..., Any]
    args: tuple[np.ndarray[Any, Any], ...]
    instead: str
    way: Callable[..., Any]
    expected: Any


A, B = np.array([1.0, 2.0], np.float32), np.array([3.0, 4.0], np.float32)
ROWS = np.ones((3, 2), np.float32)
TRIALS = (
    Trial("asnumpy", "x.asnumpy()", double_in_numpy, (A,), "jax.pure_callback", double_with_callback, A * 2),
    Trial("set_all", "a[:] = a + b", set_all, (A, B), "a.at[:].set(a + b)", set_all_at, A + B),
    Trial("set_first", "a[0] = 1", set_first, (B,), "a.at[0].set(1)", set_first_at, np.array([1.0, 4.0])),
    Trial("add_in_place", "a += b", add_in_place, (A, B), "a = a + b", lambda a, b: a + b, A + B),
    Trial("if_on_a_value", "if on a value", divide_if_large, (A,), "lax.cond", divide_with_cond, A / A.sum()),
    Trial("for_over_rows", "for over rows", sum_in_python, (ROWS,), "lax.scan", sum_with_scan, 6.0),
)


def attempt(fn: Callable[..., Any], args: tuple[Any, ...], expected: Any) -> str:
    """What the jitted function does: the name of its error, "works" or "a wrong value"."""
    try:
        value = jax.jit(fn)(*map(jnp.asarray, args))
    except (jax.errors.JAXTypeError, TypeError) as e:
        return type(e).__name__
    return "works" if np.allclose(value, expected) else "a wrong value"


def what_tracing_forbids(story: Story) -> None:
    """Try each for real: what it raises under `jit`, and the JAX way that works instead.

    Facts: `under_jit_NAME`, an error's name, "works" or "a wrong value"; `jax_way_works_NAME`.
    """
    story.heading("8.1.3 What tracing forbids; exercise 2: if and for")
    story.text(
        """The book names operations that a compiled network cannot have, and asks what happens to `if` and
        `for`. Each is tried here under `jax.jit`, next to what one writes in JAX. Arrays are immutable, so an
        assignment to elements fails, compiled or not, and `a.at[...]` makes a new array. `a += b` only gives
        the name `a` to a new array. An `if` needs a value to choose its branch, which a tracer has not. A
        `for` needs only the length, so it works: Python unrolls it, and a long loop becomes a long program,
        unless it is a `lax.scan`."""
    )
    story.code(divide_if_large, divide_with_cond, sum_in_python, sum_with_scan, double_with_callback)
    under_jit = {t.name: attempt(t.fn, t.args, t.expected) for t in TRIALS}
    instead = {t.name: attempt(t.way, t.args, t.expected) for t in TRIALS}
    story.grid(
        ("what", "under jax.jit", "in JAX instead", "which"),
        [(t.words, under_jit[t.name], t.instead, instead[t.name]) for t in TRIALS],
        detail=True,
    )
    for t in TRIALS:
        story.fact(f"under_jit_{t.name}", under_jit[t.name], words=f"{t.words} under jit")
        story.fact(f"jax_way_works_{t.name}", instead[t.name] == "works", words=f"{t.instead} works")
    fails = {name: found.endswith("Error") for name, found in under_jit.items()}
    in_place, loops = ("set_all", "add_in_place"), ("if_on_a_value", "for_over_rows")
    story.claim(
        book="In-place operations such as a += b and a[:] = a + b cannot be used",
        holds=all(fails[name] for name in in_place),
        predicted="a[:] = fails; a += b works, since it makes a new array",
        right=[under_jit[name] for name in in_place] == ["TypeError", "works"],
        observed=_told(under_jit, in_place),
    )
    story.claim(
        book="Exercise 2, as a reader answered it: an if fails, a for works",
        holds=fails["if_on_a_value"] and under_jit["for_over_rows"] == "works",
        predicted="a TracerBoolConversionError for if; for is unrolled",
        right=[under_jit[name] for name in loops] == ["TracerBoolConversionError", "works"],
        observed=_told(under_jit, loops),
    )
    if broken := [t.instead for t in TRIALS if instead[t.name] != "works"]:
        story.note(f"the JAX way does not work for {', '.join(broken)}")


def _told(outcomes: dict[str, str], names: tuple[str, ...]) -> str:
    words = {t.name: t.words for t in TRIALS}
    return "; ".join(f"{words[name]}: {outcomes[name]}" for name in names)
