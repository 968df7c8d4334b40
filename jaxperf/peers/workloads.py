"""The one definition of each workload: sizes, files, and which configurations of each system do it.

What a task does is written three times, in `workers/*_worker.py` and `workers/*_train.py`; everything that
could differ (sizes, weights, inputs, rates, steps) comes from here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jaxperf.errors import JaxperfError
from jaxperf.peers import inputs

MLP = (512, 256, 128, 2)
MLP_OF_824 = (512, 2048, 512, 1)
WAYS = ("jit", "pmap", "shard_map", "manual")


@dataclass(frozen=True)
class Sizes:
    """How much work; the defaults take minutes on two cores."""

    calls: int = 300
    """Calls of the MLP in one turn."""
    square: int = 2000
    """Rows and columns of the matrices of section 8.2."""
    loops: int = 40
    """Times `x + 1` in one turn, each way."""
    pair: int = 1000
    """Rows and columns of the matrices on several devices; ten products each."""
    memory_batches: int = 50
    """Batches of the memory run."""
    memory_batch: int = 1024
    """Examples in each of them."""
    lenet_batch: int = 256
    """Images in a LeNet step, over all devices together."""
    lenet_turn: int = 3
    """LeNet steps in one turn."""
    resnet_batch: int = 32
    """Images in a ResNet step, over all devices together."""
    resnet_lr: float = 0.005
    """Its learning rate: so small that rounding does not grow over the steps that are compared."""
    stages: tuple[tuple[int, int], ...] = ((64, 2), (128, 2), (256, 2), (512, 2))
    """Channels and blocks of ResNet's stages; the default is ResNet-18."""
    batches: tuple[int, ...] = (1, 16, 128)
    """Batch sizes of inference."""
    rounds: int = 12
    """Rounds of every workload but ResNet's."""
    resnet_rounds: int = 7
    """Rounds of ResNet."""
    compile_all: bool = True
    """Whether torch.compile, which takes its time, takes part in more than the MLP."""

    def __post_init__(self) -> None:
        if not 0 < self.resnet_lr < math.inf:
            raise JaxperfError(f"resnet_lr is {self.resnet_lr:g}; a learning rate is a positive number")
        for name, value in vars(self).items():
            counted = name not in ("compile_all", "resnet_lr")
            if counted and (not value or min(np.ravel(np.asarray(value))) < 1):
                raise JaxperfError(f"{name} is {value}; sizes and counts are at least 1")


SMOKE = Sizes(
    calls=20,
    square=200,
    loops=5,
    pair=100,
    memory_batches=5,
    memory_batch=64,
    lenet_batch=16,
    lenet_turn=1,
    resnet_batch=8,
    resnet_lr=0.02,  # a small net bears more, and at less a wrong rate would not show
    stages=((8, 1), (16, 1)),
    batches=(1, 8),
    rounds=3,
    resnet_rounds=3,
    compile_all=False,
)


@dataclass(frozen=True)
class Workload:
    """One piece of work for all systems.

    Attributes:
      name: begins with the section's number; the role `workload` of its measurements.
      title: what is done, in a line.
      settings: what the workers are told; "task" is what to do.
      configurations: of each system that does it; JAX's first one is what all must agree with.
      quantities: what a turn measures; each becomes a measurement per configuration.
      unit: of all quantities.
      calls: how often the work is done in one turn.
      lead: calls before each turn that don't count, because the other systems have displaced the caches.
      items: in one call, e.g. images.
      rounds: turns of each configuration that count; 0 where it is measured in fresh processes instead.
      rtol: how far from JAX's an answer may be, relative to the largest value.
    """

    name: str
    title: str
    settings: Mapping[str, Any]
    configurations: Mapping[str, tuple[str, ...]]
    quantities: tuple[str, ...] = ("",)
    unit: str = "s"
    calls: int = 1
    lead: int = 0
    items: float = 0
    rounds: int = 12
    rtol: float = 1e-5

    @property
    def devices(self) -> int:
        """How many devices it runs on."""
        return int(self.settings.get("devices", 1))


FORWARD = {
    "jax": ("hybridize", "aot", "frozen"),
    "mxnet": ("hybridized", "static"),
    "torch": ("eager", "traced", "compiled", "frozen"),
}


