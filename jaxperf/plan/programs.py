"""Compile the step for each number of devices, but only once for all numbers with equal programs.

Compiling ResNet-18's step takes 10 s on one core. For 64 and for 1,024 devices with the same examples per
device, the lowered programs differ only in the number of devices and the length of the whole batch. If every
collective is among all devices, each device then runs the same program.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
import struct
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import jax

from jaxperf.errors import JaxperfError
from jaxperf.measure.user_function import reader_code
from jaxperf.plan import deviceless
from jaxperf.plan.arguments import Placed, check_plannable
from jaxperf.plan.cards import Card, Tpu
from jaxperf.plan.collectives import GROUPS, collectives
from jaxperf.plan.hlo import Module, parse

AT_ONCE = 2  # programs compiled at the same time
_NUMBER = re.compile(r"0x[0-9A-F]+|\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_FLOATS = {4: ">e", 8: ">f", 16: ">d"}  # formats by number of digits; MLIR prints some floats in hexadecimal
CLOSE = 1e-4  # relative tolerance for floats in a program's text, which have nine digits


def grows(small: str, large: str, times: int) -> bool:
    """Return whether two lowered programs differ only in numbers, by the factor `times` or its inverse.

    Args:
      small, large: their texts.
      times: the ratio of their numbers of devices.
    """
    if _NUMBER.sub("", small) != _NUMBER.sub("", large):
        return False
    return all(_pair(a, b, times) for a, b in zip(_NUMBER.findall(small), _NUMBER.findall(large)) if a != b)


def _pair(a: str, b: str, times: int) -> bool:
    if a.isdecimal() and b.isdecimal():
        return int(b) == times * int(a)
    before, after = _value(a), _value(b)
    return any(abs(after - value) <= CLOSE * abs(value) for value in (times * before, before / times))


def _value(text: str) -> float:
    if text.startswith("0x"):
        form = _FLOATS.get(len(text) - 2)
        return struct.unpack(form, bytes.fromhex(text[2:]))[0] if form else math.nan
    return float(text)


def among_all(module: Module, devices: int) -> bool:
    """Return whether every collective of a program is among all devices."""
    everyone = (tuple(range(devices)),)
    return all(each.groups == everyone for each in collectives(module, devices))


def widened(module: Module) -> Module:
    """Return a program with collectives among all devices, for any number of devices."""
    computations = {
        name: tuple(dataclasses.replace(i, text=GROUPS.sub("replica_groups={}", i.text)) for i in body)
        for name, body in module.computations.items()
    }
    return dataclasses.replace(module, computations=computations)


@dataclass(frozen=True)
class Program:
    """A compiled program: its parsed text, its memory, and its compile seconds (0 if it is shared)."""

    module: Module
    memory: Any
    compile_s: float


@deviceless.lines_in_cache_keys()
def compiled_programs(card: Card | Tpu, placed: Sequence[Placed]) -> list[Program]:
    """Lower and compile the step for each size; sizes with equal programs share one.

    XLA compiles without the GIL, so the next size is lowered meanwhile.
    """
    first, text = None, ""  # the smallest size of several nodes
    alike: dict[int, Any] = {}
    started: dict[int, Future[Program]] = {}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for i, each in enumerate(placed):
            lowered, count = _lower(each), each.mesh.size
            if first is not None:
                times, rest = divmod(count, placed[first].mesh.size)
                if not rest and grows(text, lowered.as_text(), times):
                    alike[i] = lowered
                    continue
            elif count > (card.per_node if isinstance(card, Card) else 1) and len(each.mesh.shape) == 1:
                first, text = i, lowered.as_text()
            started[i] = pool.submit(_program, card, lowered, count)
    programs = {i: future.result() for i, future in started.items()}
    for i, lowered in alike.items():
        program = programs[first or 0]
        if among_all(program.module, placed[first or 0].mesh.size):
            programs[i] = Program(widened(program.module), program.memory, 0.0)
        else:
            programs[i] = _program(card, lowered, placed[i].mesh.size)
    return [programs[i] for i in range(len(placed))]


def _lower(placed: Placed) -> Any:
    """Trace and lower a step under its mesh, unless the reader's function has made the step for it."""
    step, args, kwargs = placed.step, placed.args, placed.kwargs
    name = str(getattr(step, "__name__", "the step"))
    try:
        with reader_code(name), contextlib.nullcontext() if placed.made else jax.set_mesh(placed.mesh):
            if hasattr(step, "trace"):
                traced = step.trace(*args, **kwargs)
                traced = getattr(traced, "traced", traced)  # nnx.jit wraps JAX's
                check_plannable(traced.jaxpr.jaxpr)
                return traced.lower()
            return step.lower(*args, **kwargs)
    except JaxperfError as e:
        if any(words in str(e) for words in ("incompatible devices", "different devices", "context mesh")):
            raise JaxperfError(
                f"{name} is bound to devices that are here; give a function of `devices` that makes it: "
                "def make(devices): mesh = jax.sharding.Mesh(devices, ('data',)); ...; return step"
            ) from None
        raise


def _program(card: Card | Tpu, lowered: Any, count: int) -> Program:
    began = time.perf_counter()
    compiled = deviceless.compile_for(card, lowered, count=count)
    elapsed_s = time.perf_counter() - began
    return Program(parse(compiled.as_text()), compiled.memory_analysis(), elapsed_s)
