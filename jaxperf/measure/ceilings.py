"""`jaxperf roofline`: what a machine can do at best, by calls, matrix products, memory and copies.

All of it is measured through JAX, so it is what XLA's programs can reach rather than what the hardware's data
sheet says. Every timing waits for its outputs. Sizes grow until a call lasts long enough on this device.
"""

import dataclasses
import functools
import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import psutil
from jax import lax

from jaxperf import jax_internals
from jaxperf.errors import first_line, to_one_line
from jaxperf.measure.environment import current_environment
from jaxperf.measure.other_load import other_load
from jaxperf.measure.roofline import DISPATCH, MATRIX, MEMORY, SMALLEST, best_value, from_result, path_for
from jaxperf.measure.rounds import interleaved
from jaxperf.measure.timing import Wait, block, measure, time_value
from jaxperf.process import forced_end
from jaxperf.result import About, Measurement, save_result, terminal
from jaxperf.result.formatting import format_on_page
from jaxperf.result.machine import cores
from jaxperf.result.recorder import Recorder
from jaxperf.result.store import check_writable

SECTION = About("roofline", "", "This machine's roofline", "What can this machine do at best, through JAX?")
BUDGET_S = 20.0  # from the start of the process to its end
# Of that: Python's own start and end, writing the file, and a part that takes longer than those before it
RESERVE_S = 4.0
COPY = "copy"  # the fourth quantity; no program is limited by it
TITLES = {
    DISPATCH: "What a call costs, however little it computes",
    MATRIX: "Matrix products",
    MEMORY: "Reading and writing an array, again and again",
    COPY: "Copies between host and device",
}
LOOK_S = 0.5  # at how busy the machine is
BUSY = 0.10  # share of the cores; from here on, a measurement says that the machine was busy
TO_DEVICE, TO_HOST = "host to device", "device to host"
DTYPES = ("float32", "bfloat16", "float16", "float64", "int8")  # the most important first
LONG_S = 0.02  # seconds of a call for which its dispatch does not matter: 20 us are 0.1 % of this
SMALLEST_SIDE = 512  # of the first matrices on a CPU
LARGEST_SIDE = 8192  # a GPU's rate grows no further; each larger size takes time to autotune and to copy
# Any GPU multiplies these dtypes fast; some GPUs take a hundred times as long for others.
FAST, SLOW_SIDE = ("float32", "bfloat16", "float16"), 2048
MEMORY_SHARE = 16  # free memory over the size of an array, at least
LARGEST = 2**30  # bytes of the largest array with which memory is measured
TRAFFIC, MOST_ITERATIONS = 2**35, 2000  # bytes and largest number of iterations of a call on a GPU
LARGEST_COPY = 2**28  # bytes of the largest copied array
RATE_S = 0.3  # for the measured values of a rate
Parts = dict[str, Callable[[], Iterable[Measurement]]]  # what measures them, by the names that are printed


@forced_end()
def main(began: float) -> int:
    """Measure and store the roofline; an existing file is replaced once the new one is complete.

    `began` is `time.monotonic` before JAX was imported; parts that end `BUDGET_S` later are left out.
    """
    environment = current_environment()
    path = path_for(environment)
    check_writable(path, advice="set XDG_CACHE_HOME to another folder")
    recorder = Recorder(SECTION, environment, {"devices": 1}, command="jaxperf roofline")
    terminal.print_all([recorder.result()])
    record_load(recorder)
    rows, notes = measure_in_time(*parts(), ends=began + BUDGET_S - RESERVE_S)
    for quantity, title in TITLES.items():
        recorder.table([m for m in rows if m.quantity == quantity], title=title, fold=True)
    for note in notes:
        recorder.note(note)
    save_result(from_result(recorder.result()).result, path)
    print(to_one_line(f"kept: {path}"))
    return 0


def parts() -> tuple[Parts, Parts]:
    """Return the parts without which no roofline is whole, and the others, the most important first."""

    def product(dtype: str) -> Parts:
        return {f"matrix product, {dtype}": lambda: [matrix_rate(dtype)]}

    def array(size: int) -> Parts:
        return {f"array of {size:,} B": lambda: [memory_rate(size)]}

    first, optional, *others = map(product, DTYPES)
    sizes = array_sizes()
    needed = {"calls": call_costs, **first, **array(sizes[-1]), **array(sizes[0]), "copies": copy_rates}
    for part in (*map(array, sizes[1:-1]), *others):
        optional |= part
    return needed, optional


def measure_in_time(
    needed: Parts, optional: Parts, *, ends: float, clock: Callable[[], float] = time.monotonic
) -> tuple[list[Measurement], list[str]]:
    """Measure part after part, and print the best value of each measurement at once.

    An optional part is left out if `clock` is past `ends`, or if the backend cannot compute it. Also return
    notes on these.
    """
    rows: list[Measurement] = []
    left_out: list[str] = []
    notes: list[str] = []
    for name, measure_part in {**needed, **optional}.items():
        if name in optional and clock() >= ends:
            left_out.append(name)
            continue
        try:
            for m in measure_part():
                print(to_one_line(f"{m.name}: {format_on_page(best_value(m), m.unit)}"), flush=True)
                rows.append(m)
        except jax.errors.JaxRuntimeError as e:  # XLA has no product of this dtype here
            if name in needed:
                raise
            notes.append(f"not possible here: {name}: {first_line(e)}")
    if left_out:
        notes.append(f"no time was left for: {', '.join(left_out)}")
    return rows, notes


def record_load(recorder: Recorder) -> None:
    with other_load() as load:
        time.sleep(LOOK_S)
    others = load.others / cores()
    recorder.fact("others_share", others, meaning="share of the cores that other programs used before")
    recorder.fact("load_average", psutil.getloadavg()[0], meaning="load average of the last minute before")
    if others > BUSY:
        recorder.note(
            f"other programs used {others:.0%} of the cores, so this is less than the machine can do; "
            "run it again when it is idle"
        )


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


def copy_rates(*, count: int = 5) -> list[Measurement]:
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
    return [_rate(name, "bytes/s", m, size, COPY, name) for name, m in copies.items()]


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
    rates, configuration = tuple(work / s for s in seconds.values), str(configuration)
    return Measurement(name, unit, rates, (), seconds.loops, quantity=quantity, configuration=configuration)


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
