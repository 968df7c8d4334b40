import contextlib
import io
import re
import runpy
from pathlib import Path

import jax
import pytest
from cases import cases
from twins import NAMES, PROGRAMS, cause, write_repaired

import jaxperf
from jaxperf.chapter import catalogue
from jaxperf.libraries import shorten_path
from jaxperf.result import Code, Text
from jaxperf.watch import session
from jaxperf.watch.report.analysis import Analysis
from jaxperf.watch.rules import small_programs
from jaxperf.watch.rules import table as find
from jaxperf.watch.rules.table import _OTHER, CAUSES, VERSIONS, advice_for

FAST = [
    *sorted((Path(__file__).parents[1] / "fast_programs").glob("*.py")),
    Path(__file__).parents[2] / "docs" / "watch" / "train_changed.py",
]
WINDOWS = 2  # of the profiler that a slow program runs for: without one, nobody knows what devices did
QUICK = ("item_in_loop", "new_jit", "no_prefetch")


@pytest.fixture(autouse=True)
def as_users_do(optimized):
    yield
    jax.config.update("jax_enable_x64", False)
    jax.config.update("jax_debug_nans", False)


def first_right_run(path, right, windows=0):
    if "JAX_NUM_CPU_DEVICES" in path.read_text() and len(jax.devices()) < 2:
        pytest.skip("there is one device")
    runs = []
    # three runs at most: what a device does within a tenth of a second is hard to see on a busy machine;
    # a number in the text, so that watch takes this loop for none of steps
    for _ in range(3):
        jax.clear_caches()
        with contextlib.redirect_stdout(io.StringIO()), jaxperf.watch(path.name, show=False) as outcome:
            main = runpy.run_path(str(path), run_name="__main__").get("main")
            profiler = session._open_watch.profiler
            while main and len(profiler.windows_s) < windows:
                main()
        findings = find.find_causes(analysis := Analysis(outcome.log))
        if right(findings):
            return outcome, findings
        candidates = [(f.cause, f.at.line, f.seconds) for rule in find.RULES for f in rule(analysis)]
        runs.append((findings, candidates, outcome.log.wall_s))
    pytest.fail(f"no run is as it should be: {runs}")


def test_every_section_that_advice_names_is_a_heading_of_the_chapter():
    scripts = [path.read_text() for path in catalogue.folder().glob("*.py")]
    lines = [line for text in scripts for line in re.findall(r"^# #+ (?:[\d.]+ )?(.*)", text, re.M)]
    headings = {line.replace("`", "") for line in lines}
    sections = {re.sub(r"^[\d.]+ ", "", text.section) for text in (*CAUSES.values(), _OTHER)}
    assert sections - {VERSIONS} <= headings


@pytest.mark.parametrize("name", cases([(n,) for n in NAMES], quick=lambda n: n in QUICK))
def test_each_cause_is_found_at_its_line(name, compiles_anew, monkeypatch):
    # other programs of the machine make a run longer, but not what a change would save; see test_find.py
    monkeypatch.setattr(find, "LEAST_SHARE", find.LEAST_SHARE / 10)
    # however fast the machine compiles
    monkeypatch.setattr(find, "LEAST_S", find.LEAST_S / 10)
    monkeypatch.setattr(small_programs, "SMALL_S", 0.0)
    path = PROGRAMS / f"{name}.py"
    kind, line = cause(path)
    right = lambda findings: [f.at.line for f in findings if f.cause == kind][:1] == [line]  # noqa: E731
    # a report that is made again and again is a function in a loop
    windows = 0 if name == "once_outside_jit" else WINDOWS
    outcome, findings = first_right_run(path, right, windows)
    finding = next(f for f in findings if f.cause == kind)
    suggestion = advice_for(finding)
    assert finding.at.file == str(path)
    shown = [b for b in outcome.result.of(Code) if (b.file, b.line) == (shorten_path(str(path)), line)]
    assert all(path.read_text().splitlines()[line - 1].strip() in b.source for b in shown) and shown
    assert {suggestion.change} <= {b.text for b in outcome.result.of(Text)} | {""}
    assert {suggestion.example} <= {b.source for b in outcome.result.of(Code)} | {""}


def test_a_cause_is_gone_once_it_is_repaired(tmp_path):
    kind, _ = cause(PROGRAMS / "new_jit.py")
    path = write_repaired("new_jit", tmp_path)
    first_right_run(path, lambda findings: kind not in {f.cause for f in findings})


@pytest.mark.thorough
@pytest.mark.parametrize("program", [*NAMES, *FAST], ids=lambda program: Path(program).stem)
def test_nothing_is_found_once_it_is_repaired_nor_in_a_program_without_a_fault(program, tmp_path):
    """An idle machine is needed: where others have the cores, a program waits for more than alone."""
    path = program if program in FAST else write_repaired(program, tmp_path)
    first_right_run(path, lambda findings: not findings)
