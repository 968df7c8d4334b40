"""A watch finds each known cause in a small slow program, at its line, and not in the repaired program."""

from __future__ import annotations

import contextlib
import functools
import gc
import io
import linecache
import os
import pickle
import re
import runpy
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from cases import cases

import jaxperf
from jaxperf.chapter import catalogue
from jaxperf.chapter.run_sections import child_environment
from jaxperf.cli import command_line
from jaxperf.errors import JaxperfError
from jaxperf.report.terminal import render_text
from jaxperf.result import Code, Grid, Heading, Text
from jaxperf.result.store import load_result
from jaxperf.watch import Watched, session
from jaxperf.watch.advice.advice import _OTHER, _TEXTS, advice_for
from jaxperf.watch.advice.explanations import parse_explanation
from jaxperf.watch.finding import Finding
from jaxperf.watch.observe import sampler, source_location
from jaxperf.watch.observe.compiles import Compiled
from jaxperf.watch.observe.executables import Facts
from jaxperf.watch.observe.sampler import StackSample
from jaxperf.watch.observe.source_location import NOWHERE, Place, shorten_path
from jaxperf.watch.observe.waits import Wait
from jaxperf.watch.observe.windows import ExecutedProgram, Seen, queued_intervals
from jaxperf.watch.report import text
from jaxperf.watch.report.analysis import Analysis
from jaxperf.watch.rules.find import RULES, find_causes
from jaxperf.watch.rules.programs import find_donations, replaces_argument
from jaxperf.watch.rules.traces import find_retraces
from jaxperf.watch.session import Record

PROGRAMS = Path(__file__).parents[1] / "slow_programs"
FAST = [
    *sorted((Path(__file__).parents[1] / "fast_programs").glob("*.py")),
    Path(__file__).parents[2] / "docs" / "watch" / "train_changed.py",
]
NAMES = sorted(p.stem for p in PROGRAMS.glob("*.py"))
RUNS = 3  # at most: what a device does within a tenth of a second is hard to see on a busy machine
QUICK = ("item_in_loop", "new_jit", "no_prefetch", "varying_static")


@pytest.fixture(autouse=True)
def as_users_do() -> Iterator[None]:
    """Compile as users do, and forget what a program has set."""
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", True)
    jax.config.update("jax_enable_x64", False)
    jax.config.update("jax_debug_nans", False)


def watched(path: Path) -> tuple[Watched, list[Finding]]:
    """What a watch finds in a program."""
    jax.clear_caches()
    with contextlib.redirect_stdout(io.StringIO()), jaxperf.watch(path.name, show=False) as outcome:
        runpy.run_path(str(path), run_name="__main__")
    assert outcome.record is not None
    return outcome, find_causes(Analysis(outcome.record))


def found_in(path: Path, right: Callable[[list[Finding]], bool]) -> tuple[Watched, list[Finding]]:
    """What the first of at most `RUNS` runs finds that is as it should be."""
    runs: list[tuple[list[Finding], list[str], float]] = []
    for _ in range(RUNS):
        outcome, findings = watched(path)
        if right(findings):
            return outcome, findings
        assert outcome.record is not None
        below = [
            f"{f.cause} at {f.at.line}: {f.seconds:.4f} s"
            for rule in RULES
            for f in rule(Analysis(outcome.record))
        ]
        runs.append((findings, below, outcome.record.wall_s))
    pytest.fail(f"no run is as it should be: {runs}")


def cause(path: Path) -> tuple[str, int]:
    """The cause that a program has, and the line that says so."""
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        if "# cause: " in line:
            return line.partition("# cause: ")[2], number
    raise AssertionError(f"{path} names no cause")


def test_every_section_that_advice_names_is_a_heading_of_the_chapter() -> None:
    scripts = [path.read_text() for path in catalogue.folder().glob("*.py")]
    lines = [line for text in scripts for line in re.findall(r"^# #+ (?:[\d.]+ )?(.*)", text, re.M)]
    headings = {line.replace("`", "") for line in lines}
    named = {re.sub(r"^[\d.]+ ", "", text.section) for text in (*_TEXTS.values(), _OTHER)}
    assert named <= headings


