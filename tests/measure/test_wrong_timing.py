"""Ways to time JAX wrongly, one test each: jaxperf refuses them, measures them right, or shows the fault.

`docs/trust.md` lists the same ways. No test here looks at how long anything took: they look at what had
happened when the clock was read, at what is refused, and at what was counted.
"""

import functools
import gc
import importlib
import itertools
import random
import re
import sys
import threading
import time
import weakref
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import Mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from late import Late

from jaxperf.errors import JaxperfError
from jaxperf.jax_internals import DEBUG_FLAGS
from jaxperf.measure import current_environment, interleaved, measure, pending, probe, stages, timing
from jaxperf.measure.compile_log import COPIES, RetraceError
from jaxperf.measure.scheduler import Account, Scheduler
from jaxperf.measure.timing import calls_per_value, time_value
from jaxperf.result import Measurement, ratio, ratio_of, turns

QUICK = {"warmup_calls": 2, "warmup_s": 0, "min_values": 3, "max_values": 3, "loops": 2}
SOURCE = Path(__file__)


class Events(Late):
    """What happened, in order: late work said that it is done, the clock was read."""

    def __init__(self):
        super().__init__(self._say)
        self.events, self.quick = [], jnp.ones(3)
        self.gate.set()

    def _say(self):
        time.sleep(0.01)
        self.events.append("done")

    def clock(self):
        self.events.append("clock")
        return 0.0

    def timed(self, fn):
        """What happened, in order, while a value of two calls of `fn` was taken, in both ways of waiting."""
        seen = []
        for wait in ("each", "end"):
            self.events.clear()
            time_value(fn, (), 2, wait, self.clock)
            seen += self.events
        return seen


ALL_DONE = ["clock", "done", "done", "clock"] * 2


@pytest.fixture(scope="module")
def shared():
    return Events()


@pytest.fixture
def late(shared):
    shared.events.clear()
    yield shared
    shared.gate.set()
    shared.fails = False


# Not waiting for all of it


def test_not_waiting(late):
    late.gate.clear()
    y = late.array()
    assert pending(y) == 1
    assert not late.events
    late.gate.set()
    jax.block_until_ready(y)
    assert late.timed(late.array) == ALL_DONE


def shards(late):
    devices = jax.devices("cpu")[:2]
    sharding = jax.sharding.NamedSharding(jax.sharding.Mesh(devices, "d"), jax.P("d"))
    parts = [jax.device_put(p, d) for p, d in zip((late.quick[:1], late.array()[None]), devices)]
    return jax.make_array_from_single_device_arrays((2,), sharding, parts)


def keeps(late):
    late.kept = late.array()


WAITED_FOR = {
    "waiting for one of several results": lambda late: (late.array(), late.quick),
    "a result deep inside a tree": lambda late: {"a": [late.quick, {"b": (None, late.array())}], "c": 1.0},
    "one shard of several": shards,
    "a callback beside a finished output": lambda late: (late.nothing(), late.quick)[1],
}


@pytest.mark.parametrize("way", WAITED_FOR)
def test_all_of_it_is_waited_for(way, late):
    assert late.timed(lambda: WAITED_FOR[way](late)) == ALL_DONE


def test_a_function_that_waits_by_itself_and_returns_nothing(late):
    def waits():
        late.array().block_until_ready()

    assert late.timed(waits) == ALL_DONE
    assert measure(waits, **QUICK).median > 0


def test_a_callback_that_is_still_running(late):
    late.gate.clear()
    late.nothing()
    assert not late.events
    late.gate.set()
    jax.effects_barrier()
    assert late.timed(late.nothing) == ALL_DONE


def test_work_left_over_from_before(late):
    argument = late.array()

    def program(x):
        late.events.append("call")
        return x + 1

    m = measure(program, argument, **QUICK)
    assert late.events.index("done") <= len(m.warmup)  # in the warm-up


LEAVES_WORK = {
    "a function that returns nothing": (keeps, "returns no array to wait for"),
    "a function that returns only a shape": (lambda late: late.array().shape, "returns no array to wait for"),
    "a function that returns a part of what it computes": (
        lambda late: (jnp.sin(late.quick), late.array())[0], "before .*, which it calls, has finished"
    ),
}  # fmt: skip


