import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxperf.chapter import catalogue, cells
from tests.experiments.plants import ROUNDS, all_claims, exactly, took, verdict

EIGHT = np.ones(ROUNDS)


def pair(name, holds, fails):
    return (lambda m: {name: holds}), (lambda m: {name: fails})


def times(holds, fails, name="times"):
    return pair(name, took(**holds), took(**fails))


def only_fails(planted):
    """Plant what makes the claim fail; it holds as the section is."""
    return (lambda m: {}), planted


def hlo(f, *args):
    return str(jax.jit(f).lower(*args).compile().as_text())


def memory(installed, given_back, in_place):
    """The processes of 8.2.3: rows of seconds and page faults, waiting and not, with `once` 1 s."""
    zero = 0 * EIGHT
    factors = {"a": installed, "b": installed, "kept": 1.0, "given back": given_back, "in place": in_place}
    turn = {name: (factor * EIGHT, zero, EIGHT, zero) for name, factor in factors.items()}
    return {"turn": turn, "INSTALLED": ("a", "b")}


def model(error):
    """What 8.2.3 predicts at sizes that were not fitted, so wrong."""
    return {"off": {2: [0.0, error], 8: [error, 0.0]}, "unseen": [2, 8], "crossover": 2.0}


def trainings(never, window, each=1.0):
    """Runs of 8.2.4 that took so many seconds and bytes."""

    def run(amount):
        used = {"increase_bytes": int(1e6 * amount), "seconds": [0.0], "resident_bytes": [0], "base_bytes": 0}
        return amount, SimpleNamespace(**used), []

    def plant(m):
        ways = {"never": never, "window": window, "each": each}
        runs = {(task, way): [run(amount)] * ROUNDS for task in (m.train, m.predict)
                for way, amount in ways.items()}  # fmt: skip

        def measurements(task, unit, value):
            return took(**{way: value(done[0]) for (which, way), done in runs.items() if which is task})

        def peak(run):
            return float(run[1].increase_bytes)

        both = {"times": measurements(m.train, "s", lambda r: r[0]), "peaks": measurements(m.train, "", peak)}
        return {"runs": runs, "measurements": measurements, "peak": peak, **both}

    return plant


def bill(gain):
    """A ladder of one rung that the bill predicts as twice as fast."""
    rungs = took(**{"op by op": 2.0, "jit": 1.0})
    gains = {"predicted": {"jit": 2.0}, "gains": {"jit": exactly(gain)}}
    return lambda m: gains | {"rungs": rungs, "times": rungs, "total": exactly(20)}


def blocks(checkpoint, mixed):
    """Steps of the transformer that took so long, for 1.3 times the FLOPs."""
    work = {"checkpoint": (1.3, 1.0), "float32": (1.0, 1.0)}
    steps = took(float32=1.0, checkpoint=checkpoint, mixed=mixed)
    return lambda m: {"times": steps, "tokens_work": work}


def batches(gain_small, gain_large):
    """The MLP of 8.1 at two batches, compiled so many times as fast."""
    gains = {1: gain_small, 8: gain_large}
    calls = {f"one by one, {n}": gain for n, gain in gains.items()}
    calls |= {f"compiled, {n}": 1.0 for n in gains}
    sweep = {name: took(x=value)["x"] for name, value in calls.items()}
    return lambda m: {"batches": [1, 8], "sweep": sweep}


def ratios(**known):
    return lambda m: {name: exactly(value) for name, value in known.items()}


def undonated(m):
    return {"donated_step": jax.jit(lambda params, X, y: m.step(params, X, y))}


