"""JAX's side, in jaxperf's own environment: JAX as installed, with the steps that the sections show.

`jax_train` holds the training, `jax_device` what is compared with images on the device.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from functools import partial
from typing import Any

from . import files, jax_device, jax_train, turns
from .wire import Task, apart_and_together, timed_first


def greet(start: dict[str, Any]) -> dict[str, Any]:
    """Start JAX, and return versions and threads."""
    import flax
    import jax
    import numpy as np

    versions = {"jax": jax.__version__, "flax": flax.__version__, "numpy": np.__version__}
    if len(jax.devices()) < start["devices"]:
        raise RuntimeError(f"{len(jax.devices())} devices, {start['devices']} wanted")
    device = jax.devices()[0]
    return {
        "versions": {**versions, "python": platform.python_version()},
        "threads": start["threads"],
        "device": {"platform": device.platform, "kind": device.device_kind},
    }


def make(settings: dict[str, Any], configuration: str, start: dict[str, Any]) -> Task:
    """Return the task that `settings["task"]` names."""
    tasks: dict[str, Callable[..., Task]] = {
        "forward": forward,
        "dot": dot,
        "loop": loop,
        "together": lambda settings, _: together(settings, start),
        "train": jax_train.train,
        "train on device": jax_device.train,
        "small": jax_device.small,
    }
    return tasks[settings["task"]](settings, configuration)


def forward(settings: dict[str, Any], configuration: str) -> Task:
    """Queue `net(x)` many times, then wait (section 8.1.2's benchmark); a device finishes in order."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from flax import nnx

    net = jax_train.build(settings, files.arrays(settings["weights"]))
    net.eval()
    x = jnp.asarray(files.arrays(settings["input"])["x"])
    graph, state = nnx.split(net)
    arrays, tree = jax.tree.flatten(state)

    @jax.jit
    def call(arrays: list[Any], x: Any) -> Any:
        return nnx.merge(graph, jax.tree.unflatten(tree, arrays))(x)

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
    return Task(first_s, {"output": np.asarray(y)}, turns.waiting_once(fn, _wait))


def _wait(output: Any) -> None:
    output.block_until_ready()


def dot(settings: dict[str, Any], configuration: str) -> Task:
    """Time section 8.2.1's product until it is queued and until it is finished, both from the start."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    x = jax.block_until_ready(jnp.asarray(files.arrays(settings["square"])["x"]))
    eager = lambda x: jnp.dot(x, x).sum()  # noqa: E731
    fn = jax.jit(eager) if configuration == "jit" else eager
    first_s, total = timed_first(lambda: np.asarray(fn(x)))
    turn = turns.queued_and_finished(partial(fn, x), _wait)
    return Task(first_s, {"sum": total, "corner": np.asarray(jnp.dot(x, x)[:8, :8])}, turn)


def loop(settings: dict[str, Any], configuration: str) -> Task:
    """Time section 8.2.3's `y = x + 1`, waiting each time or once; one device finishes them in order."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    x = jax.block_until_ready(jnp.asarray(files.arrays(settings["square"])["x"]))
    fn = jax.jit(lambda x: x + 1) if configuration == "jit" else lambda x: x + 1
    first_s, y = timed_first(lambda: np.asarray(fn(x)))
    turn = turns.synchronous_and_asynchronous(partial(fn, x), _wait, _wait)
    return Task(first_s, {"corner": y[:8, :8]}, turn)


def together(settings: dict[str, Any], start: dict[str, Any]) -> Task:
    """Time section 8.3.1's `run` on every device, one after the other or all at once.

    JAX's CPU devices share one pool of threads, so one that works alone must be kept on its own cores.
    """
    import jax
    import jax.numpy as jnp
    import numpy as np

    from jaxperf.parallel import first_devices

    x = files.arrays(settings["square"])["x"]
    devices = first_devices(settings["devices"], platform="cpu")
    xs = [jax.device_put(x, device) for device in devices]

    def run(x: Any) -> list[Any]:
        return [jnp.dot(x, x) for _ in range(settings["dots"])]

    def turn(calls: int) -> dict[str, float]:
        return apart_and_together(
            calls,
            start["shares"],
            alone=lambda i: jax.block_until_ready(run(xs[i])),
            at_once=lambda: jax.block_until_ready([run(x) for x in xs]),
        )

    first_s, outputs = timed_first(lambda: [np.asarray(run(x)[-1]) for x in xs])
    return Task(first_s, {f"device{i}": y[:8, :8] for i, y in enumerate(outputs)}, turn)
