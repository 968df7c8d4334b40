import ast
import sys
from types import SimpleNamespace

import pytest

from jaxperf.hlo import Shape
from jaxperf.watch.log import ARRAY_OF, DISPATCH, EAGER, Compiled, DeviceActivity, Log, Put, StackSample, Wait
from jaxperf.watch.observe import sampler
from jaxperf.watch.observe.executables import Facts
from jaxperf.watch.observe.source_location import NOWHERE, Place
from jaxperf.watch.report.analysis import Analysis
from jaxperf.watch.rules import eager, elements, jit_advice, small_programs, table
from jaxperf.watch.rules.table import Finding, advice_for
from jaxperf.watch.source import statements
from jaxperf.watch.source.call_sites import CallSite

LOSS, GRAD, CALL = (Place("train.py", line) for line in (3, 8, 20))


def _with_lines(lines, compiled=()):
    analysis = Analysis(Log("a", compiled=list(compiled)))
    analysis.lines = lines
    return analysis


def sample(at, start, *callers):
    return StackSample(EAGER, at, start, start + 0.1, NOWHERE, callers)


def belongs(samples, at=LOSS):
    line = jit_advice.outermost(Analysis(Log("a", samples=samples)))
    return {line(s) for s in samples if s.at == at}


def test_what_a_caller_dispatches_in_turns_with_it_is_the_callers():
    """`jax.grad(loss)(w)` in a loop: operations of `loss`, and then those that `grad` makes of them."""
    turns = [s for t in range(9) for s in (sample(LOSS, t, GRAD, CALL), sample(GRAD, t + 0.5, CALL))]
    assert belongs(turns) == {GRAD}


def test_what_a_caller_dispatches_now_and_then_is_not_why_what_it_calls_is_slow():
    lines = [LOSS._replace(line=100 + t % 10) for t in range(40)]
    turns = [sample(at, t, GRAD, CALL) for t, at in enumerate(lines)] + [sample(GRAD, 5.5, CALL)]
    assert {line for at in (*lines, GRAD) for line in belongs(turns, at)} == {*lines, GRAD}


def test_what_a_caller_dispatches_before_and_after_a_loop_changes_nothing():
    loop = [sample(LOSS, t, CALL) for t in range(1, 9)]
    around = [sample(CALL, t) for t in (0.1, 0.2, 0.3, 10.1, 10.2, 10.3)]
    assert belongs([*around[:3], *loop, *around[3:]]) == {LOSS}


@pytest.mark.parametrize(("others", "at"), [([], CALL), ([NOWHERE] * 3, LOSS), ([GRAD] * 3, LOSS)])
def test_what_one_line_transforms_belongs_to_it_and_what_several_do_to_itself(others, at):
    """`jax.vmap(loss)(xs)` outside of jit, alone or beside `loss(x)` or another transformation."""
    turns = [sample(LOSS, t, CALL)._replace(under=CALL) for t in range(9)]
    turns += [sample(LOSS, 10 + i, GRAD)._replace(under=under) for i, under in enumerate(others)]
    assert belongs(turns) == {at}


def test_an_operation_in_a_helper_belongs_to_the_function_that_the_loop_calls(places):
    at = places(
        "def norm(x):\n    return x - x.mean()\n"
        "def update(x, layers):\n    for w in layers:\n        x = norm(x @ w)\n    return x\n"
        "def main():\n    for _ in range(500):\n        x = update(x, ws)\n"
    )
    operation, layer, call = at(2, "norm"), at(5, "update"), at(9)
    turns = [s for t in range(9) for s in (sample(operation, t, layer, call), sample(layer, t, call))]
    turns.append(sample(call, 1.0))  # an operation of the loop itself
    assert belongs(turns, operation) == belongs(turns, layer) == {at(3, "update")}
    assert belongs(turns, call) == {call}


def test_an_operation_in_a_lambda_belongs_to_the_line_of_the_loop_that_calls_it(places):
    at = places(
        "drift = dict(\n    rate=lambda x: x * x + 1,\n)\n"
        "def walk(x, force):\n    while x < 9:\n        x = x + force(x)\n    return x\n"
    )
    operation, call = at(2, "<lambda>"), at(6, "walk")
    assert belongs([sample(operation, t, call) for t in range(9)], operation) == {call}


def test_a_comparison_that_only_a_test_waits_for_belongs_to_the_wait(places):
    at = places(
        "for x in xs:\n    if f(x) < best:\n        best = x\n    y = float(x) + g(x)\n"
        "    z = env.step(int(x))\n"  # the step is NumPy's
    )
    lines = [SimpleNamespace(at=at(number, "")) for number in (2, 4, 5)]
    assert eager._waits(_with_lines(lines)) == {lines[0].at, lines[2].at}
    compiled = [Compiled("add", lines[2].at)]  # in `env.step`, a library's
    assert eager._waits(_with_lines(lines, compiled)) == {lines[0].at}


@pytest.mark.parametrize(("each_s", "seconds"), [(1e-5, 0.9), (1e-3, 0.0)])
def test_short_operations_are_the_front_ends_time_and_long_ones_the_devices(each_s, seconds):
    """For 1 s, one operation follows the other; 0.9 s of it without `step`, which is jitted."""
    count = round(0.9 / each_s)
    activity = DeviceActivity([(0.0, 1.0)])
    activity.program("add").devices["cpu 0"] = [(i * each_s, (i + 1) * each_s) for i in range(count)]
    activity.program("step").devices["cpu 0"] = [(0.9, 1.0)]
    call = Compiled("step", CALL, {"compile": (-0.1, 0.0)}, explained=True)
    samples = [sample(LOSS, i / 10) for i in range(10)]
    analysis = Analysis(Log("a", -0.1, 1.0, compiled=[call], samples=samples, activity=activity))
    by_line = analysis.of_the_run(eager._free(analysis).of, samples)
    assert sum(by_line.values()) == pytest.approx(seconds, abs=1e-6)


@pytest.mark.parametrize(
    ("statement", "compiled", "reads", "array"),
    [
        ('text = "".join(shown(nodes[i][0]) for i in range(9))', {"dynamic_slice", "squeeze"}, 40, "nodes"),
        ('text = "".join(shown(nodes[i][0]) for i in range(9))', {"dynamic_slice"}, 0, ""),  # nobody reads
        ('text = "".join(shown(nodes[i] + 1) for i in range(9))', {"dynamic_slice", "add"}, 40, ""),
        ("text = shown(nodes[0])", {"dynamic_slice"}, 40, ""),
    ],
)
def test_elements_that_python_shows_one_by_one_are_read_at_once(statement, compiled, reads, array, places):
    place = places(f"def shown(value):\n    return '*' if value else ' '\n\n{statement}\n")
    at, shown = place(4, "<module>"), place(2, "shown")
    calls = [Compiled(name, at) for name in compiled]
    analysis = _with_lines([SimpleNamespace(at=shown, count=reads)], calls)
    assert elements.elements_taken(analysis, at) == array


@pytest.mark.parametrize(
    ("statement", "compiled", "arrays"),
    [
        ("bars.add(low[i], high[i, 0])", {"dynamic_slice", "squeeze"}, "low, high"),
        ("bars.add(low[i], high[i, 0])", set(), "low, high"),  # a line before it has compiled these programs
        ("bars.add(low[i] - high[i, 0])", set(), ""),
        ("bars.add(low[i], high[i, 0])", {"dynamic_slice", "negative"}, ""),
        ("bars.add(step(low[i]))", set(), ""),  # the value that comes to the host is the step's
    ],
)
def test_a_library_that_reads_each_element_gets_arrays_on_the_host(statement, compiled, arrays, program_file):
    at = Place(program_file(f"import bars\nfor i in range(99):\n    {statement}\n"), 3)
    step = [Compiled("step", at, explained=True)] if "step" in statement else []
    analysis = _with_lines([SimpleNamespace(at=at, count=99)], [*step, *(Compiled(n, at) for n in compiled)])
    assert elements.element_read(analysis, at) == arrays
    change = advice_for(Finding("element reads", at, 1.0, "", argument="low, high")).change
    assert "low, high = jax.device_get((low, high))" in change


@pytest.mark.parametrize(("reads", "sliced_s"), [(990, 9 * 0.005 + sampler.WIDE_S), (20, 20 * 0.5e-3)])
def test_a_long_sample_among_short_ones_of_reads_is_of_what_came_behind_them(reads, sliced_s, places):
    """Nine samples of 5 ms, and one of 0.5 s, in which a library kept Python's lock; or few reads."""
    at = places("for i in range(99):\n    draw(counts[i])\n")(2, "")
    samples = [StackSample(EAGER, at, i / 10, i / 10 + 0.005) for i in range(9)]
    samples.append(StackSample(EAGER, at, 1.0, 1.5))
    waits = [Wait("int", at, 0.0, 0.0, 4, times=reads)]
    analysis = Analysis(Log("a", 0.0, 2.0, samples=samples, waits=waits))
    finding = elements.element_reads(analysis, [(analysis.lines[0], "counts")])
    assert finding.seconds == pytest.approx(sliced_s)


