import functools
import itertools
import sys
import sysconfig
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxperf.retraces import Change
from jaxperf.watch.log import EAGER, NUMPY, WRITE, Compiled, DeviceActivity, Log, StackSample, Wait
from jaxperf.watch.observe import frame_arguments, source_location
from jaxperf.watch.observe.executables import Facts, independent_instructions, same_in_each_turn
from jaxperf.watch.observe.source_location import Place
from jaxperf.watch.report.analysis import Analysis, IntervalSet
from jaxperf.watch.rules import (
    eager,
    elements,
    idle,
    jit_advice,
    program_notes,
    programs,
    small_programs,
    traces,
)
from jaxperf.watch.rules.table import Finding, advice_for
from jaxperf.watch.source.call_sites import CallSite

PROGRAM = """\
import heavylib
import jax

def loss(w, x, width, mode, rate):
    return w

def main():
    params = init_net(key, (64, 28), depth=3)
    for turn in range(9):
        w = lib.fit(data)
        text = "".join(chr(t) for t in tokens)
        w = update(w, 3)
        more = [chr(t) for t in keys]

def show(w):
    print(w)
    first = min(ends[0])
    low, high = bounds
    total = sum(abs(p) for p in pair)
    left, right = jnp.unstack(pair)
    places = jnp.where(w > 0)
    places = jax.vmap(lambda k: predict(k))(keys)
    energies += [energy_fn(places)]
    search = lib.Search(places)
    grown = lib.Grow(3)(places)
    search.turn(0.3)
    plot(*history.T, label=w)

state = model.init(key, x)
"""


@pytest.fixture
def line(places):
    return places(PROGRAM)


def compiled(at, start, seconds, name="add", **more):
    return Compiled(name, at, {"compile": (start, start + seconds)}, **more)


# seconds


@pytest.mark.parametrize(("queued", "most"), [([], 0.31), ([(0.0, 0.2)], 0.01)])
def test_one_by_one_saves_no_more_than_samples_saw_nor_what_is_queued(queued, most):
    """0.3 s of operations, all in a window, in a run of 10 s whose rest is one compiled program."""
    at, call = Place("a.py", 3, "f"), Place("a.py", 9)
    samples = [StackSample(EAGER, at, i / 10, (i + 1) / 10) for i in range(3)]
    samples += [StackSample("dispatch", call, 0.3, 10.0)]
    activity = DeviceActivity([(0.0, 0.2)], queued=queued)
    step = Compiled("step", call, {"compile": (-0.1, 0.0)}, explained=True)
    analysis = Analysis(Log("a", 0.0, 10.0, compiled=[step], samples=samples, activity=activity))
    lost_s = analysis.of_the_run(eager._free(analysis).of, analysis.of_kinds(EAGER))
    assert sum(lost_s.values()) <= most


def test_a_line_gets_the_share_of_its_own_windows():
    seen, other = Place("a.py", 3), Place("a.py", 4)
    samples = [StackSample(EAGER, seen, 0.0, 1.0), StackSample(EAGER, other, 5.0, 7.0)]
    record = Log("a", 0.0, 10.0, samples=samples, activity=DeviceActivity([(0.0, 1.0)]))
    assert Analysis(record).begin == 10.0  # nothing was compiled: all is preparation
    record.compiled = [Compiled("step", other, {"compile": (-0.1, 0.0)}, explained=True)]
    seconds = Analysis(record).of_the_run(IntervalSet([(0.0, 0.5)]).of, samples)
    assert seconds == {seen: pytest.approx(0.5, abs=0.01)}


def test_a_line_that_windows_hardly_saw_is_taken_to_be_as_the_others():
    """Of 5 ms, 2 ms were seen: the rest is as all samples in the window, of which half was lost."""
    often, hardly, never = (Place("a.py", line) for line in (1, 2, 3))
    samples = [StackSample(EAGER, often, t / 100, (t + 1) / 100) for t in range(10)]
    samples += [StackSample(EAGER, hardly, 0.1, 0.102), StackSample(EAGER, hardly, 0.2, 1.198)]
    samples.append(StackSample(EAGER, never, 2.0, 3.0))
    record = Log("a", 0.0, 4.0, activity=DeviceActivity([(0.0, 0.102)]), samples=samples)
    record.compiled = [Compiled("step", often, {"compile": (-0.1, 0.0)}, explained=True)]
    seconds = Analysis(record).of_the_run(lambda s: 0.005 if s.at == often else 0.0, samples)
    assert seconds == {often: pytest.approx(0.05), hardly: pytest.approx(0.003 / 0.005 * 0.05 / 0.102)}


@pytest.mark.parametrize(("alike", "seconds"), [(True, {1: 0.05, 2: 0.5}), (False, {1: 0.05})])
def test_operations_that_no_window_saw_are_taken_to_be_as_the_loop_around_them(places, alike, seconds):
    """Half of the time in which a window saw the loop's first line was lost."""
    at = places("for x in xs:\n    y = x * x\n    z = y + 1\n")
    first, second = at(2), at(3)
    samples = [StackSample(EAGER, first, 0.0, 0.1), StackSample(EAGER, second, 1.0, 2.0)]
    record = Log("a", 0.0, 4.0, activity=DeviceActivity([(0.0, 0.1)]), samples=samples)
    record.compiled = [Compiled("step", at(1), {"compile": (-0.1, 0.0)}, explained=True)]
    lost_s = Analysis(record).of_the_run(lambda s: 0.05 if s.at == first else 0.0, samples, alike=alike)
    assert {at.line - 1: s for at, s in lost_s.items()} == pytest.approx(seconds)


def test_what_one_program_compiles_too_is_not_saved(line):
    at = line("params = ")
    small = [compiled(at, i, 0.04) for i in range(30)]
    large = [compiled(at, 40 + 6 * i, 5.0, "cholesky") for i in range(2)]
    (finding,) = small_programs.find_eager_recompiles(Analysis(Log("a", 0.0, 60.0, compiled=small + large)))
    assert finding.seconds == pytest.approx(31 * 0.04)
    assert "32 small programs" in finding.reason and "dearest is cholesky, 10 s" in finding.reason
    assert 'jax.jit(init_net, static_argnums=(1,), static_argnames=("depth",))' in advice_for(finding).change


