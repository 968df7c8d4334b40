"""A training step in a CUDA graph on a pretended GPU: kernels know addresses, a graph repeats kernels."""

from __future__ import annotations

import contextlib
import gc
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from jaxperf.frameworks.workers import torch_device
from jaxperf.frameworks.workers.wire import Task

STEPS = 6


class Tensor(np.ndarray):
    def to(self, device: str) -> Tensor:
        return self

    def clone(self) -> Tensor:
        return self.copy()

    def copy_(self, other: np.ndarray) -> None:
        self[...] = other


class Stream:
    def __init__(self, gpu: Gpu, name: str = "side") -> None:
        self.gpu, self.name = gpu, name

    def wait_stream(self, other: Stream) -> None:
        self.gpu.events.append(f"{self.name} waits for {other.name}")


class Gpu:
    """What is asked of streams and graphs, in order; a kernel runs at once unless it is being recorded."""

    def __init__(self) -> None:
        self.events, self.recorded = list[str](), None
        self.stream = Stream(self, "default")
        cuda = SimpleNamespace(
            Stream=lambda: Stream(self),
            current_stream=lambda: self.stream,
            stream=self.on,
            CUDAGraph=lambda: SimpleNamespace(kernels=[], replay=None),
            graph=self.record,
            synchronize=lambda: None,
        )
        flags = SimpleNamespace(matmul=SimpleNamespace())
        self.torch = SimpleNamespace(
            cuda=cuda,
            backends=SimpleNamespace(cuda=flags, cudnn=SimpleNamespace()),
            from_numpy=lambda array: array.view(Tensor),
        )

    @contextlib.contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        before, self.stream = self.stream, stream
        yield
        self.stream = before

    @contextlib.contextmanager
    def record(self, graph: Any, stream: Stream) -> Iterator[None]:
        self.events.append(f"record on {stream.name}")
        self.recorded = kernels = []
        yield
        self.recorded = None

        def replay() -> None:
            self.events.append(f"replay on {self.stream.name}")
            for kernel in kernels:
                kernel()

        graph.replay = replay

    def launch(self, kernel: Callable[[], None]) -> None:
        if self.recorded is not None:
            self.recorded.append(kernel)
            return
        self.events.append(f"run on {self.stream.name}")
        kernel()


def steps_on(gpu: Gpu) -> Callable[..., Callable[[Any], Any]]:
    """What makes steps that count and look at their rows; their kernels do not keep arrays alive."""

    def make(settings: dict[str, Any], configuration: str) -> Callable[[Any], Any]:
        weights = np.zeros(1)

        def step(rows: Any) -> Any:
            addresses, loss = (weakref.ref(weights), weakref.ref(rows)), np.zeros(())

            def kernel() -> None:
                w, r = (address() for address in addresses)
                assert w is not None, "the weights have been freed"
                assert r is not None, "the rows have been freed"
                w += 1
                loss[...] = 1000 * w[0] + r[0]

            gpu.launch(kernel)
            return loss

        return step

    return make


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    gpu = Gpu()
    monkeypatch.setitem(sys.modules, "torch", gpu.torch)
    monkeypatch.setattr(torch_device, "_step", steps_on(gpu))
    return gpu


def train(configuration: str, folder: Path) -> Task:
    np.savez(folder / "images.npz", order=np.arange(64, dtype=np.int32)[::-1])
    settings = {"images": str(folder / "images.npz"), "batch": 4, "device": "cuda", "steps": STEPS}
    task = torch_device.train(settings, configuration, {})
    gc.collect()
    return task


def test_a_graph_repeats_the_step_on_other_rows_and_keeps_its_arrays(gpu: Gpu, tmp_path: Path) -> None:
    plain, task = (train(how, tmp_path) for how in ("channels-last", "CUDA graphs"))
    assert task.answers["loss"].tolist() == plain.answers["loss"].tolist()
    assert len(set(task.answers["loss"])) == STEPS
    assert task.turn(20)[""] > 0  # a graph has the addresses of its arrays only


def test_the_warm_up_and_the_recording_are_on_a_stream_in_order_with_the_default_one(
    gpu: Gpu, tmp_path: Path
) -> None:
    train("CUDA graphs", tmp_path)
    warm_up, replays = torch_device.WARM_UP, STEPS - torch_device.WARM_UP
    assert gpu.events == [
        "side waits for default", *["run on side"] * warm_up, "record on side",
        "default waits for side", *["replay on default"] * replays,
    ]  # fmt: skip