def test_the_reads_of_a_function_cover_the_waits_of_what_they_call(places):
    at = places(
        "def mark(value):\n    return '*' if value else ' '\n\ndef show(board):\n    total = board.sum()\n"
        "    print(total, ''.join(mark(board[i][0]) for i in range(9)))\n"
    )
    first, line = at(5, "show"), at(6, "show")
    reads = Finding("element reads", line, 1.0, "elements")
    wait = Finding("wait", at(2, "mark"), 0.5, "waits")
    other = Finding("wait", first, 0.5, "waits")
    assert table._together([reads, wait, other]) == [reads, other]


# seconds in which a line draws in each turn, and samples in which JAX's hook of the collector ran there
DRAWS = [(0.01, 0, 1, "Jit show as a whole"), (0.15, 0, 3, "Put this line"), (0.15, 2, 3, "Put this line")]


@pytest.mark.parametrize(("drawn", "collected", "line", "change"), DRAWS)
def test_a_function_that_mostly_draws_is_not_jitted_as_a_whole(drawn, collected, line, change, places):
    text = "def show(w):\n    axes.render(w)\n    w = w + 1\n    return w\n\n"
    at = places(text + "for turn in range(9000):\n    w = show(w)\n")
    draws, adds, loop = at(2, "show"), at(3, "show"), at(7, "<module>")
    samples = []
    for i in range(20):
        samples.append(sample(adds, i / 2, loop))
        # one long sample, as of a call that draws
        samples.append(StackSample("python", draws, i / 2 + 0.1, i / 2 + 0.1 + drawn, NOWHERE, (loop,)))
        starts = [i / 2 + 0.26 + k / 100 for k in range(collected)]
        samples += [StackSample(EAGER, draws, start, start + 0.01, NOWHERE, (loop,)) for start in starts]
        samples.append(StackSample("dispatch", loop, i / 2 + 0.3, i / 2 + 0.4))
    add = Compiled("add", adds, {"compile": (-0.1, 0.0)})
    log = Log("a", -0.2, 10.0, compiled=[add], samples=samples)
    (finding,) = eager.find_eager_operations(Analysis(log))
    assert finding.at.line == line and change in advice_for(finding).change


@pytest.mark.parametrize(("call", "prepared"), [("jax.lax.scan(f, w, xs)[0]", True), ("w * f(w)", False)])
def test_a_loop_of_lax_outside_of_jit_is_prepared_by_python_on_each_call(call, prepared, places):
    at = places(f"for n in range(9000):\n    w = {call}\n    seen.append(n)\n")
    line, kept = at(2, "<module>"), at(3, "<module>")
    samples = [
        s
        for i in range(20)
        for s in (sample(line, i / 5), StackSample("python", kept, i / 5 + 0.1, i / 5 + 0.11))
    ]
    compiled = [Compiled("a", line, {"compile": (-0.1, 0.0)})]
    (finding,) = eager.find_eager_operations(
        Analysis(Log("a", -0.2, 4.0, compiled=compiled, samples=samples))
    )
    assert ("Python prepares scan on each call" in finding.reason) is prepared


@pytest.mark.parametrize(("noted_s", "line"), [(0.05, 5), (0.2, 2)])
def test_operations_in_what_a_function_calls_are_its_work_too(noted_s, line, places):
    """Its own line of operations runs once in five turns, and Python runs in each."""
    text = "def turn(w):\n    return w + 1\n\n\ndef update(w, n):\n    notes.append(n)\n    w = turn(w)\n"
    text += "    if n % 5 == 0:\n        w = w * 2\n    return w\n\n\n"
    at = places(text + "for n in range(9000):\n    w = update(w, n)\n")
    adds, notes, calls, doubles = at(2, "turn"), at(6, "update"), at(7, "update"), at(9, "update")
    loop, samples = at(14, "<module>"), []
    for i in range(20):
        samples.append(StackSample("python", notes, i / 2, i / 2 + noted_s, NOWHERE, (loop,)))
        samples.append(sample(adds, i / 2 + 0.25, calls, loop))
        if i % 5 == 0:
            samples.append(sample(doubles, i / 2 + 0.4, loop))
    compiled = [
        Compiled(name, place, {"compile": (-0.1, 0.0)})
        for name, place in (("add", adds), ("multiply", doubles))
    ]
    log = Log("a", -0.2, 10.0, compiled=compiled, samples=samples)
    (finding,) = eager.find_eager_operations(Analysis(log))
    assert finding.at.line == line


@pytest.mark.parametrize(("slept_s", "seconds"), [(0.0, 2.0), (0.08, 0.4)])
def test_what_an_operation_waits_for_its_array_is_no_dispatch(slept_s, seconds, places):
    """No window saw it. A jitted step computes the array, and the operation needs it."""
    at = places("for n in range(20):\n    w = step(w)\n    cost = w * w\n")
    call, cost = at(2), at(3)
    samples = []
    for i in range(20):
        samples.append(StackSample("dispatch", call, i / 2, i / 2 + 0.1))
        samples.append(sample(cost, i / 2 + 0.1)._replace(slept_s=slept_s))
    compiled = [Compiled("step", call, {"compile": (-0.1, 0.0)}, explained=True)]
    analysis = Analysis(Log("a", -0.2, 10.0, compiled=compiled, samples=samples))
    (finding,) = eager.find_eager_operations(analysis)
    assert finding.seconds == pytest.approx(seconds)


def test_what_is_made_once_is_no_matter_of_dispatch(places):
    at = places(
        "import flax.nnx as nnx\nnet = nnx.Linear(2, 3)\nw = model.init(key, x)\nfor seed in seeds:\n"
        "    w = model.init(seed, x)\n    y = w + 1\n"
    )
    assert [eager._makes_once(at(n, "")) for n in (2, 3, 5, 6)] == [True, True, False, False]


def test_a_function_that_transforms_another_is_jitted_as_a_whole(places):
    at = places("def move(state, x):\n    force = jax.grad(density)(state)\n    return state + force * x\n")
    analysis = Analysis(Log("a"))
    whole, line = (Finding("eager", at(n, "move"), 1.0, "") for n in (1, 2))
    assert jit_advice.way_to_jit(whole, analysis).form == "function"
    assert jit_advice.way_to_jit(line, analysis).form == "transform"


def test_where_python_needs_values_jit_takes_no_function_that_a_line_derives(places):
    """No sample of the line's own saw `check`, which another line's first call compiled."""
    at = places(
        "def check(age):\n    assert age == LIMIT\n"
        "def price(spot):\n    check(spot.age)\n    if spot.up:\n        return 0.0\n"
        "    return spot.value * 2\n"
        "slope = jax.vmap(jax.grad(price))(spots)\n"
        "curve = jax.vmap(jax.grad(jax.grad(price)))(spots)\n"
        "def apart(x):\n    assert x == 0\n"
    )
    first, second = at(8, "<module>"), at(9, "<module>")
    compiled = [
        Compiled("equal", at(2, "check"), {"compile": (0.0, 0.1)}, callers=(at(4, "price"), first)),
        *(Compiled("multiply", at(7, "price"), {"compile": (1, 1.1)}, callers=(c,)) for c in (first, second)),
    ]
    lines = (at(2, "check"), at(5, "price"), at(11, "apart"))
    waits = [Wait("if", line, 2.0, 2.0, 1) for line in lines]
    analysis = Analysis(Log("a", 0.0, 9.0, compiled=compiled, waits=waits))
    found = jit_advice.way_to_jit(Finding("eager", second, 1.0, ""), analysis)
    assert found.form == "transform"
    assert f"Before that, change {lines[0]}, where Python tests" in found.besides


@pytest.mark.parametrize(
    ("first", "at_line_s", "form"),
    [
        ("np.argmin(costs)", 0.9, "mixed"),
        ("np.argmin(costs)", 0.3, "part"),  # most of the seconds are at other lines
        ("costs + np.min(costs)", 0.9, "part"),  # JAX computes there, too
    ],
)
def test_a_method_that_computes_with_numpy_gives_it_arrays_of_numpy(first, at_line_s, form, places):
    at = places(
        "import numpy as np\nclass Sampler:\n    def best(self, costs):\n"
        f"        first = {first}\n        return np.mean(first - self.last)\n"
    )(4, "best")
    finding = jit_advice.best_way(Finding("eager", at, 1.0, ""), Analysis(Log("a")), "numpy", at_line_s)
    assert finding.form == form
    assert advice_for(finding).change.startswith("Give np.argmin an array of NumPy") == (form == "mixed")


