import collections
import contextlib
import functools
import gc
import io
import pickle
import re
import runpy
import sys
import threading
import time
import warnings
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from unittest.mock import Mock

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax._src.interpreters import partial_eval
from jax.experimental import checkify
from late import FAR, Late

import jaxperf
from jaxperf.errors import JaxperfError, warnings_hidden
from jaxperf.result import Note
from jaxperf.watch import log as events
from jaxperf.watch import session
from jaxperf.watch.log import Compiled
from jaxperf.watch.observe import compiles, frame_arguments, sampler, source_location, windows
from jaxperf.watch.report.analysis import FULL_QUEUE, Analysis
from jaxperf.watch.rules import elements
from jaxperf.watch.source import statements

HEIGHTS = np.ones(3)


def test_everything_is_as_before_once_a_watch_is_over():
    def hooks():
        array = type(jnp.float32(1))
        return [
            array.item, array.__float__, array.__iter__, np.asarray, np.array, jax.block_until_ready,
            jax.device_get, jnp.array, jnp.asarray, jax.device_put, jax.clear_caches,
            jax._src.lib._profiler.ProfilerSession, type(jax.config).update,
            jax.config.jax_explain_cache_misses,
        ]  # fmt: skip

    before = hooks()
    with jaxperf.watch(show=False):
        assert all(now is not then for now, then in zip(hooks(), before))
        assert np.array.__module__ == "numpy" and jnp.array.__name__ == "array"
    assert hooks() == before
    with pytest.raises(ZeroDivisionError), jaxperf.watch(show=False):
        _ = 1 / 0
    assert hooks() == before


def test_what_hooks_take_is_processor_time_and_not_the_time_for_which_they_wait(monkeypatch):
    watch, keep = session.Watcher("a", profile=False), Mock(side_effect=lambda *_: time.sleep(0.5))
    monkeypatch.setattr(watch.compiles, "on_compiled", [keep])
    watch.open()
    jax.jit(lambda x: x - 41)(jnp.ones(43))
    assert keep.called and watch.close().overhead_s["hooks"] < 0.5


def test_a_second_watch_is_refused_and_the_first_goes_on():
    with jaxperf.watch("first", show=False, profile=False) as outcome:
        with pytest.raises(JaxperfError, match="first is being watched already"), jaxperf.watch(show=False):
            pass
        jax.jit(lambda x: x - 7)(1.0)
    assert "<lambda>" in {c.name for c in outcome.log.compiled}


def test_the_programs_own_profile_is_left_to_it(tmp_path):
    with jaxperf.watch(show=False):
        jax.jit(lambda x: x + 11)(jnp.ones(3)).block_until_ready()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with jax.profiler.trace(str(tmp_path)):
                jnp.ones(3).block_until_ready()
    assert list(tmp_path.rglob("*.xplane.pb"))


@pytest.mark.parametrize(("fails", "collects"), [(False, True), (True, False)])
def test_a_sample_is_not_interrupted_and_leaves_all_as_it_was(fails, collects, monkeypatch):
    looks = []

    def sample(*args):
        looks.append((sys.getswitchinterval(), gc.isenabled()))
        if fails:
            raise ValueError
        return events.StackSample(events.PYTHON, source_location.NOWHERE, 0.0, 1.0)

    before = sys.getswitchinterval()
    monkeypatch.setattr(sampler, "_sample_of", sample)
    if not collects:
        gc.disable()
    try:
        with jaxperf.watch(show=False, profile=False):
            while not looks:
                time.sleep(0.01)
        assert gc.isenabled() == collects
    finally:
        gc.enable()
    assert min(interval for interval, _ in looks) >= 10 * before
    assert not any(enabled for _, enabled in looks)
    assert sys.getswitchinterval() == before


def test_a_fork_waits_for_the_end_of_a_sample_whose_settings_a_child_would_keep():
    forked = threading.Event()

    def fork():
        session._before_fork()
        forked.set()
        sampler.SAMPLING.release()

    forking = threading.Thread(target=fork)
    with sampler.undisturbed():
        forking.start()
        assert not forked.wait(0.2)
    forking.join()
    assert forked.is_set()


def test_a_switch_interval_that_the_program_sets_outlives_the_watch(watched):
    before = sys.getswitchinterval()
    try:
        watched(lambda: sys.setswitchinterval(0.02))
        assert sys.getswitchinterval() == pytest.approx(0.02)
    finally:
        sys.setswitchinterval(before)