@pytest.mark.parametrize("way", LEAVES_WORK)
def test_no_work_may_be_left(way, late):
    leaves, why = LEAVES_WORK[way]
    fn = functools.partial(leaves, late)
    timers = [
        lambda: measure(fn, **QUICK),
        lambda: interleaved({"quick": lambda: jnp.ones(3) + 1, "late": fn}, count=6),
        lambda: probe(fn),
    ]
    for timed in timers:
        late.gate.clear()
        with pytest.raises(JaxperfError, match=why):
            timed()
        late.gate.set()
        late.array().block_until_ready()  # and so is all that came before


def test_an_error_that_surfaces_late(late):
    late.fails = True
    with pytest.raises(jax.errors.JaxRuntimeError, match="the late program failed"):
        measure(late.array, **QUICK)


@dataclass
class State:
    weights: jax.Array


NO_ARRAYS = {
    "a generator of outputs": (lambda: (jnp.sin(x) for x in (1.0, 2.0)), "a generator"),
    "an object that hides its arrays": (lambda: State(jnp.ones(3)), "a State"),
    "a future": (Future, "a Future"),
    "a function that is returned and not called": (lambda: functools.partial(jnp.sin, 1.0), "a partial"),
}


@pytest.mark.parametrize("way", NO_ARRAYS)
def test_what_cannot_be_waited_for_is_refused(way):
    fn, what = NO_ARRAYS[way]
    with pytest.raises(TypeError, match=f"^cannot wait for the output, {what}: "):
        measure(fn, **QUICK)


def test_dispatch_of_a_tracer():
    for output in (lambda x: x + 1, lambda x: (x + 1, x)):

        @jax.jit
        def traced(x, output=output):
            measure(output, x, **QUICK)
            return x

        with pytest.raises(TypeError, match="Tracer: time the function from outside of jit"):
            traced(jnp.ones(3))


def test_waiting_in_a_way_that_does_not_exist():
    with pytest.raises(JaxperfError, match="wait is 'last'; it is one of each, end"):
        measure(jnp.sin, 1.0, wait="last")


# Timing the compiler


def test_timing_the_compile():
    traced = Mock(side_effect=lambda x: x * 2 + 41)
    m = measure(jax.jit(traced), jnp.ones(3), **QUICK)
    assert traced.call_count == 1
    assert m.warmup[0] > 0  # the call that compiled; the timed part fails if anything compiles in it


def after_warm_up(program, first, then):
    """A function that calls `program` with another argument once it is timed."""
    arguments = itertools.chain([first] * 3, itertools.repeat(then))
    return lambda: program(next(arguments))


def switches(x64):
    with jax.enable_x64(x64):
        return PROGRAM(np.ones(3))


def clears():
    PROGRAM.clear_cache()
    return PROGRAM(1.0)


def compiles():
    thread = threading.Thread(target=lambda: jax.jit(lambda x: x + 9)(1.0))
    thread.start()
    thread.join()


PROGRAM = jax.jit(lambda x: x * 5)
POWER = jax.jit(lambda n: 1.5**n, static_argnums=0)
RETRACES = {
    "a new jit at every call": lambda: jax.jit(lambda x: x + 1)(jnp.ones(3)),
    "a shape that changes": after_warm_up(PROGRAM, np.ones(31, np.float32), np.ones(32, np.float32)),
    "a static value that changes": after_warm_up(POWER, 2, 3),
    "a dtype that changes": after_warm_up(PROGRAM, np.ones(3, np.float32), np.ones(3, np.int32)),
    "x64 switched on midway": after_warm_up(switches, False, True),
    "caches cleared midway": clears,
    "another thread that compiles": compiles,
}


@pytest.mark.parametrize("way", RETRACES)
def test_nothing_may_be_traced_or_compiled_while_it_is_timed(way):
    PROGRAM.clear_cache()  # of other ways
    with pytest.raises(RetraceError, match="inside the timed part"):
        measure(RETRACES[way], **QUICK)


def test_a_loop_whose_types_settle_late():
    program = Mock(side_effect=lambda x: x + jnp.float32(1))
    step, state = jax.jit(program), [1.0]  # a Python number, then an array

    def advance():
        state[0] = step(state[0])
        return state[0]

    m = measure(advance, **{**QUICK, "warmup_calls": 1})
    assert program.call_count == 2
    assert len(m.warmup) >= 3


# Timing something else


