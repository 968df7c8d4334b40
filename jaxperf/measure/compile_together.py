"""Compile several programs at the same time, each in a thread of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax


def compile_together(calls: Mapping[str, Sequence[Any]]) -> tuple[dict[str, Any], float]:
    """Compile a program for each call, all at the same time, and run none of them.

    XLA releases Python's lock while it compiles, so the programs take about as long as the slowest one where
    there are cores enough. Functions are traced one after the other. A function that is jitted keeps its
    program: calling it with such arguments compiles nothing more.

    Args:
      calls: by name: a function, jitted or not, and then its arguments, arrays or their shapes.

    Returns:
      The compiled programs by name (`jax.stages.Compiled`), and the seconds for all.

    Raises:
      Exception: what tracing or compiling one of them raised.
    """
    began = time.perf_counter()
    lowered = {name: _jitted(fn).lower(*args) for name, (fn, *args) in calls.items()}
    compiled: dict[str, Any] = {}
    errors: list[Exception] = []

    def compile_one(name: str) -> None:
        try:
            compiled[name] = lowered[name].compile()
        except Exception as e:
            errors.append(e)

    # a pool's threads would keep an interrupted process until they have compiled
    threads = [threading.Thread(target=compile_one, args=(name,), daemon=True) for name in lowered]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return {name: compiled[name] for name in lowered}, time.perf_counter() - began


def _jitted(fn: Callable[..., Any]) -> Any:
    return fn if hasattr(fn, "lower") else jax.jit(fn)