@pytest.mark.parametrize("name", cases([(n,) for n in NAMES], quick=lambda n: n in QUICK))
def test_each_cause_is_found_at_its_line(name: str) -> None:
    path = PROGRAMS / f"{name}.py"
    kind, line = cause(path)
    outcome, findings = found_in(
        path, lambda findings: [f.at.line for f in findings if f.cause == kind] == [line]
    )
    finding = next(f for f in findings if f.cause == kind)
    assert finding.at.file == str(path)
    suggestion = advice_for(finding)
    assert suggestion.section
    assert outcome.result is not None
    shown = [b for b in outcome.result.of(Code) if (b.file, b.line) == (shorten_path(str(path)), line)]
    assert all(path.read_text().splitlines()[line - 1].strip() in b.source for b in shown) and shown
    assert {suggestion.change} <= {b.text for b in outcome.result.of(Text)} | {""}
    assert {suggestion.example} <= {b.source for b in outcome.result.of(Code)} | {""}


@pytest.mark.parametrize("name", cases([(n,) for n in NAMES], quick=lambda n: n in QUICK[:1]))
def test_nothing_is_found_once_it_is_repaired(name: str) -> None:
    found_in(PROGRAMS / "fixed" / f"{name}.py", lambda findings: not findings)


@pytest.mark.parametrize("path", cases([(p,) for p in FAST], quick=lambda p: False))
def test_nothing_is_found_in_a_program_without_a_fault(path: Path) -> None:
    found_in(path, lambda findings: not findings)


MISS = """TRACING CACHE MISS at a.py:3 (main):
  for step defined at a.py:1
  all previously seen cache keys differ. For the closest previous key:
"""
STATIC = "<class 'Static'> with pytree metadata Static(val={})"
DICT = "<class 'dict'> with {}"


@pytest.mark.parametrize(
    ("text", "change"),
    [
        ("  * at x, now f32[4] and before f32[3]", ("shape", "x", "f32[3]", "f32[4]")),
        ("  * at x, now i32[3] and before f32[3]", ("dtype", "x", "f32[3]", "i32[3]")),
        (
            "  * at s, now f32[]{weak_type=False} and before f32[]{weak_type=True}https://docs.jax.dev",
            ("weak type", "s", "f32[]{weak_type=True}", "f32[]{weak_type=False}"),
        ),
        (
            f"  * at input path [1]['n'], now {STATIC.format(2)} and before {STATIC.format(1)}, so it",
            ("static value", "n", "1", "2"),
        ),
        (
            f"  * at input path [0][2], now {DICT.format('2 keys')} and before {DICT.format('1 key')}, so it",
            ("structure", "argument 2", DICT.format("1 key"), DICT.format("2 keys")),
        ),
        ("another reason", ("other", "", "", "another reason")),
    ],
)
def test_an_explanation_is_read_and_an_unknown_one_is_kept(text: str, change: tuple[str, ...]) -> None:
    explanation = parse_explanation(MISS + text)
    assert (explanation.name, explanation.defined) == ("step", "a.py:1")
    assert [(c.kind, c.what, c.before, c.now) for c in explanation.changes] == [change]


def test_a_new_function_is_told_from_a_changed_call() -> None:
    new = (
        "TRACING CACHE MISS at a.py:3:4 (main):\n  never seen function:\n    <lambda> id=12 defined at a.py:3"
    )
    assert (
        parse_explanation(new)
        == parse_explanation(f"{new}\n  but seen another one")
        == ("<lambda>", "a.py:3", ())
    )
    assert parse_explanation("TRACING CACHE MISS in words of another release").changes[0].kind == "other"


def test_an_error_in_a_hook_stays_out_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object) -> None:
        raise RuntimeError("no such frame")

    monkeypatch.setattr("jaxperf.watch.observe.source_location.reader_and_library_frames", broken)
    with jaxperf.watch(show=False) as outcome:
        assert float(jax.jit(lambda x: x + 23)(1.0)) == 24.0
    assert outcome.record is not None
    assert any("no such frame" in remark for remark in outcome.record.remarks)


