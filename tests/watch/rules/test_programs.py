import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxperf.hlo import Shape, shape_of
from jaxperf.watch.log import CALLBACK, EAGER, Compiled, DeviceActivity, ExecutedProgram, Log, StackSample
from jaxperf.watch.observe import executables
from jaxperf.watch.observe.executables import Facts
from jaxperf.watch.observe.source_location import Place
from jaxperf.watch.report.analysis import Analysis
from jaxperf.watch.rules import eager, programs
from jaxperf.watch.rules.table import advice_for
from jaxperf.watch.source import loop_body, statements


@pytest.fixture
def record(watched):
    return lambda call, *arguments: watched(lambda: call(*arguments)).log


def program(name, run, function=""):
    (facts,) = (f for f in run.programs if f.name == name and not f.old)
    return facts, next(c for c in run.compiled if c.name == (function or name))


def test_an_argument_that_is_not_donated_is_counted_as_copied(record):
    def both(w, v, x):
        return x.sum(), w * 1.5, v * 2.5

    arrays = jnp.ones((8, 8)), jnp.ones(16), jnp.ones(3)
    facts, _ = program("both", record(jax.jit(both), *arrays))
    assert facts.unshared_bytes() == 256 + 64
    assert facts.unshared_bytes([Shape("f32", (16,))]) == 64
    donated, _ = program("both", record(jax.jit(both, donate_argnums=0), arrays[0].copy(), *arrays[1:]))
    assert donated.unshared_bytes() == 64


def test_nnx_jit_returns_the_state_of_its_modules_and_of_nothing_else(record):
    class Net(nnx.Module):
        def __init__(self):
            self.w = nnx.Param(jnp.ones((8, 8)))

    @nnx.jit
    def predict(net, x):
        return x @ net.w[...]

    facts, c = program("predict", record(predict, Net(), jnp.ones((5, 8))))
    assert c.through == "flax"
    state = [array for where, text in c.signature.items() if "." in where if (array := shape_of(text))]
    assert facts.unshared_bytes(state) == 256  # not the result, which is as large as `x`
    assert facts.unshared_bytes() == 256 + 160


TABLE = np.random.default_rng(0).random(1 << 18, np.float32)  # XLA makes an iota of np.arange


def test_programs_from_before_the_watch_leave_room_for_those_of_one_name_during_it(record):
    before = [jax.jit(lambda x, n=n: x * n) for n in range(4)]
    for fn in before:
        fn(jnp.float32(1))
    facts, _ = program("_lambda", record(jax.jit(lambda x: x * TABLE), jnp.float32(2)), "<lambda>")
    assert list(facts.constants()) == [Shape("f32", (TABLE.size,))]


def test_an_array_that_a_function_refers_to_is_named_and_one_that_it_is_given_is_none(record):
    bias = jnp.ones(3)
    refers = record(jax.jit(lambda x: x * TABLE + bias[0]), jnp.float32(2))
    (finding,) = programs.find_constants(Analysis(refers))
    assert finding.argument == "TABLE" and finding.memory_bytes == TABLE.nbytes
    (c,) = (c for c in refers.compiled if c.name == "<lambda>")
    assert c.refers_to == {"TABLE": "float32[262144]", "bias": "float32[3]"}
    assert 0 < finding.seconds <= c.seconds("compile")
    other = TABLE + 1
    twice = record(jax.jit(lambda x: (x * TABLE, x - other)), jnp.float32(2))
    assert [f.memory_bytes for f in programs.find_constants(Analysis(twice))] == [2 * TABLE.nbytes]
    passed = record(jax.jit(lambda x, table: x * table + 1), jnp.float32(2), TABLE)
    assert list(programs.find_constants(Analysis(passed))) == []


class Model:
    def __init__(self):
        self.table, self.norms = TABLE + 3, 7

    def scale(self, x):
        return x * self.table / self.norms

    def scaled(self):
        return lambda x: x * self.table