@pytest.mark.parametrize(("line", "form"), [(1, "function"), (5, "transform")])
def test_a_jitted_function_gets_a_dictionary_of_settings_by_partial(line, form, places):
    at = places(
        "def score(w, options, x):\n    return w.reshape(options['rows'], -1) @ x\n"
        "for x in xs:\n    y = score(w, options, x)\n"
        "    slopes = jax.vmap(jax.grad(score), (None, None, 0))(w, options, x)\n"
    )
    place = at(line, "score" if line == 1 else "<module>")
    for known, words in (("dictionary of settings", True), ("list of length 3", False)):
        parameters = {(place.file, "score"): {"options": {known}, "w": {"array of length 9"}}}
        found = jit_advice.way_to_jit(
            Finding("eager", place, 1.0, ""), Analysis(Log("a", parameters=parameters))
        )
        assert found.form == form
        assert ("Give it options by functools.partial(score, options=options)" in found.besides) == words


@pytest.mark.parametrize("loop", ["for x in samples:", "for layer in range(3):", "if True:"])
def test_a_loop_that_calls_a_jitted_function_would_be_unrolled_in_a_larger_one(loop, places):
    text = f"def fit(w, samples):\n    {loop}\n        w = w - slope(w)\n    return w / norm(w)\n"
    at = places(text)
    samples = [StackSample(EAGER, at(4, "fit"), t, t + 1.0) for t in range(9)]
    compiled = [Compiled("slope", at(3, "fit"), {"compile": (0.0, 0.1)}, explained=True)]
    analysis = Analysis(Log("a", samples=samples, compiled=compiled))
    advice = jit_advice.way_to_jit(Finding("eager", at(1, "fit"), 9.0, ""), analysis).besides
    assert ("jax.lax.scan" in advice) == (loop == "for x in samples:")


@pytest.mark.parametrize(("update_s", "form"), [(0.05, ""), (0.005, "transform")])
def test_the_change_of_one_call_does_not_save_what_its_neighbors_take(places, update_s, form):
    at = places("for x in xs:\n    g = jax.grad(loss)(w, x)\n    w = w - 0.1 * g\n")
    spans = [(at(n, "<module>"), t + n / 10, s) for t in range(40) for n, s in ((2, 0.06), (3, update_s))]
    samples = [StackSample(EAGER, line, start, start + s) for line, start, s in spans]
    made = Compiled("multiply", at(3, "<module>"), {"compile": (-1.0, 0.0)})
    record = Log("a", -1.0, 41.0, compiled=[made], samples=samples)
    (finding,) = eager.find_eager_operations(Analysis(record))
    assert (finding.at.line, finding.form) == (2, form)


@pytest.mark.parametrize(("inside", "seconds"), [(3, [3.0]), (1, [1.0, 2.0])])
def test_what_a_line_derives_of_a_function_that_is_to_be_jitted_is_its(places, inside, seconds):
    """Of ten operations below `gradient(w)`, some are those of `cost`, and `grad` adds the others."""
    at = places("def cost(w):\n    return w @ w\n\ndef descend(w):\n    w = w - gradient(w)\n    print(w)\n")
    cost, line = at(1, "cost"), at(5, "descend")
    samples = [StackSample(EAGER, line, t, t + 1.0) for t in range(inside, 10)]
    samples += [StackSample(EAGER, at(2, "cost"), t, t + 1.0, callers=(line,)) for t in range(inside)]
    findings = [
        Finding("eager", cost, 1.0, "", form="function"),
        Finding("eager", line, 2.0, "", form="part"),
    ]
    joined = jit_advice.in_one_program(findings, Analysis(Log("a", samples=samples)))
    assert [f.seconds for f in joined] == seconds


@pytest.mark.parametrize(("line", "count"), [(5, 1), (7, 2)])
def test_what_lines_of_one_loop_call_is_one_program_with_them(line, count, places):
    at = places(
        "def gate(x):\n    return 1 / (1 + jnp.exp(-x))\n\n"
        "for x in xs:\n    y = gate(w @ x)\n    z = z * y + x\ntotal = gate(z)\n"
    )
    gate, caller, update = at(1, "gate"), at(line, "<module>"), at(6, "<module>")
    samples = [StackSample(EAGER, at(2, "gate"), t, t + 1.0, callers=(caller,)) for t in range(3)]
    samples += [StackSample(EAGER, update, t, t + 1.0) for t in range(3, 9)]
    findings = [Finding("eager", gate, 3.0, "", form="function"), Finding("eager", update, 6.0, "")]
    joined = [*jit_advice.in_one_program(findings, Analysis(Log("a", samples=samples)))]
    assert len(joined) == count and sum(f.seconds for f in joined) == 9.0


def test_a_loop_around_the_line_of_a_generator_is_not_in_what_jit_takes(places):
    at = places("def rows(table):\n    while True:\n        yield tuple(x[order()] for x in table)\n")
    stack = at(3, "<genexpr>"), at(3, "rows")
    samples = [StackSample(EAGER, stack[0], t, t + 1.0, callers=stack[1:]) for t in range(9)]
    finding = jit_advice.way_to_jit(Finding("eager", stack[1], 9.0, ""), Analysis(Log("a", samples=samples)))
    assert not finding.besides


@pytest.mark.parametrize(
    ("numbers", "last_s", "share"), [(0, 1e-4, 2 / 3), (3, 1e-4, 2 / 3), (0, 2e-2, 2 / 202)]
)
def test_operations_on_arrays_that_follow_each_other_are_worth_one_program(numbers, last_s, share):
    """Each is followed by `numbers` executions of the same program, which are short.

    One program of them takes as long as the longest, such as one that copies a larger array to change a part.
    """
    work, shown = Place("a.py", 2), Place("a.py", 3)
    activity = DeviceActivity(windows=[(0.0, 9.0)])
    for i in range(270):  # three operations in a row go through memory, again and again
        program = activity.program(("multiply", "add", "subtract")[i % 3])
        program.calls += 1
        begins = [i / 30 + n / 1000 for n in range(numbers + 1)]
        long_s = last_s if i % 3 == 2 else 1e-4
        program.devices["cpu:0"] += [(t, t + (1e-6 if n else long_s)) for n, t in enumerate(begins)]
    text = "HloModule jit_f\n\nENTRY %main (x: f32[4]) -> f32[4] {\n  ROOT %x = f32[4]{0} parameter(0)\n}\n"
    facts = [Facts(f"jit_{name}", "cpu", 1.0, 1.0, text=text) for name in activity.programs]
    compiled = [Compiled("add", work, {"compile": (-1.0, 0.0)})]
    analysis = Analysis(Log("a", -1.0, 9.0, compiled=compiled, activity=activity, programs=facts))
    saved_s = eager._unfused(analysis, [work, shown, work])
    seconds = 90 * (2e-4 + last_s) * share
    assert saved_s == {work: pytest.approx(seconds * 2 / 3, 0.02), shown: pytest.approx(seconds / 3, 0.02)}


@pytest.mark.parametrize(("late_s", "seconds"), [(0.0, 0.03), (0.01, 0.06)])
def test_devices_that_compute_one_after_the_other_count_together(late_s, seconds):
    """Both do all operations, the second one `late_s` later, as where they share the cores of a host."""
    activity, names = DeviceActivity(windows=[(0.0, 3.0)]), ("multiply", "add", "subtract")
    for i in range(90):
        program = activity.program(names[i % 3])
        program.calls += 1
        begin = i / 30
        program.devices["cpu:0"].append((begin, begin + 5e-4))
        program.devices["cpu:1"].append((begin + late_s, begin + late_s + 5e-4))
    text = "HloModule jit_f\n\nENTRY %main (x: f32[4]) -> f32[4] {\n  ROOT %x = f32[4]{0} parameter(0)\n}\n"
    facts = [Facts(f"jit_{name}", "cpu", 1.0, 1.0, text=text) for name in names]
    at = Place("a.py", 2)
    compiled = [Compiled("add", at, {"compile": (-1.0, 0.0)})]
    analysis = Analysis(Log("a", -1.0, 3.0, compiled=compiled, activity=activity, programs=facts))
    assert eager._unfused(analysis, [at]) == {at: pytest.approx(seconds)}


LEARN = """\
import jax, jax.numpy as jnp, numpy as np

def height(x, y):
    return x * x - x * y

slope = jax.grad(height)

def episode(w, turns):
    seen = jnp.zeros(0)
    for k in range(turns):
        seen = jnp.append(seen, w * k)
    return seen.sum()

def kernel(q, rng):
    q = q + 1
    return q + rng.normal(size=3)

def train(w, xs, rng):
    learn = jax.value_and_grad(episode)
    for epoch in range(400):
        loss, change = learn(w, 50)
        d = slope(w, w)
        w = kernel(w, rng)
    return [height(x, 1.0) for x in xs], [cube(x) for x in xs]

def cube(x):
    return x * x * x

def simulate(turns=500):
    x = jnp.ones(3)
    while x[0] < turns:
        x = x * 2
    return x

for case in range(9):
    simulate(turns=500)

def discounted(rewards):
    for r in rewards:
        total = r + 0.9 * total
    return total

for episode in range(120):
    returns = discounted(rewards)
"""


