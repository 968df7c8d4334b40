import os
import runpy

import jax
import jax.numpy as jnp
import pytest

import jaxperf
from jaxperf.watch import log as events
from jaxperf.watch.log import Compiled, DeviceActivity, ExecutedProgram, Log, StackSample, Wait
from jaxperf.watch.observe import on_cpu
from jaxperf.watch.observe.compiles import Compiles
from jaxperf.watch.observe.hooks import Replacements
from jaxperf.watch.observe.memory import MemoryReadings
from jaxperf.watch.observe.sampler import Sampler
from jaxperf.watch.observe.source_location import Place
from jaxperf.watch.report.analysis import Analysis
from jaxperf.watch.rules import habits, idle

MB = 1 << 20


def readings(*resident_mb, arrays=lambda i: ()):
    step = 10.0 / (len(resident_mb) - 1)
    return [events.Memory(i * step, int(mb * MB), arrays=arrays(i)) for i, mb in enumerate(resident_mb)]


def growth(memory, compiled=None):
    busy = ExecutedProgram("step")
    busy.devices["cpu 0"].append((0.0, 1.0))
    activity = DeviceActivity([(0.0, 1.0)], {"step": busy})
    log = Log("a", 0.0, 10.0, memory=memory, activity=activity, compiled=compiled or [])
    return list(habits.growth_notes(Analysis(log)))


def kept(i):
    return (events.LiveArrays("float32[1000,250]", 10 + 20 * i, (10 + 20 * i) * MB, Place("a.py", 7)),)


@pytest.mark.parametrize(
    ("resident_mb", "noted"),
    [
        (range(500, 800, 20), True),
        ([500] * 15, False),
        ([500, 800, *[800] * 13], False),  # what is loaded once
        ([500 + i / 10 for i in range(15)], False),  # too little
        ([*range(500, 740, 40), *[740] * 9], False),  # it has ended
        ([*range(500, 800, 30), 500, 500, 500], True),  # and what it kept was dropped
    ],
)
def test_memory_is_noted_if_it_grows_steadily_to_the_end(resident_mb, noted):
    notes = growth(readings(*resident_mb, arrays=kept))
    assert len(notes) == noted
    assert all("more arrays float32[1000,250], made at a.py:7, stay alive" in note for note in notes)


def test_growth_without_arrays_of_jax_says_so_or_names_the_compilations():
    assert growth(readings(*range(500, 800, 20))) == []  # a list that is built
    (note,) = growth(readings(*range(500, 2000, 100)))
    assert "arrays of JAX do not explain it" in note
    many = [Compiled("f", Place("a.py", 3), {"trace": (i / 10 - 1, i / 10 - 0.95)}) for i in range(60)]
    assert growth(readings(*range(500, 800, 20)), many) == []  # too little to free
    (note,) = growth(readings(*range(500, 2000, 100)), many)
    assert "programs were compiled meanwhile" in note


KEEPS = """
import jax, jax.numpy as jnp
from jaxperf.watch import session
memory = session._open_watch.memory
step = jax.jit(lambda x, i: x * 0.5 + i)
class Trainer:
    def __init__(self):
        self.history = []
    def run(self):
        x = jnp.ones((256, 1024))
        for i in range(60):
            x = step(x, i)
            self.history.append((i, x))  # keeps
            memory._listed_at = memory._list_after = 0.0
            memory.read()
Trainer().run()
"""


def test_the_line_that_keeps_appending_arrays_is_named(tmp_path, monkeypatch):
    """The arrays are those of a program, and the times are of a run of ten seconds."""
    path = tmp_path / "train.py"
    path.write_text(KEEPS)
    # the program says when memory is read, and no sample comes between
    monkeypatch.setattr(MemoryReadings, "look", lambda self: None)
    monkeypatch.setattr(Sampler, "_look", lambda self: None)
    with jaxperf.watch("train.py", show=False, profile=False) as watched:
        runpy.run_path(str(path), run_name="__main__")
    log = watched.log
    begin, read = Analysis(log).begin, enumerate(log.memory[:60])
    log.memory = [m._replace(when=begin + i / 6, resident=(100 + i) * MB, device=0) for i, m in read]
    log.end = begin + 10
    (note,) = habits.growth_notes(Analysis(log))
    assert "more arrays float32[256,1024], made at " in note
    assert "stay alive in self.history (" in note and "train.py:" in note


TIMED = """
import time

def run(step, x, n):
    start = time.perf_counter()
    for _ in range(n):
        x = step(x)
    {wait}
    seconds = time.perf_counter() - start
    begun = time.time()
    y = step(x)
    done = time.time()
    return done - begun, y
"""


