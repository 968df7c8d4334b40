import inspect
import itertools
import re
from dataclasses import dataclass, field
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from jaxperf.retraces import Change, argument_changes, differing_part
from jaxperf.watch.log import Compiled, DeviceActivity, ExecutedProgram, Log, Wait
from jaxperf.watch.observe.executables import Facts, note_copied_arguments
from jaxperf.watch.observe.source_location import NOWHERE, Place
from jaxperf.watch.report.analysis import Analysis
from jaxperf.watch.rules import small_programs, traces
from jaxperf.watch.rules.table import advice_for

ONES = jnp.ones(3)


@pytest.fixture
def findings_of(watched):
    return lambda program: list(traces.find_retraces(watched(program)))


def stepped():
    @partial(jax.jit, static_argnames="n")
    def step(x, n=0):
        return x * 2 + n

    return step


@pytest.mark.parametrize(
    ("sizes", "flags", "kinds"),
    [
        ((3, 3, 4, 4), (0, 0, 1, 1), []),  # two calls may each have their own flag and size
        ((3,) * 4, (0, 1) * 2, []),
        ((3,) * 6, (0, 1, 2) * 2, ["static value"]),  # which keep coming
        ((4, 8), (0, 0), []),
        ((8, 8, 3), (0, 0, 0), ["partial batch"]),
        ((3, 4, 5), (0, 0, 0), ["shape"]),
        ((3, 6, 12), (0, 0, 0), []),  # stages, which no fewer sizes could hold
    ],
)
def test_two_flags_and_sizes_are_wanted_and_stages(sizes, flags, kinds, findings_of):
    step = stepped()
    calls = [*zip(sizes, flags, strict=True)]
    assert [f.cause for f in findings_of(lambda: [step(jnp.ones(size), n=n) for size, n in calls])] == kinds


def test_a_number_that_goes_from_int_to_float_is_no_static_argument(watched):
    """JAX compares the call with the gradient's, too, which has the same name, and lacks the number."""

    @jax.jit
    def penalty(x, rate=0):
        return jnp.sum(x) * rate

    slope = jax.jit(jax.grad(penalty))

    def program():
        for rate in (0, 0.5):
            penalty(ONES, rate=rate)
            slope(ONES)
            slope(ONES)

    *_, last = (c for c in watched(program).log.compiled if c.explained)
    assert [(change.kind, change.now) for change in last.changes] == [("dtype", "0.5")]


@pytest.mark.parametrize(("over", "words"), [("steps", True), ("range(3)", False)])
def test_a_list_that_is_padded_becomes_a_scan_where_the_jitted_function_loops_over_it(over, words, places):
    at = places(
        "@jax.jit\ndef total(w, steps):\n    def loss(w):\n        out = 0.0\n"
        f"        for s in {over}:\n            out += w * s\n        return out\n"
        "    return jax.grad(loss)(w)\n\nfor steps in episodes:\n    w = total(w, steps)\n"
    )(11)
    calls = []
    for n in range(2, 9):
        change = Change("structure", "argument 1", "list of length 1", f"list of length {n}")
        stages = {"compile": (float(n), n + 0.5)}
        calls.append(Compiled("total", at, stages, True, f"{at.file}:2", (change,)))
    (finding,) = traces.find_retraces(Analysis(Log("a", 0.0, 40.0, compiled=calls)))
    assert finding.cause == "structure"
    assert (f"The loop over steps at {at._replace(line=5)} becomes jax.lax.scan" in finding.besides) == words


@pytest.mark.parametrize(("times", "found"), [((1, 40), []), ((7, 7), ["new function"])])
def test_functions_that_are_made_once_and_called_again_and_again_are_no_new_ones(times, found):
    """Each of three is traced in the first turn of a loop, or each in a third of it."""
    at, between, after = Place("a.py", 3), *times
    calls, now = [], 0.0
    waits = []
    for turns in (between, between, after):
        calls.append(Compiled("step", at, {"compile": (now, now + 1.0)}, True, "a.py:1"))
        waits += [Wait("float", at, now + 1 + n / 10, now + 1 + n / 10, 4) for n in range(turns)]
        now += 10.0
    findings = traces.find_retraces(Analysis(Log("a", 0.0, 40.0, compiled=calls, waits=waits)))
    assert [f.cause for f in findings] == found


