"""PyTorch's side of sections 8.1 to 8.3. `torch_train` holds the training, `torch_ranks` its processes.

PyTorch's CPU operations are finished when they return: "queued" and "finished" are the same there, and only a
GPU needs waiting. To PyTorch a CPU is one device, so two devices are two threads here and two processes in
training.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from . import files, torch_nets, torch_ranks, torch_train
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
        "export": export,
        "reload": reload,
        "dot": dot,
        "loop": loop,
        "together": together,
        "train": torch_train.train,
        "memory": torch_train.memory,
    }
    if settings["platform"] == "gpu":
        import torch

        exact = settings["precision"] == "float32"  # PyTorch convolves in TF32 unless told not to
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = not exact
    return tasks[settings["task"]](settings, configuration, start)


def forward(settings: dict[str, Any], configuration: str, start: dict[str, Any]) -> Task:
    """Call `net(x)` in inference mode, so that no graph is kept; MXNet and JAX keep none either."""
    import torch

    net, x = _net_and_input(settings)
    x = torch_nets.in_layout(x, configuration)

    def build_and_call() -> tuple[Any, Any]:
        with torch.inference_mode():
            fn = net
            if configuration == "traced":
                fn = torch.jit.trace(net, x)
            elif configuration == "frozen":
                fn = torch.jit.optimize_for_inference(torch.jit.trace(net, x))
            else:
                fn = torch_nets.as_configured(net, configuration)
            return fn, fn(x).float().cpu()

    first_s, (fn, y) = timed_first(build_and_call)

    def turn(calls: int) -> dict[str, float]:
        with torch.inference_mode():
            began, events = time.perf_counter(), torch_nets.Events(settings)
            for _ in range(calls):
                fn(x)
            by_events = events.finish(calls)
            return {"": (time.perf_counter() - began) / calls, **by_events}

    return Task(first_s, {"output": y.numpy()}, turn)


def _net_and_input(settings: dict[str, Any]) -> tuple[Any, Any]:
    import torch

    net = torch_nets.halved(settings, torch_nets.build(settings, files.arrays(settings["weights"])).eval())
    x = files.arrays(settings["input"])["x"] if settings["net"] == "mlp" else files.images(settings)
    return net, torch_nets.halved(settings, torch.from_numpy(x).to(torch_nets.device(settings)))


def export(settings: dict[str, Any], configuration: str, start: dict[str, Any]) -> Task:
    """Save with `torch.jit.save` or `torch.export.save`, then load until the first output is ready.

    Traced only once, as the other systems do automatically.
    """
    import torch

    path = _export_path(settings, configuration)
    net, x = _net_and_input(settings)
    traces = configuration == "traced"
    with torch.inference_mode(traces):
        program = torch.jit.trace(net, x) if traces else torch.export.export(net, (x,))
    save = torch.jit.save if traces else torch.export.save

    def write_and_reload() -> tuple[dict[str, float], Any]:
        with torch.inference_mode(traces):
            began = time.perf_counter()
            save(program, path)
            written = time.perf_counter()
            y = _reload(path, configuration, x)
            return {"write": written - began, "reload": time.perf_counter() - written}, y

    first_s, (_, y) = timed_first(write_and_reload)
    return Task(first_s, {"output": y}, lambda calls: write_and_reload()[0])


def reload(settings: dict[str, Any], configuration: str, start: dict[str, Any]) -> Task:
    """Read what `export` wrote, in a process that has never seen the network."""
    x = _net_and_input(settings)[1]
    first_s, y = timed_first(lambda: _reload(_export_path(settings, configuration), configuration, x))
    return Task(first_s, {"output": y}, lambda calls: {})


def _export_path(settings: dict[str, Any], configuration: str) -> str:
    ending = ".pt" if configuration == "traced" else ".pt2"
    return os.path.join(settings["folder"], "torch-" + configuration + ending)  # noqa: PTH118


def _reload(path: str, configuration: str, x: Any) -> Any:
    import torch

    net = torch.jit.load(path) if configuration == "traced" else torch.export.load(path).module()
    return net(x).detach().cpu().numpy()


def dot(settings: dict[str, Any], configuration: str, start: dict[str, Any]) -> Task:
    """Time section 8.2.1's product until the call returns, and until the value is ready."""
    import torch

    x = torch.from_numpy(files.arrays(settings["square"])["x"]).to(torch_nets.device(settings))
    first_s, total = timed_first(lambda: torch.mm(x, x).sum().cpu().numpy())

    def turn(calls: int) -> dict[str, float]:
        queued = finished = 0.0
        for _ in range(calls):
            began = time.perf_counter()
            y = torch.mm(x, x).sum()
            queued += time.perf_counter() - began
            y.item()
            finished += time.perf_counter() - began
        return {"queued": queued / calls, "finished": finished / calls}

    return Task(first_s, {"sum": total, "corner": torch.mm(x, x)[:8, :8].cpu().numpy()}, turn)


def loop(settings: dict[str, Any], configuration: str, start: dict[str, Any]) -> Task:
    """Time section 8.2.3's `y = x + 1`, waiting each time or once, which is the same on a CPU."""
    import torch

    x = torch.from_numpy(files.arrays(settings["square"])["x"]).to(torch_nets.device(settings))
    first_s, y = timed_first(lambda: (x + 1).cpu().numpy())
    waits = settings["platform"] == "gpu"

    def run(calls: int, *, each: bool) -> float:
        began = time.perf_counter()
        for _ in range(calls):
            y = x + 1  # noqa: F841
            if each:
                torch.cuda.synchronize()
        torch_nets.finish(settings)
        return (time.perf_counter() - began) / calls

    def turn(calls: int) -> dict[str, float]:
        return {"synchronous": run(calls, each=waits), "asynchronous": run(calls, each=False)}

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