# what was compiled


def test_what_a_library_jits_for_itself_is_an_operation_outside_of_jit(watched):
    optimizer = optax.adam(0.1)
    state = optimizer.init(jnp.ones(37))

    def program():
        optimizer.update(jnp.ones(37), state)
        jax.jit(optimizer.update)(jnp.ones(37), state)  # the reader's own jit of a library's function

    explained = {c.name: c.at.source for c in watched(program).log.compiled if c.explained}
    assert any("own jit" in source for source in explained.values())
    assert not any(source.startswith("optimizer.update") for source in explained.values())


def test_a_function_under_checkify_keeps_its_name(watched):
    def quotient(x):
        return 1 / x

    checked = jax.jit(checkify.checkify(quotient, errors=checkify.float_checks))
    analysis = watched(lambda: checked(jnp.ones(41)))
    (call,) = [c for c in analysis.log.compiled if c.name == "checked_fun"]
    assert (call.called, call.explained) == ("quotient", True)


def test_a_trace_has_its_own_explanation_and_not_that_of_one_inside_of_the_same_name(watched):
    @jax.jit
    def loss(x, d):
        return jnp.sum((x - d) ** 2)

    @jax.jit
    def step(x):
        @jax.jit
        def step(y):
            return jnp.cos(y)

        return step(x) + 1

    remat = jax.jit(jax.grad(lambda z: jnp.sum(jax.remat(jnp.sin)(z))))
    ways = {
        "grad of jit": jax.jit(jax.value_and_grad(loss)),
        "vmap of jit": jax.jit(jax.vmap(loss, in_axes=(None, 0))),
        "jit in jit": lambda x, d: step(d),
        "remat": lambda x, d: remat(d),
    }
    for way, call in ways.items():
        record = watched(lambda call=call: [call(jnp.float32(1), jnp.ones((n, 2))) for n in (3, 4, 5)]).log
        explained = [c for c in record.compiled if c.explained]
        assert [[change.kind for change in c.changes] for c in explained] == [[], ["shape"], ["shape"]], way


def test_a_call_is_compared_with_the_nearest_earlier_one_and_what_vmap_makes_with_none(watched):
    @jax.jit
    def scaled(x, *more):
        return jnp.sum(x * 89)

    def program():
        for arguments in ([jnp.ones(89), 1.0], [jnp.ones(89)], [jnp.ones(89, jnp.bfloat16)]):
            scaled(*arguments)
        jax.vmap(scaled)(jnp.ones((2, 89)))

    first, *calls = [c for c in watched(program).log.compiled if c.name == "scaled"]
    assert first.changes == ()
    assert [change.kind for c in calls for change in c.changes] == ["structure", "dtype", "derived"]


@pytest.mark.parametrize("transform", [jax.grad, lambda f: jax.vmap(f, in_axes=(None, 0))])
def test_what_is_derived_of_a_jitted_method_is_compared_with_its_calls_of_other_shapes(transform, watched):
    class Fit:
        @functools.partial(jax.jit, static_argnums=0)
        def loss(self, w, x):
            return jnp.sum(jnp.sin(w * x) ** 2)

    def program():
        fit = Fit()
        for n in (3, 3, 5, 9):
            transform(fit.loss)(jnp.float32(1), jnp.ones((n, 2)))

    record = watched(program).log
    made = [c for c in record.compiled if c.name == "loss"]
    programs = 2 if transform is jax.grad else 1  # for each shape
    assert all(
        c.explained and c.defined.endswith(str(Fit.loss.__wrapped__.__code__.co_firstlineno)) for c in made
    )
    kinds = ["derived", "shape", "shape"]
    assert [c.changes[0].kind for c in made] == [kind for kind in kinds for _ in range(programs)]
    assert [c.changes[0].now for c in made][-1] == "float32[9,2]"


