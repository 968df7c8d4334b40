"""PyTorch's side of the comparison on a device: training with the images there as bytes, small operations.

"eager" has channels first; "channels-last" has the layout that convolutions prefer, and so have all others.
"CUDA graphs" records a whole step once and replays it; "compiled" is `torch.compile`.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
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
    fixed = every[0].clone()  # the rows that a graph reads

    def one() -> Any:
        return step(next(rounds))

    def replayed() -> Any:
        fixed.copy_(next(rounds))
        return replay()

    with _side_stream() if records else contextlib.nullcontext():
        first_s, loss = timed_first(lambda: float(one()))
        losses = [loss, *(float(one()) for _ in range(WARM_UP - 1))]
        if records:
            record_s, replay = timed_first(lambda: _recorded(lambda: step(fixed)))
            first_s += record_s
    run = replayed if records else one
    losses += [float(run()) for _ in range(settings["steps"] - WARM_UP)]
    turn = turns.waiting_once(run, lambda _: _finish(settings))
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

    if configuration == "compiled":  # which starts first
        torch.compiler.reset()  # programs of earlier workloads count toward a limit
    if configuration.startswith("compiled"):
        loss_of = torch.compile(loss_of, dynamic=False)

    def step(rows: Any) -> Any:
        X = images[rows][:, None].float() / 255
        optimizer.zero_grad()
        loss = loss_of(X.contiguous(memory_format=layout), labels[rows])
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


@contextlib.contextmanager
def _side_stream() -> Iterator[None]:
    """Work on another stream than the default one, on which nothing can be recorded, in order with it."""
    import torch

    default, side = torch.cuda.current_stream(), torch.cuda.Stream()
    side.wait_stream(default)  # which may still be copying what the work reads
    with torch.cuda.stream(side):
        yield
    default.wait_stream(side)


def _recorded(call: Callable[[], Any]) -> Callable[[], Any]:
    """Record a call in a CUDA graph on the current stream, and return a function that replays it.

    A replay writes to the output of the call that was recorded, and returns it.
    """
    import torch

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
        output = call()

    def replay(recorded: Callable[[], Any] = call) -> Any:
        """Replay it; `recorded` keeps all arrays alive of which the graph has only the addresses."""
        graph.replay()
        return output

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

    records, run = configuration == "CUDA graphs", by_call
    with torch.inference_mode(), _side_stream() if records else contextlib.nullcontext():
        first_s, answer = timed_first(lambda: by_call().float().cpu().numpy())
        if records:
            record_s, run = timed_first(lambda: _recorded(by_call))
            first_s, answer = first_s + record_s, run().float().cpu().numpy()
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