@pytest.mark.parametrize("function", [Model().scale, Model().scaled()])
def test_an_array_that_belongs_to_an_object_is_named_with_it(function, record):
    (finding,) = programs.find_constants(Analysis(record(jax.jit(function), jnp.float32(2))))
    assert finding.argument == "self.table"


def ran(*facts, compiled, backend="cpu"):
    program = ExecutedProgram(facts[0].name, 100, [1e-4] * 100, devices={"device 0": [(0.25, 0.75)]})
    activity = DeviceActivity([(0.0, 1.0)], {program.name: program})
    record = Log("a", 0.0, 1.0, compiled=[compiled], programs=[*facts], activity=activity, backend=backend)
    return Analysis(record)


@pytest.mark.parametrize(
    ("types", "line", "count"),
    [
        ("f64[512,256]{1,0}, f64[8]{0}", "x = np.ones(8)", 1),
        ("f64[512,256]{1,0}, s64[8]{0}", "x = np.ones(8)", 1),
        ("f64[512,256]{1,0}, f32[8]{0}", "x = np.ones(8)", 0),
        ("f64[8,256]{1,0}, f64[8]{0}", "x = np.ones(8)", 0),  # 16 kB
        ("s64[8]{0}, f64[]", "x = np.ones(8)", 0),
        ("f64[512,256]{1,0}", "x = np.ones(8, np.float64)", 0),
        ("f64[512,256]{1,0}", 'x = np.ones(8, "float64")', 0),
        ("f64[512,256]{1,0}", "from scipy import integrate; x = np.ones(8)", 0),
        ("f64[512,256]{1,0}", "from scipy import stats; x = np.ones(8)", 1),
    ],
)
def test_a_program_of_large_wide_floats_only_is_found_unless_asked_for(types, line, count, places):
    at = places(f'"""Of float64."""\n{line}  # float64\nfor _ in range(9):\n    step(x)\n')(4)
    signature = {"argument 0": "float64[512,256]"}
    compiled = Compiled("step", at, {"compile": (-0.1, 0.0)}, explained=True, signature=signature)
    text = f"HloModule jit_step, entry_computation_layout={{({types})->f64[8]{{0}}}}, x=1\n"
    text += "\nENTRY %main () -> f64[8] {\n  %y.1 = f64[512,256]{1,0} multiply(%x, %x)\n}\n"
    findings = list(programs.find_float64(ran(Facts("step", "cpu", 1.0, 1.0, text=text), compiled=compiled)))
    assert [(f.cause, f.at.line) for f in findings] == [("all float64", 2)] * count
    assert all("if float32 is enough" in f.reason for f in findings)
    assert all("make x and all else that step gets" in advice_for(f).change for f in findings)


@pytest.mark.parametrize(("more", "count"), [("", 1), ("DTYPE = jnp.float64\n", 0)])
def test_float64_that_another_file_turns_on_is_found_unless_that_file_names_it(more, count, places, tmp_path):
    helper = tmp_path / "helper.py"
    helper.write_text(f'import jax\njax.config.update("jax_enable_x64", True)\n{more}')
    at = places("x = jnp.ones(8)\nfor _ in range(9):\n    step(x)\n")(3)
    compiled = Compiled("step", at, {"compile": (-0.1, 0.0)}, explained=True, signature={"x": "float64[8]"})
    text = "HloModule jit_step, entry_computation_layout={(f64[8]{0})->f64[8]{0}}, x=1\n"
    text += "\nENTRY %main () -> f64[8] {\n  %y.1 = f64[512,256]{1,0} multiply(%x, %x)\n}\n"
    analysis = ran(Facts("step", "cpu", 1.0, 1.0, text=text), compiled=compiled)
    analysis.log.settings["jax_enable_x64"] = at
    analysis.log.modules.append(str(helper))
    findings = list(programs.find_float64(analysis))
    assert [f.cause for f in findings] == ["all float64"] * count