def test_a_jitted_attribute_that_was_traced_in_a_larger_program_first_is_known_when_called(watched):
    class Filter:
        def __init__(self):
            self.turn = jax.jit(self.turn)

        def turn(self, x):
            return jnp.append(x, jnp.sum(jnp.cos(x)))

        def whole(self, x):
            return self.turn(self.turn(self.turn(x)))

    def program():
        made = Filter()
        jax.jit(made.whole)(jnp.ones(83))
        x = jnp.ones(83)
        for _ in range(5):
            x = made.turn(x)

    made = [c for c in watched(program).log.compiled if c.name == "turn"]
    assert [c.explained for c in made] == [True] * 5
    assert [c.changes[0].kind for c in made] == ["derived", "shape", "shape", "shape", "shape"]


def test_a_call_is_compared_with_few_earlier_ones_and_their_equal_pytrees_with_none(watched, monkeypatch):
    compared = Counter()

    def counted(compare):
        def counting(*args):
            compared[compare.__name__] += 1
            return compare(*args)

        return functools.wraps(compare)(counting)

    for compare in (partial_eval.diff_types, partial_eval.diff_trees):
        monkeypatch.setattr(partial_eval, compare.__name__, counted(compare))
    total, lengths = jax.jit(lambda parts: parts["a"].sum() * 83), range(1, 2 + 2 * compiles._COMPARED)
    (*_, last) = watched(lambda: [total.eval_shape({"a": np.ones(n)}) for n in lengths]).log.compiled
    # the first calls are compared with fewer
    assert compared == {"diff_types": sum(min(n, compiles._COMPARED) for n in range(len(lengths)))}
    assert [change.kind for change in last.changes] == ["shape"]


def test_traces_inside_another_one_are_neither_described_nor_kept(watched, monkeypatch):
    inner = [jax.jit(lambda x, i=i: jnp.sin(x) + i) for i in range(20)]
    described = Mock(side_effect=frame_arguments.call_arguments)
    monkeypatch.setattr(frame_arguments, "call_arguments", described)

    @jax.jit
    def step(x):
        for function in inner:
            x = function(x)
        with jax.ensure_compile_time_eval():
            table = jnp.cumsum(jnp.arange(83.0))
        return x + table[2]

    x = jnp.ones(83)
    log = watched(lambda: step(x)).log
    assert [c.name for c in log.compiled] == ["step"] and described.call_count <= 1 + len(log.nested)
    assert "cumsum" in {c.name for c in log.nested}
    assert {c.at.file for c in log.nested} == {__file__}


def test_new_programs_without_an_event_are_a_remark(monkeypatch):
    step, x = jax.jit(lambda x: x * 43), jnp.ones(43)
    monkeypatch.setattr(compiles, "_STAGES", {})
    with jaxperf.watch(show=False, profile=False) as outcome:
        step(x)
    (remark,) = outcome.log.remarks
    assert "does not tell what it traces and compiles" in remark
    assert not [b for b in outcome.result.of(Note) if "Nothing in it used JAX" in b.text]


@pytest.mark.thorough
@pytest.mark.parametrize("renamed", [True, False])
def test_devices_that_compute_without_a_call_are_a_remark(renamed, monkeypatch):
    step, x = jax.jit(lambda x: jnp.tanh(x @ x)), jnp.ones((64, 64))
    step(x)
    if renamed:
        monkeypatch.setattr(windows, "_DISPATCH", re.compile("another name"))
    with jaxperf.watch(show=False) as outcome:
        profiler = session._open_watch.profiler
        while len(profiler.windows_s) < 8:
            x = step(x).block_until_ready()
    remarks = [r for r in outcome.log.remarks if "saw a program being called" in r]
    assert bool(remarks) == renamed


# what the front end waited for


def test_every_way_to_wait_is_seen_once_with_its_line_and_bytes(watched):
    x, s = jax.block_until_ready((jnp.arange(6.0), jnp.float32(2)))
    ways = {
        "item": (lambda: s.item(), 4),
        "float": (lambda: float(s), 4),
        "int": (lambda: int(s), 4),
        "if": (lambda: 1 if s else 2, 4),
        "tolist": (lambda: x.tolist(), 24),
        "np.asarray": (lambda: np.asarray(x), 24),
        "print": (lambda: f"{x}", 24),
        "block_until_ready": (lambda: x.block_until_ready(), 0),
        "device_get": (lambda: jax.device_get([x, s]), 28),
        "tobytes": (lambda: x.tobytes(), 24),
        "effects_barrier": (lambda: jax.effects_barrier(), 0),
    }
    expected = [(kind, wait.__code__.co_firstlineno, nbytes) for kind, (wait, nbytes) in ways.items()]
    waits = watched(lambda: [wait() for wait, _ in ways.values()]).log.waits
    assert [(w.kind, w.at.line, w.nbytes) for w in waits] == expected
    assert {w.at.file for w in waits} == {__file__}


