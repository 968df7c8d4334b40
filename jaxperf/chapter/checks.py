"""Checks of exercises: `jaxperf check 8.4.3 mine.py` says "right", or what is wrong, and shows no answer.

A check calls a function of the reader's file with inputs whose results are known, or known to agree. It
judges what the function computes and, where the exercise is about that, in which order, or with how many
messages.
"""

import contextlib
import io
import runpy
import traceback
import warnings
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from jaxperf.errors import JaxperfError, first_line
from jaxperf.flags import did_you_mean
from jaxperf.measure.stages import all_equations
from jaxperf.process import forced_end

RIGHT, WRONG = 0, 1
DEVICES = 4
COLLECTIVES = ("psum", "psum_invariant", "all_gather", "psum_scatter", "reduce_scatter", "all_to_all")
Program = dict[str, Any]


class WrongError(Exception):
    """What is wrong with a solution, in one line."""


@dataclass(frozen=True)
class Check:
    """An exercise: the signatures that the file must define, by name, and what judges its functions."""

    signatures: Mapping[str, str]
    judge: Callable[..., None]

    def __str__(self) -> str:
        return " and ".join(self.signatures.values())


CHECKS: dict[str, Check] = {}


def check(number: str, *signatures: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register the function that judges an exercise; a signature says what its function returns, too."""

    def register(judge: Callable[..., None]) -> Callable[..., None]:
        CHECKS[number] = Check({each.partition("(")[0]: each for each in signatures}, judge)
        return judge

    return register


@forced_end()
def main(number: str, path: Path | None) -> int:
    """Check a solution, and print the verdict; return 0 if it is right, 1 if it is wrong."""
    if not number:
        print("These exercises have a check; FILE defines what stands behind the number:")
        print("\n".join(f"  {each}  {wanted}" for each, wanted in CHECKS.items()))
        return RIGHT
    if number not in CHECKS:
        nearest = did_you_mean(number, CHECKS)
        raise JaxperfError(
            f"exercise {number!r} has no check{nearest}; `jaxperf check` lists those that have one"
        )
    wanted = CHECKS[number]
    if path is None:
        raise JaxperfError(f"give a file that defines {wanted}")
    if not path.is_file():
        raise JaxperfError(f"there is no file {path}; write one that defines {wanted}")
    with contextlib.suppress(RuntimeError):  # JAX has started
        jax.config.update("jax_num_cpu_devices", DEVICES)
    wrong = judge(wanted, load(path, wanted, number), path)
    print(f"{number}: wrong: {wrong}" if wrong else f"{number}: right")
    return WRONG if wrong else RIGHT


def load(path: Path, wanted: Check, number: str) -> Program:
    """Run a file, and return what it defines."""
    try:
        with redirect_stdout(io.StringIO()):
            program = runpy.run_path(str(path), run_name="solution")
    except (Exception, SystemExit) as e:
        raise JaxperfError(f"{_line(e, path) or path} raises {first_line(e, with_class=True)}") from None
    for name in wanted.signatures:
        if not callable(program.get(name)):
            raise JaxperfError(f"{path} defines no function {name}; {number} asks for {wanted}")
    return program


def judge(wanted: Check, program: Program, path: Path) -> str:
    """Return what is wrong with a program's functions; "" if nothing."""
    try:
        wanted.judge(*(program[name] for name in wanted.signatures))
    except WrongError as e:
        return " ".join(str(e).split())
    except (Exception, SystemExit) as e:  # of the reader's function, with whatever JAX raises
        line = _line(e, path)
        if line:
            return f"{line} raises {first_line(e, with_class=True)}"
        return f"what it returns cannot be used ({first_line(e, with_class=True)})"
    return ""


def _line(error: BaseException, path: Path) -> str:
    """Return "path:line" of the innermost line of a file that an error came through; "" if none."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(path)]
    if isinstance(error, SyntaxError) and error.filename == str(path):
        lines.append(error.lineno)
    return f"{path}:{lines[-1]}" if lines else ""


def ask(right: bool, otherwise: str) -> None:
    """Go on if `right`; else the solution is wrong, for the reason `otherwise`."""
    if not right:
        raise WrongError(otherwise)


def same(result: Any, wanted: Any, name: str, *, tolerance: float = 1e-5) -> None:
    got, expected = jax.tree.leaves(result), jax.tree.leaves(wanted)
    ask(len(got) == len(expected), f"{name} has {len(got)} arrays, and should have {len(expected)}")
    for array, right in zip(map(np.asarray, got), map(np.asarray, expected)):
        ask(array.shape == right.shape, f"{name} has the shape {array.shape}, and should have {right.shape}")
        scale = max(float(np.abs(right).max()), 1e-6)
        off = float(np.abs(array - right).max()) / scale
        ask(off <= tolerance, f"{name} is off by {off:.2g} of its largest value")


def devices() -> list[Any]:
    present = jax.devices("cpu")[:DEVICES]
    if len(present) < DEVICES:
        raise JaxperfError(f"JAX has started with {len(present)} CPU devices, and the check needs {DEVICES}")
    return present


def on_devices(function: Any, in_specs: Any, out_specs: Any) -> Any:
    """Return a function under `shard_map`, over a mesh with the axis "d"."""
    mesh = Mesh(np.array(devices()), "d")
    return jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)


def exchanges(jaxpr: Any) -> list[Any]:
    return [each for each in all_equations(jaxpr) if each.primitive.name in COLLECTIVES]


class Result:
    """A result of a computation that only notes in `events` what is done with it."""

    def __init__(self, events: list[tuple[str, int]], number: int) -> None:
        self.events, self.number = events, number
        events.append(("call", number))

    def copy_to_host_async(self) -> None:
        self.events.append(("copy", self.number))

    def block_until_ready(self) -> Any:
        self.events.append(("wait", self.number))
        return self

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        self.block_until_ready()
        return np.full(2, self.number)

    def item(self) -> float:
        return float(self.block_until_ready().number)

    __float__ = item


@check("8.0.6", 'closest_limit(flops, moved, peak, bandwidth, call_s) -> "arithmetic", "memory", "overhead"')
def closest_limit(function: Any) -> None:
    bandwidth, call_s = 2e10, 1e-5
    cases = {
        "a product of two 2000 x 2000 matrices": (16e9, 48e6, 2e11, "arithmetic"),
        "the same product, with a peak a million times as high": (16e9, 48e6, 2e17, "memory"),
        "x + 1 for 4 million floats": (4e6, 32e6, 2e11, "memory"),
        "x + 1 for 100 floats": (100, 800, 2e11, "overhead"),
        "a product of two 10 x 10 matrices": (2000, 1200, 2e11, "overhead"),
        "a matrix of 8000 x 8000 times a vector": (128e6, 256e6, 2e11, "memory"),
    }
    for name, (flops, moved, peak, limit) in cases.items():
        answer = function(flops, moved, peak, bandwidth, call_s)
        ask(answer == limit, f"for {name}, {answer!r} is not the limit that takes the longest")


@check(
    "8.1.2",
    "if_value(x)",
    "for_range(x, n), both as in 8.1.3, but so that they work under jit for any values",
)
def control_flow(if_value: Any, for_range: Any) -> None:
    traced = 0

    def counted(x: Any, n: Any) -> Any:
        nonlocal traced
        traced += 1
        return for_range(x, n)

    compiled_if, compiled_for = jax.jit(if_value), jax.jit(counted)
    for values in ([0.5, 0.25], [3.0, 1.0], [-1.0, -4.0], [1.0, 0.0]):
        x = jnp.array(values)
        wanted = x / x.sum() if float(x.sum()) > 1 else x
        same(compiled_if(x), wanted, f"if_value for {values}")
    for n in (0, 1, 2, 7):
        same(compiled_for(jnp.array([1.0, 3.0]), n), jnp.array([1.0, 3.0]) * 2**n, f"for_range for n = {n}")
    ask(traced == 1, f"for_range was traced {traced} times for four values of n")


@check("8.2.5", "run_all(compute, batches, window) -> results, of which at most `window` + 1 are unfinished")
def run_all(function: Any) -> None:
    for window, count in ((0, 5), (2, 12), (7, 5)):
        events: list[tuple[str, int]] = []
        results = function(partial(Result, events), list(range(count)), window)
        numbers_in_order = [getattr(r, "number", None) for r in results]
        ask(numbers_in_order == list(range(count)), "it does not return all results in order")
        unfinished: set[int] = set()
        newest, peak, early = 0, 0, False
        for event, number in events:
            if event == "call":
                unfinished.add(number)
                newest, peak = max(newest, number), max(peak, len(unfinished))
            else:
                early |= newest - number < window and newest < count - 1
                unfinished = {n for n in unfinished if n > number}  # a device works in order
        ask(peak <= window + 1, f"with a window of {window}, up to {peak} results are unfinished")
        ask(not early, f"with a window of {window}, it waits for a result that is not {window} calls old yet")


@check("8.3.4", "fetch_all(f, xs) -> NumPy arrays f(x), copied to the host while others are computed")
def fetch_all(function: Any) -> None:
    events: list[tuple[str, int]] = []
    fetched = function(partial(Result, events), list(range(5)))
    ask([type(a) for a in fetched] == [np.ndarray] * 5, "it does not return a list of NumPy arrays")
    ask([int(a[0]) for a in fetched] == list(range(5)), "the results are not in the order of xs")
    kinds = [event for event, _ in events]
    before_waits = kinds[: kinds.index("wait")]
    queued = before_waits.count("call") == 5
    ask(queued, "it waits before all calls are queued, so the device has nothing to do")
    ask(before_waits.count("copy") >= 5, "no copy is under way while the device computes")


@check("8.4.3", "allreduce(trees) -> list of trees, each the sum, each where the tree at its place was")
def allreduce(function: Any) -> None:
    places = devices()
    trees = [
        jax.device_put({"W": jnp.full((2, 3), i + 1.0), "b": jnp.arange(3.0) * i}, place)
        for i, place in enumerate(places)
    ]
    total = {"W": jnp.full((2, 3), 10.0), "b": jnp.arange(3.0) * 6}
    summed = function([dict(tree) for tree in trees])
    one_each = isinstance(summed, list | tuple) and len(summed) == len(places)
    ask(one_each, "it does not return a tree for each device")
    for i, (tree, place) in enumerate(zip(summed, places)):
        same(tree, total, f"the sum on device {i}")
        for leaf in jax.tree.leaves(tree):
            ask(leaf.device == place, f"the sum for device {i} is on {leaf.device}")
    before = [float(tree["W"][0, 0]) for tree in trees]
    ask(before == [1.0, 2.0, 3.0, 4.0], "it changes the trees that it was given")
    alone = function(trees[:1])
    same(alone[0], trees[0], "the sum of a single tree")


@check("8.5.2", "gradient(loss, params, shares) -> that of the mean loss over all examples of unequal shares")
def gradient(function: Any) -> None:
    def loss(params: Any, X: Any, y: Any) -> Any:
        return jnp.mean((X @ params["W"] + params["b"] - y) ** 2)

    X = jax.random.normal(jax.random.key(0), (12, 3))
    y = jnp.arange(12.0)
    params = {"W": jnp.ones(3), "b": jnp.zeros(())}
    whole = jax.grad(loss)(params, X, y)
    for cuts in ((9,), (6,), (1, 4), (3, 6, 9)):
        shares = list(zip(jnp.split(X, cuts), jnp.split(y, cuts)))
        sizes = [len(labels) for _, labels in shares]
        same(function(loss, params, shares), whole, f"the gradient for shares of {sizes} examples")


@check("8.6.1", "try_gpu(i=0) -> GPU i, or a CPU device and a warning that says so")
def try_gpu(function: Any) -> None:
    cpu, gpu = jax.devices("cpu")[0], SimpleNamespace(platform="gpu", device_kind="a GPU", id=0)
    jax_devices = jax.devices

    def call(gpus: list[Any], *arguments: int) -> tuple[Any, str]:
        """Call the function where these are the GPUs; return the device, and what was printed or warned."""

        def listed(backend: str | None = None) -> list[Any]:
            if backend not in (None, "gpu", "cuda"):
                return jax_devices(backend)
            if backend and not gpus:
                raise RuntimeError("no GPU")
            return gpus or jax_devices("cpu")

        printed = io.StringIO()
        with (
            mock.patch.object(jax, "devices", listed),
            warnings.catch_warnings(record=True) as warned,
            redirect_stdout(printed),
            redirect_stderr(printed),
        ):
            warnings.simplefilter("always")
            device = function(*arguments)
        return device, (printed.getvalue() + "".join(str(w.message) for w in warned)).strip()

    device, message = call([])
    ask(device == cpu, f"without a GPU it returns {device}, so it does not work on a laptop")
    ask(message != "", "without a GPU it returns the CPU without a word")
    device, message = call([gpu])
    ask(device is gpu, f"with a GPU it returns {device}")
    ask(message == "", f"with a GPU it says {message[:60]!r}")
    device, message = call([gpu], 1)
    ask(device == cpu and message != "", "with one GPU, try_gpu(1) must fall back, and say so")


@check("8.7.1", "two_rings(x, axis) -> the sum over a mesh axis, for shard_map, half of it each way around")
def two_rings(function: Any) -> None:
    k = DEVICES
    x = jax.random.normal(jax.random.key(0), (k, 16 * k))
    mapped = on_devices(lambda x: function(x[0], "d")[None], P("d"), P("d"))
    same(jax.jit(mapped)(x), jnp.broadcast_to(x.sum(0), x.shape), "the sum")
    sent = {+1: 0, -1: 0}
    program = jax.make_jaxpr(mapped)(x).jaxpr
    left_to = {each.primitive.name for each in exchanges(program)}
    ask(not left_to, f"it leaves the sum to {' and '.join(left_to)}; send with ppermute")
    for equation in all_equations(program):
        if equation.primitive.name == "ppermute":
            steps = {(b - a) % k for a, b in equation.params["perm"]}
            to_a_neighbor = steps in ({1}, {k - 1})
            ask(to_a_neighbor, "a message goes further than to a neighbor, or both ways at once")
            sent[1 if steps == {1} else -1] += equation.outvars[0].aval.size
    ask(min(sent.values()) > 0, "all messages go the same way around")
    ask(sent[1] == sent[-1], f"one way carries {sent[1]} numbers, the other {sent[-1]}")
    most = 16 * (k - 1)
    ask(sent[1] <= most, f"each way carries {sent[1]} numbers, and {most} are enough")


@check("8.8.1", "micro_batches(stages, idle) -> the fewest with which a pipeline idles less than `idle`")
def micro_batches(function: Any) -> None:
    for stages, idle in ((2, 0.1), (4, 0.25), (16, 0.1), (8, 0.5), (1, 0.1), (3, 0.4)):
        answer = function(stages, idle)
        ask(float(answer).is_integer(), f"for {stages} stages it returns {answer}, not a whole number")
        # the share of idle turns is (p - 1) / (m + p - 1), with this many micro-batches and with one fewer
        share, share_before = ((stages - 1) / max(m + stages - 1, 1) for m in (answer, answer - 1))
        idles = f"with {answer} micro-batches, {stages} stages idle {share:.1%}, not less than {idle:.0%}"
        ask(answer > 0 and share < idle - 1e-12, idles)
        fewest = answer == 1 or share_before >= idle - 1e-12
        ask(fewest, f"for {stages} stages and {idle:.0%}, fewer than {answer} are enough")


@check("8.9.2", "accumulated(grad, params, batches, axis) -> mean over batches and devices, for shard_map")
def accumulated(function: Any) -> None:
    def loss(params: Any, batch: Any) -> Any:
        return jnp.mean((batch @ params["W"]) ** 2)

    grad = jax.grad(loss)
    batches = jax.random.normal(jax.random.key(0), (DEVICES * 4, 8, 3))  # four small batches for each device
    params = {"W": jnp.arange(3.0) + 1}
    mapped = on_devices(lambda params, batches: function(grad, params, batches, "d"), (P(), P("d")), P())
    wanted = jax.tree.map(lambda *g: sum(g) / len(g), *[grad(params, batch) for batch in batches])
    same(jax.jit(mapped)(params, batches), wanted, "the gradient")
    program = jax.make_jaxpr(mapped)(params, batches).jaxpr
    loops = [each.params for each in all_equations(program) if each.primitive.name in ("scan", "while")]
    bodies = [loop["jaxpr"] if "jaxpr" in loop else loop["body_jaxpr"] for loop in loops]
    ask(not any(map(exchanges, bodies)), "the loop exchanges the gradient in each turn")
    count = len(exchanges(program))
    ask(count == 1, f"the program has {count} exchanges of the gradient, and one is enough")