def test_only_what_a_call_replaces_can_be_donated(tmp_path: Path) -> None:
    path = tmp_path / "steps.py"
    path.write_text(
        "w, loss = step(w, x)\ny = step(w, x)\nself.w, loss = (\n    step(self.w,\n    x))\nw = [step(w)]\n"
    )
    donated = [replaces_argument(Place(str(path), line)) for line in (1, 2, 4, 6)]
    assert donated == [True, False, True, True]


def test_bytes_that_an_argument_could_give_are_counted_from_the_program() -> None:
    w, x = jnp.ones((8, 8)), jnp.ones(3)

    def unshared(**options: object) -> int:
        with jaxperf.watch(show=False, profile=False) as outcome:
            step = jax.jit(lambda w, x: (w * 1.5, x.sum()), **options)
            step(w.copy(), x)
        assert outcome.record is not None
        (facts,) = (f for f in outcome.record.programs if "lambda" in f.name and not f.old)
        return facts.unshared_bytes()

    assert unshared() == 256
    assert unshared(donate_argnums=0) == 0


def test_a_few_bytes_are_not_worth_donating_whatever_else_is_copied(tmp_path: Path) -> None:
    (tmp_path / "steps.py").write_text("w = step(w)\n")
    compiled = Compiled("step", Place(str(tmp_path / "steps.py"), 1), {"compile": (0.0, 0.1)}, explained=True)
    program = ExecutedProgram("step", 100, [1e-4] * 100)
    program.devices["cpu 0"], program.ops["cpu 0", "copy.1"] = [(0.1, 0.9)], [0.008] * 100

    def seconds(size: int) -> float:
        head = f"HloModule jit_step, entry_computation_layout={{(f32[{size}]{{0}})->f32[{size}]{{0}}}}, x=1\n"
        facts = Facts("step", "cpu", 1.0, 1.0, devices=(0,), text=head)
        seen = Seen([(0.1, 1.0)], {"step": program})
        record = Record("a", 0.0, 1.0, [compiled], [], [], {}, [], [facts], seen)
        return sum(f.seconds for f in find_donations(Analysis(record)))

    assert 0 < seconds(1000) < 0.001 and seconds(10_000_000) > 0.1


def test_a_device_that_has_something_queued_does_not_wait_for_the_front_end() -> None:
    program = ExecutedProgram("step", 2, [0.1] * 2)
    program.devices["cpu 0"] = [(1.0, 2.0), (5.0, 6.0)]
    sample = StackSample("between", NOWHERE, 0.0, 10.0)
    idle = []
    for waiting in ([], [(1.5, 4.0)]):
        seen = Seen([(0.0, 10.0)], {"step": program}, queued=waiting)
        compiled = Compiled("step", NOWHERE, {"compile": (-1.0, 0.0)}, explained=True)
        analysis = Analysis(Record("a", 0.0, 10.0, [compiled], [], [sample], {}, [], [], seen))
        idle.append(sum(analysis.idle_at(lambda s: True).values()))
    assert idle == pytest.approx([8.0, 6.0])


@pytest.mark.parametrize(
    ("calls", "starts", "spans"),
    [
        ([(0, 1), (2, 3)], [4, 6], [(1, 4), (3, 6)]),
        ([(0, 5), (6, 7)], [4, 9], [(7, 9)]),  # a CPU may begin before the call has ended
        ([(2, 3), (4, 5)], [0, 1, 6, 9], [(3, 6), (5, 9)]),  # the first two were called before the window
        ([(2, 3), (4, 5)], [1, 3.5, 9], [(3, 3.5), (5, 9)]),
        ([(0, 1), (2, 3), (4, 5)], [6], [(1, 6)]),  # two have not begun when the window ends
        ([], [1], []),
    ],
)
def test_an_execution_belongs_to_the_call_that_came_as_many_calls_before(
    calls: list[tuple[float, float]], starts: list[float], spans: list[tuple[float, float]]
) -> None:
    assert queued_intervals(calls, starts) == spans


