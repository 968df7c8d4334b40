"""PyTorch's side of sections 8.1 to 8.3. `torch_train` holds the training, `torch_ranks` its processes.

`torch_device` holds what is compared with images on the device. PyTorch's CPU operations are finished when
they return: "queued" and "finished" are the same here. To PyTorch a CPU is one device, so two devices are two
threads here and two processes in training.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from . import files, torch_device, torch_nets, torch_ranks, torch_train, turns
from .wire import Task, apart_and_together, timed_first


def greet(start: dict[str, Any]) -> dict[str, Any]:
    """Import PyTorch, and return versions and threads."""
    import numpy as np
    import torch

    torch.set_num_threads(start["threads"])
    if "rank" in start:
        torch_ranks.join(start["rank"], start["world"], start["store"])
    versions = {"torch": torch.__version__, "numpy": np.__version__, "python": platform.python_version()}
    return {"versions": versions, "threads": torch.get_num_threads()}


def make(settings: dict[str, Any], configuration: str, start: dict[str, Any]) -> Task:
    """Return the task that `settings["task"]` names."""
    tasks: dict[str, Callable[..., Task]] = {
        "forward": forward,
        "dot": dot,
        "loop": loop,
        "together": together,
        "train": torch_train.train,
        "train on device": torch_device.train,
        "small": torch_device.small,
    }
    return tasks[settings["task"]](settings, configuration, start)


def forward(settings: dict[str, Any], configuration: str, start: dict[str, Any]) -> Task:
    """Call `net(x)` in inference mode, so that no graph is kept; MXNet and JAX keep none either."""
    import torch

    net = torch_nets.build(settings, files.arrays(settings["weights"])).eval()
    x = torch.from_numpy(files.arrays(settings["input"])["x"])

    def build_and_call() -> tuple[Any, Any]:
        with torch.inference_mode():
            fn = net
            if configuration == "traced":
                fn = torch.jit.trace(net, x)
            elif configuration == "frozen":
                fn = torch.jit.optimize_for_inference(torch.jit.trace(net, x))
            else:
                fn = torch_nets.as_configured(net, configuration)
            return fn, fn(x)

    first_s, (fn, y) = timed_first(build_and_call)
    turn = torch.inference_mode()(turns.waiting_once(partial(fn, x), turns.nothing))
    return Task(first_s, {"output": y.numpy()}, turn)


def dot(settings: dict[str, Any], configuration: str, start: dict[str, Any]) -> Task:
    """Time section 8.2.1's product until the call returns, and until the value is ready."""
    import torch

    x = torch.from_numpy(files.arrays(settings["square"])["x"])
    first_s, total = timed_first(lambda: torch.mm(x, x).sum().numpy())
    turn = turns.queued_and_finished(lambda: torch.mm(x, x).sum(), torch.Tensor.item)
    return Task(first_s, {"sum": total, "corner": torch.mm(x, x)[:8, :8].numpy()}, turn)


def loop(settings: dict[str, Any], configuration: str, start: dict[str, Any]) -> Task:
    """Time section 8.2.3's `y = x + 1`, waiting each time or once, which is the same on a CPU."""
    import torch

    x = torch.from_numpy(files.arrays(settings["square"])["x"])
    first_s, y = timed_first(lambda: (x + 1).numpy())
    turn = turns.synchronous_and_asynchronous(lambda: x + 1, turns.nothing, turns.nothing)
    return Task(first_s, {"corner": y[:8, :8]}, turn)


def together(settings: dict[str, Any], configuration: str, start: dict[str, Any]) -> Task:
    """Time section 8.3.1's `run`, one after the other or each in a thread of its own."""
    import torch

    x, k = files.arrays(settings["square"])["x"], settings["devices"]
    xs = [torch.from_numpy(x.copy()) for _ in range(k)]
    pool = ThreadPoolExecutor(k, initializer=lambda: torch.set_num_threads(start["threads"]))

    def run(x: Any) -> list[Any]:
        return [torch.mm(x, x) for _ in range(settings["dots"])]

    def turn(calls: int) -> dict[str, float]:
        return apart_and_together(
            calls, start["shares"], alone=lambda i: run(xs[i]), at_once=lambda: list(pool.map(run, xs))
        )

    first_s, outputs = timed_first(lambda: [ys[-1].numpy() for ys in pool.map(run, xs)])
    return Task(first_s, {f"device{i}": y[:8, :8] for i, y in enumerate(outputs)}, turn)