BODY = """HloModule jit_step, entry_computation_layout={(f32[ROWS]{0})->f32[ROWS]{0}}, x=1

ENTRY %main () -> f32[] {
  %x.1 = f32[ROWS]{0} parameter(0)
  %y.1 = f32[ROWS]{0} while(%x.1), backend_config={"known_trip_count":{"n":"TURNS"}}
  ROOT %z.1 = f32[ROWS]{0} OPERATION(%y.1)
}
"""


def programs_of(values, **replacements):
    compiled, programs = [], []
    for i, now in enumerate(values):
        text = BODY
        for name, texts in {"ROWS": (8,), "TURNS": (4,), "OPERATION": ("tanh",), **replacements}.items():
            text = text.replace(name, str(texts[i % len(texts)]))
        changes = (Change("static value", "n", values[i - 1], now),) if i else ()
        stages = {"compile": (float(i), i + 0.5)}
        compiled.append(Compiled("step", Place("a.py", 3), stages, True, "a.py:1", changes))
        programs.append(Facts("step", "cpu", 1.0, 1.0, text=text))
    return Analysis(Log("a", 0.0, 9.0, compiled=compiled, programs=programs))


PAIRS = "(0.9, 1)", "(0.5, 1)", "(1e-05, 1)"
NUMBERS, TEXTS, MODULES = ("1", "2", "3"), ("'tanh'", "'sin'", "'exp'"), ("Net(n=1)", "Net(n=2)", "Net(n=3)")


@pytest.mark.parametrize(
    ("values", "replacements", "kinds"),
    [
        (NUMBERS, {}, ["static value"]),
        (NUMBERS, {"ROWS": (8, 16, 32)}, []),
        (NUMBERS, {"TURNS": (8, 16, 32)}, []),
        (NUMBERS, {"OPERATION": ("tanh", "sin", "exp")}, ["static value"]),  # jnp.where chooses
        (NUMBERS, {"ROWS": (8, 8, 32)}, ["static value"]),  # the first two differ by the value alone
        (TEXTS, {}, ["static value"]),
        (PAIRS, {"OPERATION": ("tanh", "sin", "exp")}, ["static value"]),
        (TEXTS, {"OPERATION": ("tanh", "sin", "exp")}, []),
        (MODULES, {"ROWS": (8, 16, 32)}, []),
        (("<Net object at 0x1>", "<Net object at 0x2>", "<Net object at 0x3>"), {}, ["static object"]),
        (("<Net object at 0x1>", "<Net object at 0x2>", "<Net object at 0x3>"), {"ROWS": (8, 16, 32)}, []),
    ],
)
def test_a_static_value_may_be_a_size_a_number_of_turns_or_a_model(values, replacements, kinds):
    assert [f.cause for f in traces.find_retraces(programs_of(values, **replacements))] == kinds


def test_a_retrace_by_a_weak_type_is_named_with_its_line(findings_of):
    step = stepped()

    def program():
        x = step(0.1)
        step(x + jnp.float32(1))

    (finding,) = findings_of(program)
    assert finding.cause == "weak type" and finding.at.source == "step(x + jnp.float32(1))"


def test_a_static_object_that_prints_the_same_is_another_object_and_is_made_once(findings_of):
    @dataclass(eq=False)
    class Config:
        rate: float = 0.1

    @partial(jax.jit, static_argnums=1)
    def configured(x, config):
        return x * config.rate

    (finding,) = findings_of(lambda: [configured(jnp.ones(2), Config(rate=0.1)) for _ in range(3)])
    assert finding.cause == "static object" and "another " in finding.reason
    assert " 0x" not in finding.reason
    assert re.search(r"another (Config\(rate=0\.1\)|<Config object>) each time", finding.reason)  # JAX 0.12
    change = advice_for(finding).change
    assert change.startswith("Make config once, before the loop, and change it no more, since configured")


class Solver:
    def __init__(self, dt, order):
        self.dt, self.options = dt, {"order": order}


@partial(jax.jit, static_argnames="solver")
def integrate(x, solver):
    for _ in range(solver.options["order"]):
        x = x + solver.dt * jnp.sin(x)
    return x * solver.dt


