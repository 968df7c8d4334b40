"""Lower and compile the step for each number of devices, and read what XLA says of its memory."""

from __future__ import annotations

import contextlib
import re
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from jaxperf.errors import JaxperfError
from jaxperf.hlo import Costs, Module, costs, parse
from jaxperf.measure.stages import all_equations
from jaxperf.measure.user_function import reader_code
from jaxperf.plan import custom_calls, deviceless
from jaxperf.plan.arguments import Placed, check_plannable
from jaxperf.plan.cards import Card, Tpu
from jaxperf.plan.kernels import Cost

AT_ONCE = 2  # programs compiled at the same time
_LIVE = re.compile(r"\s+([\w.-]+)(?:\{[\d,]*\})?: (\d+) bytes")


@dataclass(frozen=True)
class Program:
    """A compiled program.

    Attributes:
      module: its parsed text.
      costs: the compiler's memory figures.
      compile_s: seconds to compile it here.
      live: names of instructions and bytes of the arrays that are alive at the peak, by XLA's own report.
      remat: whether the step uses jax.checkpoint.
    """

    module: Module
    costs: Costs
    compile_s: float = 0.0
    live: tuple[tuple[str, int], ...] = ()
    remat: bool = False


@deviceless.lines_in_cache_keys()
def compiled_programs(
    card: Card | Tpu,
    placed: Sequence[Placed],
    kernels: Mapping[str, Cost],
    told: Callable[[str], None] = lambda line: None,
) -> list[Program]:
    """Lower and compile the step for each size; XLA compiles without the GIL, while the next is lowered.

    Args:
      card: the GPU or TPU.
      placed: the step with its arguments, for each size.
      kernels: costs of kernels that XLA does not compile, by name.
      told: called with a line after each size.
    """
    with custom_calls.as_calls(kernels), ThreadPoolExecutor(AT_ONCE) as pool:
        started = [pool.submit(_program, card, *_lower(each), each.mesh.size) for each in placed]
        programs = []
        for each, future in zip(placed, started):
            programs.append(program := future.result())
            told(f"compiled for {each.mesh.size} devices in {program.compile_s:.1f} s")
        return programs


def _lower(placed: Placed) -> tuple[Any, bool]:
    """Trace and lower a step under its mesh, unless the reader's function has made the step for it."""
    step, args, kwargs = placed.step, placed.args, placed.kwargs
    name = str(getattr(step, "__name__", "the step"))
    try:
        with reader_code(name), contextlib.nullcontext() if placed.made else jax.set_mesh(placed.mesh):
            if not hasattr(step, "trace"):
                return step.lower(*args, **kwargs), False
            traced = step.trace(*args, **kwargs)
            traced = getattr(traced, "traced", traced)  # nnx.jit wraps JAX's
            check_plannable(traced.jaxpr.jaxpr)
            remat = any(each.primitive.name in _REMAT for each in all_equations(traced.jaxpr.jaxpr))
            return traced.lower(), remat
    except JaxperfError as e:
        if any(words in str(e) for words in ("incompatible devices", "different devices", "context mesh")):
            raise JaxperfError(
                f"{name} is bound to devices that are here; give a function of `devices` that makes it: "
                "def make(devices): mesh = jax.sharding.Mesh(devices, ('data',)); ...; return step"
            ) from None
        raise


_REMAT = ("remat", "remat2", "checkpoint")


def _program(card: Card | Tpu, lowered: Any, remat: bool, count: int) -> Program:
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="jaxperf-plan-") as folder:
        options = {"xla_dump_to": folder} if isinstance(card, Card) else {}
        compiled = deviceless.compile_for(card, lowered, options, count=count)
        live = _alive(folder)
    elapsed_s = time.perf_counter() - began
    return Program(parse(compiled.as_text()), costs(compiled), elapsed_s, live, remat)


def _alive(folder: str) -> tuple[tuple[str, int], ...]:
    """Return the arrays that are alive at the peak, from XLA's report; empty if it writes none."""
    reports = list(Path(folder).glob("*live-range.txt"))
    if not reports:
        return ()
    peak = reports[0].read_text(encoding="utf-8", errors="replace").partition("(peak):\n")[2]
    live = []
    for line in peak.splitlines():
        if not (match := _LIVE.match(line)):
            break
        live.append((match[1], int(match[2])))
    return tuple(live)