def workloads(
    sizes: Sizes,
    folder: Path,
    images: np.ndarray,
    labels: np.ndarray,
    *,
    lenet: inputs.Shapes,
    devices: int = 2,
    seed: int = 0,
) -> tuple[Workload, ...]:
    """Write all weights and inputs to `folder` and define the workloads on them.

    Args:
      sizes: how much work.
      folder: takes the files, and what the workers write.
      images: uint8 (N, 28, 28, 1) or (N, 28, 28), the pictures to train on.
      labels: (N,), their classes.
      lenet: shapes of LeNet's parameters in the book's layout, by name.
      devices: how many the parallel workloads use; 1 leaves those out.
      seed: of weights and inputs.

    Raises:
      JaxperfError: fewer images than a batch, or a batch that the devices cannot share.
    """
    for batch in (sizes.lenet_batch, sizes.resnet_batch, *sizes.batches):
        if batch > len(images):
            raise JaxperfError(f"a batch of {batch} needs as many images, there are {len(images)}")
    for batch in (sizes.lenet_batch, sizes.resnet_batch):
        if batch % devices:
            raise JaxperfError(f"batch size {batch} is not divisible by {devices} devices")
    files = _write(sizes, folder, images, labels, lenet, np.random.default_rng(seed))
    found = [*_section81(sizes, files), *_section82(sizes, files)]
    if devices > 1:
        found.append(_together(sizes, files, devices))
    for k in dict.fromkeys((1, devices)):
        found += [_lenet(sizes, files, k), _resnet(sizes, files, k)]
    return (*found, *_inference(sizes, files))


def _write(
    sizes: Sizes,
    folder: Path,
    images: np.ndarray,
    labels: np.ndarray,
    lenet: inputs.Shapes,
    rng: np.random.Generator,
) -> dict[str, str]:
    def uniform(n: int) -> np.ndarray:
        return rng.random((n, n), dtype=np.float32)

    nets = {
        "mlp": inputs.mlp_shapes(MLP),
        "mlp824": inputs.mlp_shapes(MLP_OF_824),
        "lenet": lenet,
        "resnet": inputs.resnet_shapes(sizes.stages),
    }
    files = {name: inputs.write(folder / f"{name}.npz", **inputs.draw(s, rng)) for name, s in nets.items()}
    pictures = images.reshape(-1, 28, 28)
    x, big = rng.normal(size=(1, MLP[0])), rng.normal(size=(sizes.memory_batch, MLP_OF_824[0]))
    return files | {
        "folder": str(folder),
        "x": inputs.write(folder / "x.npz", x=x.astype(np.float32)),
        "x824": inputs.write(folder / "x824.npz", x=big.astype(np.float32)),
        "square": inputs.write(folder / "square.npz", x=uniform(sizes.square)),
        "pair": inputs.write(folder / "pair.npz", x=uniform(sizes.pair)),
        "images": inputs.write(folder / "images.npz", X=pictures, y=labels.astype(np.int32)),
    }


def _section81(sizes: Sizes, files: Mapping[str, str]) -> tuple[Workload, ...]:
    settings = {"net": "mlp", "weights": files["mlp"], "input": files["x"], "folder": files["folder"]}
    return (
        Workload(
            "8.1 MLP",
            "The MLP of section 8.1 on one example, time per call",
            {"task": "forward", **settings},
            {
                "jax": ("eager", "nnx.jit", *FORWARD["jax"]),
                "mxnet": ("imperative", *FORWARD["mxnet"]),
                "torch": FORWARD["torch"],
            },
            calls=sizes.calls,
            lead=sizes.calls // 10,
            rounds=sizes.rounds,
        ),
        Workload(
            "8.1 export",
            "The same MLP to disk and back",
            {"task": "export", **settings},
            {
                "jax": ("jax.export", "with machine code"),
                "mxnet": ("hybridized",),
                "torch": ("traced", "torch.export"),
            },
            quantities=("write", "reload"),
            rounds=min(sizes.rounds, 7),
        ),
    )


def _section82(sizes: Sizes, files: Mapping[str, str]) -> tuple[Workload, ...]:
    square = {"square": files["square"]}
    memory = {"task": "memory", "weights": files["mlp824"], "input": files["x824"], "lr": 0.001}
    return (
        Workload(
            "8.2 dot",
            f"The product of {sizes.square} x {sizes.square} matrices of section 8.2.1, summed",
            {"task": "dot", **square},
            {"jax": ("eager", "jit"), "mxnet": ("imperative",), "torch": ("eager",)},
            quantities=("queued", "finished"),
            lead=1,
            rounds=sizes.rounds,
        ),
        Workload(
            "8.2 loop",
            f"x + 1 of section 8.2.3, x {sizes.square} x {sizes.square}, time per operation",
            {"task": "loop", **square},
            {"jax": ("eager", "jit"), "mxnet": ("imperative",), "torch": ("eager",)},
            quantities=("synchronous", "asynchronous"),
            calls=sizes.loops,
            lead=2,
            rounds=sizes.rounds,
        ),
        Workload(
            "8.2 memory",
            f"Memory of section 8.2.4's training, {sizes.memory_batches} batches of {sizes.memory_batch}",
            {**memory, "steps": 5, "synchronous": True},
            {"jax": ("jit",), "mxnet": ("imperative",), "torch": ("eager",)},
            quantities=("synchronous", "asynchronous"),
            unit="bytes",
            calls=sizes.memory_batches,
            rounds=0,
            rtol=1e-4,
        ),
    )