ORDERS, STEPS = (1, 2, 3, 4), (0.5, 1.0, 0.7, 2.0)  # XLA leaves out a multiplication by 1


@pytest.mark.parametrize(
    ("solvers", "changes", "besides"),
    [
        ([(dt, 2) for dt in STEPS], ["solver.dt"], ""),
        ([(0.1, order) for order in ORDERS], [], ""),  # which chooses the operations
        ([(dt, order) for dt in STEPS for order in ORDERS], ["solver.dt"], ""),
        ([(dt, 2) for dt in STEPS * 2], ["solver.dt"], "The 8 objects have 4 different values"),
    ],
)
def test_numbers_in_static_objects_are_named_unless_they_choose_the_operations(
    solvers, changes, besides, findings_of
):
    jax.clear_caches()
    objects = [Solver(*each) for each in solvers]
    findings = findings_of(lambda: [integrate(ONES, solver=each) for each in objects])
    assert [f.argument for f in findings] == changes
    for finding in findings:
        assert finding.cause == "static object" and "dt goes from 0.5 to 1.0" in finding.reason
        change = advice_for(finding).change
        assert change.startswith("Pass solver.dt to integrate as ordinary arguments; or register")
        assert finding.besides.startswith(besides) and ("__eq__" in change) == bool(besides)


def test_a_static_number_beside_a_static_object_may_choose_the_operations(findings_of):
    @partial(jax.jit, static_argnums=(1, 2))
    def several(x, solver, times):
        for _ in range(times):
            x = jnp.sin(x) * solver.dt
        return x

    calls = [(Solver(dt, 2), times) for dt, times in zip(STEPS, ORDERS)]
    assert findings_of(lambda: [several(ONES, *call) for call in calls]) == []
    calls = [(Solver(dt, 2), times) for dt in STEPS for times in ORDERS]
    (finding,) = findings_of(lambda: [several(ONES, *call) for call in calls])
    assert finding.argument == "solver.dt"


@dataclass(frozen=True)
class Weights:
    data: float
    depth: int = 2


def test_numbers_in_what_a_new_function_captures_are_arguments(findings_of):
    class Agent:
        def __init__(self, rate):
            self.rate, self.name, self.update = rate, f"agent {rate}", jax.jit(self.step)

        def step(self, x):
            return x * self.rate

    def fit(weights):
        return jax.jit(lambda x: x * weights.data + weights.depth)(ONES)

    findings = findings_of(lambda: [(fit(Weights(n / 8)), Agent(n).update(ONES)) for n in range(1, 6)])
    assert {f.name: (f.cause, f.argument) for f in findings} == {
        "<lambda>": ("new function", "weights.data"),
        "step": ("new function", "self.rate"),
    }


@jax.tree_util.register_dataclass
@dataclass
class Layer:
    w: jax.Array
    scale: float = field(metadata={"static": True})


@jax.jit
def apply(layer, x):
    for _ in range(layer.scale if isinstance(layer.scale, int) else 1):
        x = layer.w * x * layer.scale
    return x


@pytest.mark.parametrize(("scales", "forms"), [((0.1, 0.2, 0.3), ["static fields"]), ((1, 2, 3), [])])
def test_numbers_in_static_fields_of_a_pytree_are_data_unless_they_choose_the_operations(
    scales, forms, findings_of
):
    jax.clear_caches()
    findings = findings_of(lambda: [apply(Layer(ONES, scale), ONES) for scale in scales])
    assert [f.form for f in findings] == forms
    assert all("Make the numbers that vary data" in advice_for(f).change for f in findings)


def test_a_new_object_is_the_reason_where_an_earlier_call_had_the_same_arrays(watched):
    scaled, objects = jax.jit(lambda o, x: x * 2, static_argnums=0), (object(), object())
    analysis = watched(lambda: [scaled(each, jnp.ones(n)) for each in objects for n in (2, 5)])
    changes = [c.changes for c in analysis.log.compiled if c.explained]
    assert [[change.kind for change in each] for each in changes[2:]] == [["static value"]] * 2


