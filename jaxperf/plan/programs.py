"""Lower and compile the step for each number of devices, and read what XLA says of its memory."""

from __future__ import annotations

import contextlib
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from jaxperf.errors import JaxperfError
from jaxperf.hlo import Costs, Module, costs, parse
from jaxperf.measure.stages import all_equations
from jaxperf.measure.user_function import user_errors_shown
from jaxperf.plan import custom_calls, deviceless
from jaxperf.plan.arguments import Placed, name_of
from jaxperf.plan.cards import Card
from jaxperf.plan.kernels import Cost

AT_ONCE = 2  # programs compiled at the same time
CALLBACKS = {"pure_callback", "io_callback", "debug_callback", "debug_print", "infeed", "outfeed"}
_REMAT = {"remat", "remat2", "checkpoint"}
# what JAX says of a step that has shardings over devices that are here
_BOUND = ("incompatible devices", "different devices", "context mesh", "Memory kinds passed")
_LIVE = re.compile(r"\s+([\w.-]+)(?:\{[\d,]*\})?: (\d+) bytes")


@dataclass(frozen=True)
class Program:
    module: Module
    costs: Costs  # the compiler's memory figures
    compile_s: float = 0.0  # seconds to compile it here
    live: tuple[tuple[str, int], ...] = ()  # instructions and bytes of the arrays at the peak
    remat: bool = False  # whether the step uses jax.checkpoint


@deviceless.lines_in_cache_keys()
def compiled_programs(
    card: Card,
    placed: Sequence[Placed],
    kernels: Mapping[str, Cost],
    told: Callable[[str], None] = lambda line: None,
) -> list[Program]:
    """Lower and compile the step for each size; XLA compiles without the GIL, while the next is lowered."""
    with custom_calls.as_calls(kernels), ThreadPoolExecutor(AT_ONCE) as pool:
        started = {}
        sizes = ", ".join(str(each.mesh.size) for each in placed)
        told(f"lowering and compiling for {sizes} devices, {AT_ONCE} at a time")
        for each in placed:
            began = time.perf_counter()
            lowered, remat = _lower(each)
            told(f"lowered for {each.mesh.size} devices in {time.perf_counter() - began:.1f} s")
            started[pool.submit(_program, card, lowered, remat, each.mesh.size)] = each.mesh.size
        for future in as_completed(started):
            told(f"compiled for {started[future]} devices in {future.result().compile_s:.1f} s")
        return [future.result() for future in started]


def _lower(placed: Placed) -> tuple[Any, bool]:
    """Lower a step under its mesh, unless the user's function has made it for it; whether it has remat."""
    step, args, kwargs, name = placed.step, placed.args, placed.kwargs, name_of(placed.step)
    mesh = contextlib.nullcontext() if placed.made else jax.set_mesh(placed.mesh)
    with user_errors_shown(name), mesh, _about_the_arguments(name, placed):
        if not hasattr(step, "trace"):
            return step.lower(*args, **kwargs), False
        traced = step.trace(*args, **kwargs)
        traced = getattr(traced, "traced", traced)  # nnx.jit wraps JAX's
        used = check_plannable(traced.jaxpr.jaxpr)
        return traced.lower(), bool(used & _REMAT)


@contextlib.contextmanager
def _about_the_arguments(name: str, placed: Placed) -> Iterator[None]:
    """Say in one line, without a traceback, what is about the devices or the batch and not about the step."""
    try:
        yield
    except (TypeError, ValueError) as e:
        line = (str(e).strip().splitlines() or ["no message"])[0]
        if any(words in line for words in _BOUND):
            raise JaxperfError(
                f"{name} is bound to devices that are here; give a function of `devices` that makes it: "
                "def make(devices): mesh = jax.sharding.Mesh(devices, ('data',)); ...; return step"
            ) from None
        if placed.batch and not placed.made and any(word in line for word in ("shape", "sharding")):
            raise JaxperfError(
                f"{name} raised {type(e).__name__}: {line[:300]}; that is with {placed.batch} examples, of "
                f"argument {','.join(map(str, placed.axis))}, counted from 0; --batch names the batch"
            ) from None
        raise


def check_plannable(jaxpr: Any) -> set[str]:
    """Check that a traced step has no callbacks, and return the names of its operations."""
    used = {equation.primitive.name for equation in all_equations(jaxpr)}
    if found := sorted(used & CALLBACKS):
        raise JaxperfError(
            f"the step calls Python while it runs ({found[0]}), which cannot be compiled without a GPU; "
            "take jax.debug.print and callbacks out for planning"
        )
    return used


def _program(card: Card, lowered: Any, remat: bool, count: int) -> Program:
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="jaxperf-plan-") as folder:
        options = {} if card.is_tpu else {"xla_dump_to": folder}
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