def test_a_window_begins_with_the_first_execution_that_it_saw() -> None:
    step = jax.jit(lambda w: jnp.tanh(w @ w))
    w = jnp.ones((300, 300))
    with jaxperf.watch(show=False) as outcome:
        for _ in range(200):
            w = step(w)
        w.block_until_ready()
    assert outcome.record is not None
    seen = outcome.record.seen
    firsts = {a for spans in seen.busy.values() for a, _ in spans}
    assert any(a in firsts for a, _ in seen.windows)


def test_idle_after_a_wait_is_the_waits_for_as_long_as_it_took() -> None:
    program = ExecutedProgram("step", 1, [0.1])
    program.devices["cpu 0"] = [(0.0, 3.0)]
    compiled = Compiled("step", NOWHERE, {"compile": (-1.0, 0.0)}, explained=True)
    wait, sample = Wait("item", NOWHERE, 2.0, 4.0, 4), StackSample("between", NOWHERE, 4.0, 10.0)
    seen = Seen([(0.0, 10.0)], {"step": program})
    analysis = Analysis(Record("a", 0.0, 10.0, [compiled], [wait], [sample], {}, [], [], seen))
    every = [sum(analysis.idle_at(lambda s: True, itself=i).values()) for i in (False, True)]
    assert every == pytest.approx([6.0, 4.0])


def test_what_a_library_jits_for_itself_is_an_operation_outside_of_jit() -> None:
    optimizer = optax.adam(0.1)
    with jaxperf.watch(show=False, profile=False) as outcome:
        state = optimizer.init(jnp.ones(37))
        optimizer.update(jnp.ones(37), state)
        jax.jit(optimizer.update)(jnp.ones(37), state)  # the reader's own jit of a library's function
    assert outcome.record is not None
    explained = {c.name: c.at.source for c in outcome.record.compiled if c.explained}
    assert any("own jit" in source for source in explained.values())
    assert not any(source.startswith("optimizer.update") for source in explained.values())


def test_every_slow_program_names_its_cause_and_has_a_repaired_twin() -> None:
    for name in NAMES:
        assert cause(PROGRAMS / f"{name}.py")
        assert (PROGRAMS / "fixed" / f"{name}.py").exists()


def test_what_was_compiled_is_counted_at_the_callers_line() -> None:
    with jaxperf.watch(show=False) as outcome:
        step = jax.jit(lambda x: x * 3)
        for n in (2, 3, 4):
            step(np.ones(n, np.float32))  # here
    assert outcome.record is not None
    lambdas = [c for c in outcome.record.compiled if c.name == "<lambda>"]
    assert len(lambdas) == 3 and all(c.at.file == __file__ for c in lambdas)
    assert {linecache.getline(__file__, c.at.line).strip() for c in lambdas} == {
        "step(np.ones(n, np.float32))  # here"
    }
    assert [len(c.changes) for c in lambdas] == [0, 1, 1]
    assert [c.host_bytes for c in lambdas] == [8, 12, 16]
    assert {"trace", "lower", "compile"} == set(lambdas[0].stages)


def test_every_way_to_wait_is_seen_once_with_its_line_and_bytes() -> None:
    x, s = jax.block_until_ready((jnp.arange(6.0), jnp.float32(2)))
    ways = {
        "item": lambda: s.item(),
        "float": lambda: float(s),
        "int": lambda: int(s),
        "if": lambda: 1 if s else 2,
        "tolist": lambda: x.tolist(),
        "np.asarray": lambda: np.asarray(x),
        "print": lambda: f"{x}",
        "block_until_ready": lambda: x.block_until_ready(),
        "device_get": lambda: jax.device_get([x, s]),
        "tobytes": lambda: x.tobytes(),
        "effects_barrier": lambda: jax.effects_barrier(),
    }
    for kind, wait in ways.items():
        with jaxperf.watch(show=False, profile=False) as outcome:
            wait()
        assert outcome.record is not None
        (seen,) = outcome.record.waits
        assert (seen.kind, seen.at.file) == (kind, __file__)
        assert seen.at.line == wait.__code__.co_firstlineno
        whole = 24 if "x" in wait.__code__.co_freevars else 4
        nothing = dict.fromkeys(("block_until_ready", "effects_barrier"), 0)
        assert seen.nbytes == {**nothing, "device_get": 28}.get(kind, whole)


