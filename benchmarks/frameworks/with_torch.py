# /// script
# requires-python = ">=3.10"
# dependencies = ["torch==2.13.0", "numpy>=2"]
# ///
"""PyTorch's side of the comparison. `uv run --script` makes its environment, or any Python that has PyTorch.

PyTorch's CPU operations are finished when they return, so it has no time "queued" or "asynchronous" there. To
PyTorch a CPU is one device, so two devices are two threads in section 8.3, and two processes in training.
"""

import contextlib
import datetime
import itertools
import multiprocessing
import platform
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import worker
from torch import Tensor, nn
from torch.nn import functional
from worker import Task, timed_first

WARM_UP = 3  # steps before a CUDA graph is recorded, as PyTorch's documentation has it
PATIENCE = datetime.timedelta(seconds=60)  # of DistributedDataParallel's processes


# --- networks; state dictionaries are Gluon's arrays with two names changed


def build(settings: dict[str, Any]) -> nn.Module:
    """Return the network of `settings["net"]` with the common weights, on the host."""
    weights = {name: torch.from_numpy(a) for name, a in worker.arrays(settings["weights"]).items()}
    net: nn.Module
    if settings["net"] == "lenet":
        return LeNet(weights)
    if settings["net"] == "mlp":
        dense = [w for w in weights.values() if w.ndim == 2]
        layers = [layer for w in dense for layer in (nn.Linear(*reversed(w.shape)), nn.ReLU())]
        net = nn.Sequential(*layers[:-1])
        weights = dict(zip(net.state_dict(), weights.values()))
    else:
        net = resnet(settings["stages"])
        weights = {k.replace("gamma", "weight").replace("beta", "bias"): a for k, a in weights.items()}
    net.load_state_dict({**net.state_dict(), **weights})
    return net


class LeNet(nn.Module):
    """Section 8.4's LeNet as a module that holds the book's list of parameters."""

    def __init__(self, weights: dict[str, Tensor]) -> None:
        super().__init__()
        for name, value in weights.items():
            self.register_parameter(name, nn.Parameter(value))

    def forward(self, X: Tensor) -> Tensor:
        h1 = functional.avg_pool2d(functional.relu(functional.conv2d(X, self.W1, self.b1)), 2)
        h2 = functional.avg_pool2d(functional.relu(functional.conv2d(h1, self.W2, self.b2)), 2).flatten(1)
        h3 = functional.relu(torch.addmm(self.b3, h2, self.W3))
        return torch.addmm(self.b4, h3, self.W4)


class Residual(nn.Module):
    def __init__(self, in_channels: int, num_channels: int, *, halves: bool) -> None:
        super().__init__()
        strides = 2 if halves else 1
        self.conv1 = nn.Conv2d(in_channels, num_channels, 3, strides, 1)
        self.conv2 = nn.Conv2d(num_channels, num_channels, 3, 1, 1)
        self.conv3 = nn.Conv2d(in_channels, num_channels, 1, strides) if halves else None
        self.bn1 = nn.BatchNorm2d(num_channels)
        self.bn2 = nn.BatchNorm2d(num_channels)

    def forward(self, X: Tensor) -> Tensor:
        Y = self.bn2(self.conv2(functional.relu(self.bn1(self.conv1(X)))))
        return functional.relu(Y + (X if self.conv3 is None else self.conv3(X)))


def resnet(stages: list[list[int]]) -> nn.Module:
    """Return section 8.5.1's ResNet with `stages` of (channels, blocks)."""
    channels = stages[0][0]
    layers: list[nn.Module] = [nn.Conv2d(1, channels, 3, 1, 1), nn.BatchNorm2d(channels), nn.ReLU()]
    for i, (num_channels, num_residuals) in enumerate(stages):
        stage = []
        for j in range(num_residuals):
            stage.append(Residual(channels, num_channels, halves=i > 0 and j == 0))
            channels = num_channels
        layers.append(nn.Sequential(*stage))
    pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return nn.Sequential(*layers, pool, nn.Linear(channels, 10))


# --- sections 8.1 to 8.3


