"""PyTorch's side of the comparison on a device: training with the images there as bytes, small operations.

"eager" has channels first; "channels-last" has the layout that convolutions prefer, and so have all others.
"CUDA graphs" records a whole step once and replays it; "compiled" is `torch.compile`.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from . import files, torch_nets, turns
from .wire import Task, timed_first

WARM_UP = 3  # steps before a CUDA graph is recorded, as PyTorch's documentation has it


def train(settings: dict[str, Any], configuration: str, start: dict[str, Any]) -> Task:
    """Take steps of stochastic gradient descent; the answers are the losses of the first ones."""
    import torch

    _allow_tf32()
    step, records = _step(settings, configuration), "CUDA graphs" in configuration
    every = torch.from_numpy(files.rows(settings).astype(np.int64)).to(settings["device"])
    rounds = itertools.cycle(list(every))
    side = torch.cuda.Stream() if records else None  # what is recorded must not use the default one
    with torch.cuda.stream(side) if side else contextlib.nullcontext():
        first_s, loss = timed_first(lambda: float(step(next(rounds))))
        losses = [loss, *(float(step(next(rounds))) for _ in range(WARM_UP - 1))]
    if records:
        capture_s, step = timed_first(lambda: _captured(step, every[0], side))
        first_s += capture_s
    losses += [float(step(next(rounds))) for _ in range(settings["steps"] - WARM_UP)]
    turn = turns.waiting_once(lambda: step(next(rounds)), lambda _: _finish(settings))
    return Task(first_s, {"loss": np.array(losses)}, turn)


def _allow_tf32() -> None:
    """Let a GPU multiply and convolve in TF32, as JAX does, and time cuDNN's algorithms, as XLA does."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True


def _step(settings: dict[str, Any], configuration: str) -> Callable[[Any], Any]:
    """Return a training step on rows of the images."""
    import torch
    from torch.nn import functional

    device, bfloat16 = settings["device"], settings["precision"] == "bfloat16"
    layout = torch.contiguous_format if configuration == "eager" else torch.channels_last
    net = torch_nets.build(settings, files.arrays(settings["weights"])).train()
    net = net.to(device).to(memory_format=layout)
    stored = files.arrays(settings["images"])
    images = torch.from_numpy(stored["X"]).to(device)
    labels = torch.from_numpy(stored["y"].astype(np.int64)).to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=settings["lr"])

    def loss_of(X: Any, y: Any) -> Any:
        with torch.autocast(device, torch.bfloat16, enabled=bfloat16):
            return functional.cross_entropy(net(X), y)

    if configuration.startswith("compiled"):
        torch.compiler.reset()  # programs of earlier workloads count toward a limit
        loss_of = torch.compile(loss_of, dynamic=False)

    def step(rows: Any) -> Any:
        X = images[rows][:, None].float() / 255
        optimizer.zero_grad()
        loss = loss_of(X.contiguous(memory_format=layout), labels[rows])
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def _captured(step: Callable[[Any], Any], rows: Any, stream: Any = None) -> Callable[[Any], Any]:
    """Record a step in a CUDA graph, and return a function that replays it on other rows."""
    import torch

    fixed, graph = rows.clone(), torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        loss = step(fixed)

    def replay(rows: Any) -> Any:
        fixed.copy_(rows)
        graph.replay()
        return loss

    return replay


def _finish(settings: dict[str, Any]) -> None:
    import torch

    if settings["device"] == "cuda":  # on a CPU, operations are finished when they return
        torch.cuda.synchronize()


def small(settings: dict[str, Any], configuration: str, start: dict[str, Any]) -> Task:
    """Time an operation that is over in microseconds: many calls in a row, or recorded in one CUDA graph."""
    import torch

    _allow_tf32()
    operation, first, xs = _operation(settings)

    def by_call() -> Any:
        y = first
        for x in xs:
            y = operation(y, x)
            if settings["waits"]:
                _finish(settings)
        return y

    with torch.inference_mode():
        first_s, answer = timed_first(lambda: by_call().float().cpu().numpy())
        run: Callable[[], Any] = by_call
        if configuration == "CUDA graphs":
            capture_s, replay = timed_first(lambda: _captured(lambda _: by_call(), torch.zeros(1).to("cuda")))
            run, first_s = lambda: replay(0), first_s + capture_s
    turn = torch.inference_mode()(turns.waiting_once(run, lambda _: _finish(settings), each=len(xs)))
    return Task(first_s, {"result": answer}, turn)


def _operation(settings: dict[str, Any]) -> tuple[Callable[[Any, Any], Any], Any, list[Any]]:
    """Return `operation(y, x)`, the first y, and the xs to go through."""
    import torch

    device = settings["device"]
    if settings["operation"] == "mlp":
        net = torch_nets.build(settings, files.arrays(settings["weights"])).eval().to(device)
        xs = torch.from_numpy(files.arrays(settings["input"])["xs"]).to(device)
        return lambda y, x: net(x), xs[0], list(xs)
    square = torch.from_numpy(files.arrays(settings["square"])["x"]).to(device)
    nothing = [None] * settings["chain"]
    if settings["operation"] == "product":
        return lambda y, x: square @ y, square, nothing
    return lambda y, x: y + 1, square, nothing