def test_arrays_that_numpy_reads_from_a_list_are_waited_for_and_keys_are_not() -> None:
    x, key = jnp.arange(6.0), jax.random.PRNGKey(0)
    with jaxperf.watch(show=False, profile=False) as outcome:
        np.array([x, x])
        key, sub = jax.random.split(key)
        rows = [row * 2 for row in jnp.ones((3, 2))]
        pickle.dumps([x, sub, rows])  # a file that is written, most likely
        jax.block_until_ready(x=x)
    assert outcome.record is not None
    assert [(w.kind, w.nbytes) for w in outcome.record.waits] == [
        ("np.asarray", 48),
        ("block_until_ready", 0),
    ]


def test_wrapped_functions_are_taken_for_the_librarys_own() -> None:
    with jaxperf.watch(show=False, profile=False):
        assert np.array.__module__ == "numpy" and jax.device_get.__module__.startswith("jax")
    with jaxperf.watch(show=False, profile=False) as outcome:
        rows = [[float(i + j) for j in range(300)] for i in range(300)]
        samples = session._open_watch.sampler.samples  # type: ignore[union-attr]
        while len(samples) < 20:  # by count, since a busy machine takes few in a given time
            np.array(rows)
    assert outcome.record is not None
    assert Counter(s.kind for s in outcome.record.samples).most_common(1)[0][0] == sampler.NUMPY


def test_everything_is_as_before_once_a_watch_is_over() -> None:
    def hooks() -> list[object]:
        array = type(jnp.float32(1))
        return [array.item, array.__float__, np.asarray, np.array, jax.block_until_ready, jax.device_get,
                jax.profiler.start_trace, jax.config.jax_explain_cache_misses]  # fmt: skip

    before = hooks()
    with jaxperf.watch(show=False):
        assert hooks() != before
    assert hooks() == before
    with pytest.raises(ZeroDivisionError), jaxperf.watch(show=False):
        _ = 1 / 0
    assert hooks() == before


def test_a_second_watch_is_refused_and_the_first_goes_on() -> None:
    with jaxperf.watch("first", show=False) as outcome:
        with pytest.raises(JaxperfError, match="first is being watched already"), jaxperf.watch(show=False):
            pass
        jax.jit(lambda x: x - 7)(1.0)
    assert outcome.record is not None and "<lambda>" in {c.name for c in outcome.record.compiled}


def test_the_programs_own_profile_is_left_to_it(tmp_path: Path) -> None:
    with jaxperf.watch(show=False):
        jax.jit(lambda x: x + 11)(jnp.ones(3)).block_until_ready()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with jax.profiler.trace(str(tmp_path)):
                jnp.ones(3).block_until_ready()
    assert list(tmp_path.rglob("*.xplane.pb"))


def test_the_report_is_a_result_that_every_renderer_takes(tmp_path: Path) -> None:
    path = tmp_path / "watch.json"
    with jaxperf.watch("a block", show=False, json=path) as outcome:
        for n in range(3, 7):
            jax.jit(lambda x: jnp.tanh(x) @ x)(jnp.ones((n, n)))
    stored = load_result(path)
    assert stored == outcome.result
    text = render_text([stored])
    assert "new function" in text and Path(__file__).name in text
    titles = [b.title for b in stored.blocks if isinstance(b, Grid | Heading)]
    assert titles[0] == "Shares of the time"
    assert titles[-1].startswith("Findings: ")
    assert len(text.splitlines()) < 70
    assert command_line.main(["report", str(path)]) == 0