@pytest.mark.parametrize(("sizes", "seconds"), [((8, 16, 32, 64), 3.4), ((8, 8, 8, 8), 1.9)])
def test_one_program_draws_each_weight_where_weights_of_one_shape_shared_a_program(sizes, seconds, line):
    """Thirty operations of 0.1 s, and two draws of 1 s; three more weights of one shape are three draws."""
    at, step = line("state = model.init", "<module>"), line("w = update")
    weights = [(f"argument 0['{i}']['w']", f"float32[8,{size}]") for i, size in enumerate(sizes)]
    momenta = [(f"argument 1[0].mu['{i}']['w']", kind) for i, (_, kind) in enumerate(weights)]
    small = [compiled(at, i, 0.1, f"op{i}") for i in range(30)]
    small += [compiled(at, 40 + 2 * i, 1.0, "_truncated_normal") for i in range(2)]
    train = compiled(step, 50, 1.0, "update", explained=True, signature=dict([*weights, *momenta]))
    (finding,) = small_programs.find_eager_recompiles(Analysis(Log("a", 0.0, 60.0, compiled=[*small, train])))
    assert finding.seconds == pytest.approx(seconds)


@pytest.mark.parametrize(("derived", "found"), [(True, [("eager recompiles", 19 * 0.1)]), (False, [])])
def test_what_a_gradient_makes_of_jitted_parts_is_one_program_with_them(places, derived, found):
    """Each of twenty costs 0.4 s, of which a small program takes 0.1 s; one program takes that once."""
    at = places("slopes = jax.grad(loss)(w)\n")(1, "<module>")
    change = Change("derived" if derived else "shape", "", "", "made of it by jax.grad, vmap or the like")
    # each is another program, though their texts are equal
    facts = Facts("normed", "cpu", 1.0, 1.0)
    parts = [
        compiled(at, 3 * i, 0.4, "normed", explained=True, changes=(change,), facts=facts) for i in range(20)
    ]
    small = [compiled(Place("b.py", i), 70 + i, 0.1, f"op{i}") for i in range(30)]
    log = Log("a", 0.0, 120.0, compiled=[*parts, *small])
    findings = small_programs.find_eager_recompiles(Analysis(log))
    assert [(f.cause, f.seconds) for f in findings if f.at == at] == [
        (cause, pytest.approx(seconds)) for cause, seconds in found
    ]


@pytest.mark.parametrize(("calls", "seconds"), [(1, 2.9 + 0.15), (4, 2.9 + 0.15 - 1.5)])
def test_one_program_draws_in_each_call_where_calls_of_one_shape_shared_a_program(places, calls, seconds):
    text = "def noise(key, w):\n" + calls * "    w = w * random.uniform(key, w.shape)\n" + "    return w\n"
    at = places(text)
    small = [compiled(at(2, "noise"), i, 0.1, f"op{i}") for i in range(29)]
    small.append(compiled(at(2, "noise"), 40, 1.0, "_uniform"))
    (finding,) = small_programs.find_eager_recompiles(Analysis(Log("a", 0.0, 60.0, compiled=small)))
    assert finding.seconds == pytest.approx(seconds)


def test_functions_that_are_jitted_and_imports_are_no_operations(line):
    at = line("import heavylib", "<module>")
    imported = [compiled(at, i, 0.04) for i in range(30)]
    first = [compiled(line("params = "), 40 + i, 0.5, f"f{i}", explained=True) for i in range(12)]
    analysis = Analysis(Log("a", 0.0, 60.0, compiled=imported + first))
    assert list(small_programs.find_eager_recompiles(analysis)) == []


@pytest.mark.parametrize(("times", "count"), [(1, 1), (3, 0)])
def test_operations_beside_a_function_that_a_library_jits_once_are_found(line, times, count):
    at = line("w = lib.fit")
    operations = [compiled(at, i, 0.1) for i in range(30)]
    own = [compiled(at, 40 + i, 0.1, "bias", owner="lib", defined="lib.py:9") for i in range(times)]
    analysis = Analysis(Log("a", 0.0, 20.0, compiled=operations + own))
    causes = [f.cause for f in small_programs.find_eager_recompiles(analysis)]
    assert causes.count("eager recompiles") == count


# libraries


def fits(at, types, *changes):
    known = {"owner": "fitlib", "defined": "fitlib.py:9"}
    signatures = [{"data": kind, "rate": str(i)} for i, kind in enumerate(types)]
    first, *others = (compiled(at, i, 0.5, "fun", signature=s, **known) for i, s in enumerate(signatures))
    return [first, *(replace(other, changes=changes) for other in others)]


def test_a_library_that_jits_in_each_call_is_named_with_its_repeats_only(line):
    at = line("w = lib.fit")
    same = fits(at, ["float32[20]"] * 4)
    (finding,) = traces.find_library_functions(Analysis(Log("a", 0.0, 9.0, compiled=same)))
    assert (finding.cause, finding.at, finding.seconds) == ("library function", at, pytest.approx(1.5))
    change = advice_for(finding).change
    # what fits may loop over a length that is an array under jit, so that comes second
    assert change.startswith("Make one call of lib.fit serve all cases") and "under jax.jit" in change
    sizes = fits(at, [f"float32[{n}]" for n in range(4)])
    assert list(traces.find_library_functions(Analysis(Log("a", 0.0, 9.0, compiled=sizes)))) == []


@pytest.mark.parametrize(("name", "found"), [("fit", ["shape"]), ("inner", [])])
def test_shapes_that_the_reader_gives_a_librarys_jitted_function_are_the_readers(line, name, found):
    at, known = line("w = lib.fit"), {"owner": "lib", "defined": "lib.py:9"}
    sizes = [f"float32[{n},3]" for n in (90, 91, 95, 97)]
    made = [compiled(at, i, 0.5, name, signature={"data": size}, **known) for i, size in enumerate(sizes)]
    changes = [(Change("shape", "data", *pair),) for pair in itertools.pairwise(sizes)]
    repeats = [replace(c, changes=change) for c, change in zip(made[1:], changes, strict=True)]
    log = Log("a", 0.0, 9.0, compiled=[made[0], *repeats], call_sites=[CallSite(at, name)])
    log.programs = [Facts(f"jit_{name}", "cpu", 1.0, 1.0)]
    log.activity.program(name).calls = 30
    assert [f.cause for f in traces.find_retraces(Analysis(log))] == found
    # there is a call, and no trace that is the reader's
    assert [c.called for _, c in programs.new_programs(Analysis(log))] == [name]
    assert not [*programs.find_unrolled_loops(Analysis(log))]


