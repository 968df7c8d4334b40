"""Measure what a machine can do at best: the cost of a call, matrix products, memory, copies with the host.

All of it is measured through JAX, so it is what XLA's programs can reach rather than what the hardware's data
sheet says. Every timing waits for its outputs. Sizes grow until a call lasts long enough on this device.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import psutil
from jax import lax

from jaxperf import jax_internals
from jaxperf.measure.rounds import interleaved
from jaxperf.measure.timing import Wait, block, measure, time_value
from jaxperf.result import Measurement

# The quantities measured (`Measurement.quantity`); their `configuration` is "each" or "end", a dtype,
# the bytes of an array, or the direction of a copy.
DISPATCH, MATRIX, MEMORY, COPY = "dispatch", "matrix", "memory", "copy"
TO_DEVICE, TO_HOST = "host to device", "device to host"
DTYPES = ("float32", "bfloat16", "float16", "float64", "int8")  # the most important first
LONG_S = 0.02  # seconds of a call for which its dispatch does not matter: 20 us are 0.1 % of this
SMALLEST_SIDE = 512  # of the first matrices on a CPU
LARGEST_SIDE = 8192  # a GPU's rate grows no further; each larger size takes time to autotune and to copy
# Any GPU multiplies these dtypes fast; some GPUs take a hundred times as long for others.
FAST, SLOW_SIDE = ("float32", "bfloat16", "float16"), 2048
MEMORY_SHARE = 16  # free memory over the size of an array, at least
SMALLEST, LARGEST = 16 * 2**10, 2**30  # bytes of the arrays with which memory is measured
TRAFFIC, MOST_ITERATIONS = 2**35, 2000  # bytes and largest number of iterations of a call on a GPU
LARGEST_COPY = 2**28  # bytes of the largest copied array
RATE_S = 0.3  # for the measured values of a rate


def call_costs() -> Iterator[Measurement]:
    """Yield the seconds per call of an empty program, waiting after each call, and then once at the end."""
    names: dict[Wait, str] = {"each": "empty program, waited for", "end": "empty program, queued"}
    empty = jax.jit(lambda: jnp.zeros(()))
    for wait, name in names.items():
        cost = measure(empty, name=name, wait=wait, budget_s=0.5)
        yield dataclasses.replace(cost, quantity=DISPATCH, configuration=wait)


def matrix_rate(dtype: str) -> Measurement:
    """Return FLOP/s of the product of two square matrices, under the current `jax_default_matmul_precision`.

    Of products shorter than `LONG_S`, so many are queued that they last as long together. The product of
    integers is int32.
    """
    noise = np.random.default_rng(0).normal(scale=8, size=2**20)  # a GPU multiplies ones faster
    noise = noise.astype(jnp.dtype(dtype))
    most = math.isqrt(free_bytes() // MEMORY_SHARE // (3 * noise.itemsize))  # three matrices
    largest = min(LARGEST_SIDE, 2 ** int(math.log2(most)))
    first = SMALLEST_SIDE
    if jax.default_backend() != "cpu":  # which takes seconds rather than milliseconds to compile
        first = LARGEST_SIDE if dtype in FAST else SLOW_SIDE
    with jax_internals.enable_x64(dtype == "float64"):
        result = jnp.int32 if dtype == "int8" else None
        product = jax.jit(lambda x: jnp.matmul(x, x, preferred_element_type=result))

        def prepare(side: int) -> Callable[[], jax.Array]:
            return functools.partial(product, jax.device_put(np.resize(noise, (side, side))))

        side, multiply, elapsed_s = _grow(min(first, largest), largest, prepare, dimensions=3)
        count = math.ceil(LONG_S / elapsed_s)

        def queued() -> jax.Array:
            for _ in range(count):
                y = multiply()
            return y  # which the device computes last

        seconds = measure(queued, name=dtype, budget_s=RATE_S, min_values=3, loops=1)
    return _rate(f"matrix product, {dtype}", "FLOP/s", seconds, 2 * count * side**3, MATRIX, dtype)


def memory_rate(size: int) -> Measurement:
    """Return bytes/s of a program that reads and writes an array of `size` bytes again and again, in place.

    The array is donated, so that no call allocates memory, whose pages would have to be mapped first.
    """
    cpu = jax.default_backend() == "cpu"
    # If XLA does not know the number of iterations, a GPU asks the host before each of them.
    sweep = jax.jit(
        lambda x, times: lax.fori_loop(0, times, lambda _, a: a * 0.5 + 0.5, x),
        donate_argnums=0,
        static_argnums=() if cpu else 1,
    )
    x = jnp.ones(size // 4, np.float32)

    def again(times: int) -> jax.Array:
        nonlocal x
        x = sweep(x, times)
        return x

    few = 1 if cpu else max(1, min(MOST_ITERATIONS, TRAFFIC // (2 * size)))
    many = 2**40 if cpu else few
    times, swept, _ = _grow(few, many, lambda times: functools.partial(again, times), most=64)
    seconds = measure(swept, name="sweep", budget_s=RATE_S, warmup_s=0, min_values=3, loops=1)
    unit, name = next((u, n) for u, n in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")) if size >= u)
    return _rate(f"array of {size // unit} {name}", "bytes/s", seconds, 2 * size * times, MEMORY, size)


def copy_rates(*, count: int = 5) -> tuple[Measurement, Measurement]:
    """Return bytes/s of copies from host memory to the first device, and back, each into new memory.

    On a CPU, these are copies within host memory.
    """
    device = jax.local_devices()[0]
    # on a CPU, `asarray` would not copy
    to_host = np.array if jax.default_backend() == "cpu" else np.asarray

    def prepare(size: int) -> Callable[[], jax.Array]:
        host = np.ones(size // 4, np.float32)
        return lambda: jax.device_put(host, device, may_alias=False)

    largest = min(LARGEST_COPY, 2 ** int(math.log2(free_bytes() // MEMORY_SHARE)))
    size, to_device, _ = _grow(2**22, largest, prepare, most=64)
    copies = interleaved(
        {TO_DEVICE: to_device, TO_HOST: to_host},
        before={TO_HOST: to_device},  # a new array, since JAX keeps host copies
        count=count,
        loops=1,
    )
    there, back = (_rate(name, "bytes/s", m, size, COPY, name) for name, m in copies.items())
    return there, back


def _grow(
    size: int,
    largest: int,
    prepare: Callable[[int], Callable[[], Any]],
    *,
    dimensions: int = 1,
    most: int = 8,
) -> tuple[int, Callable[[], Any], float]:
    """Return a size whose call takes `LONG_S`, or the largest, with the call that `prepare` makes for it.

    It is `size` times a power of two, at most `most` in a step. Also return the call's seconds, the fewest of
    three after one that compiles.
    """
    while True:
        call = prepare(size)
        block(call())
        elapsed_s = min(time_value(call, (), 1, "each") for _ in range(3))
        if elapsed_s >= LONG_S or size >= largest:
            return size, call, elapsed_s
        wanted = round(math.log2(LONG_S / elapsed_s) / dimensions)
        size = min(size * min(most, 2 ** max(1, wanted)), largest)


def _rate(
    name: str, unit: str, seconds: Measurement, work: float, quantity: str, configuration: str | int
) -> Measurement:
    """Return work per second for each value; a `Roofline` finds the measurement by the last two."""
    rates = tuple(work / value_s for value_s in seconds.values)
    rate = Measurement(name, unit, rates, loops=seconds.loops)
    return dataclasses.replace(rate, quantity=quantity, configuration=str(configuration))


def array_sizes() -> tuple[int, ...]:
    """Return the bytes of the arrays with which to measure memory; each is 4 (GPU: 16) times the previous."""
    most = max(SMALLEST, min(LARGEST, free_bytes() // MEMORY_SHARE))
    factor = 4 if jax.default_backend() == "cpu" else 16
    sizes = (SMALLEST * factor**i for i in itertools.count())
    return tuple(itertools.takewhile(lambda size: size <= most, sizes))


def free_bytes() -> int:
    """Return the free bytes of the first device's memory if it reports statistics, else of the host's."""
    stats = jax.local_devices()[0].memory_stats() or {}
    if "bytes_limit" in stats:
        return int(stats["bytes_limit"]) - int(stats["bytes_in_use"])
    return int(psutil.virtual_memory().available)
