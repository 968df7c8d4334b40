import functools
import linecache
import sys

import jax
import jax.numpy as jnp
from flax import nnx

from jaxperf.watch.observe.compiles import Compiled
from jaxperf.watch.observe.source_location import NOWHERE, jitted_program
from jaxperf.watch.source.call_sites import CallSite, CallSites, called_at


@jax.jit
def step(w):
    return w * 2


def update(w):
    return step(w)


def describe(w):
    return str(w).strip()


class Trainer:
    shared = staticmethod(step)

    def __init__(self):
        self.step = jax.jit(lambda w: w + 1)
        self.nnx = nnx.jit(update)

    def fit(self, w):
        return self.step(w)


def loop(steps, trainer, function, compiled, never):
    local, bound = functools.partial(step), trainer.fit
    steps.look(sys._getframe())
    w = 1
    while never:
        step(w)
        function(w)
        local(w)
        compiled(w)
        trainer.step(w)
        trainer.shared(w)
        trainer.nnx(w)
        update(w)
        bound(w)
        trainer.fit(w)
        describe(w)
        jnp.sin(w)
        str(w)
        step.lower(w)
        later(w)  # noqa: F821
    return local, bound


PROGRAMS = {
    "step(w)": "step", "function(w)": "<lambda>", "local(w)": "step", "compiled(w)": "update",
    "trainer.step(w)": "<lambda>", "trainer.shared(w)": "step", "trainer.nnx(w)": "update",
}  # fmt: skip


def source(at):
    return linecache.getline(at.file, at.line).strip()


def test_the_names_that_a_function_calls_lead_to_jitted_functions():
    steps, compiled = CallSites(), jax.jit(update).lower(1.0).compile()
    loop(steps, Trainer(), jax.jit(lambda w: w - 1), compiled, never=False)
    programs = {source(s.at): s.program for s in steps.sites if s.at.function == "loop"}
    assert programs == PROGRAMS


def test_what_is_jaxs_own_or_only_looks_jitted_is_no_step():
    class Lower:
        def lower(self): ...

    for other in (jnp.sin, jax.grad, str, "text", Lower, Lower(), None, 3, update):
        assert jitted_program(other) == ""
    for function in (step, jax.pmap(update), nnx.jit(update)):
        assert jitted_program(function) in ("step", "update")


PROGRAM = """\
step(w)
for i in range(3):
    for j in range(9):
        w = step(w)
    test(w)
step(v)
"""


def test_a_program_that_was_warmed_up_is_called_in_the_loop(places):
    warm, inner, after = map(places(PROGRAM), (1, 4, 6))
    steps = [CallSite(at, "step") for at in (warm, inner, after)]
    first = Compiled("step", warm, {"trace": (0.0, 1.0)}, explained=True)
    other = Compiled("step", after, {"trace": (3.0, 4.0)}, explained=True)
    assert called_at([first], steps, ["step"]) == [(first, inner)]
    assert called_at([first, other], steps, ["step"]) == [(first, inner), (other, after)]
    looped = Compiled("step", inner, {"trace": (0.0, 1.0)}, explained=True)
    assert called_at([looped, other], steps, ["step"]) == [(looped, inner), (other, after)]
    assert called_at([first], [], ["step"]) == [(first, warm)]


def test_a_program_from_before_the_watch_is_known_by_the_lines_that_call_it(places):
    steps = [CallSite(at, "step") for at in map(places(PROGRAM), (1, 4))]
    ((older, at),) = called_at([], steps, ["step", "multiply"])
    assert (older.name, older.stages, at.line) == ("step", {}, 4)
    assert called_at([], steps, ["multiply"]) == []
    assert called_at([], [CallSite(NOWHERE)], ["step"]) == []


class Learner:
    def __init__(self):
        self.step = jax.jit(update)

    def turn(self, w):
        return self.step(w)

    def twice(self, w):
        return self.turn(self.turn(w))

    def thrice(self, w):
        return self.turn(self.twice(w))


def climb(w):
    return step(w)


def train(sites, learner, w):
    sites.look(sys._getframe())
    for _ in range(0):
        learner.twice(w)
        learner.thrice(w)
        climb(w)


def test_calls_in_the_programs_own_functions_are_known_though_no_sample_sees_these():
    sites = CallSites()
    train(sites, Learner(), 1.0)
    found = {(source(s.at), *map(source, s.callers[:2])) for s in sites.sites if s.at.function != "train"}
    turn, twice = "return self.step(w)", "return self.turn(self.turn(w))"
    assert (turn, twice, "learner.twice(w)") in found
    assert ("return step(w)", "climb(w)") in {each[:2] for each in found}
