"""What a machine can do at best: the minimum cost of a call, matrix products, memory, copies with the host.

All of it is measured through JAX, so it is what XLA's programs can reach here and not what the hardware's
data sheet says. Every timing waits for its outputs. Sizes grow until a call lasts long enough on this device.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import psutil
from jax import lax

from jaxperf.measure.dispatch import asynchronous_loop
from jaxperf.measure.rounds import interleaved
from jaxperf.measure.timing import Wait, block, measure, time_value
from jaxperf.result import Measurement

# The quantities measured (`Measurement.quantity`); their `configuration` is "each" or "end", a dtype,
# the bytes of an array, or the direction of a copy.
DISPATCH, MATRIX, MEMORY, COPY = "dispatch", "matrix", "memory", "copy"
TO_DEVICE, TO_HOST = "host to device", "device to host"
DTYPES = ("float32", "bfloat16", "float16", "float64", "int8")
LONG_S = 0.02  # a call that lasts this long hides the cost of calling: 0.1 % where that is 20 us
SMALLEST_SIDE = 512  # of the first matrices that a CPU multiplies
LARGEST_SIDE = 8192  # a GPU's rate grows no further; it autotunes each size, and moves it at 5 GB/s
# Any GPU multiplies these fast. Some need a hundred times as long for the other dtypes.
FAST, SLOW_SIDE = ("float32", "bfloat16", "float16"), 2048
MEMORY_SHARE = 16  # no array takes more than this part of the memory that is free
SMALLEST, LARGEST = 16 * 2**10, 2**30  # bytes of the arrays that memory is measured with
TRAFFIC, MOST_TURNS = 2**35, 2000  # bytes that a call moves on a GPU, in at most so many turns
LARGEST_COPY = 2**28  # bytes of the arrays that are copied
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


def call_costs(*, budget_s: float = 0.5) -> Iterator[Measurement]:
    """Yield seconds of an empty compiled program, waited for at each call, and then waited for at the end."""
    names: dict[Wait, str] = {"each": "empty program, waited for", "end": "empty program, queued"}
    empty = jax.jit(lambda: jnp.zeros(()))
    for wait, name in names.items():
        cost = measure(empty, name=name, wait=wait, budget_s=budget_s)
        yield dataclasses.replace(cost, quantity=DISPATCH, configuration=wait)


def matrix_rate(dtype: str, *, budget_s: float = 0.3) -> Measurement:
    """Return FLOP/s of the product of two square matrices, under the current `jax_default_matmul_precision`.

    Products that are shorter than `LONG_S` are queued, until all together last as long.

    Args:
      dtype: of both matrices; the product of integers is int32.
      budget_s: seconds for the values that count.
    """
    with jax.enable_x64(dtype == "float64"):
        result = jnp.int32 if dtype == "int8" else None
        product = jax.jit(lambda x: jnp.matmul(x, x, preferred_element_type=result))
        x, elapsed_s = _long_product(product, dtype)
        count = math.ceil(LONG_S / elapsed_s)
        queued = functools.partial(asynchronous_loop, product, x, count)
        seconds = measure(queued, name=dtype, budget_s=budget_s, min_values=3, loops=1)
    return _rate(f"matrix product, {dtype}", "FLOP/s", seconds, 2 * count * len(x) ** 3, MATRIX, dtype)


def _long_product(product: Callable[[jax.Array], jax.Array], dtype: str) -> tuple[jax.Array, float]:
    """Return a matrix whose product takes `LONG_S` if its side may be so large, and the product's seconds."""
    noise = np.random.default_rng(0).normal(scale=8, size=2**20)  # a GPU is faster at matrices of ones
    noise = noise.astype(jnp.dtype(dtype))
    most = math.isqrt(int(free_bytes() // MEMORY_SHARE // (3 * noise.itemsize)))  # three matrices
    largest = min(LARGEST_SIDE, 2 ** int(math.log2(most)))
    side = min(_first_side(dtype), largest)
    while True:
        x = jax.device_put(np.resize(noise, (side, side)))
        elapsed_s = _seconds(product, x)
        if elapsed_s >= LONG_S or side == largest:
            return x, elapsed_s
        side = min(side * _growth(elapsed_s, dimensions=3), largest)


def _first_side(dtype: str) -> int:
    """Return the side of the first matrices: a GPU takes seconds to compile a product, a CPU milliseconds."""
    if jax.default_backend() == "cpu":
        return SMALLEST_SIDE
    return LARGEST_SIDE if dtype in FAST else SLOW_SIDE


def memory_rate(size: int, *, budget_s: float = 0.3) -> Measurement:
    """Return bytes/s of a program that reads and writes an array of `size` bytes again and again, in place.

    The array is donated and returned, so no call asks the system for new memory, whose pages would have to be
    mapped first.

    Args:
      size: of the array, in bytes.
      budget_s: seconds for the values that count.
    """
    cpu = jax.default_backend() == "cpu"
    # Where XLA does not know the number of turns, a GPU asks the host before each
    sweep = jax.jit(_sweep, donate_argnums=0, static_argnums=() if cpu else 1)
    x, times = jnp.ones(size // 4, np.float32), 1 if cpu else max(1, min(MOST_TURNS, TRAFFIC // (2 * size)))

    def again() -> jax.Array:
        nonlocal x
        x = sweep(x, times)
        return x

    while cpu and (elapsed_s := _seconds(again)) < LONG_S:
        times *= _growth(elapsed_s, most=64)
    seconds = measure(again, name="sweep", budget_s=budget_s, warmup_s=0, min_values=3, loops=1)
    return _rate(f"array of {_binary(size)}", "bytes/s", seconds, 2 * size * times, MEMORY, size)


def _sweep(x: jax.Array, times: int) -> jax.Array:
    return lax.fori_loop(0, times, lambda _, a: a * 0.5 + 0.5, x)


def copy_rates(*, count: int = 5) -> tuple[Measurement, Measurement]:
    """Return bytes/s from the host's memory to the first device, and back, each into newly allocated memory.

    On a CPU, the device's memory is the host's, and the rates are those of a copy within it.
    """
    device, size = jax.local_devices()[0], 2**22
    largest = min(LARGEST_COPY, 2 ** int(math.log2(free_bytes() // MEMORY_SHARE)))
    while True:
        host = np.ones(size // 4, np.float32)
        elapsed_s = _seconds(_to_device, host, device)
        if elapsed_s >= LONG_S or size >= largest:
            break
        size = min(size * _growth(elapsed_s, most=64), largest)
    copies = interleaved(
        {TO_DEVICE: lambda: _to_device(host, device), TO_HOST: _to_host},
        before={TO_HOST: lambda: _to_device(host, device)},  # JAX keeps an array's host copy once made
        count=count,
        loops=1,
    )
    there, back = (_rate(name, "bytes/s", m, size, COPY, name) for name, m in copies.items())
    return there, back


def _to_device(host: np.ndarray, device: jax.Device) -> jax.Array:
    return jax.device_put(host, device, may_alias=False)


def _to_host(x: jax.Array) -> np.ndarray:
    view_only = jax.default_backend() == "cpu"  # there, asarray copies nothing
    return np.array(x) if view_only else np.asarray(x)


def _rate(name: str, unit: str, seconds: Measurement, work: float, of: str, at: str | int) -> Measurement:
    """Work per second, value by value; `of` and `at` are the roles by which a `Roofline` finds it."""
    rates = tuple(work / value_s for value_s in seconds.values)
    return Measurement(name, unit, rates, loops=seconds.loops, quantity=of, configuration=str(at))


def _seconds(fn: Callable[..., Any], *args: Any) -> float:
    """Return the seconds of the quickest of three calls after one that compiles: enough to choose a size."""
    block(fn(*args))
    return min(time_value(fn, args, 1, "each") for _ in range(3))


def _growth(elapsed_s: float, *, dimensions: int = 1, most: int = 8) -> int:
    """Return the power of two by which to multiply a size, so that a call takes `LONG_S` and not `took_s`."""
    wanted = math.log2(LONG_S / elapsed_s) / dimensions
    return int(2 ** min(math.log2(most), max(1, round(wanted))))


def array_sizes() -> tuple[int, ...]:
    """Return the bytes of the arrays to measure memory with: each 4 times the one before, on a GPU 16 times.

    If memory allows, the largest is at least four times the last cache, so that no cache holds much of it.
    """
    known = max(cache_sizes().values(), default=0)
    cpu = jax.default_backend() == "cpu"
    wanted = min(LARGEST, max(4 * known, 2**28)) if cpu else LARGEST
    most = max(SMALLEST, min(wanted, free_bytes() // MEMORY_SHARE))
    sizes = (SMALLEST * (4 if cpu else 16) ** i for i in itertools.count())
    return tuple(itertools.takewhile(lambda size: size <= most, sizes))


def cache_sizes() -> dict[str, int]:
    """Return the bytes of each data cache of a CPU, "L1" to "L3"; empty if they are hidden, or for a GPU."""
    if jax.default_backend() != "cpu":
        return {}
    sizes = {}
    for cache in sorted(_CACHES.glob("index*")):
        try:
            level, kind, size = ((cache / name).read_text().strip() for name in ("level", "type", "size"))
            if kind != "Instruction":
                sizes[f"L{level}"] = int(size.removesuffix("K")) * 1024
        except (OSError, ValueError):
            continue
    return sizes


def level_of(size: int, known: dict[str, int]) -> str:
    """Return the first cache that holds an array of `size` bytes with a little room to spare, or "memory".

    Without known caches, "".
    """
    fitting = (level for level, holds in known.items() if size <= 0.75 * holds)
    return next(fitting, "memory") if known else ""


def free_bytes() -> int:
    """Return the free bytes of the first device's memory if it reports statistics, else of the host's."""
    stats = jax.local_devices()[0].memory_stats() or {}
    if "bytes_limit" in stats:
        return int(stats["bytes_limit"]) - int(stats["bytes_in_use"])
    return int(psutil.virtual_memory().available)


def others_share(*, seconds: float = 0.5) -> float:
    """Share of the cores that other programs use, from 0 to 1; this program sleeps while it is measured."""
    return statistics.fmean(psutil.cpu_percent(interval=seconds, percpu=True)) / 100


def _binary(size: int) -> str:
    """Return the bytes as a round number of KiB, MiB or GiB."""
    power = next(p for p in (30, 20, 10) if size >= 2**p)
    return f"{size // 2**power} { {10: 'KiB', 20: 'MiB', 30: 'GiB'}[power] }"
