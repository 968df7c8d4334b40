# /// script
# requires-python = ">=3.11"
# dependencies = ["jaxperf[chapter]"]
# [tool.uv.sources]
# jaxperf = { path = "../..", editable = true }
# ///
"""JAX's side of the comparison: JAX as installed, with the networks of `jaxperf.models`.

The runner starts it with the Python that it runs in itself. It needs jax, flax and NumPy, and the clone.
"""

import itertools
import platform
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import flax
import jax
import jax.numpy as jnp
import numpy as np
import worker
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec
from worker import Task, timed_first

sys.path.append(str(Path(__file__).resolve().parents[2]))  # where this Python does not have jaxperf installed

from jaxperf.models import MLP, LeNet, ResNet, from_gluon, lenet

# --- networks


def build(settings: dict[str, Any]) -> Any:
    """Return the module of `settings["net"]` with the common weights."""
    weights = list(worker.arrays(settings["weights"]).values())
    dtype = jnp.bfloat16 if settings.get("precision") == "bfloat16" else None
    make: Callable[..., Any] = partial(ResNet, 10, stages=settings.get("stages", ()))
    if settings["net"] == "mlp":
        make = MLP
    elif settings["net"] == "lenet":
        make, weights = LeNet, [w.T if w.ndim == 2 else w for w in weights]
    return from_gluon(nnx.eval_shape(lambda: make(dtype=dtype, rngs=nnx.Rngs(0))), weights)


def taken_apart(net: Any) -> tuple[Callable[..., Any], list[Any]]:
    """Return a function of flat arrays and an input, which is the module, and its arrays."""
    graph, state = nnx.split(net)
    arrays, tree = jax.tree.flatten(state)
    return lambda arrays, x: nnx.merge(graph, jax.tree.unflatten(tree, arrays))(x), arrays


def network(settings: dict[str, Any]) -> tuple[Callable[..., Any], tuple[Any, Any]]:
    """Return `apply(params, rest, X)`, which gives the logits and the new rest, and its arrays.

    On a CPU, LeNet is the book's function of a list of arrays; else networks are modules taken apart.
    """
    if settings["net"] == "lenet" and "precision" not in settings:
        params = [jnp.asarray(w) for w in worker.arrays(settings["weights"]).values()]
        return (lambda params, rest, X: (lenet(X, params), rest)), (params, ())
    net = build(settings)
    net.train()
    parts: Any = nnx.split(net, nnx.Param, ...)
    graph, params, rest = parts

    def apply(params: Any, rest: Any, X: Any) -> tuple[Any, Any]:
        net = nnx.merge(graph, params, rest, copy=True)
        logits = net(X)
        after: Any = nnx.split(net, nnx.Param, ...)
        return logits, after[2]

    return apply, (params, rest)


def update(apply: Callable[..., Any], lr: float, state: Any, X: Any, y: Any, average: Any = None) -> Any:
    """Take a step of stochastic gradient descent; `average` takes means over devices."""
    params, rest = state

    def loss_of(params: Any) -> Any:
        logits, new_rest = apply(params, rest, X)
        chosen = jnp.take_along_axis(jax.nn.log_softmax(logits.astype(jnp.float32)), y[:, None], axis=1)
        return -chosen.mean(), new_rest

    (loss, rest), grads = jax.value_and_grad(loss_of, has_aux=True)(params)
    if average:
        loss, rest, grads = average((loss, rest, grads))
    return (jax.tree.map(lambda p, g: p - lr * g, params, grads), rest), loss


# --- sections 8.1 to 8.3


def forward(settings: dict[str, Any], configuration: str) -> Task:
    """Queue `net(x)` many times, then wait (section 8.1.2's benchmark); a device finishes in order."""
    net = build(settings)
    net.eval()
    x = jnp.asarray(worker.arrays(settings["input"])["xs"][0])
    function, arrays = taken_apart(net)
    call = jax.jit(function)

    def build_and_call() -> tuple[Any, Any]:
        fn: Any = partial(net, x)
        if configuration == "nnx.jit":
            fn = partial(nnx.jit(lambda net, x: net(x)), net, x)
        elif configuration == "jit":
            fn = partial(call, arrays, x)
        elif configuration == "aot":
            fn = partial(call.lower(arrays, x).compile(), arrays, x)
        return fn, jax.block_until_ready(fn())

    first_s, (fn, y) = timed_first(build_and_call)
    return Task(first_s, {"output": y}, worker.waiting_once(fn, jax.block_until_ready))