@pytest.fixture
def timed(tmp_path_factory):
    def notes(wait="pass", *, at=7, waited_at=0, function="run", device_s=1e-2, computed_s=0.0, turn_s=2e-4):
        path = tmp_path_factory.mktemp("timed") / "train.py"
        path.write_text(TIMED.replace("{wait}", wait))
        place = Place(str(path), at, "run")
        ran = ExecutedProgram("step", calls=9, dispatch_s=[1e-4] * 9, run_s=[device_s] * 9, whole=9)
        ran.devices["cpu 0"].append((0.0, 9 * device_s))
        ran.computed_s, ran.turns_s = computed_s, [turn_s] * 8
        waits = [Wait("float", place._replace(line=waited_at, function=function), 1.0, 1.1, 4)]
        seen = {"waits": waits[:waited_at], "compiled": [Compiled("step", place, explained=True)]}
        log = Log("a", 0.0, 2.0, **seen, activity=DeviceActivity([(0.0, 1.0)], {"step": ran}))
        return list(habits.timing_notes(Analysis(log)))

    return notes


def test_a_time_around_calls_is_noted_with_its_lines_unless_it_includes_a_wait_or_is_dispatch(timed):
    (note,) = timed()
    assert "train.py:9 takes, from line 5 on" in note and "dispatching step (line 7)" in note
    assert "100 us" in note and "10 ms" in note
    assert timed(computed_s=9e-2) == []  # the calls return when all is computed
    (note,) = timed(at=11)
    assert "train.py:12 takes, from line 10 on" in note
    assert timed("x.block_until_ready()", waited_at=8) == []
    assert timed("check(x)", waited_at=40, function="check") == []  # waits inside a function
    assert timed(device_s=1.5e-4) == []
    assert timed(turn_s=1.1e-2) == []  # a turn of the loop that is timed takes as long as the device
    assert len(timed(at=11, turn_s=1.1e-2)) == 1  # a turn of the loop around the time may wait elsewhere
    assert len(timed("check(x)", waited_at=40, function="another")) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.filterwarnings("ignore:os.fork")
@pytest.mark.filterwarnings("ignore:This process")
def test_a_fork_after_jax_has_started_is_noted_at_its_line(watched):
    jnp.ones(3)

    def program():
        child = os.fork()
        if not child:
            os._exit(0)
        os.waitpid(child, 0)

    (note,) = habits.fork_notes(watched(program))
    at = Place(__file__, program.__code__.co_firstlineno + 1)
    assert note.startswith(f"a process was forked at {at} after JAX had started")


@pytest.mark.parametrize(("turn_s", "noted"), [(5e-3, True), (1.2e-3, False)])
def test_pythons_share_of_a_step_of_keras_is_noted(turn_s, noted):
    ran = ExecutedProgram("train_step", calls=30, dispatch_s=[2e-4] * 30, turns_s=[turn_s] * 29,
                          run_s=[1e-3] * 30, whole=30)  # fmt: skip
    ran.devices["cpu 0"].append((0.0, 0.03))
    fit = Compiled("train_step", Place("a.py", 9), owner="keras", through="keras")
    log = Log("a", 0.0, 2.0, compiled=[fit], activity=DeviceActivity([(0.0, 1.0)], {"train_step": ran}))
    said = "5 ms from one step to the next at a.py:9, of which the step is 1 ms"
    notes = [said in note and "steps_per_execution" in note for note in habits.keras_notes(Analysis(log))]
    assert notes == ([True] if noted else [])


@pytest.mark.parametrize(("turn_s", "found"), [(3e-4, True), (1e-4, False)])
def test_a_turn_with_an_accelerator_that_takes_longer_than_the_cpu_is_found(turn_s, found):
    ran = ExecutedProgram("step", calls=100, dispatch_s=[5e-5] * 100, turns_s=[turn_s] * 99)
    ran.devices["gpu 0"].append((0.5, 0.53))
    step = Compiled("step", Place("a.py", 9), {"compile": (0.0, 0.5)}, explained=True)
    log = Log("a", 0.0, 10.5, compiled=[step], backend="gpu", on_cpu={"step": 1e-4},
              activity=DeviceActivity([(0.5, 1.5)], {"step": ran}))  # fmt: skip
    findings = list(habits.find_faster_on_cpu(Analysis(log)))
    assert [f.seconds for f in findings] == ([pytest.approx(2e-4 * 100 * 10)] if found else [])
    assert all("300 us with the gpu" in f.reason and "in 100 us" in f.reason for f in findings)