@pytest.mark.parametrize(("size", "count"), [(0, 0), (8, 0), (1 << 16, 1)])
def test_a_number_of_32_bits_beside_wide_floats_does_not_count_as_widened(size, count):
    dims = str(size) if size else ""
    text = (
        "HloModule jit_step, entry_computation_layout={(f32[])->f64[]}, x=1\n\nENTRY %main () -> f64[] {\n"
        f"  %x.1 = f32[{dims}] parameter(0)\n  ROOT %y.1 = f64[{dims}] convert(%x.1)\n}}\n"
    )
    compiled = Compiled("step", Place("a.py", 4), {"compile": (-0.1, 0.0)}, explained=True)
    findings = list(programs.find_float64(ran(Facts("step", "cpu", 1.0, 1.0, text=text), compiled=compiled)))
    assert [f.cause for f in findings] == ["float64"] * count


def loss(w, x):
    return ((jnp.tanh(x @ w) @ w) ** 2).mean()


@pytest.mark.parametrize(
    ("lines", "numbers", "count"),
    [
        ((6, 7), ({}, {}), 1),  # value and gradient in the loop
        ((2, 7), ({}, {}), 1),  # a function that the loop calls gets the value
        ((2, 10), ({}, {}), 0),  # the gradient is computed in another loop
        ((7, 6), ({}, {}), 1),
        ((7, 6), ({}, {"rate": "0.1"}), 1),
        ((7, 6), ({"decay": "0.5"}, {"decay": "0.5", "rate": "0.1"}), 1),
        ((7, 6), ({"decay": "0.5"}, {}), 0),  # the gradient is that of another function
        ((7, 6), ({"decay": "0.5"}, {"decay": "0.2"}), 0),
    ],
)
def test_a_value_that_a_gradient_computes_too_is_found_wherever_the_loop_asks_for_it(
    lines, numbers, count, places
):
    at = places(
        "def evaluate(w, x):\n    return value(w, x)\n\n"
        "for x in data:\n    log(\n        evaluate(w, x))\n    w = update(w, x)\n\n"
        "for x in others:\n    w = update(w, x)\n"
    )
    arrays = jnp.ones((64, 64)), jnp.ones((32, 64))
    functions = {"value": loss, "update": lambda w, x: w - 0.1 * jax.grad(loss)(w, x)}
    log = Log("a", 0.0, 1.0, activity=DeviceActivity([(0.0, 1.0)]))
    for (name, function), line, more in zip(functions.items(), lines, numbers):
        text = jax.jit(function).lower(*arrays).compile().as_text()
        log.programs.append(Facts(name, "cpu", 1.0, 1.0, devices=(0,), text=text))
        types = {f"argument {i}": f"float32[{','.join(map(str, x.shape))}]" for i, x in enumerate(arrays)}
        types |= more
        callers = (at(6),) if line == 2 else ()
        log.compiled.append(
            Compiled(name, at(line), {"compile": (-1.0, 0.0)}, True, signature=types, callers=callers)
        )
        log.activity.program(name).devices["cpu 0"] = [(0.2, 0.4)]
    findings = list(programs.find_forward_twice(Analysis(log)))
    assert [f.at.line for f in findings] == [lines[0]] * count
    # 0.2 s in a window of 1 s, and a second of compiling
    assert [f.seconds for f in findings] == pytest.approx([0.2 + 1.0] * count)


@pytest.mark.parametrize(
    ("line", "same"),
    [("y = cost(w, batch)", True), ("y = cost(w, held_out)", False), ("y = cost(w, more)", False)],
)
def test_a_value_of_other_data_is_not_what_a_gradient_computes(line, same, places):
    at = places(
        "for pair in pairs:\n    batch = scale(pair)\n    more = others.pop()\n    s = step(s, batch)\n"
        f"    w = s.weights\n    {line}\n"
    )
    loop = statements.innermost(at(4), statements.LOOP)
    assert loop_body.same_sources(at(6), at(4), loop) == same