def _together(sizes: Sizes, files: Mapping[str, str], devices: int) -> Workload:
    return Workload(
        "8.3 products",
        f"Ten products of {sizes.pair} x {sizes.pair} on each of {devices} devices (section 8.3.1)",
        {"task": "together", "square": files["pair"], "dots": 10, "devices": devices},
        {"jax": ("eager",), "mxnet": ("contexts",), "torch": ("threads",)},
        quantities=("apart", "together"),
        rounds=sizes.rounds,
    )


def _lenet(sizes: Sizes, files: Mapping[str, str], devices: int) -> Workload:
    settings = {"net": "lenet", "weights": files["lenet"], "lr": 0.05, "steps": 6}
    torch = _compiled(sizes, ("eager", "compiled")) if devices == 1 else ("ddp",)
    return Workload(
        f"8.4 LeNet, {_on(devices)}",
        f"A training step of LeNet, batch {sizes.lenet_batch}, {_on(devices)}",
        _training(settings, files, sizes.lenet_batch, devices),
        {"jax": WAYS, "mxnet": ("scratch", "imperative", "hybridized", "static"), "torch": torch},
        calls=sizes.lenet_turn,
        items=sizes.lenet_batch,
        rounds=sizes.rounds,
        rtol=1e-4,
    )


def _resnet(sizes: Sizes, files: Mapping[str, str], devices: int) -> Workload:
    net = {"net": "resnet", "stages": sizes.stages, "weights": files["resnet"]}
    settings = {**net, "lr": sizes.resnet_lr, "steps": 3}
    torch = _compiled(sizes, ("eager", "compiled")) if devices == 1 else ("ddp",)
    return Workload(
        f"8.5 ResNet-18, {_on(devices)}",
        f"A training step of ResNet-18, batch {sizes.resnet_batch}, {_on(devices)}",
        _training(settings, files, sizes.resnet_batch, devices),
        {
            "jax": ("jit",) if devices == 1 else WAYS,
            "mxnet": ("imperative", "hybridized", "static"),
            "torch": torch,
        },
        items=sizes.resnet_batch,
        rounds=sizes.resnet_rounds,
        rtol=1e-3,
    )


def _on(devices: int) -> str:
    return "1 device" if devices == 1 else f"{devices} devices"


def _training(
    settings: Mapping[str, Any], files: Mapping[str, str], batch: int, devices: int
) -> dict[str, Any]:
    common = {"task": "train", "images": files["images"], "folder": files["folder"]}
    return {**common, **settings, "batch": batch, "devices": devices}


def _inference(sizes: Sizes, files: Mapping[str, str]) -> list[Workload]:
    nets: dict[str, tuple[str, dict[str, Any]]] = {
        "lenet": ("LeNet", {}),
        "resnet": ("ResNet-18", {"stages": sizes.stages}),
    }
    return [
        Workload(
            f"{title} forward, batch {batch}",
            f"Inference: {title} on {batch} at once",
            {
                "task": "forward",
                "net": net,
                "weights": files[net],
                "images": files["images"],
                "batch": batch,
                **more,
            },
            {**FORWARD, "torch": _compiled(sizes, FORWARD["torch"])},
            calls=_calls(sizes, net, batch),
            lead=1,
            items=batch,
            rounds=sizes.rounds if net == "lenet" else sizes.resnet_rounds,
            rtol=1e-4,
        )
        for net, (title, more) in nets.items()
        for batch in (sizes.batches if net == "lenet" else sizes.batches[:-1])
    ]


def _compiled(sizes: Sizes, configurations: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(c for c in configurations if sizes.compile_all or c != "compiled")


def _calls(sizes: Sizes, net: str, batch: int) -> int:
    """About a tenth of a second of work on two cores."""
    return max(1, min(sizes.calls, (400 if net == "lenet" else 8) // batch))