def test_the_length_of_a_long_list_is_the_reason_and_not_its_first_numbers(watched):
    """They are traced, as numbers of Python that are not static."""
    total = jax.jit(lambda x, batch: x * sum(batch["ids"]) * batch["flag"])
    batches = [{"ids": [*range(first, 200)], "flag": first > 0} for first in (0, 90)]
    analysis = watched(lambda: [total(ONES, batch) for batch in batches])
    (_, (change,)) = (c.changes for c in analysis.log.compiled if c.explained)
    assert change.kind == "structure" and "length 200" in change.before and "length 110" in change.now


def test_functions_of_one_new_object_are_one_finding():
    change = Change("static value", "argument 0", "<Net object at 0x1>", "<Net object at 0x2>")
    compiled = [
        Compiled(name, Place("a.py", 3), {"compile": (i, i + 0.1)}, True, f"a.py:{line}", (change,))
        for i, (name, line) in enumerate([("update", 1), ("evaluate", 5)] * 3)
    ]
    (finding,) = traces.find_retraces(Analysis(Log("a", 0.0, 9.0, compiled=compiled)))
    assert (finding.name, round(finding.seconds, 3)) == ("update and evaluate", 0.4)


GROWING = "for n in range(9):\n    out = step(x)\n    x = jnp.concatenate([x, out], 1)\n"
COLLECTED = "for n in range(9):\n    words.append(n)\n    step(jnp.array(words))\n"
NEW = "for n, x in enumerate(images):\n    x = jnp.expand_dims(x, 0)\n    step(x)\n"


@pytest.mark.parametrize(
    ("sizes", "text", "form"),
    [
        ((3, 4, 5, 6, 7), GROWING, "grows"),
        ((3, 4, 5, 6, 7), COLLECTED, "grows"),
        ((3, 4, 5, 6, 7), NEW, ""),  # from short to long
        ((3, 9, 4, 12, 7), GROWING, ""),
    ],
)
def test_a_varying_axis_is_named_and_a_growing_one_gets_its_final_length(sizes, text, form, program_file):
    at = Place(program_file(text), 1 + text[: text.index("step(")].count("\n"))
    types = [f"f32[2,{n}]" for n in sizes]
    changes = [(), *((Change("shape", "argument 0", *pair),) for pair in itertools.pairwise(types))]
    compiled = [
        Compiled("step", at, {"compile": (i, i + 0.5)}, True, "a.py:1", change)
        for i, change in enumerate(changes)
    ]
    (finding,) = traces.find_retraces(Analysis(Log("a", 0.0, 9.0, compiled=compiled)))
    assert (finding.cause, finding.axis, finding.form) == ("shape", "1", form)
    assert " along axis 1," in advice_for(finding).change


@pytest.mark.parametrize(
    ("dtype", "call", "form"),
    [
        ("i32", "for n in range(9):\n    near(table)\n", "indices"),
        ("f32", "for n in range(9):\n    near(table)\n", ""),
        # of a lambda, the name of the parameter says what is passed
        (
            "i32",
            "score = jax.jit(lambda w, ids: ids)\nfor n in range(9):\n    score(w, ids)\n    ids.append(n)\n",
            "grows",
        ),
        (
            "i32",
            "score = jax.jit(lambda w, ids: ids)\nfor n in range(9):\n    score(ids, w)\n    ids.append(n)\n",
            "indices",
        ),
    ],
)
def test_indices_are_not_padded_with_zeros(dtype, call, form, program_file):
    path = program_file(call)
    at, name = (
        Place(path, call[: call.index("(table" if "table" in call else "    score(")].count("\n") + 1),
        "near",
    )
    if "lambda" in call:
        at, name = Place(path, 3), "<lambda>"
    types = [f"{dtype}[2,{n}]" for n in (3, 4, 5, 6, 7)]
    changes = [(), *((Change("shape", "ids", *pair),) for pair in itertools.pairwise(types))]
    compiled = [
        Compiled(name, at, {"compile": (i, i + 0.5)}, True, f"{path}:1", change)
        for i, change in enumerate(changes)
    ]
    (finding,) = traces.find_retraces(Analysis(Log("a", 0.0, 9.0, compiled=compiled)))
    assert finding.form == form
    assert ("0 is one" in advice_for(finding).change) == (form == "indices")