ONE_AFTER, TOGETHER = "two devices: one after the other", "two devices: both"
PLANTED = {
    "performance_model": {
        "Op by op, overhead limits the MLP: eight examples take as long as one": (
            ratios(growth=1.1, compiled_growth=1), ratios(growth=4, compiled_growth=1)),
        "Ten fused lines take about as long as one": (
            ratios(fused=1.1, unfused=20), ratios(fused=9, unfused=20)),
        "The compiler's estimate counts a loop's body once": pair("often", 0, 1e9),
        "One of three limits explains each program of this chapter": pair(
            "explained", dict.fromkeys("abcd", "memory"), {**dict.fromkeys("abc", "memory"), "d": "none"}),
        "Overhead limits 20 x 20 products, memory limits x + 1, arithmetic a large product": pair("explained",
            dict(zip("abcd", ("overhead", "none", "memory", "arithmetic"))),
            dict(zip("abcd", ("none", "none", "memory", "arithmetic")))),
        "The donated step needs no second copy of the parameters": only_fails(undonated),
        "The first eight rungs compute the same parameters": pair(
            "trained", [jnp.ones(3)] * 2, [jnp.ones(3), jnp.ones(3) + 1]),
        "The bill predicts what each rung gains": (bill(2.5), bill(20)),
        "The same training becomes at least ten times as fast": (
            lambda m: bill(2)(m) | {"total": exactly(40)},
            lambda m: bill(2)(m) | {"total": exactly(4)}),
        "Checkpoints need less memory, and mixed precision too": pair("temporaries",
            {"float32": 4, "mixed": 2, "checkpoint": 1},
            {"float32": 4, "mixed": 5, "checkpoint": 1}),
        "A checkpoint costs the time of its extra FLOPs": (blocks(1.3, 1.0), blocks(3.0, 1.0)),
        "bfloat16 makes this step faster": (blocks(1.3, 0.5), blocks(1.3, 2.0)),
        "In so few steps, mixed precision becomes as accurate as float32": pair("reached",
            {"float32": [0.70, 0.72], "mixed": [0.71, 0.72]},
            {"float32": [0.70, 0.72], "mixed": [0.40, 0.72]}),
    },
    "hybridize": {
        "The compiler can rewrite the program to print(10)": only_fails(
            lambda m: {"optimized": hlo(lambda a, b: a + b, 1.0, 2.0)}),
        "Compiling saves memory: e and f need not be kept": pair("needed", 1, 10**9),
        "Compiling saves calls": times(
            {"operation by operation": 3, "compiled": 1},
            {"operation by operation": 1, "compiled": 3}, "small"),
        "After hybridize the output stays the same": only_fails(lambda m: {"after": m.before + 1}),
        "Symbolic execution is faster (the book: 2.4 times)": times(
            {"operation by operation": 3, "hybridize": 1, "nnx.jit": 3},
            {"operation by operation": 1, "hybridize": 3, "nnx.jit": 3}),
        "Most of an nnx.jit call of this MLP is Python's work on the module": times(
            {"operation by operation": 3, "hybridize": 1, "nnx.jit": 3},
            {"operation by operation": 3, "hybridize": 1, "nnx.jit": 1.5}),
        "Compiling gains less where a call computes more": (batches(9, 2), batches(2, 9)),
        "At none of these batches is the compiled MLP more than 5% slower": (batches(9, 1), batches(9, 0.5)),
        "Program and parameters can be used without the code that made them": only_fails(
            lambda m: {"read_back": np.asarray(m.before) + 1}),
        "The exported MLP is faster than the imperative one": times(
            {"operation by operation": 3, "exported, with jit": 1},
            {"operation by operation": 1, "exported, with jit": 3}, "served"),
        "After hybridize, the prints are silent from the second call on": pair(
            "second", "output: 1", "type: a\nx: 1\nhidden: 2\noutput: 1"),
        "jit's key: function object, tree, shapes, dtypes, weak types, shardings, statics": (
            lambda m: {"calls": {"a": (lambda: m.traces.append(1), 1)}},
            lambda m: {"calls": {"a": (lambda: m.traces.extend((1, 1)), 1)}}),
        "In-place operations such as a += b and a[:] = a + b cannot be used": pair("trials",
            dict.fromkeys(("a[:] = a + b", "a += b", "np.asarray(x)"), ("TypeError", "")),
            {"a[:] = a + b": ("Error", ""), "a += b": ("works", ""), "np.asarray(x)": ("Error", "")}),
        "asnumpy cannot be used in a hybridized network": pair("trials",
            dict.fromkeys(("a[:] = a + b", "a += b", "np.asarray(x)"), ("TypeError", "")),
            dict.fromkeys(("a[:] = a + b", "a += b", "np.asarray(x)"), ("works", ""))),
        "Every way that compiles a network also updates its running mean": (
            lambda m: {"outcome": lambda way: (True, True)},
            lambda m: {"outcome": lambda way: (True, False)}),
        "An if on a value fails, a for over rows works": pair("trials",
            {"if x.sum() > 1": ("Error", ""), "for row in x": ("works", "")},
            {"if x.sum() > 1": ("Error", ""), "for row in x": ("Error", "")}),
    },
    "async_computation": {
        "y = nd.dot(x, x).sum() returns before y is computed": pair("product",
            SimpleNamespace(asynchronous=True, queued_share=exactly(0.1), ready=[False] * 6),
            SimpleNamespace(asynchronous=False, queued_share=exactly(1.0), ready=[True] * 6)),
        "The front end's speed hardly matters to the whole program": times(
            {f"{n}, {pace} front end": 1 for n in ("large", "tiny") for pace in ("slow", "fast")},
            {f"{n}, {pace} front end": 1 + 9 * (n + pace == "tinyslow")
             for n in ("large", "tiny") for pace in ("slow", "fast")}),
        "What turns an array into something else makes the front end wait": pair(
            "ready", dict.fromkeys("abcdef", True), dict.fromkeys("abcdef", False)),
        "A way of waiting that converts takes as long, where the computation is long": times(
            {"if y > 0": 1, "block_until_ready()": 1}, {"if y > 0": 2, "block_until_ready()": 1}),
        "One of the three waits for everything that was queued before it, as waitall does": pair(
            "waited", {"a": [True] * 3}, {"a": [True, False, True]}),
        "An error appears where Python waits, not where the failing work was queued": pair("line", 3, 1),
        "The book's loop takes longer if it waits in each turn, in each of three new processes": (
            lambda m: memory(2.0, 5.0, 1.1), lambda m: memory(0.9, 5.0, 1.1)),
        "An array whose memory comes from the system costs more than the addition": (
            lambda m: memory(2.0, 5.0, 1.1), lambda m: memory(2.0, 1.1, 1.1)),
        "As installed, waiting costs more time than in place": (
            lambda m: memory(2.0, 5.0, 1.1), lambda m: memory(1.1, 5.0, 1.4)),
        "n calls take n (t1 + t2 + t3) synchronously, and t1 + n t2 + t3 asynchronously": (
            lambda m: model(0.1), lambda m: model(0.9)),
        "A loop inside one program saves most of t1": pair("saving", exactly(5), exactly(1.5)),
        "Without synchronization, the front end hands over all computations at once": pair("depth", 100, 32),
        "Training without synchronization takes more memory": (trainings(3, 1), trainings(0.5, 1)),
        "Predicting without synchronization takes more memory": (trainings(3, 1), trainings(0.5, 1)),
        "A window of a few steps saves the memory, too": (trainings(3, 1), trainings(3, 4)),
        "Waiting in each step costs at most 5% of this training's time": (trainings(1, 1), trainings(0.5, 1)),
    },
    "auto_parallelism": {
        "A product is nearly as many times as fast as there are cores": (
            lambda m: ratios(product_gain=m.s.environment.cores, loop_gain=0.1)(m),
            ratios(product_gain=0.5, loop_gain=0.1)),
        "A loop over devices looks serial, but it runs in parallel": pair("shared", 0.9, 0.1),
        "A chain over two devices does not overlap": pair("chained", 0.01, 0.5),
        "A CPU and a GPU take less time together than one after the other": times(
            {ONE_AFTER: 1.6, TOGETHER: 1}, {ONE_AFTER: 0.9, TOGETHER: 1}, "apart"),
        "Two devices on the same cores gain little or nothing": times(
            {ONE_AFTER: 0.9, TOGETHER: 1}, {ONE_AFTER: 1.6, TOGETHER: 1}, "apart"),
        "Computing on a GPU and copying from it take less time together": times(
            {"all, then copy": 1.6, "compute and copy: both": 1},
            {"all, then copy": 0.9, "compute and copy: both": 1}, "copying"),
        "With two results, copying one while the next is computed saves time": times(
            {"one at a time": 1.6, "keep two": 1, "compute and copy: both": 1},
            {"one at a time": 0.9, "keep two": 1, "compute and copy: both": 1}, "copying"),
        "A batch that is loaded while the device computes saves time": times(
            {"load, then compute": 2, "prefetch": 1}, {"load, then compute": 1, "prefetch": 2}),
        "Under jit, the book's run is one product": pair("equal", 1, 10),
        "The ten products of run are not executed in parallel": pair(
            "at_once", {"one by one": 1, "one program": 2}, {"one by one": 2, "one program": 2}),
        "In one program, a product begins before the one before has ended": pair(
            "at_once", {"one by one": 1, "one program": 2}, {"one by one": 1, "one program": 1}),
        "Complex dependencies are respected": pair("correct", 5, 4),
        "Two devices compute such a task faster than one": pair("gain", exactly(2), exactly(0.9)),
        "One batch of ten 20 × 20 products is faster than ten calls": (
            lambda m: small(m, once=1.0), lambda m: small(m, once=20.0)),
    },
    "use_gpu": {
        "Operands must be on the same device": (
            lambda m: {"outcomes": dict.fromkeys(m.mixtures, "Error")},
            lambda m: {"outcomes": dict.fromkeys(m.mixtures, "runs")}),
        "An uncommitted array and a NumPy array follow a committed one": only_fails(
            lambda m: {"outcomes": dict.fromkeys(m.outcomes, "runs elsewhere")}),
        "A network computes where its parameters are": only_fails(lambda m: {"second": m.first}),
        "Do not move data between devices more often than you must": times(
            {"host to device": 9, "sum on the device": 1}, {"host to device": 1, "sum on the device": 9}),
        "TF32 is accurate to about three digits": pair("tf32", 3e-4, 3e-2),
        "A product of float32 arrays has the precision that JAX promises here": (
            lambda m: {"jnp": products(m, lost=0.0)}, lambda m: {"jnp": products(m, lost=0.1)}),
    },
}  # fmt: skip


