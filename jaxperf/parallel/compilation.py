"""Compiling independent programs at the same time."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any


def compile_together(lowered: Sequence[Any]) -> list[Any]:
    """Compile lowered programs (`jit(f).lower(...)`) side by side, and return them in their order.

    XLA compiles without Python's lock, so each program has a thread. The main thread waits in Python, so
    Ctrl-C is noticed at once; the threads are then left to XLA, which cannot be interrupted.
    """
    pool = ThreadPoolExecutor(max(1, len(lowered)), thread_name_prefix="compile")
    try:
        return list(pool.map(lambda program: program.compile(), lowered))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
