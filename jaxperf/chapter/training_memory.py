"""Section 8.2.4: how much memory training and predicting without waiting take."""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxperf.measure import MemorySampler, block, device_memory, live_bytes
from jaxperf.measure.memory import filled_to_the_peak
from jaxperf.measure.run_ahead import run_ahead
from jaxperf.models import MLP
from jaxperf.result import turns

Wait = Literal["each", "end", "window"]
Runs = dict[str, list[dict[str, Any]]]  # by the run's name: one pass per round


def train(step: Any, params: list[jax.Array], batches: Iterable[Any], *, wait: Wait) -> list[float]:
    """One pass over the batches; the losses are read after each step, one step late, or at the end."""

    def queued() -> Iterator[jax.Array]:
        nonlocal params
        for X, y in batches:
            params, loss = step(params, X, y)
            yield loss

    losses = taken(queued(), wait)
    block(params)  # the last loss does not depend on the last update
    return losses


def taken(outputs: Iterable[jax.Array], wait: Wait) -> list[float]:
    """The outputs as numbers: each at once, each one step late, or all at the end."""
    if wait == "end":
        outputs = list(outputs)  # all of them are queued now
    return [out.item() for out in (run_ahead(outputs, depth=1) if wait == "window" else outputs)]


def make_step(seed: int) -> tuple[Any, Any, list[jax.Array]]:
    """The book's MLP with L2 loss and SGD as one jitted step, its prediction's mean, and the parameters."""
    graph, state = nnx.split(MLP((512, 2048, 512, 1), rngs=nnx.Rngs(seed)))
    params, tree = jax.tree.flatten(state)

    def net(params: list[jax.Array], X: jax.Array) -> jax.Array:
        return nnx.merge(graph, jax.tree.unflatten(tree, params))(X)[:, 0]

    @jax.jit
    def step(params: list[jax.Array], X: jax.Array, y: jax.Array) -> tuple[list[jax.Array], jax.Array]:
        def l2_loss(params: list[jax.Array]) -> jax.Array:
            return 0.5 * jnp.mean((net(params, X) - y) ** 2)

        loss, grads = jax.value_and_grad(l2_loss)(params)
        return [p - 0.005 * g for p, g in zip(params, grads)], loss

    return step, jax.jit(lambda params, X: net(params, X).mean()), params


def one_step(batch_size: int, seed: int) -> Callable[[], Any]:
    """A step of the book's MLP on one batch, for finding a size that lasts."""
    step, _, params = make_step(seed)
    return functools.partial(step, params, draw(jax.random.key(seed), 0, batch_size), jnp.ones(batch_size))


@functools.partial(jax.jit, static_argnums=2)
def draw(key: jax.Array, i: int, batch_size: int) -> jax.Array:
    """Batch number i, drawn by the back end in one program."""
    return jax.random.normal(jax.random.fold_in(key, i), (batch_size, 512))


def data_iter(
    feed: str, *, batches: int, batch_size: int, seed: int, produced: list[float], held: list[int]
) -> Iterator[tuple[jax.Array, jax.Array]]:
    """The book's `data_iter`: random batches, drawn by the back end as in the book or sent by the host."""
    key, rng, start = jax.random.key(seed), np.random.default_rng(seed), time.perf_counter()
    for i in range(batches):
        if feed == "device":
            X, y = draw(key, i, batch_size), jnp.ones(batch_size)
        else:
            X, y = jax.device_put(
                (rng.standard_normal((batch_size, 512), np.float32), np.ones(batch_size, "f"))
            )
        produced.append(time.perf_counter() - start)
        held.append(live_bytes())
        yield X, y


def watch_child(programs: dict[str, list[Any]], seed: int, rounds: int) -> dict[str, Runs]:
    """Run every way of every program once per round, in turns.

    Args:
      programs: by the feed of the batches, "device" or "host": the batch size, and the ways by name, each
        ("train" or "predict", how to wait, batches).
      seed: of parameters and batches.
      rounds: how often each way runs.
    """
    step, mean, params = make_step(seed)
    found: dict[str, Runs] = {}
    draw = random.Random()
    for feed, (batch_size, ways) in programs.items():
        run = functools.partial(watched, step, mean, params, feed, batch_size=batch_size, seed=seed)
        for task in ("train", "predict"):  # compile both
            run(task, "each", 3)
        runs: Runs = {name: [] for name in ways}
        for _ in range(rounds):
            for name in turns(list(ways), draw):
                runs[name].append(run(*ways[name]))
        found[feed] = runs
    return found


def watched(
    step: Any,
    mean: Any,
    params: Any,
    feed: str,
    task: str,
    wait: Wait,
    batches: int,
    *,
    batch_size: int,
    seed: int,
) -> dict[str, Any]:
    """One pass: when its batches were made, what it held, and its last output."""
    produced: list[float] = []
    held: list[int] = []
    data = data_iter(feed, batches=batches, batch_size=batch_size, seed=seed, produced=produced, held=held)
    time.sleep(0.05)  # a step's temporaries are freed a moment after its results are ready
    filling = filled_to_the_peak(device_memory())
    with MemorySampler(read=device_bytes if device_memory() else None) as sampled:
        began = time.perf_counter()
        if task == "train":
            outputs = train(step, params, data, wait=wait)
        else:
            outputs = taken((mean(params, X) for X, _ in data), wait)
        total_s = time.perf_counter() - began
    peak_bytes = most_held(sampled, device_memory())
    curve = sampled.curve("", points=100)
    return {
        "produced_s": produced,
        "total_s": total_s,
        "peak_bytes": peak_bytes,
        "change_bytes": sampled.resident_bytes[-1] - sampled.resident_bytes[0],
        "curve": [curve.x, curve.y],
        "live_bytes": max(held) - sum(array.nbytes for array in filling),
        "outputs": outputs,
    }


def most_held(sampled: MemorySampler, account: Mapping[str, int]) -> int:
    """Bytes above the start: from the device's own peak if it reports one, since sampling cannot miss it.

    Args:
      sampled: the samples of a run that began with a device `filled_to_the_peak`.
      account: the device's memory statistics after the run.
    """
    return max(sampled.peak_bytes, account.get("peak_bytes_in_use", 0)) - sampled.base_bytes


def device_bytes() -> int:
    """What the device itself says is in use."""
    return device_memory()["bytes_in_use"]