def test_lines_that_take_arrays_of_one_type_apart_are_named_together(watched):
    """JAX takes a hundred elements apart by one program, and the others by another."""
    log = watched(
        lambda: (
            min(jnp.arange(117.0)),
            max(jnp.arange(217.0)),
            sum(jnp.ones((17, 2))),
        )
    ).log
    first = min(at.line for places in log.iterated.values() for at in places)
    lines = {kind: sorted(at.line - first for at in places) for kind, places in log.iterated.items()}
    assert lines == {"float32[17]": [0, 1], "float32[100]": [0, 1], "float32[17, 2]": [2]}
    apart = Compiled("unstack", next(at for at in log.iterated["float32[17]"] if at.line == first))
    (finding,) = elements.find_iterated_arrays(
        Analysis(replace(log, compiled=[replace(apart, stages={"compile": (0.0, 1.0)})]))
    )
    assert finding.besides.startswith(f"Do the same at line {first + 1}:")


def test_the_array_over_which_a_line_iterates_beside_others_is_known_by_its_name(watched, monkeypatch):
    @dataclass
    class Own:
        rows: np.ndarray
        scores: jax.Array

    monkeypatch.setitem(globals(), "HEIGHTS", jnp.ones((3, 2)))
    names, own, angles = ["a", "b", "c"], Own(np.ones((3, 1)), jnp.arange(3.0)), jnp.ones(3)

    def program():
        for _ in zip(names, own.rows, angles):
            pass
        for _ in zip(names, own.scores):
            pass
        # of an array without a name, all are known
        for _ in zip(names, angles[::-1]):
            pass
        for _ in zip(names, HEIGHTS):
            pass

    variables = watched(program).log.iterated_variables
    inside = {at: names for at, names in variables.items() if at.function == "program"}
    assert [inside[at] for at in sorted(inside)] == [
        {"angles"},
        {"own.scores"},
        {"angles", "own.scores", "HEIGHTS"},
        {"HEIGHTS"},
    ]


def test_all_lines_whose_calls_let_a_library_take_arrays_apart_are_known(watched, site_packages):
    path = site_packages / "taking_57.py"
    path.write_text("def take(x):\n    return list(x)\n")
    take = runpy.run_path(str(path))["take"]
    log = watched(
        lambda: (
            take(jnp.ones(5)),
            take(jnp.zeros(5)),
        )
    ).log
    lines = sorted(at.line for at in log.iterated["float32[5]"])
    assert lines[1] == lines[0] + 1 and len(lines) == 2


def test_arrays_that_numpy_reads_from_a_list_are_waited_for_and_keys_are_not(watched):
    x, key = jnp.arange(6.0), jax.random.PRNGKey(0)

    def program():
        np.array([x, x])
        _, sub = jax.random.split(key)
        rows = [row * 2 for row in jnp.ones((3, 2))]
        pickle.dumps([x, sub, rows])  # a file that is written, most likely
        jax.block_until_ready(x=x)

    waits = watched(program).log.waits
    assert [(w.kind, w.nbytes) for w in waits] == [("np.asarray", 48), ("block_until_ready", 0)]


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="no account of the scheduler")
def test_a_call_that_waits_for_a_full_queue_is_a_wait_for_the_device(watched):
    step = jax.jit(lambda x: x + 1)
    step(jnp.float32(0)).block_until_ready()
    late = Late()
    x = late.array()

    def open_gate():
        samples = session._open_watch.log.samples
        seconds, end = {True: 0.0, False: 1e-9}, time.perf_counter() + FAR
        # one call must have slept for long
        while seconds[True] < max(2.0, 3 * seconds[False]) and time.perf_counter() < end:
            time.sleep(0.01)
            for blocked in seconds:
                seconds[blocked] = sum(s.end - s.start for s in samples if s.blocked == blocked)
        late.gate.set()

    def program():
        nonlocal x
        threading.Thread(target=open_gate).start()
        for _ in range(80):
            x = step(x)  # in turns: JAX queues 32 of them
        x.block_until_ready()

    analysis = Analysis(watched(program).log)
    full = analysis.blocked_lines
    assert {line.kind for line in full} == {FULL_QUEUE}
    assert max(full, key=lambda line: line.total_s).at.source.startswith("x = step(x)")
    shares = analysis.shares()
    assert shares["front end waits for devices"] > shares["front end runs Python and dispatches"]