def made(**outside):
    rate, table, never = outside["rate"], outside["table"], None
    if rate is None:
        del never

    @jax.jit
    def step(x, scale=outside["scale"]):
        return x if rate is None and never else x * rate * table * scale

    return step


@pytest.mark.parametrize(
    ("outside", "message", "change"),
    [
        (lambda n: {"rate": n}, "rate in its closure goes from 1 to 2", "with rate as"),
        (lambda n: {"table": jnp.ones(3)}, "table in its closure is another float32[3]", "with table as"),
        (
            lambda n: {"rate": n, "scale": -n},
            "and scale in its closure goes from -1 to -2; rate in its closure goes from 1 to 2",
            "with scale, rate as",
        ),
        (lambda n: {}, "each call makes a new function object", "what varies is an argument"),
    ],
)
def test_what_a_new_function_has_from_outside_is_told_where_it_changes(outside, message, change, findings_of):
    same = {"rate": 3, "table": ONES, "scale": 4}
    arrays = [outside(n) for n in (1, 2, 3)]  # alive together, so that each is an object of its own
    findings = findings_of(lambda: [made(**same | values)(ONES) for values in arrays])
    (finding,) = (f for f in findings if f.name == "step")
    assert finding.cause == "new function" and finding.reason.endswith(message)
    assert change in advice_for(finding).change


def test_an_optimizer_in_the_closure_is_made_once_like_the_function(findings_of):
    optimizers = []  # all alive, so that no two of them have the same address

    def fit():
        optimizers.append(tx := optax.sgd(0.1))

        @jax.jit
        def descend(w):
            return w + jnp.asarray(tx.update(w, tx.init(w))[0])

        descend(ONES)

    (finding,) = (f for f in findings_of(lambda: [fit() for _ in range(3)]) if f.name == "descend")
    assert finding.argument == "tx" and "tx in its closure is another GradientTransf" in finding.reason
    change = advice_for(finding).change
    assert "make tx once, before that" in change and "optax.inject_hyperparams" in change
    assert re.search(r"descend of .*test_traces.py:\d+ was traced 3 times", finding.reason)


def test_what_clear_caches_makes_jax_forget_is_told_from_a_new_function(watched):
    step = stepped()

    def program():
        for n in (0, 1, 2):
            step(jnp.ones(5), n=0)
            _ = jnp.ones(5) * 1.5
            if n < 2:
                jax.clear_caches()  # here

    analysis = watched(program)
    (finding,) = traces.find_cleared_caches(analysis)
    assert finding.at.source.endswith("# here") and "step" in finding.reason
    assert (
        list(traces.find_retraces(analysis)) == []
        and list(small_programs.find_eager_recompiles(analysis)) == []
    )
    assert advice_for(finding).change.startswith("Leave it out")
    again = [c for c in analysis.log.compiled if c.called == "step"]
    assert [bool(c.cleared) for c in again] == [False, True, True]


def test_after_clear_caches_another_shape_and_a_new_function_keep_their_reasons(findings_of):
    step = stepped()

    def program():
        for n in (6, 7, 8):
            step(jnp.ones(n))
            jax.jit(lambda x, n=n: x * n)(ONES)
            jax.clear_caches()

    assert sorted(f.cause for f in findings_of(program)) == ["new function", "shape"]


def lengthened():
    rows = jnp.zeros((0, 3))
    for _ in range(6):
        rows = jnp.concatenate([rows, jnp.ones((1, 3))])
    return rows


def smoothed():
    def score(x):
        return jnp.sum(jnp.tanh(x) * jnp.cosh(x)) / jnp.max(jnp.abs(x))

    return [score(np.linspace(1.0, 2.0, n, dtype=np.float32)) for n in range(11, 18)]


rows, numbers = jnp.zeros((64, 3)), jnp.arange(64.0)
REASONS = {
    "eager shapes": "for new shapes", "eager recompiles": "small programs are compiled here",
    "new body": "a new body function",
}  # fmt: skip