def test_programs_of_one_name_share_the_time_of_instructions_that_both_have():
    """One function is called for arrays of two sizes; each program has a product, and one has a sum, too."""
    body = "HloModule jit_f\n\nENTRY %main (x: f32[4]) -> f32[4] {\n  %x = f32[4]{0} parameter(0)\n"
    product, total = "  %dot.1 = f32[4]{0} negate(%x)\n", "  ROOT %sum.1 = f32[4]{0} negate(%dot.1)\n"
    texts = body + product.replace("%dot", "ROOT %dot", 1) + "}\n", body + product + total + "}\n"
    call = Compiled("f", Place("a.py", 3), {"compile": (-1.0, 0.0)}, explained=True)
    ops = {("cpu:0", "dot.1"): [0.2] * 2, ("cpu:0", "sum.1"): [0.1]}
    seen = ExecutedProgram("f", devices={"cpu:0": [(0.0, 0.5)]}, ops=ops)
    facts = [Facts("jit_f", "cpu", 1.0, 1.0, text=text) for text in texts]
    activity = DeviceActivity([(0.0, 1.0)], {"f": seen})
    analysis = Analysis(Log("a", -1.0, 1.0, compiled=[call], activity=activity, programs=facts))
    assert [seconds for *_, seconds in programs.called_programs(analysis)] == pytest.approx([0.2, 0.3])


SCALAR, ROWS = "f32[]", "f32[4096,16]{1,0}"


@pytest.mark.parametrize(
    ("body", "calls", "result", "count"),
    [
        ("fit = quality(w, x)\n    print(fit)", 40, SCALAR, 1),
        ("print(t, quality(w, x), quality(w, y))", 80, SCALAR, 1),
        ("run.write(t, quality(w, x))", 40, SCALAR, 1),
        ("if t % 10 == 0: print(quality(w, x))", 4, SCALAR, 0),
        ("fit = quality(w, x)\n    if fit > 0.9: break", 40, SCALAR, 0),
        ("fit = quality(w, x)\n    rate = change(rate, fit)", 40, SCALAR, 0),
        ("fit = quality(w, x)\n    best = max(best, fit)", 40, SCALAR, 0),
        ("self.fit = quality(w, x)", 40, SCALAR, 0),
        ("for y in parts: print(quality(w, y))", 40, SCALAR, 0),
        ("frames.append(quality(w, x))", 40, ROWS, 0),  # what the loop is for
    ],
)
def test_an_evaluation_in_each_turn_that_is_only_printed_or_kept_is_found(body, calls, result, count, places):
    """The step takes 0.3 s of the second, and the other program the rest."""
    at = places(f"for t in range(99):\n    w = step(w, rate)\n    {body}\n")
    heads = [
        f"HloModule jit_f, entry_computation_layout={{(f32[9]{{0}})->{r}}}, x=1\n"
        for r in ("f32[9]{0}", result)
    ]
    facts = [Facts(n, "cpu", 1.0, 1.0, text=t) for n, t in zip(("step", "quality"), heads)]
    compiled = [Compiled(f.name, at(2 + i), {"compile": (-1.0, 0.0)}, True) for i, f in enumerate(facts)]
    ran = [
        ExecutedProgram("step", 40, devices={"cpu 0": [(0.0, 0.3)]}),
        ExecutedProgram("quality", calls, devices={"cpu 0": [(0.3, 1.0)]}),
    ]
    activity = DeviceActivity([(0.0, 1.0)], {program.name: program for program in ran})
    log = Log("a", -1.0, 1.0, compiled=compiled, programs=facts, activity=activity)
    findings = list(programs.find_evaluations(Analysis(log)))
    assert [(f.at.line, f.seconds) for f in findings] == [(3, pytest.approx(0.7))] * count


