"""Section 8.1.3: tracing runs Python once. What happens to `print` and `asnumpy`, and what traces again?"""

from __future__ import annotations

import contextlib
import io
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxperf.chapter.network_size import differ
from jaxperf.measure import count_traces
from jaxperf.models import hybridize
from jaxperf.script import Story


class HybridNet(nnx.Module):
    """The book's network, which prints what it sees."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.hidden = nnx.Linear(4, 10, rngs=rngs)
        self.output = nnx.Linear(10, 2, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map (n, 4) to (n, 2)."""
        print("type:", type(x).__name__)
        print("x:", x)
        x = nnx.relu(self.hidden(x))
        print("hidden:", x)
        jax.debug.print("hidden, at run time: {}", x)
        return self.output(x)


class WithAsnumpy(HybridNet):
    """The same, but it first asks for its input's value as a NumPy array."""

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map (n, 4) to (n, 2); fails once compiled."""
        np.asarray(x)
        return super().__call__(x)


def printed(call: Callable[[], Any]) -> str:
    """What `call` prints until its result and effects are done, then its result, as in a notebook."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        result = jax.block_until_ready(call())
        jax.effects_barrier()
        print(result)
    return out.getvalue().strip()


def prints_fall_silent(story: Story) -> None:
    """Section 8.1.3: prints run while tracing and never again; `jax.debug.print` is part of the program.

    Facts: `prints_on_second_call`, of Python's own prints; `hybrid_net_outputs_equal`.
    """
    story.heading("8.1.3 A network of your own: HybridNet")
    story.text(
        """Gluon's `hybrid_forward` has an argument `F`, which is the module `nd` when the network runs op by
        op and `sym` when it is compiled. JAX needs no such argument, because one `jnp` takes arrays and
        tracers alike. The network below prints the type of its input instead, and what else it sees.""",
    )
    story.habit(
        gluon="def hybrid_forward(self, F, x):\n    x = F.relu(self.hidden(x))",
        jax="def __call__(self, x):\n    x = nnx.relu(self.hidden(x))",
    )
    story.code(HybridNet)
    net, x = HybridNet(nnx.Rngs(0)), jax.random.normal(jax.random.key(1), (1, 4))
    compiled = hybridize(net)
    calls = {
        "net(x)": printed(lambda: net(x)),
        "net(x), again": printed(lambda: net(x)),
        "compiled(x), the first call": printed(lambda: compiled(x)),
        "compiled(x), again": printed(lambda: compiled(x)),
    }
    for name, text in calls.items():
        story.say(f"--- {name}\n{text}", detail=True)
    story.text(
        """Op by op, everything is printed each time. The first compiled call prints tracers instead of
        numbers: Python runs to write the program down. The second call prints nothing from Python, which no
        longer runs. `jax.debug.print` is written into the program as an operation, so it prints at every
        call, and the numbers. The outputs are the same before and after."""
    )
    first, again = calls["compiled(x), the first call"], calls["compiled(x), again"]
    silent = [sum(text.count(word) for word in ("type:", "x:", "hidden:")) for text in (first, again)]
    with contextlib.redirect_stdout(io.StringIO()):
        _, equal = differ(net(x), compiled(x))
    story.fact("prints_on_second_call", silent[1], words="prints of Python in the second compiled call")
    story.fact("hybrid_net_outputs_equal", equal, words="outputs are the same before and after")
    right = silent == [3, 0] and "at run time" in again and compiled.trace_count == 1
    story.claim(
        book="After hybridize the prints of the forward function are silent from the second call on",
        holds=silent == [3, 0],
        predicted="print while tracing only, jax.debug.print at every call",
        right=right,
        observed=f"{silent[0]} prints in the first call, {silent[1]} in the second, "
        f"jax.debug.print in {'both' if right else 'not both'}",
    )