def test_a_program_kept_from_jaxs_compiler_runs_on_the_cpu(monkeypatch):
    log = Log("a")
    trials, replacements = on_cpu.CpuTrials(log), Replacements()
    compiles = Compiles(log, replacements)
    compiles.on_compiled = [trials.keep]
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    compiles.listen(jax)
    try:
        jax.jit(lambda x, n: jnp.tanh(x @ x)[n])(jnp.ones((71, 71)), 2)
    finally:
        compiles.close()
        replacements.close()
    assert {"lambda"} <= trials._modules.keys()
    assert on_cpu.seconds_on_cpu(str(trials._modules["lambda"])) > 0


@pytest.mark.parametrize(("seconds", "noted"), [(4.0, True), (1.0, False)])
def test_lines_where_python_runs_for_much_of_the_run_are_named(seconds, noted):
    at, other = Place("a.py", 3), Place("a.py", 8)
    samples = [
        StackSample(events.PYTHON, at, 0.0, seconds * 0.8),
        StackSample(events.NUMPY, other, seconds * 0.8, seconds),
        StackSample(events.DISPATCH, Place("a.py", 9), seconds, 10.0),
    ]
    notes = list(habits.python_notes(Analysis(Log("a", 0.0, 10.0, samples=samples))))
    assert bool(notes) == noted
    if noted:
        assert notes[0].startswith("Python runs outside of JAX for 4 s, most of it here: 3.20 s at a.py:3")
        assert "800 ms at a.py:8" in notes[0] and "a.py:9" not in notes[0]


@pytest.mark.parametrize(("seconds", "noted"), [(1.2, True), (0.8, False)])
def test_one_line_of_python_that_takes_a_tenth_of_the_run_is_named(seconds, noted):
    saves, shares = Place("a.py", 5), range(6, 12)
    samples = [StackSample(events.PYTHON, saves, 0.0, seconds)]
    samples += [StackSample(events.PYTHON, Place("a.py", n), float(n), n + 0.1) for n in shares]
    notes = list(habits.python_notes(Analysis(Log("a", 0.0, 11.5, samples=samples))))
    assert [f"at {saves}" in note for note in notes] == ([True] if noted else [])


@pytest.mark.parametrize(
    ("call", "parameters", "seconds"),
    [
        ("optimize.minimize(error, w)", 49, 9.0),
        ("optimize.minimize(error, w, (), 'BFGS', None)", 49, 9.0),
        ("optimize.least_squares(error, w, jac='3-point')", 49, 5.88),
        ("optimize.fsolve(error, w)", 9, 5.4),
        ("optimize.minimize(error, w)", 3, 0.0),
        ("optimize.fmin_cg(error, w)", 9, 5.0),
        ("optimize.minimize(error, w, jac=slope)", 49, 0.0),
        ("optimize.minimize(both, w, (), 'BFGS', True)", 49, 0.0),
        ("optimize.minimize(error, w, method='Nelder-Mead')", 49, 0.0),
        ("optimize.minimize(error, w, **options)", 49, 0.0),
        ("optimize.brentq(error, 0, 1)", 49, 0.0),
        ("anneal.minimize(error, w)", 49, 0.0),
    ],
)
def test_a_solver_of_scipy_without_a_derivative_calls_once_for_each_parameter(
    call, parameters, seconds, places
):
    pytest.importorskip("scipy.optimize")
    at = places(f"from scipy import optimize\ndef error(w):\n    return float(loss(w))\nfit = {call}\n")
    solver, wait = at("fit"), at("return", "error")
    signature = {"w": f"float64[{parameters}]", "data": "float64[9000]"}
    compiled = [Compiled("loss", wait, {"compile": (0.0, 0.0)}, explained=True, signature=signature)]
    samples = [StackSample("dispatch", wait, t, t + 1.0, callers=(solver,)) for t in range(10)]
    waits = [Wait("float", wait, t + 0.5, t + 0.9, 8) for t in range(10)]
    analysis = Analysis(Log("a", 0.0, 10.0, compiled=compiled, samples=samples, waits=waits))
    found = {f.at: f.seconds for f in habits.find_finite_differences(analysis) if f.seconds}
    assert found == ({solver: pytest.approx(seconds)} if seconds else {})
    # with a derivative, too, SciPy needs each value before it goes on
    assert [f.at for f in idle.find_waits(analysis)] == ([] if call.startswith("optimize.") else [wait])


@pytest.mark.parametrize(("call", "solved"), [("odeint(field, x, times)", True), ("field(x, 0.0)", False)])
def test_what_scipy_calls_itself_is_at_the_line_of_the_solver(call, solved, places):
    at = places(f"from scipy.integrate import odeint\nfor x in starts:\n    path = {call}\n")("path")
    log = Log("a", samples=[StackSample("dispatch", at, 0.0, 1.0)])
    assert habits.lines_of_solvers(Analysis(log)) == ({at} if solved else set())
