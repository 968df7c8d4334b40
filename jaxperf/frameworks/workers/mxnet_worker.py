"""MXNet 1.9.1's side: sections 8.1 to 8.3 as the book writes them. `mxnet_train` holds the training."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from functools import partial
from typing import Any

from . import files, mxnet_nets, mxnet_train, turns
from .wire import Task, apart_and_together, timed_first


def greet(start: dict[str, Any]) -> dict[str, Any]:
    """Import MXNet, and return versions and threads."""
    import mxnet as mx
    import numpy as np

    versions = {"mxnet": mx.__version__, "numpy": np.__version__, "python": platform.python_version()}
    return {"versions": versions, "threads": int(os.environ.get("OMP_NUM_THREADS", 0))}


def make(settings: dict[str, Any], configuration: str, start: dict[str, Any]) -> Task:
    """Return the task that `settings["task"]` names."""
    tasks: dict[str, Callable[..., Task]] = {
        "forward": forward,
        "dot": dot,
        "loop": loop,
        "together": together,
        "train": mxnet_train.train,
    }
    return tasks[settings["task"]](settings, configuration, start)


def forward(settings: dict[str, Any], configuration: str, start: dict[str, Any]) -> Task:
    """Call `net(x)` many times, then `waitall` (section 8.1.2's benchmark)."""
    import mxnet as mx
    from mxnet import nd

    weights = files.arrays(settings["weights"])
    net = mxnet_nets.hybridize(mxnet_nets.build(settings, weights, [mx.cpu()]), configuration)
    x = nd.array(files.arrays(settings["input"])["x"])
    nd.waitall()
    first_s, y = timed_first(lambda: net(x).asnumpy())
    return Task(first_s, {"output": y}, turns.waiting_once(partial(net, x), lambda _: nd.waitall()))


def dot(settings: dict[str, Any], configuration: str, start: dict[str, Any]) -> Task:
    """Time section 8.2.1's product until it is queued and until it is finished, both from the start."""
    from mxnet import nd

    x = nd.array(files.arrays(settings["square"])["x"])
    nd.waitall()
    first_s, total = timed_first(lambda: nd.dot(x, x).sum().asscalar())
    turn = turns.queued_and_finished(lambda: nd.dot(x, x).sum(), nd.NDArray.wait_to_read)
    return Task(first_s, {"sum": total, "corner": nd.dot(x, x)[:8, :8].asnumpy()}, turn)


def loop(settings: dict[str, Any], configuration: str, start: dict[str, Any]) -> Task:
    """Time section 8.2.3's `y = x + 1`, waiting each time or once."""
    from mxnet import nd

    x = nd.array(files.arrays(settings["square"])["x"])
    nd.waitall()
    first_s, y = timed_first(lambda: (x + 1).asnumpy())
    turn = turns.synchronous_and_asynchronous(lambda: x + 1, nd.NDArray.wait_to_read, lambda _: nd.waitall())
    return Task(first_s, {"corner": y[:8, :8]}, turn)


def together(settings: dict[str, Any], configuration: str, start: dict[str, Any]) -> Task:
    """Time section 8.3.1's `run` on every context, one after the other or all at once."""
    import mxnet as mx
    from mxnet import nd

    x = files.arrays(settings["square"])["x"]
    xs = [nd.array(x, ctx=mx.cpu(i)) for i in range(settings["devices"])]
    nd.waitall()

    def run(x: Any) -> list[Any]:
        return [nd.dot(x, x) for _ in range(settings["dots"])]

    def run_and_wait(xs: list[Any]) -> None:
        for x in xs:
            run(x)
        nd.waitall()

    def turn(calls: int) -> dict[str, float]:
        return apart_and_together(
            calls,
            start["shares"],
            alone=lambda i: run_and_wait(xs[i : i + 1]),
            at_once=lambda: run_and_wait(xs),
        )

    first_s, outputs = timed_first(lambda: [run(x)[-1].asnumpy() for x in xs])
    return Task(first_s, {f"device{i}": y[:8, :8] for i, y in enumerate(outputs)}, turn)