def forward(settings: dict[str, Any], configuration: str) -> Task:
    """Call `net(x)` in inference mode, so that no graph is kept; MXNet and JAX keep none either."""
    net = build(settings).eval()
    x = torch.from_numpy(worker.arrays(settings["input"])["xs"][0])

    def build_and_call() -> tuple[Any, Any]:
        with torch.inference_mode():
            fn: Any = net
            if configuration == "traced":
                fn = torch.jit.trace(net, x)
            elif configuration == "frozen":
                fn = torch.jit.optimize_for_inference(torch.jit.trace(net, x))
            elif configuration == "compiled":
                fn = torch.compile(net, dynamic=False)
            return fn, fn(x)

    first_s, (fn, y) = timed_first(build_and_call)
    turn = torch.inference_mode()(worker.waiting_once(partial(fn, x), worker.nothing))
    return Task(first_s, {"output": y}, turn)


def dot(settings: dict[str, Any], configuration: str) -> Task:
    """Time section 8.2.1's product until the value is ready, which on a CPU is when the call returns."""
    x = torch.from_numpy(worker.arrays(settings["square"])["x"])
    first_s, total = timed_first(lambda: torch.mm(x, x).sum())
    turn = worker.waiting_each_time(lambda: torch.mm(x, x).sum(), Tensor.item, quantity="finished")
    return Task(first_s, {"sum": total, "corner": torch.mm(x, x)[:8, :8]}, turn)


def loop(settings: dict[str, Any], configuration: str) -> Task:
    """Time section 8.2.3's `y = x + 1`; on a CPU it has no queue, so a loop that waits once is the same."""
    x = torch.from_numpy(worker.arrays(settings["square"])["x"])
    first_s, y = timed_first(lambda: x + 1)
    turn = worker.waiting_each_time(lambda: x + 1, worker.nothing, quantity="synchronous")
    return Task(first_s, {"corner": y[:8, :8]}, turn)


def together(settings: dict[str, Any], configuration: str) -> Task:
    """Time section 8.3.1's `run`, one after the other or each in a thread of its own."""
    x, k = worker.arrays(settings["square"])["x"], settings["devices"]
    xs = [torch.from_numpy(x.copy()) for _ in range(k)]
    pool = ThreadPoolExecutor(k)

    def run(x: Tensor) -> list[Tensor]:
        return [torch.mm(x, x) for _ in range(settings["dots"])]

    first_s, outputs = timed_first(lambda: list(pool.map(run, xs)))
    turn = worker.apart_and_together(
        settings["shares"], alone=lambda i: run(xs[i]), at_once=lambda: list(pool.map(run, xs))
    )
    return Task(first_s, {f"device{i}": ys[-1][:8, :8] for i, ys in enumerate(outputs)}, turn)


# --- sections 8.4 and 8.5


def train(settings: dict[str, Any], configuration: str) -> Task:
    """Train in this process, or with DistributedDataParallel in one process for each device.

    Processes sum through Gloo. The others do what this one, rank 0, does: they take as many steps.
    """
    world = settings["devices"]
    if world == 1:
        return _train(settings, configuration)
    store = Path(tempfile.mkdtemp(dir="."), "gloo").absolute().as_uri()
    spawn, pipes = multiprocessing.get_context("spawn"), []
    for rank in range(1, world):
        ours, theirs = spawn.Pipe()
        spawn.Process(target=_follow, args=(theirs, settings, rank, store), daemon=True).start()
        pipes.append(ours)
    task = _train(settings, configuration, rank=0, store=store)
    for pipe in pipes:
        pipe.recv()  # it is ready

    def turn(calls: int) -> dict[str, float]:
        for pipe in pipes:
            pipe.send(calls)
        seconds = task.turn(calls)
        return {**seconds, "cores": sum(pipe.recv() for pipe in pipes)}

    return task._replace(turn=turn)


def _follow(pipe: Any, settings: dict[str, Any], rank: int, store: str) -> None:
    """Be another rank: take as many steps as rank 0 says, and answer with the cores used."""
    task = _train(settings, "ddp", rank=rank, store=store)
    pipe.send("ready")
    with contextlib.suppress(EOFError):  # rank 0 has ended
        while True:
            calls, cpu = pipe.recv(), worker.CpuTimer()
            with cpu:
                task.turn(calls)
            pipe.send(cpu.cores)


