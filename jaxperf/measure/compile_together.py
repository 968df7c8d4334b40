"""Compile several programs at the same time, in threads that do not delay Ctrl-C."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax


def compile_together(calls: Mapping[str, Sequence[Any]]) -> tuple[dict[str, Any], float]:
    """Compile a program for each call, on a CPU all at the same time, and run none of them.

    Functions are traced one after the other. A jitted function keeps its program, so calling it with such
    arguments compiles nothing more.

    Args:
      calls: by name, a function, jitted or not, followed by its arguments, arrays or their shapes.

    Returns:
      The compiled programs by name (`jax.stages.Compiled`), and the seconds for all.

    Raises:
      Exception: what tracing or compiling one of them raised.
    """
    began = time.perf_counter()
    jitted = {name: fn if hasattr(fn, "lower") else jax.jit(fn) for name, (fn, *_) in calls.items()}
    lowered = {name: jitted[name].lower(*args) for name, (_, *args) in calls.items()}
    compiled = compile_lowered(list(lowered.values()))
    return dict(zip(lowered, compiled)), time.perf_counter() - began


def compile_lowered(lowered: Sequence[Any]) -> list[Any]:
    """Compile lowered programs (`jit(f).lower(...)`), and return them in their order.

    XLA releases the GIL while it compiles. On a CPU, each program has its own thread. For a GPU, programs
    compile one after another, because XLA times kernels on the GPU and reuses the results for the next
    program. Ctrl-C raises at once; XLA cannot be interrupted, so the threads go on until they are done.
    """
    compiled: list[Any] = [None] * len(lowered)
    errors: list[Exception] = []

    def compile_some(numbers: Sequence[int]) -> None:
        try:
            for i in numbers:
                compiled[i] = lowered[i].compile()
        except Exception as e:
            errors.append(e)

    numbers = range(len(lowered))
    shares = [numbers] if jax.default_backend() == "gpu" else [[i] for i in numbers]
    # not a pool, whose threads would delay the exit of an interrupted process
    threads = [threading.Thread(target=compile_some, args=(share,), daemon=True) for share in shares]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return compiled