@pytest.mark.parametrize(
    ("chain", "line", "words"),
    [
        # the loop around the call of a gradient: the function that it calls has a loop of its own
        ((11, 21), 21, ["Put jax.jit around jax.value_and_grad", ":10 as jax.lax.scan", "grows at", ":11"]),
        ((4, 22), 3, ["height is called through jax.grad(...)"]),
        ((15, 23), 15, ["cannot take kernel as a whole", "calls rng.normal in line 16"]),
        (
            (27, 24),
            26,
            [
                "Call cube for all elements at once",
                "make batched = jax.jit(jax.vmap(cube)) once",
                "batched(jnp.asarray(xs))",
            ],
        ),
        ((32, 36), 32, ["Put this line and its neighbors"]),  # all of its arguments are numbers
        ((32, 36), 36, [":31 as jax.lax.while_loop"]),
        ((40, 44), 40, ["The length of rewards varies from call to call of discounted"]),
        ((40, 44), 44, ["The length of rewards varies from call to call of discounted"]),
    ],
)
def test_advice_fits_what_jit_can_take(chain, line, words, program_file):
    path = program_file(LEARN)
    places = [Place(path, number, function_of(path, number)) for number in chain]
    samples = [sample(places[0], t / 9, *places[1:]) for t in range(9)]
    lengths = {f"list of length {n}" for n in range(9)}
    known = {
        (path, "simulate"): {"turns": {"500"}}, (path, "discounted"): {"rewards": lengths},
        (path, "train"): {"xs": {"array of length 9"}},  # which is no static argument
    }  # fmt: skip
    analysis = Analysis(Log("a", samples=samples, parameters=known))
    if line not in (3, 21, 36, 44):
        assert {jit_advice.outermost(analysis)(s).line for s in samples} == {line}
    at = Place(path, line, function_of(path, line))
    change = advice_for(jit_advice.way_to_jit(Finding("eager", at, 1.0, ""), analysis)).change
    assert all(word in change for word in words), change


@pytest.mark.parametrize(
    ("head", "change"),
    [
        ("def step(x, t):\n", "Replace np.sin in line 3 by jnp's, and then jit step as a whole: @jax.jit"),
        ("def step(x, t):\n    for k in range(900):\n    ", "Put this line and its neighbors"),
        ("def step(self, t):\n", "Put this line and its neighbors"),
        ("def main():\n    t = float(input())\n    shift(t)\n", "Put this line and its neighbors"),
    ],
)
def test_a_function_whose_numpy_is_replaced_is_jitted_if_jit_takes_the_rest(head, change, places):
    rest = "    x = x + np.sin(t)\n    return x\ndef shift(t):\n    return np.cos(t)\n"
    at = places(f"import numpy as np\n{head}{rest}")(2 + head.count("\n"), head[4:8])
    finding = jit_advice.way_to_jit(Finding("eager", at, 1.0, ""), Analysis(Log("a")))
    assert advice_for(finding).change.startswith(change)


LISTED = "takes w, a list of another length on each call"
JOINED = [(range(1, 9), 1, "lengths", "xs"), ([8] * 8, 1, "", ""), ([8], 9, "part", LISTED)]


@pytest.mark.parametrize(("joined", "lengths", "form", "argument"), JOINED)
def test_what_a_loop_joins_shows_that_the_length_of_an_array_varies(joined, lengths, form, argument, places):
    at = places("def mix(w, xs):\n    ys = [w[-1] * x for x in xs]\n    return jnp.stack(ys)\n")(3, "mix")
    signatures = ({f"arrays[{i}]": "float32[]" for i in range(count)} for count in joined)
    compiled = [Compiled("stack", at, signature=s) for s in signatures]
    known = {(at.file, "mix"): {"w": {f"list of length {n}" for n in range(lengths)}}}
    analysis = Analysis(Log("a", compiled=compiled, parameters=known))
    finding = jit_advice.way_to_jit(Finding("eager", at, 1.0, ""), analysis)
    assert (finding.form, finding.argument) == (form, argument)


def test_what_several_lines_join_and_numbers_of_turns_are_no_lengths_that_vary(places):
    at = places(
        "def draw(model, xs, count):\n    ys = [model(xs) for _ in range(count)]\n    a = jnp.stack(ys)\n"
        "    return jnp.stack([a, *ys])\n"
    )
    joined = [*((3, 3),) * 9, *((4, count) for count in range(4, 9))]
    signatures = ((line, {f"arrays[{i}]": "float32[]" for i in range(count)}) for line, count in joined)
    compiled = [Compiled("stack", at(line, "draw"), signature=s) for line, s in signatures]
    apart = [c for c in compiled if c.at.line == 3 or len(c.signature) < 6]
    for operations in (compiled, apart):
        finding = jit_advice.way_to_jit(
            Finding("eager", at(3, "draw"), 1.0, ""), Analysis(Log("a", compiled=operations))
        )
        assert finding.form != "lengths"


@pytest.mark.parametrize(("elements", "said"), [(100, True), (3, False)])
def test_a_loop_over_an_array_is_unrolled_though_few_samples_saw_it(elements, said, places):
    at = places(
        "def blend(w, xs):\n    w = jnp.sin(w)\n    for x in xs:\n        w = w + x - w * x\n    return w\n"
        "blend(w, xs)\n"
    )
    call = at(6, "<module>")
    seen = [sample(at(4, "blend"), 0.0, call), *(sample(at(2, "blend"), t, call) for t in range(1, 30))]
    log = Log("a", samples=seen, iterated={f"float32[{elements}, 4]": {at(3, "blend")}})
    log.parameters[at(3, "blend").file, "blend"]["xs"].add("array of length 300")
    finding = jit_advice.way_to_jit(Finding("eager", at(1, "blend"), 1.0, ""), Analysis(log))
    assert (
        finding.besides.startswith("Before that, write the loop at") and ":3 as" in finding.besides
    ) == said


def test_jit_around_what_grad_derives_names_the_static_arguments(places):
    at = places(
        "import jax\nimport jax.numpy as jnp\ndef loss(w, kind):\n    return jnp.sin(w).sum()\n"
        "gradient = jax.grad(loss)\nfor i in range(900):\n    w = gradient(w, kind='mean')\n"
    )
    chain = at(4, "loss"), at(7, "<module>")
    log = Log("a", samples=[sample(chain[0], t / 9, chain[1]) for t in range(9)])
    log.parameters[chain[0].file, "loss"]["kind"] |= {"'mean'"}
    change = advice_for(jit_advice.way_to_jit(Finding("eager", at(3, "loss"), 1.0, ""), Analysis(log))).change
    assert 'put functools.partial(jax.jit, static_argnames=("kind",)) around that once' in change


@pytest.mark.parametrize(("length", "unrolled"), [(900, True), (2, False)])
def test_jit_of_a_gradient_names_what_the_function_of_another_module_needs(
    length, unrolled, places, tmp_path, monkeypatch
):
    losses = tmp_path / "losses.py"
    losses.write_text(
        "def fit(w, kind, parts):\n    for part in parts:\n        w = w + part\n"
        "    print(w)\n    return w.sum()\n"
    )
    monkeypatch.setitem(sys.modules, "losses", SimpleNamespace(__file__=str(losses)))
    at = places("import jax\nfrom losses import *\nw = jax.value_and_grad(fit)(w, 'mean', parts)\n")(
        3, "<module>"
    )
    inside = Place(str(losses), 3, "fit")
    log = Log("a", samples=[sample(inside, t / 9, at)._replace(under=at) for t in range(9)])
    log.parameters[str(losses), "fit"] |= {"kind": {"'mean'"}, "parts": {f"list of length {length}"}}
    finding = jit_advice.way_to_jit(Finding("eager", at, 1.0, ""), Analysis(log))
    change = advice_for(finding).change
    assert (
        'Put functools.partial(jax.jit, static_argnames=("kind",)) around jax.value_and_grad(...)' in change
    )
    assert "In fit, print() stays outside." in change
    assert ("losses.py:2 as jax.lax.scan" in change) == unrolled


@pytest.mark.parametrize("librarys", [False, True])
def test_an_object_that_jit_does_not_know_keeps_it_from_a_function(librarys, places):
    text = "class Box:\n    pass\n\ndef fit(w, box):\n    return w * box.rate\n"
    at = places(f"{text}ws = [fit(w, box) for w, box in zip(all_w, boxes)]\n")(5, "fit")
    callers = (at._replace(line=6, function="<module>"),)
    log = Log("a", samples=[StackSample(EAGER, at, t / 9, (t + 1) / 9, callers=callers) for t in range(9)])
    log.parameters[at.file, "fit"]["box"] |= {f"object of {'' if librarys else at.file}:Box"}
    finding = jit_advice.way_to_jit(Finding("eager recompiles", at, 1.0, ""), Analysis(log))
    assert "Jit cannot take fit as a whole, which takes box, an object of Box" in advice_for(finding).change