def test_what_callbacks_convert_and_debug_prints_format_is_no_wait_of_the_front_end(watched):
    def half(x):
        return np.asarray(x) / 2

    @jax.jit
    def step(x):
        jax.debug.print("value {}", x)
        return jax.pure_callback(half, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    def program():
        step(jnp.float32(3)).block_until_ready()
        jax.effects_barrier()
        print(jnp.float32(4))

    with contextlib.redirect_stdout(io.StringIO()) as out:
        waits = watched(program).log.waits
    assert out.getvalue() == "value 3.0\n4.0\n"
    assert [w.kind for w in waits] == ["block_until_ready", "effects_barrier", "print"]


def test_jax_in_other_threads_is_said_to_be_unwatched(watched):
    def program():
        thread = threading.Thread(target=lambda: float(jax.jit(lambda x: x - 31)(2.0)))
        thread.start()
        thread.join()

    record = watched(program).log
    (remark,) = record.remarks
    assert remark.startswith("other threads waited 1 time and compiled ") and not record.waits


# what samples and windows saw


def test_importing_is_distinguished_from_computing_in_python(site_packages, watched):
    (site_packages / "slow_to_import_31.py").write_text(
        "import time\nfrom jaxperf.watch import session\nsamples = session._open_watch.log.samples\n"
        "seen = len(samples) + 3\nwhile len(samples) < seen:\n    time.sleep(0.01)\n"
    )

    def program():
        import slow_to_import_31  # noqa: F401

    analysis = watched(program)
    assert Counter(s.kind for s in analysis.log.samples)["import"] > 0
    assert sum(list(analysis.shares().values())[:5]) == pytest.approx(1.0)


# nothing of the program runs for a look at it


class Strict:
    """An object of the program whose attributes have side effects, as those of lazy modules have."""

    asked: list[str] = []  # noqa: RUF012

    def __getattr__(self, name):
        if name.startswith("__jax"):  # JAX asks for its own
            raise AttributeError(name)
        self.asked.append(name)
        raise KeyError(name)

    def lower(self):
        return "no jitted function"

    def __call__(self, x):
        return x * 67


def test_attributes_of_the_programs_objects_are_not_asked_for(watched):
    strict = Strict()

    def make():
        return jax.jit(lambda x, static: strict(x), static_argnums=1)

    def program(static):
        for _ in range(3):
            make()(jnp.ones(3), static)
            strict(jnp.ones(3))
        time.sleep(0.1)  # for samples of this function

    Strict.asked.clear()
    program(strict)
    alone = list(Strict.asked)
    Strict.asked.clear()
    record = watched(lambda: program(strict)).log
    assert Strict.asked == alone and record.losses.remarks == []
    assert frame_arguments.describe_value(strict).startswith("<Strict object")
    assert frame_arguments.identify_value(strict) and not frame_arguments.is_array(strict)
    assert frame_arguments.referenced_arrays(lambda: strict.w) == {} and Strict.asked == alone
    assert frame_arguments.object_fields("x", {"a": strict}) and Strict.asked == alone
    assert frame_arguments.is_array(np.ones(3)) and frame_arguments.is_array(jnp.ones(3))


@dataclass(frozen=True, slots=True)
class Grid:
    step: float
    bounds: tuple[int, ...]
    inner: object = None
    note: str = field(default="", compare=False)

    @property
    def cells(self):
        raise ValueError


def test_the_fields_of_an_object_are_the_values_that_it_stores_and_compares():
    grid = Grid(
        0.5, (1, 2), {"rate": np.float64(0.1), "of": Grid(2.0, (3,) * 99, jnp.tanh), "w": jnp.ones(1)}
    )
    fields = frame_arguments.object_fields("grid", grid)
    assert fields.pop("grid.inner['of'].inner").startswith("<tanh at 0x")
    assert "grid.inner['of'].bounds" in fields  # deeper, only the class is named
    del fields["grid.inner['of'].bounds"]
    assert fields == {
        "grid.step": "0.5", "grid.bounds[0]": "1", "grid.bounds[1]": "2",
        "grid.inner['rate']": "0.1", "grid.inner['of'].step": "2.0", "grid.inner['w']": "float32[1]",
    }  # fmt: skip
    circle = Grid(1.0, (), [])
    circle.inner.append(circle)
    many = dict.fromkeys(range(1000), circle)
    assert len(frame_arguments.object_fields("many", many)) < 2 * frame_arguments.FIELDS


class Untold:
    pass


class Named(str):
    shown = 0

    def __repr__(self):
        Named.shown += 1
        return "shown"


def test_values_are_described_by_pythons_own_methods_and_only_their_beginning():
    assert frame_arguments.describe_value(Named("x" * 1000)) == "'" + "x" * 59 and Named.shown == 0
    assert sampler._static_value((1,) * 100_000) == "" and sampler._static_value((3, 4)) == "(3, 4)"
    assert sampler._static_value([1.5] * 7) == "list of length 7"  # which jit would unroll
    dictionaries = {"w": np.ones(3)}, {"rate": 0.1}, {"w": np.ones(3), "heads": 8}, {"kind": "adam"}
    assert [*map(sampler._static_value, dictionaries)] == ["", "", events.SETTINGS, events.SETTINGS]
    arrays = jnp.ones((7, 2)), np.ones(7), np.float32(7)
    assert [*map(sampler._static_value, arrays)] == ["array of length 7", "array of length 7", ""]
    assert sampler._static_value(Untold()) == f"object of {__file__}:Untold"  # which jit does not take
    # nor a library's, unless JAX knows its class, or it is a function
    known = collections.OrderedDict(w=arrays[0]), functools.partial(two), jnp.dtype("float32").type
    assert [*map(sampler._static_value, known)] == ["", "", ""]
    unknown = collections.ChainMap(), np.random.default_rng(0)
    assert [*map(sampler._static_value, unknown)] == ["object of :ChainMap", "object of :Generator"]
    assert "function two line" in frame_arguments.describe_value(two)


def two():
    return 2


class Unready:
    """A node of a pytree whose parts are set later, as of an object that is being made."""


jax.tree_util.register_pytree_node(Unready, lambda node: ((node.part,), None), lambda _, parts: Unready())


class Typed:
    """An object of the program that has an array's attributes, which fail before it is ready."""

    @property
    def dtype(self):
        raise AttributeError("not yet")

    shape = dtype


def test_an_object_that_cannot_be_looked_at_is_named_by_its_class(watched):
    def call(node, other):
        return frame_arguments.call_arguments(sys._getframe())

    leaves = call(Unready(), {"a": 1})
    assert type(leaves["node"]) is Unready and leaves["other['a']"] == 1
    assert frame_arguments.describe_value(Typed()).startswith("<Typed object")
    function = jax.jit(lambda x, typed: x + 79, static_argnums=1)
    assert watched(lambda: function(jnp.ones(3), Typed())).log.losses.remarks == []


def test_of_a_long_list_few_elements_are_looked_at():
    def call(values):
        return frame_arguments.call_arguments(sys._getframe())

    for long in ([1.0] * 100_000, [np.float32(1)] * 100_000, [[1] * 1000] * 1000, [jnp.ones(1)] * 5000):
        assert 1 <= len(call(long)) <= frame_arguments.SHOWN**2
    assert len(call([1.0] * 1_000_000)) == frame_arguments.SHOWN
    assert len(call([[1.0] * 1000] * 1000)) == frame_arguments.SHOWN**2
    assert len(call([jnp.ones(2)] * 100)) == 100  # a network's layers


def test_a_file_that_is_parsed_again_warns_only_once(tmp_path):
    path = tmp_path / "escapes.py"
    path.write_text("import warnings\npattern = '\\d'\nx = 1\n")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        kept = list(warnings.filters)
        assert statements.syntax_tree(str(path)).body
        assert warnings.filters == kept
    assert caught == []


def test_hidden_warnings_do_not_make_python_repeat_others():
    def warn():
        warnings.warn("once for each line", UserWarning, stacklevel=1)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        warn()
        with warnings_hidden(DeprecationWarning, "old"):
            warnings.warn("old name", DeprecationWarning, stacklevel=1)
        warn()
    assert [str(w.message) for w in caught] == ["once for each line"]