def _train(settings: dict[str, Any], configuration: str, *, rank: int = 0, store: str = "") -> Task:
    """Train on this rank's share of each batch; a step begins with NumPy arrays."""
    world = settings["devices"]
    net = build(settings).train()
    model, layout = net, torch.contiguous_format
    if store:
        dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world, timeout=PATIENCE)
        model = nn.parallel.DistributedDataParallel(net)
    elif configuration == "compiled":
        model = torch.compile(net, dynamic=False)
    elif configuration == "channels-last":
        layout = torch.channels_last
        model = net.to(memory_format=layout)
    optimizer = torch.optim.SGD(net.parameters(), lr=settings["lr"])
    size = settings["batch"] // world
    mine = slice(rank * size, (rank + 1) * size)
    shares = [(X[mine], y[mine].astype(np.int64)) for X, y in worker.batches(settings)]
    rounds = itertools.cycle(shares)

    def step() -> Tensor:
        X, y = map(torch.from_numpy, next(rounds))
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(X.contiguous(memory_format=layout)), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    def mean(loss: Tensor) -> float:
        total = loss.clone()
        if store:
            dist.all_reduce(total)
        return float(total) / world

    return worker.training(step, mean, dist.barrier if store else lambda: None, settings["steps"])


# --- with the images on the device


def train_on_device(settings: dict[str, Any], configuration: str) -> Task:
    """Train on images that are on the device as bytes, then on bytes that each step copies from the host.

    "eager" has channels first; "channels-last" has the layout that convolutions prefer, and so have all
    others. "CUDA graphs" records a whole step once and replays it; "compiled" is `torch.compile`.
    """
    device, records = settings["device"], "CUDA graphs" in configuration
    step, stored, rows = (
        _step(settings, configuration),
        worker.arrays(settings["images"]),
        worker.rows(settings),
    )
    labels = stored["y"].astype(np.int64)
    images, answers = torch.from_numpy(stored["X"]).to(device), torch.from_numpy(labels).to(device)
    every = torch.from_numpy(rows.astype(np.int64)).to(device)
    on_host = [(torch.from_numpy(stored["X"][r]), torch.from_numpy(labels[r])) for r in rows]
    if device == "cuda":
        on_host = [(X.pin_memory(), y.pin_memory()) for X, y in on_host]
    on_device, fed = itertools.cycle(list(every)), itertools.cycle(on_host)
    # What CUDA graphs read.
    fixed_rows, fixed_X, fixed_y = every[0].clone(), on_host[0][0].to(device), on_host[0][1].to(device)

    def on_rows(r: Tensor) -> Tensor:
        return step(images[r], answers[r])

    def run() -> Tensor:
        return on_rows(next(on_device))

    def run_fed() -> Tensor:
        X, y = next(fed)
        return step(X.to(device, non_blocking=True), y.to(device, non_blocking=True))

    with _side_stream() if records else contextlib.nullcontext():
        first_s, loss = timed_first(lambda: float(run()))
        losses = [loss, *(float(run()) for _ in range(WARM_UP - 1))]
        if records:
            record_s, replay = timed_first(lambda: _recorded(lambda: on_rows(fixed_rows)))
            first_s += record_s
            replay_fed = _recorded(lambda: step(fixed_X, fixed_y))

    def run_graph() -> Tensor:
        fixed_rows.copy_(next(on_device))
        return replay()

    def run_fed_graph() -> Tensor:
        X, y = next(fed)
        fixed_X.copy_(X, non_blocking=True)
        fixed_y.copy_(y, non_blocking=True)
        return replay_fed()

    if records:
        run, run_fed = run_graph, run_fed_graph
    losses += [float(run()) for _ in range(settings["steps"] - WARM_UP)]
    results = {"loss": losses, "loss, host-fed": [float(run_fed()) for _ in range(3)]}

    def wait(loss: Tensor) -> None:
        _finish(device)

    turn = worker.one_after_the_other(
        worker.waiting_once(run, wait, quantity="on the device"),
        worker.waiting_once(run_fed, wait, quantity="host-fed"),
    )
    return Task(first_s, results, turn)