@pytest.mark.parametrize(("program", "cause", "change"), [
    (lengthened, "eager shapes", "Collect the parts in a Python list"),
    (lambda: [rows[:n] for n in range(1, 7)], "eager shapes", "Pad to a few sizes"),
    (lambda: [numbers[numbers > n] for n in range(0, 60, 7)], "eager shapes", "(x)[np.asarray(mask)]"),
    (smoothed, "eager shapes", "Jit score as a whole: it compiles one program"),
    (lambda: [jax.lax.reduce_precision(rows, 5, n) for n in range(1, 7)], "eager recompiles", ""),
    (lambda: [jnp.eye(n) for n in range(31, 38)], "eager recompiles", ""),
    (lambda: [jax.lax.fori_loop(0, 3, lambda i, x, n=n: x * n, ONES) for n in range(6)], "new body", ""),
    (lambda: [jax.lax.scan(lambda c, x, n=n: (c + n, x), 0.0, ONES) for n in range(6)], "new body", ""),
])  # fmt: skip
def test_what_an_operation_outside_jit_is_compiled_for_is_told(program, cause, change, monkeypatch, watched):
    monkeypatch.setattr(small_programs, "SMALL_S", -1.0)  # however fast the machine is
    jax.clear_caches()
    analysis = watched(program)
    reason = "more operations" if program is smoothed else REASONS[cause]
    findings = [f for f in small_programs.find_eager_recompiles(analysis) if f.cause == cause]
    assert findings and reason in findings[0].reason
    assert change in advice_for(findings[0]).change
    assert list(traces.find_retraces(analysis)) == []


def test_a_function_whose_traces_jax_explains_no_longer_is_no_operation_outside_jit(program_file):
    at = Place(program_file("for n in sizes:\n    state = advance(state[:n])\n"), 2)
    names = {"advance": 5, "concatenate": 0}  # of each, so many traces are explained
    found = []
    for name, explained in names.items():
        spans = [{"trace": (t, t + 0.1), "compile": (t + 0.1, t + 0.9)} for t in range(30)]
        compiled = [Compiled(name, at, span, explained=t < explained) for t, span in enumerate(spans)]
        found.append(
            list(small_programs.find_eager_recompiles(Analysis(Log("a", -1.0, 40.0, compiled=compiled))))
        )
    assert not found[0] and found[1]


SHARDED = """import jax
def square(x):
    return x * x
{decorator}
def summed(x):
    y = square(x)
    return jax.lax.psum(y, "d")
class Total:
    def __call__(self, x):
        return {call}
"""


@pytest.mark.parametrize(
    ("decorator", "call", "form"),
    [
        ("@jax.jit", "jax.shard_map(summed, mesh=MESH)(x)", "shard_map"),
        ("@partial(jax.shard_map, mesh=MESH)", "summed(x)", "shard_map"),
        ("@jax.jit", "jax.shard_map(square, mesh=MESH)(x) + summed(x)", "shard_map"),
        ("@jax.jit", "summed(x)", "function"),
    ],
)
def test_programs_that_equal_an_earlier_one_are_saved_whole(decorator, call, form, places):
    at = places(SHARDED.format(decorator=decorator, call=call))
    callers = (at("y = square(x)", "summed"), at("return " + call[:5], "__call__"))
    # four operations, of which the first two compile in 0.1 s and the others in 0.5 s
    facts = [Facts("multiply", "cpu", 1.0, 1.0) for _ in range(4)]
    for known, seconds in ((True, 2.8), (False, 1.6)):
        compiled = [
            Compiled(
                "multiply", at("return x * x", "square"), {"compile": (t, t + (0.1 if t % 4 < 2 else 0.5))},
                callers=callers, facts=facts[t % 4] if known else None,
            )
            for t in range(12)
        ]  # fmt: skip
        (finding,) = small_programs.find_eager_recompiles(Analysis(Log("a", 0.0, 12.0, compiled=compiled)))
        assert finding.seconds == pytest.approx(seconds)
        assert ("8 of them equal an earlier one" in finding.reason) == known
        assert finding.form == form


