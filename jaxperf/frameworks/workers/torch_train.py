"""PyTorch's training: one process as it is or compiled, several with DistributedDataParallel over Gloo."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from . import files, torch_nets, torch_ranks, turns
from .wire import Task


def train(settings: dict[str, Any], configuration: str, start: dict[str, Any]) -> Task:
    """Take steps of stochastic gradient descent; the answers are the losses of the full batches."""
    if settings["devices"] == 1:
        return _train(settings, configuration, torch_ranks.Group(0, 1, []))
    with torch_ranks.together(settings, configuration, start) as group:
        task = _train(settings, configuration, group)
    return task._replace(turn=lambda calls: group.turn(task.turn, calls))


def _train(settings: dict[str, Any], configuration: str, group: torch_ranks.Group) -> Task:
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

    return turns.training(step, group.mean, group.barrier, settings["steps"])