def unrolled(function, size, spans, *others):
    """Find loops in a function of an array that is compiled in these spans of ten seconds."""
    text = jax.jit(function).lower(jnp.ones(size)).compile().as_text()
    where = f"{__file__}:{function.__code__.co_firstlineno}"
    compiled = [Compiled("f", Place(__file__, 1), {"compile": span}, True, where) for span in spans]
    facts = Facts("f", "cpu", 1.0, 1.0, text=text)
    return programs.find_unrolled_loops(
        Analysis(Log("a", 0.0, 10.0, compiled=[*compiled, *others], programs=[facts]))
    )


@pytest.mark.parametrize("times", [1, 4])
def test_each_program_of_a_function_compiles_the_loop_that_it_holds(times):
    """Four traces for as many shapes take 2 s each."""

    def turns(x):
        for _ in range(70):
            x = jnp.sin(x) + jnp.cos(x)
        return x

    spans = [(2 * i, 2 * i + 2) for i in range(times)]
    add = Compiled("add", Place(__file__, 2), {"compile": (9.0, 9.01)})
    (finding,) = unrolled(turns, 32, spans, add)
    assert finding.seconds == pytest.approx(2 * times, rel=0.1)


def test_all_loops_that_a_program_unrolls_are_named():
    def filtered(x):
        for _ in range(70):
            x = jnp.sin(x) + jnp.cos(x)
        y = x
        for _ in range(90):
            y = jnp.tanh(y) * x
        return y

    (finding,) = unrolled(filtered, 32, [(0.0, 4.0)])
    first = filtered.__code__.co_firstlineno + 1
    assert {finding.at.line, *map(int, re.findall(r"line (\d+)", finding.reason))} == {first, first + 3}


# earlier versions of JAX slice the array
TAKES_APART = "unstack" in str(jax.make_jaxpr(lambda x: [*x])(jnp.ones(3)))


@pytest.mark.parametrize(
    ("function", "found"),
    [
        (lambda x: sum(jnp.cos(x)) * 2, TAKES_APART),  # of Python
        (lambda x: jnp.stack([y * y for y in jnp.cos(x)]), TAKES_APART),
        (lambda x: jnp.cos(x).sum(), False),
        # ten noises of different sizes, for each of which JAX takes a key apart
        (lambda x: [jax.random.normal(jax.random.key(i), (i + 3,)) + x[i] for i in range(10)], False),
    ],
)
def test_python_that_iterates_over_an_array_in_a_traced_function_is_an_unrolled_loop(function, found):
    findings = [f for f in unrolled(function, 90, [(0.0, 4.0)]) if "iterates over it" in f.reason]
    assert [f.at.line for f in findings] == ([function.__code__.co_firstlineno] if found else [])
    assert all("jnp.sum" in advice_for(f).change for f in findings)


def test_what_a_comprehension_calls_for_each_element_is_its_loop():
    """Each element's operations stand in another function; only few of them take the element."""

    def ranked(row):
        return jnp.sort(jnp.sin(row)) * 2

    def ranked_rows(rows):
        return jnp.stack([ranked(row) for row in rows])

    add = Compiled("add", Place(__file__, 2), {"compile": (9.0, 9.01)})
    findings = unrolled(ranked_rows, (24, 8), [(0.0, 4.0)], add)
    found = [f for f in findings if "iterates over it" in f.reason]
    assert [f.at.line for f in found] == [ranked_rows.__code__.co_firstlineno + 1] * TAKES_APART
    assert all(f.seconds > 2.0 for f in found)


@pytest.mark.parametrize(("turns", "found"), [(24, [24]), (3, [])])
def test_a_loop_whose_turns_take_rows_and_need_nothing_of_each_other_is_unrolled_all_the_same(turns, found):
    def scores(w, xs):
        total = 0.0
        for t in range(turns):
            total += jax.nn.log_softmax(jnp.tanh(xs[t] @ w[0]) @ w[1])[0]
        return total

    args = (jnp.ones((8, 8)), jnp.ones((8, 8))), jnp.ones((turns, 8))
    text = jax.jit(jax.grad(scores)).lower(*args).compile().as_text()
    loops = executables.loops_over_rows(Facts("scores", "cpu", 1.0, 1.0, text=text), few=True)
    assert [loop.iterations for loop in loops] == found
    assert all(loop.at.line == scores.__code__.co_firstlineno + 2 and loop.share > 0.8 for loop in loops)