def small(m, once):
    """Ten small products of 8.3: as one program or batch they take so long, as ten calls 10 s."""
    ways = {"called one by one": 10.0, "one program": once, "one batch (vmap)": once}
    measured = {name: took(x=value)["x"] for name, value in ways.items()}
    return {"small": dict.fromkeys((20, 50), measured), "SMALL": (20, 50)}


def products(m, lost):
    def dot(a, b, precision=None):
        exact = jnp.dot(a, b, precision="highest")
        return exact if precision else exact * (1 + lost)

    return SimpleNamespace(dot=dot, linalg=jnp.linalg)


@functools.cache
def load(name):
    return cells.load(catalogue.folder() / f"{name}.py", "--smoke", without=("slow",))


@pytest.mark.parametrize("name", PLANTED)
def test_every_claim_has_its_plants(name):
    assert set(PLANTED[name]) == all_claims(catalogue.folder() / f"{name}.py")


@pytest.mark.parametrize(("name", "statement"), [(name, s) for name in PLANTED for s in PLANTED[name]])
def test_a_claim_holds_and_fails_by_what_was_measured(name, statement):
    outcomes = ["holds", "does not hold"]
    if statement.startswith("One of the three waits for everything"):
        outcomes[0] = "undecided"  # a candidate that waits may have been lucky
    for plant, outcome in zip(PLANTED[name][statement], outcomes):
        assert verdict(load(name), statement, everywhere=True, **plant(load(name))) == outcome