@pytest.mark.usefixtures("optimized", "compiles_anew")
def test_constant_folding():
    host = np.arange(64, dtype=np.float32).reshape(8, 8)
    assert dots(lambda: jnp.asarray(host) @ host) == 0  # `Program` says it: no product is left to time
    assert dots(lambda a: a @ a, jnp.asarray(host)) == 1


def test_dead_code():
    x = jnp.ones((8, 8))
    assert dots(lambda a: (a @ a, a + 1)[1], x) == 0
    assert dots(lambda a: (a @ a, a + 1), x) == 1


@pytest.mark.usefixtures("optimized", "compiles_anew")
def test_equal_work_that_is_merged():
    x = jnp.ones((8, 8))
    assert dots(lambda a: [a @ a for _ in range(4)], x) == 1
    assert dots(lambda *a: [b @ b for b in a], x, x + 1, x + 2, x + 3) == 4


def dots(fn, *args):
    return stages(fn, *args, measure_options=QUICK).program.dots


def test_a_program_that_returns_its_input():
    program = stages(lambda x: x, jnp.ones((8, 8)), measure_options=QUICK).program
    assert (program.flops, program.fusions, program.jaxpr_equations) == (0, 0, 0)


def test_a_cached_result():
    cached = functools.lru_cache(lambda: jnp.sin(1.0))
    with pytest.raises(JaxperfError, match="returned the very arrays of the first"):
        measure(cached, **QUICK)
    argument = jnp.ones(3)
    measure(lambda x: x, argument, **QUICK)  # what was given may come back
    measure(cached.__wrapped__, **QUICK)  # the function behind the cache


@pytest.mark.filterwarnings("ignore:Some donated buffers")
def test_a_donated_input():
    step = jax.jit(lambda x: x + 1, donate_argnums=0)
    with pytest.raises(JaxperfError, match=r"args\[0\] was donated, so it can be used only once"):
        measure(step, jnp.ones(3), **QUICK)
    made = itertools.count()
    measurements = interleaved({"step": step}, before={"step": lambda: jnp.full(3, next(made))}, count=3)
    assert len(measurements["step"].values) == 3
    assert next(made) == 1 + 3  # a new input for each call, that of the warm-up included


def test_an_output_that_the_next_call_overwrites():
    step, state = jax.jit(lambda x: x + 1, donate_argnums=0), [jnp.ones(3)]

    def advance():
        state[0] = step(state[0])
        return state[0]

    assert len(measure(advance, **QUICK).values) == 3  # waited for before the next call
    with pytest.raises((RuntimeError, ValueError), match=r"deleted|donated"):
        measure(advance, wait="end", **QUICK)


def test_host_transfer_counted_as_compute():
    program, host = jax.jit(lambda x: x + 1), np.ones(3, np.float32)
    assert COPIES in measure(program, host, **QUICK).note
    assert COPIES not in measure(program, jax.device_put(host), **QUICK).note
    assert COPIES not in measure(np.add, host, host, **QUICK).note  # NumPy's own work copies nothing


def test_a_copy_back_to_the_host_counted_as_dispatch(late, monkeypatch):
    fetched = probe(lambda: np.asarray(late.array()))
    assert not fetched.asynchronous
    assert all(fetched.ready)
    assert probe(late.held(monkeypatch)).asynchronous


def test_the_wrong_device(monkeypatch):
    assert current_environment().backend == jax.default_backend()  # every result says where it ran
    if jax.default_backend() == "cpu":
        monkeypatch.setattr(type(jax.config), "jax_platforms", "cuda,cpu", raising=False)
        with pytest.raises(JaxperfError, match="JAX finds no GPU"):
            current_environment()


def test_fake_devices_taken_for_real_ones():
    several_of_one_host = jax.default_backend() == "cpu" and jax.device_count() > 1
    assert current_environment().devices_are_fake is several_of_one_host


# Settings that make programs slow on purpose


@pytest.mark.parametrize("flag", [flag for flag in DEBUG_FLAGS if flag != "jax_disable_jit"])
def test_debug_flags(flag):
    assert flag in jax.config.values, "JAX knows no such setting"
    refuses_flag(flag)


def test_jit_switched_off():
    refuses_flag("jax_disable_jit")


def refuses_flag(flag):
    jax.config.update(flag, True)
    try:
        for timed in (lambda: measure(int, **QUICK), lambda: interleaved({"a": int}, count=1)):
            with pytest.raises(JaxperfError, match=f"^{flag} is on"):
                timed()
    finally:
        jax.config.update(flag, False)


