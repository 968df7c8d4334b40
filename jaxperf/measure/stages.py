"""Measure each stage that a function passes through, and describe the compiled program.

    Python -> trace -> jaxpr -> lower -> StableHLO -> compile -> optimized program -> run

Section 8.1 of the book has two of these stages: define the graph, and compile it.
"""

from __future__ import annotations

import functools
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax

from jaxperf.errors import JaxperfError
from jaxperf.hlo import COLLECTIVES, costs, parse
from jaxperf.measure.timing import block, measure
from jaxperf.result.values import Measurement


@dataclass(frozen=True)
class Program:
    """A compiled program in numbers; FLOPs, bytes and memory are the compiler's own estimates.

    Attributes:
      jaxpr_equations: equations of the traced program, including those of inner programs.
      matrix_dtype: the dtype of most elements that matrix products and convolutions read ("float32"); "" if
        there are none.
      fusions, dots, convolutions, loops: instructions of the optimized program, including fused ones.
      collectives: instructions that communicate with other devices, by name.
      flops, bytes_accessed: of one execution, with one iteration of each loop; 0 if there is no estimate.
      argument_bytes, output_bytes, temp_bytes: memory of one execution on one device.
      peak_bytes: arguments, outputs and temporaries, without counting aliased ones twice.
    """

    jaxpr_equations: int
    matrix_dtype: str
    fusions: int
    dots: int
    convolutions: int
    loops: int
    collectives: Mapping[str, int]
    flops: float
    bytes_accessed: float
    argument_bytes: int
    output_bytes: int
    temp_bytes: int
    peak_bytes: int


@dataclass(frozen=True)
class Built:
    """A function that has been compiled to a program, but not run.

    Attributes:
      trace_s, lower_s, compile_s: seconds of each stage, measured once.
      program: the compiled program in numbers.
      lowered, compiled: the objects of `jax.stages`.
    """

    trace_s: float
    lower_s: float
    compile_s: float
    program: Program
    lowered: Any
    compiled: Any


@dataclass(frozen=True)
class Stages(Built):
    """The stages of a function that has also run.

    Attributes:
      first_run_s: seconds of the first run, measured once.
      steady: seconds per call of the compiled program.
    """

    first_run_s: float
    steady: Measurement


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
    dynamic = _dynamic(built.lowered, args, kwargs, label)

    def run(*a: Any) -> Any:
        return built.compiled(*a, **dynamic)

    block(args)
    before = time.perf_counter()
    block(run(*args))
    first_run_s = time.perf_counter() - before
    steady = measure(run, *args, name=label, **(measure_options or {}))
    return Stages(**vars(built), first_run_s=first_run_s, steady=steady)


def build_program(
    fn: Callable[..., Any], *args: Any, static_argnames: tuple[str, ...] = (), **kwargs: Any
) -> Built:
    """Take `fn` from Python to a compiled program, and run nothing.

    A jitted function keeps the compiled program, so calling it with such arguments compiles nothing more.
    """
    clock, jitted = time.perf_counter, _untraced(fn, static_argnames)
    began = clock()
    traced = jitted.trace(*args, **kwargs)
    traced_at = clock()
    lowered = traced.lower()
    lowered_at = clock()
    compiled = lowered.compile()
    compiled_at = clock()
    return Built(
        trace_s=traced_at - began,
        lower_s=lowered_at - traced_at,
        compile_s=compiled_at - lowered_at,
        program=describe_program(traced, compiled),
        lowered=lowered,
        compiled=compiled,
    )


def _dynamic(lowered: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], label: str) -> dict[str, Any]:
    """Return the named arguments that the compiled program takes, without static ones."""
    positional, named = lowered.args_info
    if len(positional) != len(args):
        raise JaxperfError(
            f"stages({label}): {len(args) - len(positional)} of {len(args)} positional arguments are static; "
            "give static arguments by name"
        )
    return {k: v for k, v in kwargs.items() if k in named}


def _untraced(fn: Callable[..., Any], static_argnames: tuple[str, ...]) -> Any:
    """Return `fn` jitted and without traces, since JAX would return an earlier trace."""
    if hasattr(fn, "trace") and hasattr(fn, "clear_cache"):
        fn.clear_cache()
        return fn
    # jit caches traces per function object, so this is a new one; `wraps` keeps the signature
    again = functools.wraps(fn, updated=())(lambda *a, **k: fn(*a, **k))
    return jax.jit(again, static_argnames=static_argnames)


def describe_program(traced: Any, compiled: Any) -> Program:
    """Return a description of a program, from its `jax.stages` objects `Traced` and `Compiled`."""
    ops, cost = count_ops(compiled.as_text() or ""), costs(compiled)
    return Program(
        jaxpr_equations=count_equations(traced.jaxpr.jaxpr),
        matrix_dtype=matrix_dtype(traced.jaxpr.jaxpr),
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
    return parse(hlo).count_ops() if hlo else Counter()


def all_equations(jaxpr: Any) -> Iterator[Any]:
    """Yield the equations of a jaxpr, and once each those of inner jaxprs (loops, branches, jits)."""
    yield from jaxpr.eqns
    leaves = jax.tree.leaves([eqn.params for eqn in jaxpr.eqns], is_leaf=lambda x: hasattr(x, "eqns"))
    for leaf in leaves:
        if hasattr(leaf, "eqns"):
            yield from all_equations(getattr(leaf, "jaxpr", leaf))


def count_equations(jaxpr: Any) -> int:
    """Return the number of `all_equations`."""
    return sum(1 for _ in all_equations(jaxpr))


def matrix_dtype(jaxpr: Any) -> str:
    """Return the dtype of most elements that matrix products and convolutions read; "" if there are none."""
    read: Counter[str] = Counter()
    for eqn in all_equations(jaxpr):
        if eqn.primitive.name in ("dot_general", "conv_general_dilated"):
            for operand in eqn.invars[:2]:
                read[str(operand.aval.dtype)] += operand.aval.size
    return read.most_common(1)[0][0] if read else ""
