"""Measure each stage that a function passes through, and describe the compiled program.

    Python -> trace -> jaxpr -> lower -> StableHLO -> compile -> optimized program -> run

Section 8.1 of the book has two of these stages: define the graph, and compile it.
"""

import functools
import inspect
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any

import jax

from jaxperf.errors import JaxperfError
from jaxperf.hlo import COLLECTIVES, costs, operation, parse
from jaxperf.measure.timing import block, measure
from jaxperf.result.values import Measurement


@dataclass(frozen=True)
class Program:
    """A compiled program in numbers; FLOPs, bytes and memory are the compiler's own estimates."""

    jaxpr_equations: int  #: of the traced program, including those of inner programs
    matrix_dtype: str  #: of most elements that matrix products and convolutions read; "" if there are none
    fusions: int  #: instructions of the optimized program, including fused ones, as the next three
    dots: int
    convolutions: int
    loops: int
    collectives: Mapping[str, int]  #: instructions that communicate with other devices, by name
    flops: float  #: of one execution, with one iteration of each loop; 0 if there is no estimate
    bytes_accessed: float  #: as `flops`
    argument_bytes: int  #: memory of one execution on one device
    output_bytes: int
    temp_bytes: int
    peak_bytes: int  #: arguments, outputs and temporaries, without counting aliased ones twice


@dataclass(frozen=True)
class Built:
    """A function that has been compiled to a program, but not run."""

    trace_s: float  # seconds of each stage, measured once
    lower_s: float
    compile_s: float
    program: Program
    lowered: Any  # the objects of `jax.stages`
    compiled: Any


@dataclass(frozen=True)
class Stages(Built):
    """The stages of a function that has also run."""

    first_run_s: float  #: measured once
    steady: Measurement  #: seconds per call of the compiled program