def test_inside_a_transform_the_line_is_the_call_of_the_transformed_function():
    folder = sysconfig.get_paths()["purelib"]
    names = {}
    source = "def apply(f):\n    return f()\n"
    exec(compile(source, f"{folder}/haiku/_src/transform.py", "exec"), names)
    exec(compile(source.replace("apply", "layer"), f"{folder}/haiku/_src/base.py", "exec"), names)

    def here():
        return source_location.reader_and_library_frames(sys._getframe(1))

    def net():
        return names["layer"](here)

    exec(compile("def look(f):\n    return f()\n", f"{folder}/jaxlibrary/x.py", "exec"), names)
    reader, library = names["apply"](net)
    assert reader.f_code.co_name.startswith("test_inside_a_transform")
    assert library.f_code.co_filename.endswith("transform.py")
    # Flax enters `apply` by way of a frame of JAX
    exec(compile(source.replace("apply", "filtered"), f"{folder}/jax/_src/traceback_util.py", "exec"), names)
    reader, library = names["filtered"](functools.partial(names["apply"], net))
    assert reader.f_code.co_name.startswith("test_inside_a_transform")
    reader, _ = names["look"](net)  # any other library that calls a function: the line inside it
    assert reader.f_code.co_name == "net"


# advice


def test_parameters_that_must_be_static_are_named(line):
    at = line("def loss", "loss")
    known = {(at.file, "loss"): {"width": {"8"}, "mode": {"'mean'", "'sum'"}, "rate": {"1", "2", "3"}}}
    static = Analysis(Log("a", 0.0, 1.0, parameters=known)).static_parameters(at.file, "loss")
    change = advice_for(Finding("eager", at, 1.0, "", "loss", static=static, form="function")).change
    assert static == ("width", "mode")
    assert '@functools.partial(jax.jit, static_argnames=("width", "mode",)) above it' in change


@pytest.mark.parametrize(
    ("text", "through", "change"),
    [
        ("state = model.init", "flax", "jax.jit(model.init)"),
        ("w = lib.fit", "fitlib", "Call lib.fit inside a function of yours"),
        ("jnp.where(w > 0)", "", "numpy.where(numpy.asarray(x))"),  # whose size depends on values
        ("lib.Grow", "fitlib", "Call lib.Grow inside a function of yours"),  # and what it makes, there
        ("w = lib.fit", "scipy", "Give lib.fit NumPy's arrays"),
        ("search.turn", "fitlib", "Put this line and its neighbors into one"),  # which changes `search`
        ("w = update", "jax", "Put this line and its neighbors into one function"),  # of main
        ("return w", "jax", "Jit loss as a whole: @jax.jit above it"),
        ("print(w)", "jax", "Put this line and its neighbors into one function"),  # jit would print once
    ],
)
def test_advice_on_small_programs_names_what_can_be_jitted(text, through, change, line):
    at = line(text)
    small = [compiled(at, i, 0.1, through=through if i >= 7 else "") for i in range(12)]
    (finding,) = small_programs.find_eager_recompiles(Analysis(Log("a", 0.0, 60.0, compiled=small)))
    assert change in advice_for(finding).change


@pytest.mark.parametrize(
    ("text", "waits", "found"),
    [("w = lib.fit", "float", 0), ("w = lib.fit", "device_get", 1), ("lib.Search", "device_get", 0)],
)
def test_what_no_jit_can_take_of_a_library_is_no_finding(text, waits, found, line):
    """A library that reads values itself, or that returns an object of its own."""
    at = line(text)
    small = [compiled(at, i, 0.1, through="fitlib") for i in range(12)]
    record = Log("a", 0.0, 60.0, compiled=small, waiting_libraries={(waits, at): "fitlib"})
    assert len(list(small_programs.find_eager_recompiles(Analysis(record)))) == found


def test_an_array_that_is_iterated_is_named_whatever_takes_it_apart(line):
    at = line("tokens")
    apart = compiled(at, 1.0, 1.5, "unstack")
    (finding,) = elements.find_iterated_arrays(Analysis(Log("a", 0.0, 9.0, compiled=[apart])))
    assert "numpy.asarray(tokens)" in advice_for(finding).change
    assert (finding.seconds, finding.form) == (pytest.approx(1.5), "")
    assert "its elements are handled one by one" in finding.reason
    typed = compiled(line("w = lib.fit"), 1.0, 1.5, "unstack", signature={"x": "key<fry>[9]"})
    others = ("chr(t) for t in keys", "unstack(pair)", "import heavylib")  # NumPy holds no key
    for other in (typed, *(compiled(line(text), 1.0, 1.5, "unstack") for text in others)):
        assert list(elements.find_iterated_arrays(Analysis(Log("a", 0.0, 9.0, compiled=[other])))) == []
    for text, name in {
        "min(ends[0])": "ends[0]", "low, high": "bounds", "sum(abs": "pair", "energy_fn": "the array",
        "plot(": "history.T",
    }.items():  # fmt: skip
        apart = compiled(line(text), 1.0, 1.5, "unstack", through="jax")
        (finding,) = elements.find_iterated_arrays(Analysis(Log("a", 0.0, 9.0, compiled=[apart])))
        assert finding.argument == name


@pytest.mark.parametrize(("count", "found"), [(300, 1), (30, 0)])
def test_an_operation_over_very_many_arrays_is_done_on_the_host(count, found, places):
    types = ", ".join(["f32[3]{0}"] * count)
    text = f"HloModule jit_stack, entry_computation_layout={{({types})->f32[9]{{0}}}}, x=1\n"
    stack = compiled(places("path = jnp.stack(points)\n")(1), 0.0, 4.0, "stack")
    record = Log("a", 0.0, 9.0, compiled=[stack], programs=[Facts("stack", "cpu", 1.0, 1.0, text=text)])
    findings = list(small_programs.find_many_arrays(Analysis(record)))
    assert [f.seconds for f in findings] == ([4.0] if found else [])
    for finding in findings:
        assert "stack takes up to 300 arrays here" in finding.reason
        assert "jax.device_get(points)" in advice_for(finding).change


@pytest.mark.parametrize(("count", "found"), [(200, ["rows"]), (20, [])])
def test_a_long_list_of_arrays_is_one_array_for_a_jitted_function(count, found, places):
    at = places("total = jax.jit(sum_up)\nfor t in range(9):\n    w = total(w, rows)\n")(3, "<module>")
    signature = {f"argument 1[{i}]": "float32[4]" for i in range(count)} | {"argument 0": "float32[4]"}
    stages, samples = {"compile": (0.0, 1.0)}, [StackSample("dispatch", at, t, t + 0.1) for t in range(1, 9)]
    made = Compiled("sum_up", at, stages, explained=True, signature=signature)
    layers = {f"net[{i}].w": "float32[4]" for i in range(200)}  # each with a list, or a name, of its own
    others = Compiled("net", at._replace(line=1), stages, explained=True, signature=layers)
    log = Log("a", 0.0, 9.0, compiled=[made, others], samples=samples)
    findings = list(small_programs.find_many_arrays(Analysis(log)))
    assert [f.argument for f in findings] == found
    assert all(f.seconds == pytest.approx(1.8 * 200 / 201) for f in findings)