def test_a_call_that_is_mapped_or_no_longer_mapped_says_so(watched):
    @jax.jit
    def scaled(x):
        return jnp.sin(x) * 2

    @jax.jit
    def rotated(x):
        return jnp.cos(x) * 3

    def run(x):
        return scaled(x) + 1

    def program():
        run(jnp.ones(3))
        jax.vmap(run)(jnp.ones((2, 3)))
        jax.vmap(lambda x: rotated(x) + 1)(jnp.ones((2, 3)))
        rotated(jnp.ones(3))

    reasons = {c.called: [str(change) for change in c.changes] for c in watched(program).log.compiled}
    assert reasons["scaled"] == ["made of it by jax.grad, vmap or the like"]
    assert reasons["rotated"] == ["called outside of jax.grad or vmap"]


def test_a_program_for_another_device_is_the_readers_and_no_finding(watched):
    step = stepped()
    arrays = [jax.device_put(jnp.ones(9), d) for d in jax.devices()[:4]]
    analysis = watched(lambda: [step(x) for x in arrays])
    calls = [c for c in analysis.log.compiled if c.called == "step"]
    assert len(calls) == len(arrays) and all(c.explained for c in calls)
    assert {str(c.changes[0]) for c in calls[1:]} == {"the same trace, used in another way"}
    assert [*traces.find_retraces(analysis), *traces.find_placements(analysis)] == []


@pytest.mark.parametrize(
    ("copies", "parameters", "expected"),
    [
        (300, 3, {"w": 4000, "x": 16}),  # all that are NumPy at the first call, each time
        (100, 3, {"x": 16}),  # the parameters come back as arrays of JAX
        (200, 4, {"x": 16}),  # and a number of Python's is handed over as well
        (0, 3, {}),
    ],
)
def test_of_the_arrays_of_the_first_call_those_of_later_ones_count(copies, parameters, expected):
    signature = {"w": "float32[1000]", "x": "float32[4]", "y": "float32[1000]"}
    c = Compiled("step", NOWHERE, host={"w": 4000, "x": 16}, signature=signature)
    types = ", ".join(["f32[4]{0}"] * parameters)
    head = f"HloModule jit_step, entry_computation_layout={{({types})->f32[4]{{0}}}}, x=1\n"
    program = ExecutedProgram("step", calls=100, copies=copies)
    facts = Facts("step", "cpu", 1.0, 1.0, text=head)
    activity = DeviceActivity(programs={"step": program})
    note_copied_arguments(Log("a", compiled=[c], programs=[facts], activity=activity))
    assert c.host == expected and c.host_bytes == sum(expected.values())


@pytest.mark.parametrize("alike", [False, True])
def test_arrays_that_are_committed_only_sometimes_compile_a_second_program(alike, watched):
    step, free = stepped(), jnp.ones(61)
    fixed = jax.device_put(free, jax.devices()[0])
    arrays = (fixed, fixed) if alike else (free, fixed)
    analysis = watched(lambda: [step(x) for x in arrays])  # here
    findings = list(traces.find_placements(analysis))
    assert [f.cause for f in findings] == ([] if alike else ["placement"])
    for finding in findings:
        assert finding.at.source.endswith("# here") and "argument 0" in finding.reason
        assert "not committed, on device 0 -> committed to device 0" in finding.reason


@pytest.mark.parametrize("placed", [False, True])
def test_a_state_that_joins_the_mesh_of_the_data_is_put_there_before(placed, watched):
    step = jax.jit(lambda state, x: {"n": state["n"] + 1, "w": state["w"] + x.sum()})
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("rows",))
    x = jax.device_put(np.ones(6), jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("rows")))

    def program():
        state = {"n": 0, "w": jnp.zeros(67)}  # the number's result is weak, too
        if placed:
            state = jax.device_put(state, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec()))
        for _ in range(3):
            state = step(state, x)

    analysis = watched(program)
    assert not list(traces.find_retraces(analysis))
    findings = list(traces.find_placements(analysis))
    assert [(f.form, f.argument) for f in findings] == ([] if placed else [("mesh", "state")])
    for finding in findings:
        assert "state['n']: no mesh -> a mesh with Auto: ('rows',); and so for 1 more" in finding.reason


def test_a_number_in_place_of_a_weak_array_changes_no_type():
    assert argument_changes({"n": "0"}, {"n": "int32[]"}, {"n"}) == ()
    assert [c.kind for c in argument_changes({"n": "0"}, {"n": "int32[]"})] == ["weak type"]


