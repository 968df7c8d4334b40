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
    optimizer = torch.optim.SGD(net.parameters(), lr=settings["lr"])
    shares = [(group.share(X), group.share(y).astype(np.int64)) for X, y in files.batches(settings)]
    rounds = itertools.cycle(shares)

    def step() -> Any:
        X, y = map(torch.from_numpy, next(rounds))
        optimizer.zero_grad()
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
        began = time.perf_counter()
        for _ in range(calls):
            step()
        group.barrier()
        return {"": (time.perf_counter() - began) / calls}

    return Task(first_s, {"loss": np.array(history)}, turn)
