import logging
import sys
import threading
import time

import jax
import pytest

from jaxperf.retraces import Change, parse_explanation
from jaxperf.watch.log import COMPILE, LOWER, TRACE, Compiled, Log
from jaxperf.watch.observe import frame_arguments, source_location
from jaxperf.watch.observe.compiles import Compiles
from jaxperf.watch.observe.hooks import Replacements
from jaxperf.watch.observe.source_location import Place

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
        (  # before JAX 0.9
            "  * at args[1], now a list of length 5 and before a list of length 4, so lengths do not match",
            ("structure", "argument 1", "a list of length 4", "a list of length 5"),
        ),
        (
            "  * at s['w'], now f32[3]({Auto: ('x', 'y')}) and before f32[3]({})",
            ("placement", "s['w']", "no mesh", "a mesh with Auto: ('x', 'y')"),
        ),
        (
            "  * at w, now f32[8@(x,y),4]({Auto: ('x', 'y')}) and before f32[8,4]({Auto: ('x', 'y')})",
            ("placement", "w", "a mesh with Auto: ('x', 'y')", "a mesh with Auto: ('x', 'y')@(x,y)"),
        ),
        ("another reason", ("other", "", "", "another reason")),
    ],
)
def test_an_explanation_is_read_and_an_unknown_one_is_kept(text, change):
    explanation = parse_explanation(MISS + text)
    assert (explanation.name, explanation.defined) == ("step", "a.py:1")
    assert [(c.kind, c.what, c.before, c.now) for c in explanation.changes] == [change]


NEW = """TRACING CACHE MISS at a.py:3 (main) costing 6.2 ms because:
  never seen function:
    step id=1 defined at a.py:1"""
WEAK = """TRACING CACHE MISS at a.py:3 (main) costing 1.2 ms because:
  for step defined at a.py:1
  all previously seen cache keys are different. Closest previous key:
  * key with different input types:
      types now: w: f32[4], scale: f32[]
        * at scale, now f32[]{weak_type=False} and before f32[]{weak_type=True}
    where weak_type=True often means a Python builtin numeric value, and
    weak_type=False means a jax.Array.
    See https://docs.jax.dev/en/latest/type_promotion.html#weak-types."""


def test_before_jax_0_9_an_explanation_belongs_to_the_trace_before_it(monkeypatch):
    monkeypatch.setattr(source_location, "reader_and_library_frames", lambda frame: (frame, None))
    log = Log("a", 0.0, 1.0)
    compiles = Compiles(log, Replacements())
    compiles._explained_late = True
    for message in (NEW, WEAK):
        compiles.on_duration("/jax/core/compile/jaxpr_trace_duration", 1e-4, fun_name="step")
        compiles.on_log(logging.LogRecord(jax.__name__, logging.WARNING, "", 0, message, (), None))
        compiles.on_duration("/jax/core/compile/backend_compile_duration", 1e-4, fun_name="jit(step)")
    first, again = log.compiled
    assert first.explained and not first.changes
    (change,) = again.changes
    assert str(change) == "scale: f32[]{weak_type=True} -> f32[]{weak_type=False}"


def test_a_new_function_is_distinguished_from_a_changed_call():
    new = (
        "TRACING CACHE MISS at a.py:3:4 (main):\n  never seen function:\n    <lambda> id=12 defined at a.py:3"
    )
    for text in (new, f"{new}\n  but seen another one"):
        assert parse_explanation(text) == ("<lambda>", "a.py:3", ())
    for text in (f"{NEW}\n", MISS):  # a folder's name may have spaces
        explanation = parse_explanation(text.replace("a.py", "/my runs for you/a.py"))
        assert (explanation.name, explanation.defined) == ("step", "/my runs for you/a.py:1")
    assert parse_explanation("TRACING CACHE MISS as another release says it").changes[0].kind == "other"


NET = "Net(\n    # attributes\n    rate = {}\n)"


def test_values_that_print_several_lines_are_read_whole():
    now, before = (STATIC.format(NET.format(rate)) for rate in (0.2, 0.1))
    text = f"  * at input path [0][2], now {now} and before {before}, so the metadata does not match"
    (change,) = parse_explanation(MISS + text).changes
    assert change == Change("static value", "argument 2", "Net(rate = 0.1)", "Net(rate = 0.2)")


@pytest.mark.parametrize(
    ("event", "stage", "name"),
    [("backend_compile_duration", COMPILE, "step"), ("jaxpr_trace_duration", TRACE, "a program")],
)
def test_a_stage_that_a_signal_interrupts_lasts_until_the_end(event, stage, name):
    log = Log("a")
    spans = {TRACE: (0.0, 1.0), LOWER: (1.0, 2.0)}
    log.compiled.append(Compiled("step", Place("a.py", 3), spans, thread=threading.get_ident()))
    compiles = Compiles(log, Replacements())
    compiles.on_start(f"/jax/core/compile/{event}", 0.0)
    log.end = time.perf_counter() + 60
    compiles.close()
    last = log.compiled[-1]
    assert (last.name, len(log.compiled)) == (name, 1 + (name != "step"))
    assert last.stages[stage][1] == log.end and 60 <= last.seconds(stage) < 90
    assert len(log.remarks) == 1 and f"{name} at" in log.remarks[0] and "after 60 s" in log.remarks[0]


def test_the_function_that_equinox_wraps_is_found_in_its_frame():
    class JitWrapper:
        __module__ = "equinox._jit"
        __wrapped__ = property(lambda self: test_the_function_that_equinox_wraps_is_found_in_its_frame)

    jit_wrapper = JitWrapper()
    function = frame_arguments.filtered_function(sys._getframe(), None)
    assert function is jit_wrapper.__wrapped__
    del jit_wrapper
    assert frame_arguments.filtered_function(sys._getframe(), None) is None