def test_the_part_of_a_graph_that_is_new_each_time_is_named(watched):
    @nnx.jit
    def step(optimizer, model):
        optimizer.update(model, nnx.state(model, nnx.Param))

    def program():
        for _ in range(3):
            model = nnx.Linear(2, 2, rngs=nnx.Rngs(0))
            step(nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param), model)

    (finding,) = (f for f in traces.find_retraces(watched(program)) if f.name == "Optimizer")
    assert (finding.cause, finding.argument) == ("static part", "tx")
    assert "tx of the Optimizer" in finding.reason and "GradientTransformation" in finding.reason


@pytest.mark.parametrize(
    ("before", "now", "kind"),
    [
        ("'relu'", "'gelu'", "gelu"),
        ("7", "-8", "-8"),
        ("<function swish at 0x71>", "<function swish at 0x72>", "swish"),
        ("<function Block.<locals>.gate at 0x71>", "<function Block.<locals>.gate at 0x72>", "gate"),
        (
            "<optax._src.base.Chain object at 0x71>",
            "<optax._src.base.Chain object at 0x72>",
            "optax._src.base.Chain",
        ),
    ],
)
def test_the_part_in_which_two_printed_graphs_differ_has_a_name_and_a_value(before, now, kind):
    graph = "GraphDef(nodes=[NodeDef(type='Block', index=0)], attributes=[('n', Static(value=3)), "
    texts = (f"{graph}('activation', Static(value={value})), ('w', NodeAttr())])" for value in (before, now))
    assert differing_part(*texts) == ("activation", kind, "Block")


class Counting(nnx.Module):
    def __init__(self):
        self.turns, self.gate = 0, nnx.Linear(2, 2, rngs=nnx.Rngs(0))

    def __call__(self, x):
        self.turns += 1
        return self.gate(x)


class Storing(nnx.Module):
    def __init__(self):
        self.gate = nnx.Linear(2, 2, rngs=nnx.Rngs(0))

    def __call__(self, x):
        self.squash = lambda y: jnp.tanh(self.gate(y))
        return self.squash(x)


@pytest.mark.parametrize(
    ("module", "cause", "how", "change"),
    [
        (
            Counting,
            "static value",
            "turns of the Counting, which {} sets, goes from 1 to 2",
            "nnx.Variable(jnp.",
        ),
        (
            Storing,
            "static part",
            "squash of the Storing, which {} sets, is another lambda each time",
            "__init__",
        ),
    ],
)
def test_a_module_that_changes_in_each_call_is_named_with_the_line(module, cause, how, change, watched):
    """JAX compares each call with the first, to which the module's first call has added an attribute."""
    step = nnx.jit(lambda model, x: model(x).sum())

    def program():
        model = module()
        for _ in range(4):
            step(model, np.ones((2, 2)))

    (finding,) = traces.find_retraces(watched(program))
    line = inspect.getsourcelines(module.__call__)[1] + 1
    assert finding.cause == cause
    assert how.format(Place(__file__, line)) in finding.reason
    assert change in advice_for(finding).change


@pytest.mark.parametrize(("grows", "kinds"), [(False, ["new function"]), (True, [])])
def test_new_functions_that_capture_ever_larger_arrays_would_not_share_a_program(grows, kinds, findings_of):
    def program():
        seen = jnp.ones(41)
        for _ in range(5):
            seen = jnp.append(seen, 1.0) if grows else seen + 1
            total = jax.jit(lambda x, seen=seen: x * jnp.sum(jnp.cos(seen)))
            total(jnp.ones(43))

    assert [f.cause for f in findings_of(program) if f.cause == "new function"] == kinds


@pytest.mark.parametrize(("sizes", "kinds"), [((71, 75, 79, 83), ["new function"]), ((16, 32, 64, 128), [])])
def test_functions_that_are_made_anew_for_each_size_share_one_if_padding_does_it(sizes, kinds, findings_of):
    def program():
        for n in sizes:
            batch = np.ones(n)
            doubled = jax.jit(lambda x: x * 2)
            doubled(batch)

    findings = findings_of(program)
    assert [f.cause for f in findings] == kinds
    for finding in findings:
        assert finding.reason.endswith("and batch has another shape, too")
        assert "Pad batch to a few sizes, too" in advice_for(finding).change
