import functools
import signal
import threading
import time
from types import SimpleNamespace
from unittest.mock import create_autospec

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from late import FAR

from jaxperf.errors import JaxperfError
from jaxperf.measure.compile_log import nothing_compiles, watch_compilation
from jaxperf.measure.stages import compile_together, stages

BRIEF = {"warmup_calls": 1, "warmup_s": 0, "min_values": 2, "max_values": 2, "loops": 1}
take = functools.partial(stages, measure_options=BRIEF)


def product(x):
    return jnp.tanh(x @ x)


def power(x, n, *, flip=False):
    for _ in range(n):
        x = x * x
    return -x if flip else x


def assert_complete(measured):
    stages_s = measured.trace_s, measured.lower_s, measured.compile_s, measured.first_run_s
    assert min(*stages_s, measured.steady.median) > 0
    assert len(measured.steady.values) == 2


def test_each_stage_takes_time_and_python_runs_once_each_time():
    counted, x = create_autospec(product, side_effect=product), jnp.ones((8, 8))
    for name, times in (("product", 1), ("aot", 2)):
        measured = take(counted, x, name="" if name == "product" else name)
        assert_complete(measured)
        assert (counted.call_count, measured.steady.name) == (times, name)
        np.testing.assert_allclose(measured.compiled(x), product(x), rtol=1e-6)


def test_static_values_are_built_into_the_program_and_one_by_position_is_one_line():
    names, x = ("n", "flip"), jnp.full(3, 2.0)
    for fn in (power, jax.jit(power, static_argnames=names)):
        measured = take(fn, x, n=3, flip=True, static_argnames=names)
        assert_complete(measured)
        np.testing.assert_array_equal(measured.compiled(x), [-256.0] * 3)
    with pytest.raises(JaxperfError, match=r"^stages\(power\): 1 of 2 positional .* by name$"):
        take(jax.jit(power, static_argnames="n"), jnp.ones(3), 2)


def test_programs_that_are_compiled_together_are_there_and_compile_no_more():
    double, add = jax.jit(lambda x: 2 * x), jax.jit(lambda x, y: x + y)
    shape, here = jax.ShapeDtypeStruct((31,), jnp.float32), jax.device_put(np.ones(31, np.float32))
    with watch_compilation() as seen:
        compiled, seconds = compile_together({"double": (double, shape), "add": (add, here, 2.0)})
    assert seen.programs == 2 and seen.compile_s > 0 and seconds > 0
    assert list(compiled) == ["double", "add"]
    np.testing.assert_array_equal(compiled["double"](here), 2 * np.ones(31))
    with nothing_compiles("calls of the jitted functions"):
        double(here)
        add(here, 2.0)


def test_an_error_of_one_of_several_programs_comes_through():
    with pytest.raises(TypeError, match=r"incompatible shapes|broadcast"):
        compile_together({"fine": (jnp.tanh, jnp.ones(3)), "not": (jnp.add, jnp.ones(3), jnp.ones(4))})


class Waiting:
    """A lowered program whose compilation ends when a gate opens."""

    def __init__(self, gate):
        self.gate = gate

    def compile(self):
        self.gate.wait(FAR)
        return self


def compile_all(programs):
    calls = {i: (SimpleNamespace(lower=lambda p=p: p),) for i, p in enumerate(programs)}
    return list(compile_together(calls)[0].values())


def test_all_are_compiled_at_the_same_time():
    meeting = threading.Barrier(3)  # breaks unless three wait at it together
    programs = [Waiting(meeting) for _ in range(3)]
    assert compile_all(programs) == programs and not meeting.broken
    assert compile_all([]) == []


def test_for_a_gpu_they_are_compiled_one_after_another(monkeypatch):
    running = threading.Semaphore(1)

    class Alone:
        def compile(self):
            assert running.acquire(blocking=False)
            time.sleep(0.05)  # another thread would begin meanwhile
            running.release()
            return self

    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    programs = [Alone() for _ in range(3)]
    assert compile_all(programs) == programs


def test_ctrl_c_leaves_a_compilation_behind():
    gate = threading.Event()

    class Interrupted(Waiting):
        def compile(self):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            return super().compile()

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            compile_all([Interrupted(gate)])
        assert not gate.is_set()
    finally:
        gate.set()
        signal.signal(signal.SIGINT, before)