def test_a_few_bytes_are_not_worth_donating_whatever_else_is_copied(places):
    compiled = Compiled("step", places("w = step(w)\n")(1), {"compile": (0.0, 0.1)}, explained=True)

    def seconds(size, devices=1, layout="{0}"):
        program = ExecutedProgram("step", 100, [1e-4] * 100)
        for device in (f"cpu {i}" for i in range(devices)):
            program.devices[device], program.ops[device, "copy.1"] = [(0.1, 0.9)], [0.002] * 100
        head = f"HloModule jit_step, entry_computation_layout={{(f32[{size}]{{0}})->f32[{size}]{{0}}}}, x=1\n"
        copy = f"f32[{size}]{layout} copy(%w)"
        body = f"  %w = f32[{size}]{{0}} parameter(0)\n  ROOT %copy.1 = {copy}\n"
        facts = Facts(
            "step", "cpu", 1.0, 1.0, devices=(0,), text=f"{head}\nENTRY %main () -> f32[] {{\n{body}}}\n"
        )
        activity = DeviceActivity([(0.1, 1.0)], {"step": program})
        record = Log("a", 0.0, 1.0, compiled=[compiled], programs=[facts], activity=activity)
        return sum(f.seconds for f in programs.find_donations(Analysis(record)))

    assert 0 < seconds(1000) < 0.001 and seconds(10_000_000) > 0.1
    assert seconds(10_000_000, layout="{0:T(256)}") == 0  # a copy into another layout stays
    assert seconds(10_000_000, devices=3) == pytest.approx(seconds(10_000_000))  # all copy at once


def test_an_array_is_copied_where_one_of_its_type_is_updated_however_often_the_next_line_waits(watched):
    table, sums = jnp.zeros((512, 512)), jnp.zeros((512, 2))

    def fill():
        nonlocal table, sums
        table = table.at[3].set(1.5)
        sums = sums.at[3].set(2.5)

    log = watched(fill).log
    large, small = (c.at for c in log.compiled if c.name == "scatter")
    span = (log.start, log.end)
    activity = log.activity = DeviceActivity([span])
    activity.programs["scatter"] = ExecutedProgram("scatter", 99, [1e-4] * 99)
    activity.programs["scatter"].devices["cpu:0"] = [span] * 99
    activity.programs["scatter"].ops["cpu:0", "copy.1"] = [0.01] * 99
    log.samples = [StackSample(EAGER, small, *span)] * 5
    worst = max(programs.find_eager_copies(Analysis(log)), key=lambda f: f.seconds)
    assert (worst.at, worst.memory_bytes) == (large, 512 * 512 * 4)
    assert not eager._unfused(Analysis(log), [large, small])  # one program would copy, too


def embed(table, tokens):
    return jax.nn.one_hot(tokens, len(table)) @ table


@pytest.mark.parametrize(
    ("function", "found"),
    [
        (embed, "one-hot product"),
        (jax.grad(lambda table, tokens: jnp.tanh(embed(table, tokens)).sum()), "one-hot product"),
        (lambda table, tokens: table[tokens], ""),
        (lambda table, tokens: jax.nn.one_hot(tokens[:9], len(table)) @ table, ""),
        (
            lambda table, tokens: jax.random.permutation(jax.random.key(tokens[0]), table)[:9],
            "shuffled draws",
        ),
        (lambda table, tokens: table[jax.random.randint(jax.random.key(tokens[0]), 9, 0, 999)], ""),
        (lambda table, tokens: jnp.sort(table, axis=0)[:9], ""),
    ],
)
def test_work_that_an_index_or_a_draw_would_do_is_found(function, found, places):
    arguments = jnp.ones((2048, 16)), jnp.arange(512)
    text = jax.jit(function).lower(*arguments).compile().as_text()
    facts = Facts("step", "cpu", 1.0, 1.0, text=text)
    compiled = Compiled("step", places("step(table, tokens)\n")(1), {"compile": (-0.1, 0.0)}, explained=True)
    analysis = ran(facts, compiled=compiled)
    analysis.log.activity.programs["step"].ops |= {("device 0", i.name): [0.2] for i in facts.instructions}
    assert {f.cause for f in programs.find_costly_ways(analysis)} == {found} - {""}