def test_an_array_that_grad_derives_is_no_array_of_numpy(line):
    at = line("tokens")
    apart = compiled(at, 1.0, 1.5, "unstack", under=line("w = update"))
    (finding,) = elements.find_iterated_arrays(Analysis(Log("a", 0.0, 9.0, compiled=[apart])))
    change = advice_for(finding).change
    assert change.startswith("Compute with the whole of tokens") and "numpy.asarray" not in change


def test_a_library_that_iterates_gets_arrays_of_numpy(line):
    at = line("w = lib.fit")
    made = [compiled(at, 1.0, 1.5, "unstack", through="matplotlib"), compiled(at, 3.0, 2.0, "multiply")]
    log = Log("a", 0.0, 9.0, compiled=made, waits=[Wait("float", at, 8.0, 8.1, 4)])
    (finding,) = elements.find_iterated_arrays(Analysis(log))
    assert finding.seconds == 1.5 and "that matplotlib iterates over" in finding.reason
    assert at in eager._waits(Analysis(log))  # jit cannot take what reads elements
    assert advice_for(finding).change.startswith("Give lib.fit NumPy's arrays")


def test_lines_at_which_one_library_iterates_need_one_change(places):
    at = places("axes.quiver(x, y)\nframe.append(rows)\naxes.violinplot(scores)\n")
    times = ((1, 1.0, "matplotlib"), (3, 1.5, "matplotlib"), (2, 0.25, "pandas"))
    made = [compiled(at(n), 2.0 * n, seconds, "unstack", through=owner) for n, seconds, owner in times]
    findings = elements.find_iterated_arrays(Analysis(Log("a", 0.0, 9.0, compiled=made)))
    found = {f.at.line: (f.seconds, "Do the same at line 1" in advice_for(f).change) for f in findings}
    assert found == {3: (2.5, True), 2: (0.25, False)}


def test_all_lines_that_iterate_over_arrays_of_one_of_these_types_are_named(places):
    """The array of the dearest line is taken apart there alone, that of another one also at line 3."""
    at = places("axes.quiver(x)\naxes.contour(z)\naxes.contourf(z)\n")
    made = [compiled(at(n), 2.0 * n, 2.0 / n, "unstack", through="matplotlib") for n in (1, 2)]
    log = Log("a", 0.0, 9.0, compiled=made)
    log.iterated |= {"f32[9]": {at(1)}, "f32[5, 5]": {at(2), at(3)}}
    (finding,) = elements.find_iterated_arrays(Analysis(log))
    assert finding.at == at(1) and "at line 2, of which the seconds count here" in finding.besides
    assert "Do the same at line 3: such arrays" in finding.besides


def test_what_reads_arrays_of_varying_shapes_has_the_cause_of_their_source(places):
    at = places("for k in keys:\n    kept = x[u < 1]\n    mean = kept - kept.mean()\n    y = x[:k]\n")
    signatures = [{"x": f"float32[{i + 1}]"} for i in range(8)]
    small = [
        compiled(at(n, ""), 3 * i + n / 2, 0.1, f"op{n}", signature=signature)
        for i, signature in enumerate(signatures) for n in (2, 3, 4)
    ]  # fmt: skip
    source, other = small_programs.find_eager_recompiles(Analysis(Log("a", 0.0, 9.0, compiled=small)))
    assert (source.at.line, other.at.line) == (2, 4)
    assert source.seconds == pytest.approx(2 * other.seconds) and "at line 3" in source.reason


NEIGHBORS = """\
def kernel(x):
    a = jnp.exp(x)
    b = jnp.sin(a)
    c = b + a
    return c / 2

def fit(x):
    a = jnp.exp(x)
    b = jnp.sin(a)
    c = float(b.sum()) + a
    print(c)

fit(x)
"""


def test_lines_with_few_programs_count_together_in_their_function(places):
    """Eight programs at each of four lines, 2.4 of 40 s: one jit of the lines serves all."""
    at = places(NEIGHBORS)
    for function, first, change in (
        ("kernel", 2, "Jit kernel as a whole"),
        ("fit", 8, "this line and its neighbors"),  # it prints, so jit takes its lines only
    ):
        small = [
            compiled(at(first + i, function), 8 * i + j, 0.075, f"op{j}")
            for i in range(4) for j in range(8 if i != 2 else 9)
        ]  # fmt: skip
        (finding,) = small_programs.find_eager_recompiles(Analysis(Log("a", 0.0, 40.0, compiled=small)))
        assert "33 small programs" in finding.reason
        assert (finding.at.line, finding.at.function) == (first + 2, function)
        assert change in advice_for(finding).change


def test_lines_in_a_loop_and_before_it_are_two_functions_if_jit_takes_no_whole(places):
    head = "def main(x):\n    a = x * 2\n    b = a + 1\n"
    at = places(f"{head}    for i in range(99):\n        b = b * a\n        print(b)\n")
    small = [compiled(at(row, "main"), 9 * row + i, 0.1, f"op{i}") for row in (2, 3, 5) for i in range(9)]
    small += [compiled(at(5, "main"), 90 + i, 0.1, f"more{i}") for i in range(3)]
    findings = [*small_programs.find_eager_recompiles(Analysis(Log("a", 0.0, 200.0, compiled=small)))]
    assert sorted(f.reason.partition(" ")[0] for f in findings) == ["12", "18"]


def test_lines_before_and_behind_a_loop_are_two_functions_too(places):
    loop = "    for i in range(9):\n        print(step(a))\n"
    at = places(f"def main(x):\n    a = x * 2\n{loop}    b = a + 1\n    c = b / 2\n")
    small = [compiled(at(row, "main"), 9 * row + i, 0.1, f"op{i}") for row in (2, 5, 6) for i in range(9)]
    (finding,) = small_programs.find_eager_recompiles(Analysis(Log("a", 0.0, 200.0, compiled=small)))
    assert finding.reason.startswith("18 small programs")


@pytest.mark.parametrize(
    ("others", "change"), [(1, "Put jax.jit around jax.vmap"), (9, "Jit turn as a whole")]
)
def test_the_change_of_one_call_is_no_advice_where_its_neighbors_compile_as_much(others, change, places):
    at = places("def turn(x):\n    a = jax.vmap(g)(x)\n    b = a + 1\n    return b\n")
    small = [compiled(at(2, "turn"), i, 0.1, f"op{i}") for i in range(9)]
    small += [compiled(at(3, "turn"), 20 + i, 0.1, f"more{i}", through="jax") for i in range(others)]
    (finding,) = small_programs.find_eager_recompiles(Analysis(Log("a", 0.0, 99.0, compiled=small)))
    assert change in advice_for(finding).change


