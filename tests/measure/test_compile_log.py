from itertools import chain

import jax
import jax.numpy as jnp
import pytest

from jaxperf.measure.compile_log import RetraceError, nothing_compiles, watch_compilation
from jaxperf.measure.timing import measure

QUICK = {"warmup_calls": 3, "warmup_s": 0, "min_values": 5, "max_values": 5}


def fresh_each_time(x):
    return jax.jit(lambda y: y + 1)(x)


def doubled(x):
    return x * 2


def test_measure_refuses_what_compiles_inside_the_clock_without_tracing():
    again, new = (jax.jit(doubled).lower(jnp.ones(size)) for size in (201, 202))
    programs = chain([again] * 5, [new] * 99)
    with pytest.raises(RetraceError, match=r"^aot: jit\(doubled\) was compiled inside the timed part"):
        measure(lambda: next(programs).compile() and 0, name="aot", loops=1, **QUICK)


def test_warm_up_goes_on_until_nothing_is_traced():
    shapes = iter([101, 102, 103, 104, 105, 106] + [107] * 99)  # no other test has met these
    program = jax.jit(doubled)
    m = measure(lambda: program(jnp.zeros(next(shapes))), loops=1, **QUICK)
    assert len(m.warmup) == 8  # six shapes and twice the last
    assert len(m.values) == 5


def test_eager_transformations_and_callbacks_are_no_retrace():
    heard = []

    def loss(x):
        return jnp.sum(jax.nn.relu(x) ** 2)

    def program(x):
        jax.debug.callback(heard.append, x[0])
        return x + 1

    measure(jax.grad(loss), jnp.ones(3), **QUICK)
    m = measure(jax.jit(program), jnp.ones(3), loops=2, **QUICK)
    jax.effects_barrier()
    assert len(heard) == len(m.warmup) + 2 * len(m.values)


def test_an_error_of_the_function_comes_through():
    with pytest.raises(ZeroDivisionError):
        measure(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError), nothing_compiles("x"):
        fresh_each_time(jnp.ones(2))
        raise ZeroDivisionError  # and is not hidden by the retrace


def test_the_witness_sees_only_what_happens_inside():
    with watch_compilation() as seen:
        pass
    fresh_each_time(jnp.ones(5))
    assert seen == []
    with watch_compilation() as seen:
        fresh_each_time(jnp.ones(5))
    assert seen == ["<lambda> was traced", "jit(<lambda>) was compiled"]