@pytest.mark.parametrize(("puts_each_turn", "found"), [(1, True), (6, False)])
def test_an_operation_on_what_is_put_on_a_device_is_dispatched_all_the_same(puts_each_turn, found, places):
    """Many puts in each turn are a cause of their own."""
    line = places(
        "for n in range(20):\n    x = jax.device_put(jnp.array(row).ravel() * 2)\n    y = step(x)\n"
    )
    at = line(2)
    samples = [sample(at, t / 4) for t in range(40)]
    puts = {at: [n / 2 + i / 100 for n in range(20) for i in range(puts_each_turn)]}
    log = Log("a", -0.2, 10.0, samples=samples, small_puts=puts)
    log.compiled = [Compiled("step", line(3), {"compile": (-0.1, 0.0)}, explained=True)]
    log.activity = DeviceActivity([(0.0, 10.0)])
    log.activity.program("step").calls = 20
    log.activity.program("mul").calls = 4000
    assert bool([*eager.find_eager_operations(Analysis(log))]) == found


ROWS = "def rows(xs):\n    return [jnp.zeros(9).at[x].set(1) for x in xs]\n"
LOOP = "def rows(xs):\n    for x in xs:\n        step(x)\n"


@pytest.mark.parametrize(("source", "read", "dispatched"), [
    (ROWS, False, True), (ROWS, True, False), (LOOP, False, False),
])  # fmt: skip
def test_what_a_comprehension_makes_of_elements_is_dispatched_if_nobody_reads_it(
    source, read, dispatched, places
):
    at = places(source)(2, "rows")
    apart = Compiled("unstack", at, {"compile": (0.0, 0.1)})
    waits = [Wait("int", at, t, t + 0.1, 4) for t in range(1, 9) if read]
    log = Log("a", 0.0, 9.0, compiled=[apart], samples=[sample(at, t / 5) for t in range(5, 45)], waits=waits)
    assert eager._waits(Analysis(log)) == (set() if dispatched else {at})


@pytest.mark.parametrize(("first", "costs_s"), [("y = smooth(x)", 2.0), ("y = x", 0.0)])
def test_a_function_under_jit_holds_what_others_call_too_and_is_compiled_for_it(first, costs_s, places):
    at = places(
        "def bound(x):\n    y = smooth(x)\n    return jnp.sum(y * y) - y[0]\n\n"
        f"for i in range(900):\n    {first}\n    b = bound(y)\n"
    )
    inside, outside, call = at(2, "bound"), at(6, "<module>"), at(7, "<module>")
    compiled = Compiled("smooth", inside, {"compile": (0.0, 2.0)}, explained=True, callers=(call,))
    sites = [CallSite(outside, "smooth")] if "smooth" in first else []
    samples = [sample(at(3, "bound"), t, call) for t in range(3, 30)]
    analysis = Analysis(Log("a", 0.0, 30.0, compiled=[compiled], call_sites=sites, samples=samples))
    finding = jit_advice.way_to_jit(Finding("eager", at(3, "bound"), 3.0, ""), analysis)
    whole = jit_advice.way_to_jit(Finding("eager", at(1, "bound"), 3.0, ""), analysis)
    assert (finding.costs_s, whole.form) == (0.0, "function")
    assert whole.costs_s == pytest.approx(costs_s)


@pytest.mark.parametrize(
    ("head", "names", "form"),
    [
        ("def fit(x):", ("subtract", "mul", "sqrt", "sum"), "several"),
        ("def fit(self, x):", ("subtract", "mul", "sqrt", "sum"), "method"),
        ("def fit(x):", ("subtract",), ""),  # one line of the function joins, but it costs little
    ],
)
def test_what_compiles_for_each_shape_is_judged_by_its_own_lines(head, names, form, places):
    at = places(
        f"{head}\n    x = (x - x.mean()) / 2\n    return jnp.concatenate([x, x])\n\n"
        "for x in xs:\n    fit(x)\n"
    )
    inside, call = at(2, "fit"), at(6, "<module>")
    compiled, start = [], 0.0
    for i in range(8):
        for name in (*names, "concatenate"):
            line, seconds = (at(3, "fit"), 0.01) if name == "concatenate" else (inside, 0.2)
            types = {"x": f"float32[{i + 1}]"}
            stages = {"compile": (start, start + seconds)}
            compiled.append(Compiled(name, line, stages, signature=types, callers=(call,)))
            start += 1.0
    findings = small_programs.find_eager_recompiles(Analysis(Log("a", 0.0, start, compiled=compiled)))
    assert {f.form for f in findings if f.cause == "eager shapes"} == {form}


def test_operations_whose_results_have_other_sizes_compile_for_each_shape():
    text = "HloModule f, entry_computation_layout={{()->f32[{}]{{0}}}}\n\nENTRY %main () -> f32[{}] {{\n}}\n"
    made = [
        Compiled(
            "ones", Place("a.py", 2), {"compile": (n, n + 0.1)}, facts=Facts("ones", "cpu", 1.0, 1.0, text=t)
        )
        for n, t in enumerate(text.format(n, n) for n in (3, 5, 8))
    ]
    assert small_programs.eager_cause(made) == "eager shapes"
    assert small_programs.eager_cause([made[0], made[0]]) == "eager recompiles"


@pytest.mark.parametrize(("third", "form"), [("z = y @ y", "lines"), ("z = x[x > 0]", "")])
def test_lines_that_read_each_other_are_one_program_for_each_shape(third, form, places):
    at = places(f"def solve(xs):\n    for x in xs:\n        y = x.T\n        {third}\n        out(y + z)\n")
    findings = [Finding("eager shapes", at(line, "solve"), 1.0, "why") for line in (3, 4, 5)]
    (source, *_) = small_programs._sources(findings)
    assert (source.at.line, source.form) == (3, form)


def test_methods_that_get_new_shapes_are_one_finding_of_their_class(places):
    methods = "".join(f"    def {name}(self, xs):\n        return jnp.pad(xs, 1)\n" for name in "abc")
    at = places(f"class Graph:\n{methods}def plain(xs):\n    return jnp.pad(xs, 1)\n")
    lines = ((3, "a", 1.0, ""), (5, "b", 2.0, ""), (7, "c", 4.0, "method"), (9, "plain", 8.0, ""))
    findings = [Finding("eager shapes", at(n, name), s, "", form=form) for n, name, s, form in lines]
    joined = [*small_programs._of_one_class(findings)]
    assert [(f.at.line, f.seconds) for f in joined] == [(5, 3.0), (7, 4.0), (9, 8.0)]
    assert "Do the same at line 3, of which the seconds count here." in advice_for(joined[0]).change


def test_an_operation_with_a_new_shape_in_each_turn_is_no_matter_of_dispatch(program_file):
    path = program_file(
        "import jax.numpy as jnp\nfor i in range(500):\n    x = jnp.append(x, 1)\n    y = y * 2 + i\n"
    )
    grows, adds = (Place(path, line) for line in (3, 4))
    samples = [StackSample(EAGER, grows, i, i + 0.7) for i in range(9)]
    samples += [StackSample(EAGER, adds, i + 0.7, i + 0.9) for i in range(9)]
    stages = [{"compile": (float(i), i + 0.4)} for i in range(8)]
    compiled = [Compiled("append", grows, s, signature={"x": f"float32[{i}]"}) for i, s in enumerate(stages)]
    analysis = Analysis(Log("a", 0.0, 9.0, samples=samples, compiled=compiled))
    findings = [*eager.find_eager_operations(analysis), *small_programs.find_eager_recompiles(analysis)]
    assert [(f.cause, f.at) for f in findings] == [("eager", adds), ("eager shapes", grows)]


def function_of(path, line):
    function = statements.innermost(Place(path, line), statements.FUNCTION)
    return function.name if function else "<module>"


def test_operations_in_a_function_that_is_jitted_for_its_shapes_are_no_other_finding(places):
    at = places("def objective(x):\n    y = x * 2\n    return y + 1\n\nfor x in xs:\n    best(x)\n")
    shapes = Finding("eager shapes", at(1, "objective"), 1.0, "", form="several")
    inside = Finding("eager", at(3, "objective"), 0.5, "")
    beside = Finding("eager", at(6, "<module>"), 0.5, "")
    merged = table._together([shapes, inside, beside])
    assert sorted((f.cause, f.seconds) for f in merged) == [("eager", 0.5), ("eager shapes", 1.5)]