def test_lines_whose_savings_are_small_count_together_however_long_they_compile(places):
    """Ten programs at each of four lines: four of 0.02 s, and six of 1 s, which save a little more."""
    at = places(NEIGHBORS)
    small = [
        compiled(at(2 + i, "kernel"), 20 * i + j, 0.02 if j < 4 else 1.0, f"op{j}")
        for i in range(4) for j in range(10)
    ]  # fmt: skip
    (finding,) = small_programs.find_eager_recompiles(Analysis(Log("a", 0.0, 12.0, compiled=small)))
    assert "40 small programs" in finding.reason
    assert finding.seconds == pytest.approx(16 * 0.02 + 23 * 0.04)


def test_a_call_that_makes_a_model_holds_neither_its_arguments_nor_one_copy_of_a_loop(places):
    at = places("def init(key):\n    for w in key:\n        w = 2 * w\n    return w + 1\nw = init(key(0))\n")
    made = (at(3, "init"), [at(5)]), (at(4, "init"), [at(5)]), (at(5), [])
    small = [
        compiled(p, 3 * i + j, 0.1, f"op{i}", callers=c) for i in range(8) for j, (p, c) in enumerate(made)
    ]
    (finding,) = small_programs.find_eager_recompiles(Analysis(Log("a", 0.0, 9.0, compiled=small)))
    assert (finding.form, finding.seconds) == ("init", pytest.approx(0.7))


def test_lines_that_each_have_a_shape_of_their_own_do_not_vary(line):
    at = [line(text) for text in ("w = lib.fit", "w = update", "text = ")]
    small = [compiled(at[i % 3], i, 0.05, "matmul", signature={"x": f"float32[{i + 1}]"}) for i in range(12)]
    one = [replace(c, at=at[0]) for c in small]
    for each, cause in ((one, "eager shapes"), (small, "eager recompiles")):
        findings = small_programs.find_eager_recompiles(Analysis(Log("a", 0.0, 9.0, compiled=each)))
        assert {f.cause for f in findings} == {cause}


@pytest.mark.parametrize(("after_s", "causes"), [(0.0, ["eager shapes"]), (1.0, ["eager recompiles"])])
def test_shapes_that_all_came_in_the_first_turn_do_not_vary(after_s, causes, line):
    """Twelve shapes of one operation in a loop, and after them many turns without a program, or none."""
    at = line("w = update")
    shapes = [compiled(at, i, 0.05, signature={"x": f"float32[{i + 1}]"}, through="jax") for i in range(12)]
    other = [compiled(at, 20.0 + i, 0.05, f"op{i}", through="jax") for i in range(4)]
    samples = [StackSample(EAGER, at, 0.0, 0.1), StackSample(EAGER, at, 25.0, 25.0 + after_s)]
    record = Log("a", 0.0, 10.0, compiled=shapes + other, samples=samples)
    assert [f.cause for f in small_programs.find_eager_recompiles(Analysis(record))] == causes


@pytest.mark.parametrize("kind", ["structure", "static value", ""])
def test_a_library_that_compiles_again_is_found_whatever_jax_names(kind, line):
    change = (Change(kind, "input path [0]", "<Fn object at 0x1>", "<Fn object at 0x2>"),) if kind else ()
    same = fits(line("energy_fn"), ["float32[20]"] * 4, *change)
    (finding,) = traces.find_library_functions(Analysis(Log("a", 0.0, 9.0, compiled=same)))
    assert finding.seconds == pytest.approx(1.5)
    made = "Make jax.jit(energy_fn) once" in advice_for(finding).change
    assert made == bool(kind) == ("static arguments that are new objects" in finding.reason)


@pytest.mark.parametrize(("name", "seconds"), [("fit", [1.5]), ("inner", [])])
def test_static_values_that_the_reader_gives_to_a_librarys_function_are_the_readers(name, seconds, line):
    change = (Change("static value", "rate", "0.1", "0.2"),)
    same = [replace(c, name=name) for c in fits(line("w = lib.fit"), ["float32[20]"] * 4, *change)]
    findings = traces.find_retraces(Analysis(Log("a", 0.0, 9.0, compiled=same)))
    assert [(f.cause, f.seconds) for f in findings] == [("static value", pytest.approx(s)) for s in seconds]


@pytest.mark.parametrize(("kind", "form"), [("float", "reads"), ("device_get", "")])
def test_shapes_that_a_library_varies_within_a_call_are_programs_of_their_own(kind, form, line):
    at, last = line("w = lib.fit"), (Change("shape", "batch[0]", "f32[5]", "f32[2]"),)
    full, rest = (fits(at, ["float32[20]"] * 4, *changes) for changes in ((), last))
    times = zip(full, rest, strict=True)
    compiled = [replace(c, changes=changes) for pair in times for c, changes in zip(pair, ((), last))]
    record = Log("a", 0.0, 9.0, compiled=compiled, waiting_libraries={(kind, at): "fitlib"})
    (finding,) = traces.find_library_functions(Analysis(record))
    assert "traced 7 times" in finding.reason and "a new function object" in finding.reason
    assert finding.form == form and "in this run" in advice_for(finding).change


@pytest.mark.parametrize(("flops", "found"), [(10.0, 1), (1e9, 0)])
def test_operations_one_by_one_need_no_window_of_the_profiler(flops, found, line):
    at = line("w = update")
    add = compiled(at, 0.0, 0.1, "add")
    facts = Facts("add", "cpu", flops, 100.0)
    samples = [StackSample(EAGER, at, 1.0, 4.0)]
    record = Log("a", 0.0, 5.0, compiled=[add], programs=[facts], samples=samples)
    findings = list(eager.find_eager_operations(Analysis(record)))
    assert [round(f.seconds) for f in findings] == ([3] if found else [])


def test_a_library_that_jits_and_the_loop_in_it_are_one_finding(line):
    change = Change("static value", "argument 1", "<function f at 0x1>", "<function f at 0x2>")
    at, caller = line("w = lib.fit"), line("show(w)")
    body = Change("new body", "", "", "f is a new function each time")
    known = {"callers": (caller,)}
    loops = [compiled(at, 20.0, 0.3, "while", **known)]
    loops += [compiled(at, 20.0 + i, 0.3, "while", changes=(body,), **known) for i in range(1, 7)]
    analysis = Analysis(Log("a", 0.0, 60.0, compiled=[*fits(at, ["float32[20]"] * 4, change), *loops]))
    rules = (traces.find_library_functions, small_programs.find_eager_recompiles)
    assert [f.cause for rule in rules for f in rule(analysis)] == ["library function"]


# what is no cause


