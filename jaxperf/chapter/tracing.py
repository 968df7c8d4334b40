"""Section 8.1.3: tracing runs Python once. What is heard of prints, what is forbidden, what traces again?"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxperf.measure import count_traces
from jaxperf.models import hybridize
from jaxperf.script import Story


class HybridNet(nnx.Module):
    """Section 8.1.3's net, which prints what it sees."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.hidden = nnx.Linear(4, 10, rngs=rngs)
        self.output = nnx.Linear(10, 2, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map (n, 4) to (n, 2), with a remark from Python and one from the program."""
        print("x:", x)
        x = nnx.relu(self.hidden(x))
        print("hidden:", x)
        jax.debug.print("hidden, at run time: {}", x)
        return self.output(x)


def printed(call: Callable[[], Any]) -> str:
    """What `call` prints until its result and its effects are there."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        jax.block_until_ready(call())
        jax.effects_barrier()
    return out.getvalue().strip()


def prints_fall_silent(story: Story) -> None:
    """Section 8.1.3: prints run while tracing and never again; `jax.debug.print` is part of the program.

    Facts: `prints_on_second_call`, of Python's own prints.
    """
    story.heading("8.1.3 A net with prints in it")
    net = HybridNet(nnx.Rngs(0))
    x = jax.random.normal(jax.random.key(1), (1, 4))
    compiled = hybridize(net)
    calls = {
        "op by op": printed(lambda: net(x)),
        "op by op, again": printed(lambda: net(x)),
        "hybridized, first call": printed(lambda: compiled(x)),
        "hybridized, second call": printed(lambda: compiled(x)),
    }
    for name, text in calls.items():
        story.say(f"--- {name}\n{text}")
    second = calls["hybridized, second call"]
    story.fact("prints_on_second_call", second.count("x:") + second.count("hidden:"))
    story.claim(
        "After hybridize the prints of the forward function are silent from the second call on",
        predicted="print only while tracing, jax.debug.print at every call",
        observed=f"second call printed: {second!r}; traces: {compiled.trace_count}",
        held="x:" not in second and "at run time" in second and compiled.trace_count == 1,
    )


def _set_first(a: Any) -> Any:
    a[0] = 1.0
    return a


def _set_all(a: Any, b: Any) -> Any:
    a[:] = a + b
    return a


def _add_in_place(a: Any, b: Any) -> Any:
    a += b
    return a


def _clip_if_large(x: Any) -> Any:
    if x.sum() > 1:
        return x / x.sum()
    return x


def _sum_in_python(x: Any) -> Any:
    total = 0.0
    for row in x:
        total = total + row.sum()
    return total


def _through_callback(x: Any) -> Any:
    return jax.pure_callback(lambda v: np.asarray(v) * 2, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


def _through_cond(x: Any) -> Any:
    return jax.lax.cond(x.sum() > 1, lambda v: v / v.sum(), lambda v: v, x)


def _through_scan(x: Any) -> Any:
    return jax.lax.scan(lambda total, row: (total + row.sum(), None), 0.0, x)[0]


A, B = np.array([1.0, 2.0], np.float32), np.array([3.0, 4.0], np.float32)
# what the book or its exercise tries, with its arguments; the JAX way, by name; what both should give
FORBIDDEN: tuple[tuple[str, Callable[..., Any], tuple[Any, ...], str, Callable[..., Any], Any], ...] = (
    ("x.asnumpy()", lambda x: np.asarray(x) * 2, (A,), "jax.pure_callback", _through_callback, A * 2),
    ("if on a value", _clip_if_large, (A,), "lax.cond", _through_cond, A / A.sum()),
    ("for over rows", _sum_in_python, (np.ones((3, 2), np.float32),), "lax.scan", _through_scan, 6.0),
    ("a[:] = a + b", _set_all, (A, B), "a.at[:].set(a + b)", lambda a, b: a.at[:].set(a + b), A + B),
    ("a[0] = 1", _set_first, (B,), "a.at[0].set(1)", lambda a: a.at[0].set(1.0), np.array([1.0, 4.0])),
    ("a += b", _add_in_place, (A, B), "a = a + b", lambda a, b: a + b, A + B),
)


def attempt(fn: Callable[..., Any], args: tuple[Any, ...]) -> tuple[str, Any]:
    """The name of the error that the jitted function raises ("" for none), and its value."""
    try:
        return "", jax.jit(fn)(*map(jnp.asarray, args))
    except (jax.errors.JAXTypeError, TypeError) as e:
        return type(e).__name__, None


def what_tracing_forbids(story: Story) -> None:
    """Each run for real: what it raises under `jit`, and the JAX way that then works.

    Facts: `under_jit/WHAT`, an error's name, "works" or "a wrong value"; `jax_way_works/WHAT`.
    """
    story.heading("8.1.3 What tracing forbids")
    outcomes = {}
    for title, fn, args, name, way, expected in FORBIDDEN:
        error, value = attempt(fn, args)
        if not error:
            error = "works" if np.allclose(value, expected) else "a wrong value"
        _, instead = attempt(way, args)
        works = instead is not None and np.allclose(instead, expected)
        outcomes[title] = error
        story.say(f"{title:14} {error:27} the JAX way: {name:19} {'works' if works else 'FAILS'}")
        story.fact(f"under_jit/{title}", error, show=False)
        story.fact(f"jax_way_works/{title}", works, show=False)
    failing = [t for t, e in outcomes.items() if e.endswith("Error")]
    story.claim(
        "asnumpy, if on a value, and in-place assignment fail once hybridized; for works (here a += b too)",
        predicted="errors for asnumpy, if, a[:] = and a[0] =",
        observed=f"errors for: {', '.join(failing)}",
        held=failing == ["x.asnumpy()", "if on a value", "a[:] = a + b", "a[0] = 1"],
    )


def what_traces_again(story: Story) -> None:
    """A new shape, dtype, weak type or static value each cost one more trace; the same ones cost none.

    Facts: `traces/CALL`, of each of seven calls in this order.
    """
    story.heading("What traces again")
    counted = count_traces(lambda x, scale, flip=False: x * scale * (-1 if flip else 1))
    jitted = jax.jit(counted, static_argnames=("flip",))
    x, one = jnp.ones((2, 3)), jnp.float32(1)
    calls = {
        "first call": lambda: jitted(x, one),
        "same again": lambda: jitted(x + 1, one),
        "new shape": lambda: jitted(x[:1], one),
        "new dtype": lambda: jitted(x.astype(jnp.bfloat16), one),
        "weak type (a Python number)": lambda: jitted(x, 1.0),
        "another Python number": lambda: jitted(x, 2.0),
        "new static value": lambda: jitted(x, one, flip=True),
    }
    for name, call in calls.items():
        before = counted.traces
        call()
        story.fact(f"traces/{name}", counted.traces - before)