def _step(settings: dict[str, Any], configuration: str) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a training step on a batch of bytes and its classes, which are on the device."""
    device, bfloat16 = settings["device"], settings["precision"] == "bfloat16"
    layout = torch.contiguous_format if configuration == "eager" else torch.channels_last
    net = build(settings).train().to(device).to(memory_format=layout)
    optimizer = torch.optim.SGD(net.parameters(), lr=settings["lr"])

    def loss_of(X: Tensor, y: Tensor) -> Tensor:
        with torch.autocast(device, torch.bfloat16, enabled=bfloat16):
            return functional.cross_entropy(net(X), y)

    if configuration.startswith("compiled"):
        loss_of = torch.compile(loss_of, dynamic=False)

    def step(X: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = loss_of((X[:, None].float() / 255).contiguous(memory_format=layout), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


@contextlib.contextmanager
def _side_stream() -> Iterator[None]:
    """Work on another stream than the default one, on which nothing can be recorded, in order with it."""
    default, side = torch.cuda.current_stream(), torch.cuda.Stream()
    side.wait_stream(default)  # which may still be copying what the work reads
    with torch.cuda.stream(side):
        yield
    default.wait_stream(side)


def _recorded(call: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """Record a call in a CUDA graph on the current stream, and return a function that replays it.

    A replay writes to the output of the call that was recorded, and returns it.
    """
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
        output = call()

    def replay(recorded: Callable[[], Tensor] = call) -> Tensor:
        """Replay it; `recorded` keeps all arrays alive of which the graph has only the addresses."""
        graph.replay()
        return output

    return replay


def _finish(device: str) -> None:
    if device == "cuda":  # on a CPU, operations are finished when they return
        torch.cuda.synchronize()


def small(settings: dict[str, Any], configuration: str) -> Task:
    """Time an operation that is over in microseconds: many calls in a row, or recorded in one CUDA graph."""
    operation, first, xs = _operation(settings)

    def by_call() -> Tensor:
        y = first
        for x in xs:
            y = operation(y, x)
            if settings["waits"]:
                _finish(settings["device"])
        return y

    records, run = configuration == "CUDA graphs", by_call
    with torch.inference_mode(), _side_stream() if records else contextlib.nullcontext():
        first_s, answer = timed_first(lambda: by_call().float().cpu())
        if records:
            record_s, run = timed_first(lambda: _recorded(by_call))
            first_s, answer = first_s + record_s, run().float().cpu()
    wait = lambda _: _finish(settings["device"])  # noqa: E731
    turn = torch.inference_mode()(worker.waiting_once(run, wait, each=len(xs)))
    return Task(first_s, {"result": answer}, turn)


def _operation(settings: dict[str, Any]) -> tuple[Callable[[Any, Any], Tensor], Tensor, list[Any]]:
    """Return `operation(y, x)`, the first y, and the xs to go through."""
    device = settings["device"]
    if settings["operation"] == "mlp":
        net = build(settings).eval().to(device)
        xs = torch.from_numpy(worker.arrays(settings["input"])["xs"]).to(device)
        return lambda y, x: net(x), xs[0], list(xs)
    square = torch.from_numpy(worker.arrays(settings["square"])["x"]).to(device)
    none = [None] * settings["chain"]
    if settings["operation"] == "product":
        return lambda y, x: square @ y, square, none
    return lambda y, x: y + 1, square, none


if __name__ == "__main__":
    # A GPU multiplies and convolves in TF32, and cuDNN's algorithms are timed: so does JAX
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    tasks = {
        "forward": forward, "dot": dot, "loop": loop, "together": together, "train": train,
        "train on device": train_on_device, "small": small,
    }  # fmt: skip
    versions = {"torch": torch.__version__, "numpy": np.__version__, "python": platform.python_version()}
    if torch.version.cuda:
        versions["cuda"] = torch.version.cuda
    worker.serve(versions, tasks)