@pytest.mark.parametrize(("written", "found"), [(0, 0), (100_000, 1)])
def test_a_method_called_save_that_writes_nothing_is_no_file(written, found, line):
    at, call = line("w = lib.fit"), line("w = update")
    samples = [StackSample(WRITE, at, 1.0, 2.0, written=written)]
    samples += [StackSample("dispatch", call, 2, 3, written=9)]
    step = Compiled("step", call, {"compile": (0.0, 0.5)}, explained=True)
    activity = DeviceActivity([(0.5, 3.0)])
    record = Log("a", 0.0, 3.0, compiled=[step], samples=samples, activity=activity)
    assert len(list(idle.find_writes(Analysis(record)))) == found


@pytest.mark.parametrize(("text", "found"), [("w = lib.fit", 1), ("state = model.init", 0)])
def test_numpy_that_runs_once_could_not_run_beside_anything(text, found, line):
    at = line(text)
    step = Compiled("step", at, {"compile": (0.0, 0.5)}, explained=True)
    samples = [StackSample(NUMPY, at, 1.0, 2.0)]
    record = Log("a", 0.0, 3.0, compiled=[step], samples=samples, activity=DeviceActivity([(0.5, 3.0)]))
    assert len(Analysis(record).lost_to_numpy) == found


@pytest.mark.parametrize("heavy", [False, True])
def test_an_identity_is_made_where_it_is_added_and_a_sort_is_work(heavy):
    def f(x):
        table = jnp.sort(jnp.arange(4000.0) % 7) if heavy else jnp.eye(60).reshape(-1)[:1000] * 0.1
        return x + table[:1000].reshape(1000) + jnp.zeros(1000)

    text = jax.jit(f).lower(jnp.ones(1000)).compile().as_text()
    facts = Facts("f", "cpu", 1.0, 1.0, text=text)
    opcodes = {i.opcode for i in independent_instructions(facts, facts.module.entry)}
    assert ("sort" in opcodes) == bool(opcodes) == heavy
    assert not opcodes & {"parameter", "broadcast", "constant"}  # which only fill memory


@pytest.mark.parametrize(("left_by", "found"), [("checkpoint", True), ("branch", True), ("nothing", False)])
def test_what_xla_leaves_in_a_loop_is_the_same_in_each_turn(left_by, found):
    def f(fixed, rows, start):
        def turn(x, row):
            if left_by == "branch":
                return jax.lax.cond(row[0] > 0, lambda: jnp.linalg.cholesky(fixed) @ x, lambda: x), None
            return jnp.sin(jnp.linalg.cholesky(fixed) @ (x + row)), None

        body = jax.checkpoint(turn) if left_by == "checkpoint" else turn
        return jax.lax.scan(body, start, rows)[0].sum()

    arguments = jnp.eye(9), jnp.ones((5, 9)), jnp.ones(9)
    text = jax.jit(jax.grad(f, argnums=2)).lower(*arguments).compile().as_text()
    facts = Facts("f", "cpu", 1.0, 1.0, text=text)
    loops = (i for i in facts.instructions if i.opcode == "while")
    same = [i.operation for loop in loops for i in same_in_each_turn(facts, loop)]
    assert ("cholesky" in same) == found


@pytest.mark.parametrize("called_back", [False, True])
def test_a_factor_of_a_constant_is_the_same_in_each_call_and_a_callback_may_not_be(called_back):
    def f(x):
        known = jnp.eye(9) * 2
        if called_back:
            return x @ jax.pure_callback(lambda a: a, jax.ShapeDtypeStruct((9, 9), "float32"), known)
        return x @ jnp.linalg.cholesky(known)

    text = jax.jit(f).lower(jnp.ones(9)).compile().as_text()
    facts = Facts("f", "cpu", 1.0, 1.0, text=text)
    targets = [i.target for i in independent_instructions(facts, facts.module.entry)]
    assert bool(list(filter(None, targets))) == (not called_back)


# notes


def observed(function, *arguments, name):
    """Return the record of a jitted function that computed for most of a run."""
    text = function.lower(*arguments).compile().as_text() or ""
    at = Place(__file__, function.__wrapped__.__code__.co_firstlineno, name)
    names = [f"argument {i}" for i in range(len(arguments))]
    call = Compiled(
        name, at, {"compile": (0.0, 1.0)}, explained=True, defined=f"{__file__}:{at.line}",
        signature={n: frame_arguments.describe_value(a) for n, a in zip(names, arguments)},
    )  # fmt: skip
    wait = Wait("float", at, 1.0, 9.0, 4)
    facts = [Facts(name, "cpu", 1.0, 1.0, text=text)]
    return Log("a", 0.0, 10.0, compiled=[call], waits=[wait], programs=facts)


@jax.jit
def one_by_one(xs):
    return jax.lax.map(lambda x: jnp.sin(x) @ x, xs)


@jax.jit
def some_at_a_time(xs):
    return jax.lax.map(lambda x: jnp.sin(x) @ x, xs, batch_size=4)


@functools.partial(jax.jit, donate_argnums=0)
def narrowed(history, row):
    return (history + row).astype(jnp.bfloat16)


@functools.partial(jax.jit, donate_argnames="history")
def kept(history, row):
    return history + row


@functools.partial(jax.jit, donate_argnames=("count",))
def counted(history, count):
    return jnp.float16(history * count[0]), jnp.int32(count[0])  # what is large is not donated


# of NumPy: all workers collect this file at the same time, and would compile the same
ROWS, ADDED = (np.ones((8, 5), np.float32),), (np.ones((600, 600), np.float32), np.ones(600, np.float32))


@pytest.mark.parametrize(
    ("function", "arguments", "words"),
    [
        (one_by_one, ROWS, ["jax.vmap takes all at once"]),
        (some_at_a_time, ROWS, []),
        (narrowed, ADDED, ["the results are bfloat16[600, 600], so"]),
        (kept, ADDED, []),
        (counted, ADDED, []),
    ],
)
@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")
def test_a_map_and_donated_memory_that_nothing_can_take_are_noted(function, arguments, words):
    analysis = Analysis(observed(function, *arguments, name=function.__name__))
    notes = [*program_notes._mapped(analysis), *program_notes._unusable(analysis)]
    assert [word in note for word, note in zip(words, notes, strict=True)] == [True] * len(words)
    assert all("history is donated to narrowed" in note for note in notes if function is narrowed)


# more than one line, and more than one library


MODULES = """\
import equinox as eqx
from flax import nnx

class Block(nnx.Module):
    def __init__(self, width, rngs):
        self.linear = nnx.Linear(width, width, rngs=rngs)

class Net(Block):
    def __init__(self, rngs):
        super().__init__(8, rngs)

class Loader:
    def __init__(self):
        self.table = jnp.ones(3) * 2

def forward(net, x, width, rate):
    return net(x)[:width] * rate

net = Net(nnx.Rngs(0))
loader = Loader()
mlp = eqx.nn.MLP(2, 2, 8, 2, key=key)
for x in loader.table:
    y = forward(net, x, 8, 0.1)
    loss, score = float(y.sum()), 0
    best = max(best, float(y.max()))
"""