# The clock and the first calls


def test_first_touch_of_memory():
    calls = itertools.count()
    m = measure(lambda: next(calls), **QUICK)
    assert next(calls) == len(m.warmup) + m.loops * len(m.values)  # and the two are never mixed
    assert len(m.warmup) >= QUICK["warmup_calls"]


def test_a_lazy_import(tmp_path, monkeypatch):
    (tmp_path / "slow_to_import.py").write_text("imported = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    absent = []

    def imports():
        absent.append("slow_to_import" not in sys.modules)
        importlib.import_module("slow_to_import")

    importlib.invalidate_caches()
    m = measure(imports, **QUICK)
    assert absent == [True] + [False] * (len(absent) - 1)
    assert len(m.warmup) >= 1  # the call that imported is one of these


def test_a_clock_too_coarse_for_the_call(monkeypatch):
    reads = itertools.count()
    monkeypatch.setattr(timing.time, "perf_counter", lambda: 1e-4 * next(reads))  # 0.1 ms per read
    assert calls_per_value(1.1e-4, 0) * 1e-5 >= 1000 * 2 * 1e-4 * 0.999  # a call of 10 us: 0.2 s per value


def test_freeing_memory_inside_the_clock(late):
    made = itertools.count(1.0)

    def program():
        out = jnp.full(3, next(made))
        weakref.finalize(out, late.events.append, "freed")
        return out

    time_value(program, (), 2, "end", late.clock)
    gc.collect()
    assert late.events == ["clock", "clock", "freed", "freed"]


# From values to verdicts


def test_one_slow_moment():
    values = (1.0,) * 6 + (50.0,)
    assert Measurement("m", "s", values).median == 1
    assert ratio_of(values).low == 1


def test_moments_in_which_another_program_had_the_core(monkeypatch):
    waited = itertools.chain((0, 9), itertools.repeat(9))  # seconds, during the first value
    monkeypatch.setattr(Scheduler, "account", lambda self: Account(0.0, {"1": (0.0, float(next(waited)))}))
    m = measure(int, **{**QUICK, "max_values": 4, "target_rel_iqr": 0, "budget_s": 60})
    assert (len(m.values), len(m.set_aside)) == (3, 1)
    assert m.note == "1 of 4 values set aside: another program had the core"


def test_too_few_values_for_a_verdict():
    assert ratio_of([2.0] * 5).word == "undecided"
    assert Measurement("m", "s", (1.0, 1.0)).noise == "few"


def test_programs_timed_at_different_moments():
    a, b = (measure(int, name=name, **QUICK) for name in "ab")
    with pytest.raises(ValueError, match="not measured in the same rounds"):
        ratio(a, b)


def test_always_in_the_same_order():
    order = []
    waits = "each"
    parts = {name: functools.partial(order.append, name) for name in "ab"}
    interleaved(parts, count=100, wait=waits, loops=1, seed=0)
    rounds = list(zip(order[2::2], order[3::2]))  # after a call of each for the warm-up
    draw = random.Random(0)
    assert rounds == [tuple(turns("ab", draw)) for _ in range(100)]
    assert rounds.count(("a", "b")) + rounds.count(("b", "a")) == 100
    assert 40 <= rounds.count(("a", "b")) <= 60


def test_a_machine_that_grows_slower():
    now = itertools.accumulate(itertools.count(1))  # each reading of the clock is later by one more
    clock = {"clock": lambda: float(next(now))}
    measurements = interleaved(dict.fromkeys("ab", int), count=40, loops=1, seed=0, **clock)
    growth = measurements["a"].values[-1] / measurements["a"].values[0]
    assert growth > 5
    assert ratio(measurements["a"], measurements["b"]).word == "undecided"


# The list


def test_the_page_lists_the_same_ways():
    tests = re.findall(r"^def test_(\w+)\((?!way)", SOURCE.read_text(), re.MULTILINE)
    ways = {*WAITED_FOR, *LEAVES_WORK, *NO_ARRAYS, *RETRACES, *(name.replace("_", " ") for name in tests)}
    assert len(ways) >= 30
    page = (SOURCE.parents[2] / "docs" / "trust.md").read_text()
    listed = re.findall(r"^\| (.+?) \| (?:refused|measured right|shown)", page, re.MULTILINE)
    assert ways - {"the page lists the same ways"} == set(listed)
