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
import with_torch
from worker import Task

STEPS, FED = 6, 3


class Tensor(np.ndarray):
    gpu: Gpu

    def __getitem__(self, key: Any) -> Any:
        if not isinstance(key, Tensor):
            return super().__getitem__(key)
        out, rows = super().__getitem__(key).copy(), weakref.ref(key)

        def gather() -> None:
            r = rows()
            assert r is not None, "the rows have been freed"
            out[...] = np.asarray(self)[np.asarray(r)]  # a graph's own memory stays as long as the graph

        self.gpu.launch(gather)
        return out

    def to(self, device: str, non_blocking: bool = False) -> Tensor:
        return self.copy()

    def pin_memory(self) -> Tensor:
        return self

    def clone(self) -> Tensor:
        return self.copy()

    def copy_(self, other: np.ndarray, non_blocking: bool = False) -> None:
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
            CUDAGraph=lambda: SimpleNamespace(replay=None),
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

    def launch(self, kernel: Callable[[], None], event: str = "") -> None:
        if self.recorded is not None:
            self.recorded.append(kernel)
            return
        self.events += [f"{event} on {self.stream.name}"] if event else []
        kernel()


def steps_on(gpu: Gpu) -> Callable[..., Callable[[Any, Any], Any]]:
    """What makes steps that count and look at their images; their kernels do not keep arrays alive."""

    def make(settings: dict[str, Any], configuration: str) -> Callable[[Any, Any], Any]:
        weights = np.zeros(1)

        def step(X: Any, y: Any) -> Any:
            addresses, loss = tuple(map(weakref.ref, (weights, X, y))), np.zeros(())

            def kernel() -> None:
                w, X, y = (address() for address in addresses)
                assert w is not None and X is not None and y is not None, "an array has been freed"
                w += 1
                loss[...] = 1000 * w[0] + X.flat[0] + y.flat[0] / 100

            gpu.launch(kernel, "run")
            return loss

        return step

    return make


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    gpu = Gpu()
    monkeypatch.setattr(Tensor, "gpu", gpu, raising=False)
    monkeypatch.setitem(sys.modules, "torch", gpu.torch)
    monkeypatch.setattr(with_torch, "_step", steps_on(gpu))
    return gpu


def train(configuration: str, folder: Path) -> Task:
    order = np.arange(64, dtype=np.int32)[::-1]
    X = np.broadcast_to(np.arange(64, dtype=np.uint8)[:, None, None], (64, 2, 2))
    np.savez(folder / "images.npz", X=X, y=np.arange(64) % 10, order=order)
    settings = {"images": str(folder / "images.npz"), "batch": 4, "device": "cuda", "steps": STEPS}
    task = with_torch.train_on_device(settings, configuration, {})
    gc.collect()
    return task


def test_a_graph_repeats_the_step_on_other_images_and_keeps_its_arrays(gpu: Gpu, tmp_path: Path) -> None:
    plain, task = (train(how, tmp_path) for how in ("channels-last", "CUDA graphs"))
    for name, count in (("loss", STEPS), ("loss, host-fed", FED)):
        assert task.answers[name].tolist() == plain.answers[name].tolist()
        assert len(set(task.answers[name])) == count
    assert set(task.turn(20)) == {"on the device", "host-fed"}  # a graph has its arrays' addresses only


def test_the_warm_up_and_the_recording_are_on_a_stream_in_order_with_the_default_one(
    gpu: Gpu, tmp_path: Path
) -> None:
    train("CUDA graphs", tmp_path)
    warm_up, replays = with_torch.WARM_UP, STEPS - with_torch.WARM_UP + FED
    assert gpu.events == [
        "side waits for default", *["run on side"] * warm_up, *["record on side"] * 2,
        "default waits for side", *["replay on default"] * replays,
    ]  # fmt: skip