@pytest.fixture
def modules(places):
    return functools.partial(places(MODULES), function="<module>")


@pytest.mark.parametrize(
    ("inner", "outer", "change"),
    [
        ("self.linear", "net = Net", "nnx.jit(lambda: Net(...))()"),
        ("self.table", "loader = Loader", "Put this line and its neighbors"),  # no module: its line stays
        ("mlp = eqx", "", "nnx.jit(lambda: eqx.nn.MLP(...))()"),
    ],
)
def test_a_module_is_made_by_one_program(inner, outer, change, modules):
    at = modules(inner, function="__init__" if outer else "<module>")
    callers = (modules(outer),) if outer else ()
    small = [compiled(at, i, 0.1, callers=callers, through="jax") for i in range(12)]
    (finding,) = small_programs.find_eager_recompiles(Analysis(Log("a", 0.0, 60.0, compiled=small)))
    made = "jit(" in change
    assert finding.at == (modules(outer) if outer and made else at) and change in advice_for(finding).change


@pytest.mark.parametrize(("called", "lines"), [(True, [6]), (False, [3, 6])])
def test_what_a_library_compiles_in_a_call_that_is_jitted_has_no_finding_of_its_own(called, lines, places):
    at = places(
        "import numpyro\ndef model(x):\n    numpyro.sample('y', dist.Normal(x, 1), obs=x)\n"
        "def main():\n    mcmc = MCMC(NUTS(model), progress_bar=False)\n    mcmc.run(key, x)\n    model(x)\n"
    )
    callers = (at(6, "main"),) if called else (at(7, "main"),)
    inner = [
        compiled(at(3, "model"), i, 0.1, f"op{i}", callers=callers, through="numpyro") for i in range(12)
    ]
    outer = [compiled(at(6, "main"), 20 + i, 0.1, f"of{i}", through="numpyro") for i in range(15)]
    findings = list(small_programs.find_eager_recompiles(Analysis(Log("a", 0, 60, compiled=inner + outer))))
    assert sorted(f.at.line for f in findings) == lines
    assert sum(f.seconds for f in findings) == pytest.approx(2.7 - 0.2)


def test_a_function_of_modules_is_jitted_by_their_library_with_its_sizes(modules):
    at = modules("def forward", function="forward")
    finding = jit_advice.way_to_jit(Finding("eager", at, 1.0, ""), Analysis(Log("a", 0.0, 1.0)))
    assert '@functools.partial(nnx.jit, static_argnames=("width",)) above it' in advice_for(finding).change


def test_lines_that_would_wait_in_the_place_of_another_are_named(modules):
    first, second = modules("loss, score"), modules("best = max")
    starts = [(at, i + j / 9) for i in range(4) for j, at in ((1, first), (2, second))]
    waits = [Wait("float", at, start, start + 0.05, 4) for at, start in starts]
    record = Log("a", 0.0, 5.0, waits=waits, activity=DeviceActivity([(0.0, 5.0)]))
    found = {f.at: f.reason for f in idle.find_waits(Analysis(record))}
    assert f"line {second.line} in the same loop would wait in its place" in found[first]


@pytest.mark.parametrize(("reads", "seconds"), [(9, 1.5 + 1.0 + 2 * 0.05), (0, 1.5)])
def test_what_handles_elements_that_python_reads_belongs_to_their_iteration(reads, seconds, places):
    at = places("import jax.numpy as jnp\nfor x in row:\n    y = 2 * float(x)\n    z = jnp.sin(x)\n")
    samples = [StackSample(EAGER, at(n), 3.0 + n, 3.05 + n) for n in (2, 3, 4)]  # NumPy has no jnp.sin
    waits = [Wait("float", at(3), 8 + i, 8 + i + 0.1, 4) for i in range(reads)]
    waits += [Wait("float", at(3), 20, 30, 4) for _ in waits[:1]]  # for the array itself
    log = Log("a", 0.0, 9.0, compiled=[compiled(at(2), 1.0, 1.5, "unstack")], samples=samples, waits=waits)
    (finding,) = elements.find_iterated_arrays(Analysis(log))
    assert (finding.at, finding.seconds) == (at(2), pytest.approx(seconds))


def test_what_computes_the_array_itself_stays_if_its_elements_come_to_the_host(places):
    at = places("near = list(rows[mask])\nprint(near)\n")(1)
    made = [compiled(at, 1.0, 1.5, "unstack"), compiled(at, 3.0, 2.0, "nonzero")]
    waits = [Wait("int", at, 8 + i, 8 + i + 0.1, 4) for i in range(5)]
    (finding,) = elements.find_iterated_arrays(Analysis(Log("a", 0.0, 9.0, compiled=made, waits=waits)))
    assert finding.seconds == pytest.approx(1.5 + 5 * 0.1)


@pytest.mark.parametrize(("library", "seconds"), [("graphs", 1.5), ("tables", 1.5 + 9 * 0.1)])
def test_what_a_library_computes_with_jax_from_an_element_reads_no_element(library, seconds, places):
    at = places("for row in table:\n    edges = graphs.near(row)\n")
    made = compiled(at(2), 1.5, 1.0, "sqrt", through="graphs")
    waits = [Wait("int", at(2), 3 + i, 3.1 + i, 4) for i in range(9)]
    log = Log("a", 0.0, 19.0, compiled=[compiled(at(1), 0.0, 1.5, "unstack"), made], waits=waits)
    log.waiting_libraries["int", at(2)] = library
    (finding,) = elements.find_iterated_arrays(Analysis(log))
    assert finding.seconds - (1.0 if library == "tables" else 0.0) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "named", "change"),
    [
        ("for row in table:\n    for x in row:\n        y = float(x)\n", "table", "numpy.asarray(table)"),
        (
            "for u in us:\n    for v in vs:\n        y = w[int(u)][int(v)]\n",
            "each of us and vs",
            "Bring each of us and vs",
        ),
    ],
)
def test_loops_in_loops_over_arrays_are_one_finding(text, named, change, places):
    at = places(text)
    apart = [compiled(at(line), 2 * line, 1.5, "unstack") for line in (1, 2)]
    waits = [Wait("int", at(3), 8 + i, 8 + i + 0.1, 4) for i in range(9)]
    log = Log("a", 0.0, 9.0, compiled=apart, waits=waits)
    log.iterated["float32[2]"] = {at(2), Place("other.py", 7, "main")}
    (finding,) = elements.find_iterated_arrays(Analysis(log))
    assert (finding.at, finding.seconds) == (at(1), pytest.approx(3 + 9 * 0.1))
    assert (
        finding.reason.startswith(f"{named} is taken apart") and "compiled 2 times in 3 s" in finding.reason
    )
    assert change in advice_for(finding).change and "the same at other.py:7:" in advice_for(finding).change