def stages(
    fn: Callable[..., Any],
    *args: Any,
    name: str | None = None,
    static_argnames: tuple[str, ...] = (),
    measure_options: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> Stages:
    """Take `fn(*args, **kwargs)` through all stages, from Python to a steady run.

    Args:
      fn: a function of arrays. If it is jitted already, its jit options apply, and its cache is cleared.
      *args: arrays or pytrees of arrays; every call gets the same ones, so none may be donated.
      name: of the measurement; the function's own by default.
      static_argnames: as in `jax.jit`, for a function that is not jitted yet.
      measure_options: keyword options of `measure` for the steady run.
      **kwargs: further arguments, by name, including static ones.

    Raises:
      JaxperfError: as `measure`; or a static argument was given by position.
    """
    label = name or str(getattr(fn, "__name__", type(fn).__name__))
    built = build_program(fn, *args, static_argnames=static_argnames, **kwargs)
    positional, named = built.lowered.args_info
    if len(positional) != len(args):
        raise JaxperfError(
            f"stages({label}): {len(args) - len(positional)} of {len(args)} positional arguments are static; "
            "give static arguments by name"
        )
    # the compiled program takes no static arguments
    run = functools.partial(built.compiled, **{k: v for k, v in kwargs.items() if k in named})
    block(args)
    before = time.perf_counter()
    block(run(*args))
    first_run_s = time.perf_counter() - before
    steady = measure(run, *args, name=label, **(measure_options or {}))
    return Stages(**vars(built), first_run_s=first_run_s, steady=steady)


def is_jitted(fn: Callable[..., Any]) -> bool:
    """Return whether `fn` is what `jax.jit` returned, whose stages can be taken one by one.

    A bound method of a jitted function is not: its stages are those of the function, which lack `self`.
    """
    return hasattr(fn, "trace") and hasattr(fn, "clear_cache") and not inspect.ismethod(fn)


def build_program(
    fn: Callable[..., Any], *args: Any, static_argnames: tuple[str, ...] = (), **kwargs: Any
) -> Built:
    """Take `fn` from Python to a compiled program, and run nothing.

    A jitted function keeps the compiled program, so calling it with such arguments compiles nothing more.
    """
    jitted: Any = fn
    if is_jitted(fn):
        jitted.clear_cache()  # JAX would return an earlier trace
    else:
        # jit caches traces per function object, so this is a new one; `wraps` keeps the signature
        again = functools.wraps(fn, updated=())(lambda *a, **k: fn(*a, **k))
        jitted = jax.jit(again, static_argnames=static_argnames)
    clock = time.perf_counter
    began = clock()
    traced = jitted.trace(*args, **kwargs)
    traced_at = clock()
    lowered = traced.lower()
    lowered_at = clock()
    compiled = lowered.compile()
    seconds = (traced_at - began, lowered_at - traced_at, clock() - lowered_at)
    return Built(*seconds, describe_program(traced, compiled), lowered, compiled)


def compile_together(calls: Mapping[str, Sequence[Any]]) -> tuple[dict[str, Any], float]:
    """Compile a program for each call, and run none of them: on a CPU at the same time, for a GPU in turn.

    Functions are traced one after the other. Ctrl-C raises at once. A jitted function keeps its program, so
    calling it with such arguments compiles nothing more.

    Args:
      calls: by name, a function, jitted or not, followed by its arguments, arrays or their shapes.

    Returns:
      The compiled programs by name (`jax.stages.Compiled`), and the seconds for all.

    Raises:
      Exception: what tracing or compiling one of them raised.
    """
    began = time.perf_counter()
    lowered = {
        name: (fn if hasattr(fn, "lower") else jax.jit(fn)).lower(*args)
        for name, (fn, *args) in calls.items()
    }
    compiled = {name: Future[Any]() for name in lowered}

    def compile_some(names: Iterable[str]) -> None:
        for name in names:
            try:
                compiled[name].set_result(lowered[name].compile())
            except Exception as e:
                compiled[name].set_exception(e)

    # XLA releases the GIL while it compiles. For a GPU, it times kernels, and reuses the results for the next
    # program. It cannot be interrupted: after Ctrl-C, threads go on; those of a pool would delay the exit.
    groups = [list(lowered)] if jax.default_backend() == "gpu" else [[name] for name in lowered]
    for names in groups:
        threading.Thread(target=compile_some, args=(names,), daemon=True).start()
    wait(compiled.values())
    return {name: program.result() for name, program in compiled.items()}, time.perf_counter() - began


def describe_program(traced: Any, compiled: Any) -> Program:
    """Return a description of a program, from its `jax.stages` objects `Traced` and `Compiled`."""
    ops, cost = count_ops(compiled.as_text() or ""), costs(compiled)
    equations = list(all_equations(traced.jaxpr.jaxpr))
    elements_read: Counter[str] = Counter()
    for equation in equations:
        if equation.primitive.name in ("dot_general", "conv_general_dilated"):
            for operand in equation.invars[:2]:
                elements_read[str(operand.aval.dtype)] += operand.aval.size
    return Program(
        jaxpr_equations=len(equations),
        matrix_dtype=max(elements_read, key=lambda dtype: elements_read[dtype], default=""),
        fusions=ops["fusion"],
        dots=ops["dot"],
        convolutions=ops["convolution"],
        loops=ops["while"],
        collectives={k: ops[k] for k in COLLECTIVES if ops[k]},
        flops=cost.flops,
        bytes_accessed=cost.bytes_accessed,
        argument_bytes=cost.argument_bytes,
        output_bytes=cost.output_bytes,
        temp_bytes=cost.temp_bytes,
        peak_bytes=cost.peak_bytes,
    )


def count_ops(hlo: str) -> Counter[str]:
    """Return the number of instructions by opcode in an optimized program's text.

    Library calls count as their operation (a cuBLAS product as "dot", a cuDNN convolution as "convolution"),
    and the two halves of an asynchronous instruction count as one.
    """
    instructions = parse(hlo).instructions if hlo else ()
    return Counter(operation(i) for i in instructions if not i.opcode.endswith("-done"))


def all_equations(jaxpr: Any) -> Iterator[Any]:
    """Yield the equations of a jaxpr, and once each those of inner jaxprs (loops, branches, jits)."""
    yield from jaxpr.eqns
    leaves = jax.tree.leaves([eqn.params for eqn in jaxpr.eqns], is_leaf=lambda x: hasattr(x, "eqns"))
    for leaf in leaves:
        if hasattr(leaf, "eqns"):
            yield from all_equations(getattr(leaf, "jaxpr", leaf))