@pytest.mark.parametrize(
    ("begins", "seen", "seconds"), [(0.1, "", 0.4), (-0.9, "", 0.0), (0.1, "other", 0.0)]
)
def test_a_callback_takes_what_samples_see_outside_of_tracing(begins, seen, seconds, places):
    """A rare check of errors is a callback, too; JAX calls the reader's function to trace it."""
    at = places("step(x)\ncheck(x)\n")
    call = '  ROOT %c = f32[] custom-call(), custom_call_target="xla_ffi_python_cpu_callback"\n'
    text = f"HloModule jit_f\n\nENTRY %main (x: f32[4]) -> f32[] {{\n{call}}}\n"
    facts = [Facts(f"jit_{name}", "cpu", 1.0, 1.0, text=text) for name in ("step", "other")]
    compiled = [Compiled(n, at(1), {"trace": (-1.0, 0.0)}, explained=True) for n in ("step", "other")]
    programs_ran = {n: ExecutedProgram(n, 1, devices={"cpu:0": [(0.1, 0.9)]}) for n in ("step", "other")}
    if seen:
        programs_ran[seen].ops["cpu:0", "c"] = [0.3]
    samples = [StackSample(CALLBACK, at(1), begins, begins + 0.4)]
    log = Log("a", -1.0, 1.0, compiled=compiled, programs=facts, samples=samples)
    log.activity = DeviceActivity([(0.0, 1.0)], programs_ran)
    found = {f.name: f.seconds for f in programs.find_callbacks(Analysis(log))}
    assert found["jit_step"] == pytest.approx(seconds)
    assert found["jit_other"] == pytest.approx(0.3 if seen else seconds)


@pytest.mark.parametrize(("runs", "parts"), [
    ({("sort.0", "copy.1"): 0.1, ("sort.0", "dot.2"): 0.3}, [0.25, 0.75]),
    ({("sort.0",): 0.1, ("dot.2",): 0.3}, [0.125, 0.875]),  # windows cut them off
    ({}, [0.3, 0.7]),  # a trace without numbers of executions
])  # fmt: skip
def test_an_execution_is_that_of_the_program_whose_instructions_it_ran(runs, parts):
    entry = "HloModule jit_f\n\nENTRY %main (x: f32[4]) -> f32[4] {\n  %x = f32[4]{0} parameter(0)\n"
    sorts = f"{entry}  %sort.0 = f32[4]{{0}} sort(%x)\n"
    texts = [
        f"{sorts}  ROOT %{name} = f32[4]{{0}} {name[:-2]}(%sort.0)\n}}\n" for name in ("copy.1", "dot.2")
    ]
    facts = [Facts("jit_f", "cpu", 1.0, 1.0, text=text) for text in texts]
    activity = DeviceActivity(windows=[(0.0, 1.0)])
    record = activity.program("f")
    record.runs |= {frozenset(ran): seconds for ran, seconds in runs.items()}
    for op, seconds in {"sort.0": 0.4, "copy.1": 0.1, "dot.2": 0.5}.items():
        record.ops["cpu:0", op].append(seconds)
    analysis = Analysis(Log("a", 0.0, 1.0, activity=activity, programs=facts))
    assert [*programs._parts(analysis, "f").values()] == pytest.approx(parts)