def dot(settings: dict[str, Any], configuration: str) -> Task:
    """Time section 8.2.1's product until it is queued and until it is finished, both from the start."""
    x = jax.block_until_ready(jnp.asarray(worker.arrays(settings["square"])["x"]))
    eager = lambda x: jnp.dot(x, x).sum()  # noqa: E731
    fn = jax.jit(eager) if configuration == "jit" else eager
    first_s, total = timed_first(lambda: np.asarray(fn(x)))
    turn = worker.queued_and_finished(partial(fn, x), jax.block_until_ready)
    return Task(first_s, {"sum": total, "corner": jnp.dot(x, x)[:8, :8]}, turn)


def loop(settings: dict[str, Any], configuration: str) -> Task:
    """Time section 8.2.3's `y = x + 1`, waiting each time or once; one device finishes them in order."""
    x = jax.block_until_ready(jnp.asarray(worker.arrays(settings["square"])["x"]))
    fn = jax.jit(lambda x: x + 1) if configuration == "jit" else lambda x: x + 1
    first_s, y = timed_first(lambda: np.asarray(fn(x)))
    wait = jax.block_until_ready
    turn = worker.synchronous_and_asynchronous(partial(fn, x), wait, wait)
    return Task(first_s, {"corner": y[:8, :8]}, turn)


def together(settings: dict[str, Any], configuration: str) -> Task:
    """Time section 8.3.1's `run` on every device, one after the other or all at once.

    JAX's CPU devices share one pool of threads, so one that works alone must be kept on its own cores.
    """
    x = worker.arrays(settings["square"])["x"]
    xs = [jax.device_put(x, device) for device in jax.devices()[: settings["devices"]]]

    def run(x: Any) -> list[Any]:
        return [jnp.dot(x, x) for _ in range(settings["dots"])]

    first_s, outputs = timed_first(lambda: [np.asarray(run(x)[-1]) for x in xs])
    turn = worker.apart_and_together(
        settings["shares"],
        alone=lambda i: jax.block_until_ready(run(xs[i])),
        at_once=lambda: jax.block_until_ready([run(x) for x in xs]),
    )
    return Task(first_s, {f"device{i}": y[:8, :8] for i, y in enumerate(outputs)}, turn)


# --- sections 8.4 and 8.5


def train(settings: dict[str, Any], configuration: str) -> Task:
    """Train on one device, or on shares of each batch on several; a step begins with NumPy arrays.

    On several devices, "jit" leaves the division to XLA, and "shard_map" sums gradients by hand.
    """
    apply, state = network(settings)
    step = partial(update, apply, settings["lr"])
    mesh = jax.make_mesh((settings["devices"],), ("device",), (jax.sharding.AxisType.Auto,))
    copies, shares = PartitionSpec(), PartitionSpec("device")
    if configuration == "shard_map":
        average = partial(jax.lax.pmean, axis_name="device")
        step = jax.shard_map(
            partial(step, average=average),
            mesh=mesh,
            in_specs=(copies, shares, shares),
            out_specs=copies,
            check_vma=False,
        )
    program = jax.jit(step, donate_argnums=0)
    state = jax.device_put(state, NamedSharding(mesh, copies))
    batches = [(X.reshape(-1, 28, 28, 1), y) for X, y in worker.batches(settings)]
    rounds, loss = itertools.cycle(batches), None

    def take_step() -> Any:
        nonlocal state, loss
        state, loss = program(state, *jax.device_put(next(rounds), NamedSharding(mesh, shares)))
        return loss

    return worker.training(take_step, float, lambda: jax.block_until_ready((state, loss)), settings["steps"])


# --- with the images on the device