def asnumpy_inside(story: Story) -> None:
    """Exercise 1: `asnumpy` in the first line of HybridNet; what is raised, and where.

    Facts: `asnumpy_error`, its name; `asnumpy_line`, the line that raised it.
    """
    story.heading("8.1 Exercise 1: asnumpy inside HybridNet")
    story.text(
        """A tracer has no value that NumPy could read. MXNet says "Function asnumpy is not implemented for
        Symbol and only available in NDArray". What does JAX say, and where?"""
    )
    story.code(WithAsnumpy)
    net, x = WithAsnumpy(nnx.Rngs(0)), jnp.ones((1, 4))
    with contextlib.redirect_stdout(io.StringIO()):
        net(x)
        compiled = hybridize(net)
        error, line, message = where_it_fails(lambda: compiled(x))
    story.say(f"net(x) works\nhybridize(net) works\ncompiled(x) fails in {line}\n{message}", detail=True)
    story.text(
        """The error comes from the line of the network that asks for the value, at the first compiled call
        and not in `hybridize`, and it names the argument. `jax.pure_callback` calls NumPy from a compiled
        program."""
    )
    story.fact("asnumpy_error", error, words="raised by asnumpy in a compiled network")
    story.fact("asnumpy_line", line, words="raised in")
    fails = error == "TracerArrayConversionError" and "np.asarray(x)" in line
    story.claim(
        book="asnumpy cannot be used in the forward function of a hybridized network",
        holds=bool(error),
        predicted="works op by op; a TracerArrayConversionError from the line of the network once compiled",
        right=fails,
        observed=f"{error or 'no error'} in {line or 'no line'}",
    )


def where_it_fails(call: Callable[[], Any]) -> tuple[str, str, str]:
    """The error of `call`, the last line of this file that led to it, and its message; "" if it works."""
    try:
        call()
    except jax.errors.JAXTypeError as e:
        frame = [f for f in traceback.extract_tb(e.__traceback__) if f.filename == __file__][-1]
        where = f"{Path(frame.filename).name}, {frame.name}: {frame.line}"
        return type(e).__name__, where, f"{type(e).__name__}: {str(e).splitlines()[0]}"
    return "", "", ""


RETRACES = {  # how often each of these calls traces, in this order
    "first call": 1,
    "same shapes again": 0,
    "new shape": 1,
    "new dtype": 1,
    "a Python number (weak type)": 1,
    "another Python number": 0,
    "new static value": 1,
}


def traced_too_often() -> str:
    """What chex reports when a function that may be traced only once gets a second shape."""
    chex.clear_trace_counter()  # it counts by name, so running this cell again would fail
    double = jax.jit(chex.assert_max_traces(lambda x: x * 2, n=1))
    double(jnp.ones(2))
    try:
        double(jnp.ones(3))
    except AssertionError as e:
        return f"AssertionError: {str(e).splitlines()[0]}"
    return "nothing"


def what_traces_again(story: Story) -> None:
    """Count the traces of seven calls; `traces_in_all` is their number."""
    story.heading("8.1.3 What traces again")
    story.text(
        """A compiled program is for certain shapes and dtypes. A call with others traces and compiles once
        more, which takes a thousand times as long as the call itself, so a training loop should not do it by
        accident. The values of arrays and numbers never matter; that of a static argument does, since Python
        branches on it."""
    )
    counted = count_traces(lambda x, scale, flip=False: x * scale * (-1 if flip else 1))
    jitted = jax.jit(counted, static_argnames=("flip",))
    x, one = jnp.ones((2, 3)), jnp.float32(1)
    calls = (
        lambda: jitted(x, one),
        lambda: jitted(x + 1, one),
        lambda: jitted(x[:1], one),
        lambda: jitted(x.astype(jnp.bfloat16), one),
        lambda: jitted(x, 1.0),
        lambda: jitted(x, 2.0),
        lambda: jitted(x, one, flip=True),
    )
    found = {}
    for name, call in zip(RETRACES, calls, strict=True):
        before = counted.traces
        call()
        found[name] = counted.traces - before
    story.grid(("call", "traces"), [(name, str(n)) for name, n in found.items()], right=(1,), detail=True)
    story.text(
        """A program of yours can say how often it may be traced: wrap it in `chex.assert_max_traces` before
        you jit it, and a trace too many is an error at the call that caused it."""
    )
    story.code(traced_too_often)
    story.say(traced_too_often(), detail=True)
    story.fact("traces_in_all", counted.traces, words="traces of seven calls")
    story.claim(
        ours="Only a new shape, dtype, weak type or static value traces again",
        holds=found == RETRACES,
        predicted="5 traces of 7 calls",
        right=counted.traces == 5,
        observed=f"{counted.traces} traces of {len(found)} calls",
    )
