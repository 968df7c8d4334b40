"""JAX's side of the comparison on a device: training with the images there as bytes, and small operations.

"jit" calls a jitted function for each step, "scan" one program for many. A GPU's products and convolutions
are TF32, JAX's default, unless a network computes in bfloat16.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from . import files, jax_train, turns
from .wire import Task, timed_first


def train(settings: dict[str, Any], configuration: str) -> Task:
    """Take steps of stochastic gradient descent; the answers are the losses of the first ones."""
    import jax
    import jax.numpy as jnp
    from jax import lax

    step, carry = _step(settings)
    stored = files.arrays(settings["images"])
    data = jnp.asarray(stored["X"]), jnp.asarray(stored["y"])
    rows, chunk = files.rows(settings), 1
    if configuration == "scan":
        chunk = min(settings["chunk"], len(rows))
        rows = rows[: len(rows) // chunk * chunk].reshape(-1, chunk, settings["batch"])
        fn: Any = lambda data, carry, rows: lax.scan(lambda c, r: step(data, c, r), carry, rows)  # noqa: E731
    else:
        fn = step
    program = jax.jit(fn, donate_argnums=1)
    rounds, losses = itertools.cycle([jax.device_put(r) for r in rows]), list[float]()

    def run() -> Any:
        nonlocal carry
        carry, loss = program(data, carry, next(rounds))
        return loss

    first_s, loss = timed_first(lambda: np.asarray(run()))
    losses += np.atleast_1d(loss).tolist()
    while len(losses) < settings["steps"]:
        losses += np.atleast_1d(run()).tolist()
    turn = turns.waiting_once(run, lambda loss: jax.block_until_ready((carry, loss)), each=chunk)
    return Task(first_s, {"loss": np.array(losses[: settings["steps"]])}, turn)


def _step(settings: dict[str, Any]) -> tuple[Callable[..., Any], Any]:
    """Return a training step on rows of the images, and the arrays that it carries on, as a flat list."""
    import jax
    import jax.numpy as jnp
    import optax
    from flax import nnx

    with jax.default_device(jax.local_devices(backend="cpu")[0]):  # a GPU would compile each operation
        net = jax_train.build(settings, files.arrays(settings["weights"]))
        net.train()
        graph, *parts = nnx.split(net, nnx.Param, ...)
        leaves, tree = jax.tree.flatten(tuple(parts))

    def step(data: Any, carry: Any, rows: Any) -> Any:
        images, labels = data
        X = images[rows, :, :, None].astype(jnp.float32) / 255
        params, rest = jax.tree.unflatten(tree, carry)

        def loss(params: Any) -> Any:
            net = nnx.merge(graph, params, rest, copy=True)
            logits = net(X).astype(jnp.float32)
            value = optax.softmax_cross_entropy_with_integer_labels(logits, labels[rows]).mean()
            return value, tuple(nnx.split(net, nnx.Param, ...))[2]

        (value, rest), grads = jax.value_and_grad(loss, has_aux=True)(params)
        params = jax.tree.map(lambda p, g: p - settings["lr"] * g, params, grads)
        return jax.tree.leaves((params, rest)), value

    return step, jax.device_put([np.array(leaf) for leaf in leaves], jax.devices()[0])


def small(settings: dict[str, Any], configuration: str) -> Task:
    """Time an operation that is over in microseconds: many calls in a row, or many in one program."""
    import jax
    import jax.numpy as jnp
    from jax import lax

    operation, weights, y, xs = _operation(settings)
    separate, waits = [jax.device_put(x) for x in np.asarray(xs)], settings["waits"]
    one = jax.jit(operation)
    whole = jax.jit(lambda w, y, xs: lax.scan(lambda y, x: (operation(w, y, x), None), y, xs)[0])

    def by_call() -> Any:
        result = y
        for x in separate:
            result = one(weights, result, x)
            if waits:
                result.block_until_ready()
        return result

    run = (lambda: whole(weights, y, xs)) if configuration == "scan" else by_call
    first_s, answer = timed_first(lambda: np.asarray(run().astype(jnp.float32)))
    turn = turns.waiting_once(run, jax.block_until_ready, each=len(separate))
    return Task(first_s, {"result": answer}, turn)


def _operation(settings: dict[str, Any]) -> tuple[Callable[..., Any], Any, Any, Any]:
    """Return `operation(weights, y, x)`, its weights, the first y, and the xs to go through."""
    import jax
    import jax.numpy as jnp
    from flax import nnx

    if settings["operation"] == "mlp":
        net = jax_train.build(settings, files.arrays(settings["weights"]))
        graph, state = nnx.split(net)
        arrays, tree = jax.tree.flatten(state)
        xs = jnp.asarray(files.arrays(settings["input"])["xs"])

        def call(arrays: Any, y: Any, x: Any) -> Any:
            return nnx.merge(graph, jax.tree.unflatten(tree, arrays))(x)

        return call, arrays, jnp.zeros(jax.eval_shape(net, xs[0]).shape), xs
    square = jnp.asarray(files.arrays(settings["square"])["x"])
    xs = jnp.zeros(settings["chain"])  # nothing changes from one operation to the next
    if settings["operation"] == "product":
        return lambda square, y, x: square @ y, square, square, xs
    return lambda w, y, x: y + 1, None, square, xs