def train_on_device(settings: dict[str, Any], configuration: str) -> Task:
    """Train on images that are on the device as bytes, then on bytes that each step copies from the host.

    "jit" calls a jitted function for each step, "scan" one program for many. A GPU's products and
    convolutions are TF32, JAX's default, unless the network computes in bfloat16.
    """
    with jax.default_device(jax.local_devices(backend="cpu")[0]):  # a GPU would compile each operation
        apply, state = network(settings)
    device = jax.devices()[0]
    state = jax.device_put(jax.tree.map(np.asarray, state), device)
    images = worker.arrays(settings["images"])
    data = jax.device_put((images["X"], images["y"]), device)
    rows, scanned = worker.rows(settings), configuration == "scan"

    def on_bytes(state: Any, X: Any, y: Any) -> Any:
        return update(apply, settings["lr"], state, X[..., None].astype(jnp.float32) / 255, y)

    def on_rows(data: Any, state: Any, rows: Any) -> Any:
        return on_bytes(state, data[0][rows], data[1][rows])

    chunk = min(settings["chunk"], len(rows)) if scanned else 1
    program = jax.jit(on_rows, donate_argnums=1)
    if scanned:
        rows = rows[: len(rows) // chunk * chunk].reshape(-1, chunk, settings["batch"])
        many = lambda data, state, rows: jax.lax.scan(partial(on_rows, data), state, rows)  # noqa: E731
        program = jax.jit(many, donate_argnums=1)
    on_device = itertools.cycle([jax.device_put(r, device) for r in rows])

    def run() -> Any:
        nonlocal state
        state, loss = program(data, state, next(on_device))
        return loss

    def wait(loss: Any) -> None:
        jax.block_until_ready((state, loss))

    first_s, loss = timed_first(lambda: np.asarray(run()))
    losses = list(np.atleast_1d(loss))
    while len(losses) < settings["steps"]:
        losses += list(np.atleast_1d(run()))
    answers = {"loss": np.array(losses[: settings["steps"]])}
    turn = worker.waiting_once(run, wait, each=chunk, quantity="on the device")
    if scanned:
        return Task(first_s, answers, turn)
    feed = jax.jit(on_bytes, donate_argnums=0)
    fed = itertools.cycle([(images["X"][r], images["y"][r]) for r in rows])

    def run_fed() -> Any:
        nonlocal state
        state, loss = feed(state, *next(fed))
        return loss

    answers["loss, host-fed"] = np.array([run_fed() for _ in range(3)])
    fed_turn = worker.waiting_once(run_fed, wait, quantity="host-fed")
    return Task(first_s, answers, worker.one_after_the_other(turn, fed_turn))


def small(settings: dict[str, Any], configuration: str) -> Task:
    """Time an operation that is over in microseconds: many calls in a row, or many in one program."""
    operation, weights, y, xs = _operation(settings)
    separate, waits = [jax.device_put(x) for x in np.asarray(xs)], settings["waits"]
    called_once = jax.jit(operation)
    scanned = jax.jit(lambda w, y, xs: jax.lax.scan(lambda y, x: (operation(w, y, x), None), y, xs)[0])

    def by_call() -> Any:
        result = y
        for x in separate:
            result = called_once(weights, result, x)
            if waits:
                result.block_until_ready()
        return result

    def by_scan() -> Any:
        return scanned(weights, y, xs)

    run = by_scan if configuration == "scan" else by_call
    first_s, answer = timed_first(lambda: np.asarray(run().astype(jnp.float32)))
    turn = worker.waiting_once(run, jax.block_until_ready, each=len(separate))
    return Task(first_s, {"result": answer}, turn)


def _operation(settings: dict[str, Any]) -> tuple[Callable[..., Any], Any, Any, Any]:
    """Return `operation(weights, y, x)`, its weights, the first y, and the xs to go through."""
    if settings["operation"] == "mlp":
        function, arrays = taken_apart(build(settings))
        xs = jnp.asarray(worker.arrays(settings["input"])["xs"])
        output = jax.eval_shape(function, arrays, xs[0])
        return lambda arrays, y, x: function(arrays, x), arrays, jnp.zeros(output.shape), xs
    square = jnp.asarray(worker.arrays(settings["square"])["x"])
    xs = jnp.zeros(settings["chain"])  # nothing changes from one operation to the next
    if settings["operation"] == "product":
        return lambda square, y, x: square @ y, square, square, xs
    return lambda w, y, x: y + 1, None, square, xs


TASKS = {
    "forward": forward, "dot": dot, "loop": loop, "together": together, "train": train,
    "train on device": train_on_device, "small": small,
}  # fmt: skip
if __name__ == "__main__":
    versions = {"jax": jax.__version__, "flax": flax.__version__, "numpy": np.__version__}
    versions |= {"python": platform.python_version(), "device": jax.devices()[0].device_kind}
    worker.serve(versions, TASKS)