def test_a_block_is_reported_under_pytest_however_it_ends(capsys: pytest.CaptureFixture[str]) -> None:
    for error in (None, ZeroDivisionError, KeyboardInterrupt):
        expected = pytest.raises(error) if error else contextlib.nullcontext()
        with expected, jaxperf.watch("a block", profile=False):
            float(jax.jit(lambda x: x / 7)(1.0))
            if error:
                raise error
        err = capsys.readouterr().err
        assert "watch: a block" in err and f"{Path(__file__).name}:" in err
        ended = {None: "s. Watching used", ZeroDivisionError: "until it failed with ZeroDivisionError"}
        assert ended.get(error, "until it was interrupted") in err


def test_what_a_debug_print_formats_is_no_wait_of_the_front_end() -> None:
    with (
        jaxperf.watch(show=False, profile=False) as outcome,
        contextlib.redirect_stdout(io.StringIO()) as out,
    ):
        jax.jit(lambda x: jax.debug.print("value {}", x))(jnp.float32(3))
        jax.effects_barrier()
        print(jnp.float32(4))
    assert outcome.record is not None and out.getvalue() == "value 3.0\n4.0\n"
    assert ["print(jnp" in w.at.source for w in outcome.record.waits if w.kind == "print"] == [True]


def test_jax_in_other_threads_is_said_to_be_unwatched() -> None:
    def work() -> None:
        float(jax.jit(lambda x: x - 31)(2.0))

    with jaxperf.watch(show=False, profile=False) as outcome:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert outcome.record is not None and not outcome.record.waits
    (remark,) = outcome.record.remarks
    assert remark.startswith("other threads waited 1 times and compiled ")


def test_importing_is_told_from_computing_in_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "slow_to_import_31.py").write_text("import time\ntime.sleep(0.3)\n")
    monkeypatch.syspath_prepend(folder)
    source_location.library_of.cache_clear()
    source_location._roots.cache_clear()
    with jaxperf.watch(show=False, profile=False) as outcome:
        import slow_to_import_31  # type: ignore[import-not-found]  # noqa: F401

        time.sleep(0.05)
    assert outcome.record is not None
    kinds = Counter(s.kind for s in outcome.record.samples)
    assert kinds["import"] > 0
    shares = list(Analysis(outcome.record).shares().values())[:5]
    assert sum(shares) == pytest.approx(1.0)


def test_a_static_object_that_compares_by_identity_is_named_without_its_address() -> None:
    class Model:
        @functools.partial(jax.jit, static_argnums=0)
        def scaled(self, x: jax.Array) -> jax.Array:
            return x * 41

    with jaxperf.watch(show=False, profile=False) as outcome:
        for _ in range(3):
            Model().scaled(jnp.ones(2))  # here
    assert outcome.record is not None
    (finding,) = (f for f in find_retraces(Analysis(outcome.record)) if f.name == "scaled")
    assert finding.cause == "static object", finding
    assert " 0x" not in finding.reason and "Model" in finding.reason
    assert finding.at.source == "Model().scaled(jnp.ones(2))  # here"