# traces


def traced(*changes, closure=None, **types):
    return Compiled(
        "step", Place("a.py", 3), {"compile": (0.0, 0.5)}, True, "a.py:1", changes,
        signature=types, closure=closure or {},
    )  # fmt: skip


@pytest.mark.parametrize(("captured", "causes"), [
    (["<function relu line 3 at 0x1>"] * 2 + ["<function relu line 3 at 0x2>"], ["new function"]),
    (["<function relu line 3 at 0x1>", "<function tanh line 4 at 0x2>", "'mean'"], []),
    (["1", "2", "3"], ["new function"]),
    (["float32[3] at 0x1", "float32[3] at 0x2", "float32[3] at 0x3"], ["new function"]),
])  # fmt: skip
def test_a_new_function_with_another_function_inside_compiles_anyway(captured, causes):
    calls = [traced(closure={"f": value}, x="float32[3]") for value in captured]
    analysis = Analysis(Log("a", 0.0, 9.0, compiled=calls))
    assert [f.cause for f in traces.find_retraces(analysis)] == causes


STATE = "<class 'flax.training.train_state.TrainState'> with pytree metadata ('apply', {tx})"
TX = "GradientTransformation(init=<function adam.<locals>.init at {}>)"


@pytest.mark.parametrize(
    ("before", "now", "found"),
    [
        ("dict with 2 children", "dict with 3 children", ["structure"]),
        ("<class 'NoneType'>", "<class 'jax.Array'>", ["structure"]),
        ("<class 'evo.es.State'>", "<class 'evo.cma.State'>", []),  # of another algorithm
        (STATE.format(tx=TX.format("0x1")), STATE.format(tx=TX.format("0x2")), ["static part"]),
    ],
)
def test_another_structure_may_be_another_model_or_a_new_optimizer(before, now, found):
    change = Change("structure", "argument 0", before, now)
    calls = [traced(x="float32[3]"), *(traced(change, x=f"float32[{n}]") for n in (4, 5))]
    findings = list(traces.find_retraces(Analysis(Log("a", 0.0, 9.0, compiled=calls))))
    assert [f.cause for f in findings] == found
    if found == ["static part"]:
        assert "Make the optimizer (tx) of TrainState once" in advice_for(findings[0]).change


@pytest.mark.parametrize(
    ("weak", "cause", "reason"),
    [
        (["best"], "weak type", "weak type of best: weak -> strong"),
        ([], "structure", "structure of input path [0]"),  # static parts of modules, which JAX does not print
    ],
)
def test_equal_types_are_a_weak_type_only_where_one_was_weak(weak, cause, reason):
    types = {"best": "float32[]", "mean": "float32[3]"}
    change = Change("structure", "input path [0]", "<class 'es.State'>", "dict with 2 children")
    first = replace(traced(**types), weak=frozenset(weak))
    calls = [first, *(traced(change, **types) for _ in range(2))]
    (finding,) = traces.find_retraces(Analysis(Log("a", 0.0, 9.0, compiled=calls)))
    assert finding.cause == cause and reason in finding.reason


def test_a_leaf_of_equinox_has_a_name_that_can_be_evaluated(places):
    at = places("for x in data:\n    net, state = step(net, state, x)\n")(2, "")
    change = Change("weak type", "dynamic_nodonate['first'][1]", "f32[]{weak_type=True}", "f32[]")
    names = ("argument 0.a", "argument 0.slope", "argument 1", "argument 2[0]")
    first = compiled(at, 0, 0.5, "step", explained=True, signature=dict.fromkeys(names, "float32[]"))
    calls = [first, replace(first, changes=(change,), stages={"compile": (1.0, 1.5)})]
    (finding,) = traces.find_retraces(Analysis(Log("a", 0.0, 9.0, compiled=calls)))
    assert "weak type of net.slope: " in finding.reason
    assert traces._readable("dynamic_nodonate['rest'][1]", at, calls[0]) == "x[0]"
    assert "net = jax.tree.map(lambda x: jnp.asarray(x, jnp.result_type(x))" in advice_for(finding).change


@pytest.mark.parametrize(
    ("unpack_s", "library", "causes"),
    [(1.0, "", ["iterated array"]), (0.05, "", []), (1.0, "flowlib", [])],  # the library's keys
)
def test_many_keys_that_python_unpacks_are_named_and_a_few_are_not(places, unpack_s, library, causes):
    """JAX compiles a program that takes them apart: of many, it takes as long as twenty operations."""
    at = places("key, *noise = jax.random.split(key, n)\nx = [draw(k) for k in noise]\n")(1)
    small = [compiled(at._replace(line=2), i, 0.05, f"op{i}") for i in range(3)]
    log = Log("a", 0.0, 9.0, compiled=[*small, compiled(at, 4.0, unpack_s, "unstack", through=library)])
    findings = list(elements.find_iterated_arrays(Analysis(log)))
    assert [f.cause for f in findings] == causes and all(
        f.seconds == pytest.approx(unpack_s) for f in findings
    )
    assert all("key, keys = keys[0], keys[1:]" in advice_for(f).change for f in findings)


def test_lines_of_one_function_that_iterate_over_arrays_need_one_change(places):
    at = places(
        "def table(speeds, heights):\n"
        "    for v in speeds:\n        print(float(v))\n"
        "    for h in heights:\n        print(float(h))\n"
        "def other(ranges):\n    return [float(r) for r in ranges]\n"
    )
    lines = ((2, "table", 0.4), (4, "table", 1.0), (7, "other", 0.5))
    programs = [compiled(at(line, name), 3.0 * line, s, "unstack") for line, name, s in lines]
    findings = list(elements.find_iterated_arrays(Analysis(Log("a", 0.0, 30.0, compiled=programs))))
    known = {f.at.line: (f.seconds, "Do the same at line 2" in advice_for(f).change) for f in findings}
    assert known == {4: (pytest.approx(1.4), True), 7: (pytest.approx(0.5), False)}


def test_numbers_that_count_turns_need_no_jax(places):
    at = places("import jax.numpy as jnp\nfor i in jnp.arange(3):\n    print(i)\n")(2, "<module>")
    log = Log("a", 0.0, 9.0, compiled=[compiled(at, 1.0, 1.5, "unstack")])
    (finding,) = elements.find_iterated_arrays(Analysis(log))
    assert advice_for(finding).change.startswith("Iterate over Python's range, or make the array with NumPy")