@pytest.mark.parametrize(("line", "form", "first"), [(4, "", True), (4, "init", False), (6, "", False)])
def test_what_is_traced_again_is_changed_before_a_step_takes_it_along(line, form, first, places):
    at = places(
        "def main():\n    for x in xs:\n        slopes = slope(w, x)\n        w = step(w, slopes)\n"
        "    for x in xs:\n        w = step(w, x)\n"
    )
    again = Finding("structure", at(3, "main"), 1.0, "traced again")
    step = Finding("eager", at(line, "main"), 1.0, "one by one", form=form)
    besides = table._beside(step, [again, step]).besides
    assert besides.startswith("First change line 3:") == first


@pytest.mark.parametrize(("line", "seconds"), [(3, 0.0), (7, 0.5 - 0.1)])
def test_a_program_compiles_once_more_what_other_functions_need_too(line, seconds, places):
    """`noise` runs the program that `first` compiled."""
    at = places(
        "def first(key, x):\n    for _ in range(9):\n        x = x + random.normal(key, (9,))\n    return x\n"
        "def noise(key, x):\n    for _ in range(9):\n        x = x * random.normal(key, (9,))\n    return x\n"
    )
    made = [Compiled("_normal", at(3, "first"), {"compile": (0.0, 0.5)})]
    made += [Compiled(f"op{n}", Place("b.py", n), {"compile": (1.0 + n, 1.1 + n)}) for n in range(9)]
    analysis = Analysis(Log("a", 0.0, 30.0, compiled=made))
    assert small_programs.compiled_elsewhere_s(analysis, at(line, "f")) == pytest.approx(seconds)


def test_a_jitted_function_takes_along_what_functions_of_other_files_compile_in_it(places, tmp_path):
    at = places("def draw(key):\n    z = layer(key)\n    return z + 1\n\nfor k in keys:\n    draw(k)\n")
    other = tmp_path / "layers.py"
    other.write_text("def layer(key):\n    return key * 2\n")
    calls = at(2, "draw"), at(6, "<module>")
    inner = Place(str(other), 2, "layer")
    names = [f"op{i}" for i in range(20)]
    made = [Compiled(name, inner, {"compile": (i, i + 0.1)}, callers=calls) for i, name in enumerate(names)]
    analysis = Analysis(Log("a", 0.0, 30.0, compiled=made))
    compiled = small_programs._one_by_one(analysis, lambda c: c.at, made, 1.0)
    whole, beside = (Finding("eager", at(line, "draw"), 0.5, "") for line in (1, 3))
    assert [(f.at, f.seconds) for f in table._together([whole, compiled])] == [(whole.at, 1.5)]
    assert len(table._together([beside, compiled])) == 2


def test_a_loop_that_becomes_a_scan_takes_along_what_is_dispatched_in_it(places):
    at = places("for x in xs:\n    y = y * x\n    z = norm(y)\ny = y + 1\n")
    loop = Finding("iterated array", at(1), 1.0, "apart", form="derived")
    inside, behind = (Finding("eager", at(line), 0.5, "one by one") for line in (2, 4))
    merged = table._together([loop, inside, behind])
    assert [(f.cause, f.at.line, f.seconds) for f in merged] == [
        ("eager", 4, 0.5),
        ("iterated array", 1, 1.5),
    ]
    assert merged[1].reason == "apart; one by one"
    on_host = Finding("iterated array", at(1), 1.0, "apart")
    assert len(table._together([on_host, inside, behind])) == 3


@pytest.mark.parametrize(("middle", "count"), [("jnp.array(boys(x))", 1), ("np.array(boys(x))", 2)])
def test_a_change_reaches_no_further_than_the_functions_that_jit_takes(middle, count, program_file):
    path = program_file(
        "import numpy as np\nimport jax.numpy as jnp\n"
        "def boys(x):\n    return jnp.exp(x)\n"
        f"def table(x):\n    return {middle}\n"
        "def integrals(x):\n    return table(x) + 1\n"
    )
    chain = Place(path, 4, "boys"), Place(path, 6, "table"), Place(path, 8, "integrals")
    analysis = Analysis(Log("a", samples=[sample(chain[0], t, *chain[1:]) for t in range(9)]))
    inner = Finding("eager", chain[0]._replace(line=3), 1.0, "", form="function")
    outer = Finding("eager", chain[2]._replace(line=7), 0.1, "", form="function")
    merged = list(jit_advice.in_one_program([inner, outer], analysis))
    assert len(merged) == count and merged[-1].seconds == (1.1 if count == 1 else 0.1)


@pytest.mark.parametrize(("lines", "seconds"), [((9,) * 12, 1.1), ((9, 10, 11) * 4, 0.9)])
def test_each_call_of_a_function_with_other_shapes_needs_a_program(lines, seconds, places):
    """Of twelve operations of 0.1 s, one program is left, or three: one for each line that calls them."""
    source = "def area(x):\n    y = x * x\n    return y / 2\n\n\ndef main():\n    w = 1\n\n"
    at = places(source + "    a = area(w)\n    b = area(w)\n    return area(b)\n")
    compiled = [
        Compiled(f"op{i}", at(2 + i % 2, "area"), {"compile": (i, i + 0.1)}, callers=(at(line, "main"),))
        for i, line in enumerate(lines)
    ]
    analysis = Analysis(Log("a", 0.0, 20.0, compiled=compiled))
    findings = list(small_programs.find_eager_recompiles(analysis))
    assert sum(f.seconds for f in findings) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("angle", "own", "seconds", "named"),
    [
        ("jnp.sin(x)", [], 1.0, True),
        ("jnp.sin(x)", ["sin"], 1.1, True),
        ("jnp.sin(x)", ["sin", "cos", "det", "matmul", "add"], 1.1, False),
        ("jnp.exp(x)", [], 1.1, False),
    ],
)
def test_a_function_that_runs_the_same_operations_has_to_change_too(angle, own, seconds, named, places):
    """Twelve operations of 0.1 s: each function that is jitted compiles one program in place of its own."""
    at = places(
        "def first(x):\n    b = jnp.sin(x) + jnp.cos(x)\n    return x @ jnp.linalg.det(b)\n"
        f"def second(x):\n    b = jnp.cos(x) + {angle}\n    return x.T @ jnp.linalg.det(b)\n"
        "first(w)\nsecond(w)\n"
    )
    names = [*(["sin", "add", "cos"] * 3), "matmul", "det", "det"]
    lines = [at(2 if name in ("sin", "cos", "add") else 3, "first") for name in names]
    compiled = [
        Compiled(name, line, {"compile": (i, i + 0.1)}, callers=(at(7),))
        for i, (name, line) in enumerate(zip(names, lines, strict=True))
    ]
    compiled += [
        Compiled(name, at(5, "second"), {"compile": (20 + i, 20.1 + i)}, callers=(at(8),))
        for i, name in enumerate(own)
    ]
    samples = [sample(at(5, "second"), 30, at(8))]
    analysis = Analysis(Log("a", 0.0, 40.0, compiled=compiled, samples=samples))
    (finding,) = small_programs.find_eager_recompiles(analysis)
    assert finding.seconds == pytest.approx(seconds)
    assert ("Do the same with second" in finding.besides) is named


def test_a_size_that_varies_is_static_and_what_a_passed_function_needs_is_said(places):
    at = places(
        "import jax.numpy as jnp\n"
        "def relu(x):\n    return x.at[x < 0].set(0)\n"
        "def grown(x, score, n, k):\n    return jnp.zeros(n) + score(x) * k\n"
        "for n in sizes:\n    grown(x, relu, n, n)\n"
    )
    chain = at(3, "relu"), at(5, "grown"), at(7, "<module>")
    log = Log("a", samples=[sample(chain[1], t / 9, chain[2]) for t in range(9)])
    log.samples += [sample(chain[0], 1 + t / 9, *chain[1:]) for t in range(9)]
    log.parameters[at(1).file, "grown"] |= {"n": {"4", "5"}, "k": {"4", "5"}, "score": {"function"}}
    finding = jit_advice.way_to_jit(Finding("eager", at(4, "grown"), 1.0, ""), Analysis(log))
    assert finding.form == "function" and finding.static == ("score", "n")
    assert finding.besides.startswith("In relu, an update by a mask becomes jnp.where.")


