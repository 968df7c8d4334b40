"""PyTorch's training: one process as it is or compiled, several with DistributedDataParallel over Gloo."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from . import files, torch_nets, torch_ranks
from .wire import Task


def train(settings: dict[str, Any], configuration: str, start: dict[str, Any]) -> Task:
    """Take steps of stochastic gradient descent; the answers are the losses of the full batches."""
    if settings["devices"] == 1:
        return _train(settings, configuration, _Alone())
    with torch_ranks.together(settings, configuration, start) as group:
        task = _train(settings, configuration, group)
    return task._replace(turn=lambda calls: group.turn(task.turn, calls))


class _Alone:
    """One process: the whole batch is its share."""

    def wrap(self, net: Any) -> Any:
        return net

    def share(self, a: np.ndarray) -> np.ndarray:
        return a

    def mean(self, value: Any) -> float:
        return float(value)

    def barrier(self) -> None:
        pass


def _train(settings: dict[str, Any], configuration: str, group: Any) -> Task:
    import torch
    from torch.nn import functional

    net = torch_nets.build(settings, files.arrays(settings["weights"])).train()
    model = group.wrap(torch_nets.as_configured(net, configuration))
    device = torch_nets.device(settings)
    optimizer = torch.optim.SGD(net.parameters(), lr=settings["lr"])
    shares = [(group.share(X), group.share(y).astype(np.int64)) for X, y in files.batches(settings)]
    rounds = itertools.cycle(shares)

    def step() -> Any:
        X, y = (torch.from_numpy(a).to(device) for a in next(rounds))
        optimizer.zero_grad()
        with torch_nets.mixed(settings):
            loss = functional.cross_entropy(model(torch_nets.in_layout(X, configuration)), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return _as_task(step, group, settings)


def _as_task(step: Callable[[], Any], group: Any, settings: dict[str, Any]) -> Task:
    began, history, first_s = time.perf_counter(), [], 0.0
    for _ in range(settings["steps"]):
        history.append(group.mean(step()))
        first_s = first_s or time.perf_counter() - began

    def turn(calls: int) -> dict[str, float]:
        group.barrier()
        began, events = time.perf_counter(), torch_nets.Events(settings)
        for _ in range(calls):
            loss = step()
        by_events = events.finish(calls)
        group.barrier()
        return {"": (time.perf_counter() - began) / calls, "loss": group.mean(loss), **by_events}

    return Task(first_s, {"loss": np.array(history)}, turn)


def memory(settings: dict[str, Any], configuration: str, start: dict[str, Any]) -> Task:
    """Train section 8.2.4's MLP on batches made as they are needed; read each loss, or none."""
    import torch
    from torch.nn import functional

    net = torch_nets.build({**settings, "net": "mlp"}, files.arrays(settings["weights"]))
    optimizer = torch.optim.SGD(net.parameters(), lr=settings["lr"])
    base = torch.from_numpy(files.arrays(settings["input"])["x"])

    def run(count: int) -> tuple[dict[str, float], list[float]]:
        began, history = time.perf_counter(), []
        for i in range(count):
            X, y = base * (1 + i / 100), torch.ones(len(base), 1)
            optimizer.zero_grad()
            loss = functional.mse_loss(net(X), y) / 2
            if settings["synchronous"]:
                history.append(loss.item())
            loss.backward()
            optimizer.step()
        took = time.perf_counter() - began
        return {"handed_out": took, "finished": took}, history

    began = time.perf_counter()
    _, history = run(settings["steps"])
    return Task(time.perf_counter() - began, {"loss": np.array(history)}, lambda calls: run(calls)[0])