# a program as a process sees it


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A script that fails, is interrupted or exits as its first word says."""
    path = tmp_path / "train.py"
    path.write_text(
        "import pickle, signal, sys\n"
        "import jax\n"
        "class Kept: pass\n"
        "pickle.loads(pickle.dumps(Kept()))\n"
        "print('words', sys.argv, __name__)\n"
        "def fail():\n"
        "    raise ValueError('no such batch')\n"
        "print(float(jax.jit(lambda x: x * 2)(1.5)))\n"
        "match sys.argv[1]:\n"
        "    case 'fail': fail()\n"
        "    case 'stop': signal.raise_signal(signal.SIGINT)\n"
        "    case 'end': signal.raise_signal(signal.SIGTERM)\n"
        "    case 'exit': sys.exit(7)\n"
        "    case 'words': sys.exit('too bad')\n"
    )
    for name in ("argv", "path"):
        monkeypatch.setattr(sys, name, list(getattr(sys, name)))
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    return path


@pytest.mark.parametrize(
    ("word", "status", "message"),
    [
        ("fail", 1, "failed with ValueError"),
        ("stop", 130, "interrupted"),
        ("end", 143, "until SIGTERM ended it"),
        ("exit", 7, ""),
        ("words", 1, "too bad"),
        ("well", 0, ""),
    ],
)
def test_the_program_ends_as_it_would_alone_and_is_reported(
    program: Path, word: str, status: int, message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert command_line.main(["watch", str(program), word, "--lr", "0.1"]) == status
    out, err = capfd.readouterr()
    assert out.splitlines() == [f"words {[str(program), word, '--lr', '0.1']} __main__", "3.0"]
    assert "watch: train.py" in err and "Shares of the time" in err and message in err
    assert ("Traceback" in err) == (word == "fail")
    if word == "fail":
        assert (
            "ValueError: no such batch" in err and "jaxperf/watch/" not in err.partition("watch: train.py")[0]
        )
        assert 'train.py", line 10, in <module>' in err


@pytest.mark.thorough
def test_ctrl_c_ends_a_real_process_in_the_middle_of_a_window_with_one_report(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import jax\n"
        "step = jax.jit(lambda x: x @ x / 300)\n"
        "x = jax.numpy.ones((300, 300))\n"
        "try:\n"
        "    print('training', flush=True)\n"
        "    while True:\n"
        "        x = step(x)\n"
        "        lost = float(x[0, 0])\n"
        "finally:\n"
        "    print('put away', flush=True)\n"
    )
    command = [sys.executable, "-m", "jaxperf", "watch", str(tmp_path / "train.py")]
    environment = child_environment() | {"JAX_PLATFORMS": "cpu"}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout and process.stdout.readline() == "training\n"
        time.sleep(1.5)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (130, "put away\n"), err
    assert err.count("watch: train.py") == 1 and "interrupted" in err and "Traceback" not in err
    assert "lost = float(x[0, 0])" in err


def test_a_mistake_is_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.py").write_text("def :\n")
    for arguments, message in {
        (): "no program to watch",
        (str(tmp_path / "none.py"),): "cannot read the script",
        (str(tmp_path / "bad.py"),): "is not Python",
        ("--json", str(tmp_path / "no" / "where" / "x.json"), str(tmp_path / "bad.py")): "is not Python",
    }.items():
        assert command_line.main(["watch", *arguments]) == 2
        err = capfd.readouterr().err
        assert err.startswith("error: ") and message in err and len(err.splitlines()) == 1


@pytest.mark.thorough
@pytest.mark.parametrize(
    "arguments", cases([(("train.py",),), (("-m", "train"),)], quick=lambda arguments: len(arguments) == 1)
)
def test_a_process_of_its_own_sets_jax_up_before_jax_is_imported(
    arguments: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(
        "import os, sys\n"
        "assert 'jax' not in sys.modules and 'numpy' not in sys.modules\n"
        "os.environ['JAX_NUM_CPU_DEVICES'] = '2'\n"
        "import jax, time\n"
        "held = bytearray(b'x') * 50_000_000; time.sleep(0.2)  # new memory makes a watch list arrays\n"
        "jax.config.update('jax_num_cpu_devices', 3)  # refused once a backend runs\n"
        "print(jax.device_count(), jax.jit(lambda x: x + 1)(1).item())\n"
    )
    status, out, err = run(tmp_path, "watch", *arguments)
    assert (status, out) == (0, "3 2\n"), err
    assert "train.py:7" in err and "item" in err


def run(folder: Path, *arguments: str, **variables: str) -> tuple[int, str, str]:
    """Exit status, output and errors of jaxperf in a process of its own."""
    command = [sys.executable, "-m", "jaxperf", *arguments]
    environment = os.environ | {"PYTHONPATH": str(PROGRAMS.parents[1])} | variables
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=200)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.thorough
def test_a_program_for_which_jax_cannot_start_is_reported_too(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import jax\njax.numpy.ones(3)\n")
    status, _, err = run(tmp_path, "watch", "train.py", JAX_PLATFORMS="no_such_platform")
    assert status == 1 and "no_such_platform" in err.partition("watch: train.py")[0]
    assert "watch: train.py" in err and "until it failed with RuntimeError" in err


TOGETHER = """
import os
import jax
from jax.experimental import multihost_utils
names = ("COORDINATOR_ADDRESS", "NUM_PROCESSES", "PROCESS_ID")
address, count, own = (os.environ["JAX_" + name] for name in names)
jax.distributed.initialize(address, int(count), int(own))
multihost_utils.sync_global_devices("all here")
print("process", jax.process_index(), jax.jit(lambda x: x + 1)(1).item())
multihost_utils.sync_global_devices("all done")
jax.distributed.shutdown()
"""


@pytest.mark.thorough
def test_of_several_processes_the_first_one_prints_and_each_keeps_its_report(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TOGETHER)
    arguments = ("--", "python", "-m", "jaxperf", "watch", "--json", "watch.json", "train.py")
    status, out, err = run(
        tmp_path, "launch", "-n", "2", "--logs", "logs", *arguments, JAX_NUM_CPU_DEVICES="1"
    )
    assert status == 0, out + err
    logs = [(tmp_path / "logs" / f"process-{i}.log").read_text() for i in range(2)]
    for i, log in enumerate(logs):
        assert f"process {i} 2" in log
        assert ("watch: train.py" in log) == (i == 0)
    for name in ("watch.json", "watch-1.json"):
        (waits,) = (
            g for g in load_result(tmp_path / name).of(Grid) if g.title.startswith("Where the front end")
        )
        assert any(row[0] == "item" and "train.py:9" in row[5] for row in waits.rows)


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("collects", [False, True])
def test_a_look_is_not_interrupted_and_leaves_switching_and_garbage_collection_as_they_were(
    fails: bool, collects: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []

    def seen(*args: object) -> tuple[object, ...]:
        looks.append((sys.getswitchinterval(), gc.isenabled()))
        if fails:
            raise ValueError
        return sampler.PYTHON, source_location.NOWHERE, 0.0, 1.0

    before = sys.getswitchinterval()
    monkeypatch.setattr(sampler, "_seen", seen)
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


def test_a_switch_interval_that_the_program_sets_outlives_the_watch() -> None:
    before = sys.getswitchinterval()
    try:
        with jaxperf.watch(show=False, profile=False):
            sys.setswitchinterval(0.02)
        assert sys.getswitchinterval() == pytest.approx(0.02)
    finally:
        sys.setswitchinterval(before)


def test_the_result_keeps_the_rows_that_a_terminal_leaves_out() -> None:
    waits = [Wait("item", Place("a.py", i), float(i), i + 0.1, 4) for i in range(1, 121)]
    result = text.make_result(Analysis(Record("a", 0.0, 200.0, [], waits, [], {}, [], [], Seen())))
    (grid,) = (g for g in result.of(Grid) if g.title.startswith("Where the front end waits"))
    assert (len(grid.rows), grid.first) == (text.STORED_ROWS, text.ROWS)
    assert f"and {text.STORED_ROWS - text.ROWS} more in the result's file" in render_text([result])
    assert any("a.py:99" in cell for row in grid.rows for cell in row)


def test_findings_from_the_sixth_on_have_their_line_seconds_and_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    findings = [Finding("wait", Place("a.py", i), 9.0 - i, f"reason {i}", "item") for i in range(8)]
    monkeypatch.setattr(text, "find_causes", lambda analysis: findings)
    wait = Wait("item", Place("a.py", 1), 1.0, 1.1, 4)
    result = text.make_result(Analysis(Record("a", 0.0, 200.0, [], [wait], [], {}, [], [], Seen())))
    texts = [b.text for b in result.of(Text) if b.text[0].isdigit()]
    assert len(list(result.of(Code))) == text.FINDINGS and len(texts) == 8
    assert all(
        f"a.py:{i}" in text and "saves up to" in text and f"eason {i}" in text for i, text in enumerate(texts)
    )