@pytest.mark.parametrize(("program", "said"), [
    ("def fit(w):\n    def turn(x):\n        return x * x\n    return turn(w)\nfor w in ws:\n    fit(w)\n",
     "Define turn once, outside of fit, each call of which makes it anew."),
    ("def fit(w):\n    def turn(x):\n        return x * x\n    return turn(w)\nif ws:\n    fit(w)\n", ""),
    ("for w in ws:\n    def turn(x):\n        return x * x\n    turn(w)\n", "Define turn once, before the"),
    ("w = 1\ndef turn(x):\n    return x * x\nfor w in ws:\n    turn(w)\n", ""),
])  # fmt: skip
def test_a_function_that_is_defined_again_and_again_is_to_be_defined_once(program, said, places):
    at = places(program)
    line, calls = at("return x * x", "turn"), [at(number, "fit") for number in (4, 6) if "fit" in program]
    log = Log("a", samples=[sample(line, t / 9, *(calls or [at("turn(w)", "")])) for t in range(9)])
    finding = jit_advice.way_to_jit(Finding("eager recompiles", line, 1.0, ""), Analysis(log))
    assert finding.form == "function" and finding.besides.startswith(said)
    assert bool(said) == ("Define" in finding.besides)


def test_what_a_function_inside_of_one_computes_may_be_traced():
    code = ast.parse(
        "def fit(x):\n    def turn(x):\n        return jnp.sin(x) * 2\n    return jnp.exp(x) + 1\n"
    )
    fit = code.body[0]
    assert small_programs._operations_at(fit) == {"jnp.exp", "Add"}
    assert small_programs._operations_at(fit.body[0]) == {"jnp.sin", "Mult"}


@pytest.mark.parametrize(("behind", "own", "named"), [
    ("y = net.apply(w, x)", 0, True),
    ("y = net.apply(w, x)", 6, False),  # of other shapes, for which it compiles programs of its own
    ("out = jax.jit(lambda w: net.apply(w, x))", 0, False),
    ("y = other.apply(w, x)", 0, False),
])  # fmt: skip
def test_what_applies_a_network_runs_the_operations_that_make_its_weights(behind, own, named, places):
    at = places(f"w = net.init(key, x)\n{behind}\n")
    lines = [at(1)] * 12 + [at(2)] * own
    compiled = [Compiled(f"op{i}", line, {"compile": (i, i + 0.1)}) for i, line in enumerate(lines)]
    analysis = Analysis(Log("a", 0.0, 40.0, compiled=compiled))
    finding, *_ = small_programs.find_eager_recompiles(analysis)
    assert finding.seconds == pytest.approx(1.0 if named else 1.1)
    assert ("Do the same with net.apply in line 2" in finding.besides) is named


def test_a_list_of_many_arrays_is_joined_on_the_host(places):
    at = places("import jax.numpy as jnp\nimport numpy as np\ncurve = jnp.array(losses)\n")(3)
    puts = [Put(at, 1.0, 3.0, 0, again=False, arrays=9_000), Put(at, 4.0, 4.5, 0, again=False, numbers=900)]
    waits = [Wait("float", at, 0.5, 1.5, 4)]
    (finding,) = small_programs.find_many_arrays(Analysis(Log("a", 0.0, 9.0, puts=puts, waits=waits)))
    assert (finding.at, finding.seconds) == (at, pytest.approx(1.5))
    assert "losses has 9,000 arrays" in finding.reason
    assert advice_for(finding).change.startswith("Join them on the host: np.stack(jax.device_get(losses))")


@pytest.mark.parametrize(("call", "change"), [
    ("w = step(w, jnp.asarray(x), jnp.array(y))", "Call jnp.asarray(x) and jnp.array(y) once, before"),
    ("w = step(w, jnp.asarray(x), jnp.array(y) + 1)", "Put this line and its neighbors"),
    ("w = step(w, jnp.sin(x), jnp.array(y))", "Put this line and its neighbors"),
])  # fmt: skip
def test_a_line_of_a_loop_that_only_makes_arrays_makes_them_once_or_leaves_them_to_numpy(
    call, change, places
):
    at = places(f"import jax.numpy as jnp\nimport numpy as np\nfor x, y in examples:\n    {call}\n")(4)
    finding = jit_advice.way_to_jit(Finding("eager", at, 1.0, ""), Analysis(Log("a")))
    assert advice_for(finding).change.startswith(change)


@pytest.mark.parametrize(("looped", "found"), [("for x in xs:\n    ", [2]), ("x = xs[0]\n", [])])
def test_samples_say_what_a_transformation_in_each_turn_costs_where_no_window_saw_it(looped, found, places):
    at = places(f"{looped}y = jax.value_and_grad(loss)(w, x)\n")(2, "<module>")
    calls = [StackSample(DISPATCH, at, t, t + 0.9) for t in range(9)]
    call = Compiled("loss", at, {"compile": (-1.0, 0.0)}, explained=True)
    analysis = Analysis(Log("a", -1.0, 9.0, samples=calls, compiled=[call]))
    findings = list(eager.find_eager_operations(analysis))
    assert [f.at.line for f in findings] == found
    assert all(f.seconds == pytest.approx(9 * 0.9) and f.form == "transform" for f in findings)


def test_a_transformation_in_each_turn_is_found_where_windows_saw_no_operation_often(places):
    at = places("keys = split(key)\nfor x in xs:\n    y = jax.value_and_grad(loss)(w, x)\n")
    samples = [StackSample(EAGER, at(1, "<module>"), 0.0, 0.1)]
    samples += [StackSample(DISPATCH, at(3, "<module>"), t, t + 0.9) for t in range(1, 9)]
    call = Compiled("loss", at(3, "<module>"), {"compile": (-1.0, 0.0)}, explained=True)
    activity = DeviceActivity(windows=[(0.0, 9.0)])
    log = Log("a", -1.0, 9.0, samples=samples, compiled=[call], activity=activity)
    (finding,) = eager.find_eager_operations(Analysis(log))
    assert finding.at == at(3, "<module>") and "outside of jit, and devices are idle" in finding.reason


@pytest.mark.parametrize(("opcode", "first_s", "share"), [
    ("xor", 1e-4, 3 / 4), ("xor", 6e-3, 5e-4 / 18.3e-3), ("negate", 2e-4, 3 / 4),
])  # fmt: skip
def test_what_an_operation_computes_is_not_saved_by_one_program_of_several(opcode, first_s, share):
    """In each turn, three others follow one that runs three times, and may compute longer than it writes."""
    activity, at = DeviceActivity(windows=[(0.0, 9.0)]), Place("a.py", 2)
    for turn in range(60):
        for n, name in enumerate(["first"] * 3 + ["multiply", "add", "subtract"]):
            begin = turn / 10 + n / 100
            spans = activity.program(name).devices["cpu:0"]
            spans.append((begin, begin + (first_s if name == "first" else 1e-4)))
    text = "HloModule f, entry_computation_layout={(f32[99]{0})->f32[99]{0}}\n\n"
    text += "ENTRY %main (x: f32[99]) -> f32[99] {\n  %x = f32[99]{0} parameter(0)\n"
    opcodes = dict.fromkeys(activity.programs, "add") | {"first": opcode}
    texts = {name: f"{text}  ROOT %y = f32[99]{{0}} {code}(%x)\n}}\n" for name, code in opcodes.items()}
    facts = [Facts(f"jit_{name}", "cpu", 1.0, 1.0, text=text) for name, text in texts.items()]
    compiled = [Compiled("add", at, {"compile": (-1.0, 0.0)})]
    analysis = Analysis(Log("a", -1.0, 9.0, compiled=compiled, activity=activity, programs=facts))
    turn_s = 3 * first_s + 3e-4
    assert eager._unfused(analysis, [at]) == {at: pytest.approx(60 * turn_s * share, rel=0.02)}


YNN, SUMMED = '{"kind":"__ynn_fusion"}', "jnp.sin(x).mean()"


@pytest.mark.parametrize(
    ("statement", "kernel", "sums", "share"),
    [
        (SUMMED, YNN, 1, 3 / 4),
        (SUMMED, "{}", 1, 3 / 11),
        (SUMMED, YNN, 0, 2 / 10),
        ("x - jnp.sin(x)", YNN, 1, 3 / 11),
    ],
)
def test_a_sine_goes_into_the_kernel_of_a_sum_that_runs_as_often(statement, kernel, sums, share, places):
    """In each turn, a sine takes 8 ms, and its sum and two others 1 ms each; or no sum runs.

    One of four goes through memory, as one program of them does.
    """
    activity = DeviceActivity(windows=[(0.0, 9.0)])
    at = places(f"for turn in range(60):\n    y = {statement}\n")(2)
    for turn in range(60):
        for n, name in enumerate(["sin", "multiply", "negate", *["sum"] * sums]):
            spans = activity.program(name).devices["cpu:0"]
            spans.append((turn / 10 + n / 100, turn / 10 + n / 100 + (8e-3 if name == "sin" else 1e-3)))
    head = "HloModule f, entry_computation_layout={(f32[99]{0})->f32[%s]{0}}\n\n"
    main = "ENTRY %main (x: f32[99]) -> f32[99] {\n  %x = f32[99]{0} parameter(0)\n  ROOT "
    texts = {
        name: f"{head % 99}{main}%y = f32[99]{{0}} {'sine' if name == 'sin' else name}(%x)\n}}\n"
        for name in ("sin", "multiply", "negate")
    }
    texts["sum"] = (
        f"{head % 1}%inner (p: f32[99]) -> f32[1] {{\n  %p = f32[99]{{0}} parameter(0)\n"
        "  ROOT %r = f32[1]{0} reduce(%p)\n}\n\n"
        f"{main}%y = f32[1]{{0}} fusion(%x), kind=kCustom, calls=%inner, backend_config={kernel}\n}}\n"
    )
    facts = [Facts(f"jit_{name}", "cpu", 1.0, 1.0, text=text) for name, text in texts.items()]
    compiled = [Compiled("sin", at, {"compile": (-1.0, 0.0)})]
    analysis = Analysis(Log("a", -1.0, 9.0, compiled=compiled, activity=activity, programs=facts))
    turn_s = 8e-3 + (2 + sums) * 1e-3
    assert eager._unfused(analysis, [at]) == {at: pytest.approx(60 * turn_s * share, rel=0.02)}


def _layout(arguments, results):
    return tuple(tuple(Shape("f32", dims) for dims in side) for side in (arguments, results))


def test_one_program_does_not_write_large_arrays_that_begin_and_end_as_small_ones():
    gaps = {
        "subtract": _layout([(500, 1), (1, 500)], [(500, 500)]),
        "abs": _layout([(500, 500)], [(500, 500)]),
        "reduce_max": _layout([(500, 500)], [()]),
    }
    images = {"add": _layout([(300, 900), ()], [(300, 900)])}
    assert eager._made_inside(images | gaps) == gaps.keys()
    row = [
        (t, t + seconds, name) for t, (name, seconds) in enumerate(zip(gaps, (0.1, 0.2, 0.1), strict=True))
    ]
    seconds = {"subtract": 0.1, "abs": 0.2, "reduce_max": 0.1}
    assert eager._saved_share(row, seconds, gaps) == pytest.approx(2 / 3)  # never all of it
    assert eager._saved_share(row, seconds, ()) == pytest.approx(1 / 2)  # one passes through memory


@pytest.mark.parametrize(("loop", "found"), [("for part in parts:", True), ("if parts:", False)])
def test_operations_that_run_once_are_not_worth_one_program(loop, found, places):
    at = places(f"state = step(state)\n{loop}\n    mean = state.sum() / 9\n")
    call, mean = at(1), at(3)
    samples = [StackSample("dispatch", call, 0.0, 0.5)]
    samples.append(StackSample(EAGER, mean, 0.5, 1.5))
    activity = DeviceActivity(windows=[(0.0, 2.0)])
    for n, name in enumerate(["reduce_sum", "divide"] * 300):
        program = activity.program(name)
        program.calls += 1
        program.devices["cpu:0"].append((0.5 + n / 600, 0.5 + n / 600 + 1e-6))
    compiled = [Compiled("step", call, {"compile": (-0.1, 0.0)}, explained=True)]
    log = Log("a", -0.2, 2.0, compiled=compiled, samples=samples, activity=activity)
    assert bool([*eager.find_eager_operations(Analysis(log))]) == found


@pytest.mark.parametrize(("seen", "delayed_s", "share"), [
    ([(0.0, 0.5)], 0.0, 0.9), ([(0.0, 0.5)], 0.04, 0.9 * 0.6), ([(0.0, 0.5), (5.0, 5.1)], 0.0, 0.5),
])  # fmt: skip
def test_operations_in_a_part_that_no_window_saw_are_judged_by_samples(seen, delayed_s, share, places):
    """The program's first part is seen, in which the device computes for a tenth of the time.

    While the front end waits for a core, the device may have it.
    """
    at = places("state = step(state)\nfor row in rows:\n    mean = row.sum() / 9\n")
    times = (1 + t / 10 for t in range(80))
    samples = [StackSample(EAGER, at(3), t, t + 0.1, delayed_s=delayed_s) for t in times]
    activity = DeviceActivity(windows=seen)
    activity.program("step").devices["cpu:0"] = [(0.2, 0.25)]
    activity.program("reduce_sum").calls = 100  # for half of the time, the device computes beside them
    activity.program("other").devices["cpu:0"] = [(5.0, 5.05)]
    compiled = [Compiled(name, at(1), {"compile": (-0.1, 0.0)}, explained=True) for name in ("step", "other")]
    log = Log("a", -0.2, 9.0, compiled=compiled, samples=samples, activity=activity)
    (finding,) = eager.find_eager_operations(Analysis(log))
    assert finding.at == at(3) and finding.seconds == pytest.approx(share * 8)
    assert ("saw too little" in finding.reason) == (len(seen) == 1)


@pytest.mark.parametrize(("waited_s", "found"), [(0.05, 1), (0.15, 0)])
def test_where_no_window_saw_devices_operations_count_unless_most_of_the_run_waits(waited_s, found, places):
    at = places(
        "for row in rows:\n    state = step(state)\n    mean = row.sum() / 9\n    if mean > 0: break\n"
    )
    samples = [StackSample(EAGER, at(3), t / 5, t / 5 + 0.05) for t in range(40)]
    waits = [Wait("if", at(4), t / 5 + 0.05, t / 5 + 0.05 + waited_s, 1) for t in range(40)]
    compiled = [Compiled("step", at(2), {"compile": (-0.1, 0.0)}, explained=True)]
    log = Log("a", -0.2, 8.0, compiled=compiled, samples=samples, waits=waits)
    assert len([*eager.find_eager_operations(Analysis(log))]) == found


@pytest.mark.parametrize(("loop", "seconds"), [("for row in rows:", [4.0]), ("if rows:", [])])
def test_operations_before_the_first_jitted_function_count_too(loop, seconds, places):
    """The data are prepared operation by operation, and no window of the profiler is needed to say so."""
    at = places(f"{loop}\n    mean = row.sum() / 9\nstate = step(state)\n")
    samples = [StackSample(EAGER, at(2), t / 10, t / 10 + 0.1) for t in range(40)]
    compiled = [Compiled("step", at(3), {"compile": (4.1, 5.0)}, explained=True)]
    log = Log("a", 0.0, 9.0, compiled=compiled, samples=samples)
    findings = [*eager.find_eager_operations(Analysis(log))]
    assert [f.seconds for f in findings] == pytest.approx(seconds)
    assert all(f.at == at(2) and "before a jitted function runs" in f.reason for f in findings)


@pytest.mark.parametrize(("call", "words"), [
    ("plt.plot(x[:, 0], x[:, 1])", "Give plt.plot NumPy's arrays"),
    ("canvas.imshow(x.sum(0))", "Give canvas.imshow NumPy's arrays"),
    ("y = jnp.sin(x[:, 0])", "Put this line and its neighbors"),
    ("y = generator.normal(size=3) * x", "Put this line and its neighbors"),
])  # fmt: skip
def test_what_a_call_on_the_host_takes_goes_there_first(call, words, places):
    at = places(f"import matplotlib.pyplot as plt\nimport jax.numpy as jnp\nfor x in parts:\n    {call}\n")(4)
    finding = jit_advice.way_to_jit(Finding("eager", at, 1.0, ""), Analysis(Log("a")))
    assert advice_for(finding).change.startswith(words)


@pytest.mark.parametrize(("costs_s", "line"), [(0.01, 3), (0.03, 2)])
def test_an_operation_whose_change_saves_nothing_names_no_line(costs_s, line, places):
    at = places("def study(x):\n    y = prepare(x)\n    z = show(y)\n")
    shows = Finding("eager", at(3), 0.02, "", form="part", costs_s=costs_s)
    prepares = Finding("eager recompiles", at(2), 0.5, "", form="part")
    dearest = max(table._together([prepares, shows]), key=lambda f: f.seconds - f.costs_s)
    assert dearest.at == at(line)


@pytest.mark.parametrize(("over", "loops"), [("xs", 1), ("range(2)", 0)])
def test_a_loop_in_a_function_to_jit_is_named_and_costs_what_it_compiles(over, loops, places):
    text = f"def search(top, xs):\n    for x in {over}:\n        top = top + x * top\n    return top\n\n"
    at = places(f"{text}search(w, xs)\n")
    line, call = at(3, "search"), at(6, "<module>")
    times = [(t, t + 0.1) for t in range(30)]
    made = [Compiled("add", line, {"compile": each}, callers=(call,)) for each in times]
    log = Log(
        "a", samples=[StackSample(EAGER, line, *each, callers=(call,)) for each in times], compiled=made
    )
    log.parameters[line.file, "search"]["xs"] = {f"{ARRAY_OF}30"}
    finding = jit_advice.way_to_jit(Finding("eager recompiles", line, 1.0, ""), Analysis(log))
    assert (finding.form, "write the loop at" in finding.besides) == ("function", bool(loops))
    assert finding.costs_s == pytest.approx(0.2 * loops)
