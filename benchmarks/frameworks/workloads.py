"""The one definition of each workload: sizes, weights, inputs, and each system's configurations.

What a task does is written once per framework, in `with_jax.py`, `with_mxnet.py` and `with_torch.py`.
Everything that could differ (sizes, weights, inputs, rates, numbers of steps) comes from here.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

Shapes = dict[str, tuple[int, ...]]
ONEDNN = "jax+oneDNN"  # JAX with XLA's flags for oneDNN: a row of its own, never judged
MLP = (512, 256, 128, 2)
LENET: Shapes = {
    "W1": (20, 1, 3, 3), "b1": (20,), "W2": (50, 20, 5, 5), "b2": (50,),
    "W3": (800, 128), "b3": (128,), "W4": (128, 10), "b4": (10,),
}  # fmt: skip
COMPILED = ("compiled", "compiled, CUDA graphs")  # of PyTorch, by torch.compile: their start takes longest
TRAINING = ("eager", "channels-last", "CUDA graphs", *COMPILED)
# On a GPU: network, precision, and which of the two batches; the main ones come first.
MAIN = (
    ("resnet", "bfloat16", 1), ("resnet", "TF32", 0), ("lenet", "TF32", 0), ("lenet", "bfloat16", 1),
)  # fmt: skip
OTHERS = (
    ("resnet", "bfloat16", 0), ("resnet", "TF32", 1), ("lenet", "TF32", 1), ("lenet", "bfloat16", 0),
)  # fmt: skip
RTOL = {"float32": 1e-3, "TF32": 1e-2, "bfloat16": 5e-2}  # the libraries of a GPU choose the order of sums


@dataclass(frozen=True)
class Workload:
    """One piece of work for all systems.

    Attributes:
      name: begins with the section's number, or names network, precision and batch.
      title: what is done, in one line.
      settings: what the workers are told; "task" is what to do.
      configurations: of each system that runs it; all must agree with JAX's first one.
      quantities: what a turn measures; each becomes a measurement per configuration.
      calls: how often the work is done in one turn.
      turn_s: seconds that a turn lasts at least, by the warm-up round: a configuration that needs less for
        `calls` does more of them. 0 if all do the same number.
      lead: untimed calls before each turn, because the other systems have displaced the caches.
      rounds: timed values of each configuration.
      bursts: turns of which each value is the mean, for work whose time changes from turn to turn.
      rtol: how far from JAX's an answer may be, relative to the largest value.
      alone: the quantities during which one device works at a time.
      main: whether it is prepared with the first ones on a GPU.
    """

    name: str
    title: str
    settings: Mapping[str, Any]
    configurations: Mapping[str, tuple[str, ...]]
    quantities: tuple[str, ...] = ("",)
    calls: int = 1
    turn_s: float = 0.0
    lead: int = 0
    rounds: int = 12
    bursts: int = 1
    rtol: float = 1e-5
    alone: tuple[str, ...] = ()
    main: bool = True

    @property
    def devices(self) -> int:
        return int(self.settings.get("devices", 1))


@dataclass(frozen=True)
class Sizes:
    """How much work; the defaults are for two cores or one GPU, `SMOKE` is for a quick trial.

    Attributes:
      turn_s: seconds that a turn of short calls lasts at least.
      calls: of the MLP in one turn.
      square: rows and columns of the matrices of section 8.2, on a CPU.
      loops: times `x + 1` in one turn, each way.
      pair: rows and columns of the matrices on several devices; ten products each.
      lenet_batch, resnet_batch: images in a step on a CPU, over all devices together.
      resnet_lr: so small that rounding does not grow over the steps that are compared.
      stages: channels and blocks of ResNet's stages.
      rounds: of every workload.
      bursts: turns in a value of the loop of section 8.2.
      gpu_batches: images in a step on a GPU.
      chunk: steps in one program of JAX's `scan`.
      chain: small operations in a row.
      gpu_square: rows and columns of the small operations' matrices.
      compiles: whether torch.compile takes part in training.
    """

    turn_s: float = 0.1
    calls: int = 100
    square: int = 2000
    loops: int = 40
    pair: int = 1000
    lenet_batch: int = 256
    resnet_batch: int = 32
    resnet_lr: float = 0.005
    stages: tuple[tuple[int, int], ...] = ((64, 2), (128, 2), (256, 2), (512, 2))
    rounds: int = 12
    bursts: int = 4
    gpu_batches: tuple[int, int] = (256, 1024)
    chunk: int = 10
    chain: int = 100
    gpu_square: int = 200
    compiles: bool = True


SMOKE = Sizes(
    turn_s=0,
    calls=20,
    square=200,
    loops=5,
    pair=100,
    lenet_batch=16,
    resnet_batch=8,
    resnet_lr=0.02,  # a small net bears more, and at less a wrong rate would not show
    stages=((8, 1), (16, 1)),
    rounds=2,
    bursts=1,
    gpu_batches=(8, 16),
    chunk=4,
    chain=5,
    gpu_square=20,
    compiles=False,
)


@dataclass
class Inputs:
    """Writes weights and inputs to `folder`, and keeps the files' names."""

    folder: Path
    files: dict[str, str] = field(default_factory=dict)

    def write(self, name: str, **arrays: np.ndarray) -> None:
        """Write an .npz whose path workers are told."""
        self.files[name] = str(self.folder / f"{name}.npz")
        np.savez(self.files[name], **arrays)  # type: ignore[arg-type]


def workloads(
    sizes: Sizes,
    folder: Path,
    images: np.ndarray,
    labels: np.ndarray,
    *,
    devices: int = 2,
    on_device: bool = False,
    gpu: bool = False,
    seed: int = 0,
) -> list[Workload]:
    """Write all weights and inputs to `folder`, and define the workloads on them.

    Args:
      sizes: how much work.
      folder: where to write the files, and what the workers write.
      images: uint8 (N, 28, 28, 1) or (N, 28, 28), the pictures to train on; N is at least a batch.
      labels: (N,), their classes.
      devices: how many CPU devices the parallel workloads use; 1 leaves those out.
      on_device: the workloads of a GPU, where the images are on the device; else those of a CPU.
      gpu: whether there is one; a CPU runs its workloads at toy size, without TF32 and CUDA graphs.
      seed: of weights and inputs.
    """
    rng = np.random.default_rng(seed)
    inputs = Inputs(folder)
    resnet = resnet_shapes(sizes.stages)
    for net, shapes in {"mlp": mlp_shapes(), "lenet": LENET, "resnet": resnet}.items():
        inputs.write(net, **{name: _draw(name, shape, rng) for name, shape in shapes.items()})
    order = rng.permutation(len(images)).astype(np.int32)
    X = images.reshape(-1, 28, 28)
    inputs.write("images", X=X, y=labels.astype(np.int32), order=order)
    inputs.write("xs", xs=rng.normal(size=(sizes.chain, 1, MLP[0])).astype(np.float32))
    inputs.write("square", x=rng.random((sizes.square, sizes.square), dtype=np.float32))
    inputs.write("pair", x=rng.random((sizes.pair, sizes.pair), dtype=np.float32))
    # The powers of an orthogonal matrix stay of one size.
    orthogonal = np.linalg.qr(rng.normal(size=(sizes.gpu_square, sizes.gpu_square)))[0]
    inputs.write("orthogonal", x=orthogonal.astype(np.float32))
    if on_device:
        return _on_device(sizes, inputs.files, gpu=gpu)
    return _on_cpu(sizes, inputs.files, folder, devices)


# --- a CPU


def _on_cpu(sizes: Sizes, files: Mapping[str, str], folder: Path, devices: int) -> list[Workload]:
    square = {"square": files["square"]}
    one_way = {"jax": ("eager", "jit"), "mxnet": ("imperative",), "torch": ("eager",)}
    work = [
        Workload(
            "8.1 MLP",
            "The MLP of section 8.1 on one example, time per call",
            {"task": "forward", "net": "mlp", "weights": files["mlp"], "input": files["xs"]},
            {
                "jax": ("eager", "nnx.jit", "jit", "aot"),
                "mxnet": ("imperative", "hybridized", "static"),
                "torch": ("eager", "traced", "compiled", "frozen"),
            },
            calls=sizes.calls,
            turn_s=sizes.turn_s,
            lead=sizes.calls // 10,
            rounds=sizes.rounds,
        ),
        Workload(
            "8.2 dot",
            f"The product of {sizes.square} x {sizes.square} matrices of section 8.2.1, summed",
            {"task": "dot", **square},
            one_way,
            quantities=("queued", "finished"),
            turn_s=sizes.turn_s,
            lead=1,
            rounds=sizes.rounds,
        ),
        Workload(
            "8.2 loop",
            f"x + 1 of section 8.2.3, x {sizes.square} x {sizes.square}, time per operation",
            {"task": "loop", **square},
            one_way,
            quantities=("synchronous", "asynchronous"),
            calls=sizes.loops,
            turn_s=sizes.turn_s,
            lead=2,
            rounds=sizes.rounds,
            bursts=sizes.bursts,  # where the memory of a turn's arrays comes from differs from turn to turn
        ),
    ]
    if devices > 1:
        together = Workload(
            "8.3 products",
            f"Ten products of {sizes.pair} x {sizes.pair} on each of {devices} devices (section 8.3.1)",
            {"task": "together", "square": files["pair"], "dots": 10, "devices": devices},
            {"jax": ("eager",), "mxnet": ("contexts",), "torch": ("threads",)},
            quantities=("apart", "together"),
            alone=("apart",),
            rounds=sizes.rounds,
        )
        work.append(together)
    for k in dict.fromkeys((1, devices)):
        lenet = {"net": "lenet", "batch": sizes.lenet_batch, "lr": 0.05, "steps": 6}
        resnet = {"net": "resnet", "batch": sizes.resnet_batch, "lr": sizes.resnet_lr, "steps": 3}
        mxnet = ("imperative", "hybridized", "static")
        common = {"task": "train", "devices": k, "images": files["images"], "folder": str(folder)}
        work += [
            Workload(
                f"8.4 LeNet, {_devices(k)}",
                f"A training step of LeNet, batch {sizes.lenet_batch}, {_devices(k)}",
                {**common, **lenet, "weights": files["lenet"]},
                _training(("jit",) if k == 1 else ("jit", "shard_map"), ("scratch", *mxnet), sizes, k),
                turn_s=sizes.turn_s,
                rounds=sizes.rounds,
                rtol=1e-4,
            ),
            Workload(
                f"8.5 ResNet-18, {_devices(k)}",
                f"A training step of ResNet-18, batch {sizes.resnet_batch}, {_devices(k)}",
                {**common, **resnet, "weights": files["resnet"], "stages": sizes.stages},
                # Only shard_map normalizes each device's share by itself, as MXNet and PyTorch do.
                _training(("jit",) if k == 1 else ("shard_map",), mxnet, sizes, k),
                rounds=sizes.rounds,
                rtol=1e-3,
            ),
        ]
    return work


def _training(
    jax: tuple[str, ...], mxnet: tuple[str, ...], sizes: Sizes, devices: int
) -> dict[str, tuple[str, ...]]:
    if devices > 1:
        return {"jax": jax, "mxnet": mxnet, "torch": ("ddp",)}
    torch = ("eager", "channels-last", *(("compiled",) if sizes.compiles else ()))
    return {"jax": jax, ONEDNN: jax, "mxnet": mxnet, "torch": torch}


def _devices(devices: int) -> str:
    return "1 device" if devices == 1 else f"{devices} devices"


# --- a GPU


def _on_device(sizes: Sizes, files: Mapping[str, str], *, gpu: bool) -> list[Workload]:
    def available(configurations: tuple[str, ...]) -> tuple[str, ...]:
        left_out = [*(() if gpu else ("CUDA graphs", COMPILED[1])), *(() if sizes.compiles else COMPILED)]
        return tuple(name for name in configurations if name not in left_out)

    device = "cuda" if gpu else "cpu"
    work = []
    for net, precision, batch in (*MAIN, *OTHERS):
        exact = precision if gpu or precision == "bfloat16" else "float32"
        n, title = sizes.gpu_batches[batch], {"lenet": "LeNet", "resnet": "ResNet-18"}[net]
        settings = {
            "task": "train on device",
            "net": net,
            "stages": sizes.stages,
            "weights": files[net],
            "images": files["images"],
            "precision": exact,
            "batch": n,
            "lr": 0.05 if net == "lenet" else 0.005,  # so small that rounding does not grow over the steps
            "steps": 6,
            "chunk": sizes.chunk,
            "device": device,
        }
        trained = Workload(
            f"{title} {exact}, batch {n}",
            f"A training step of {title} in {exact} on {n} images, which are bytes",
            settings,
            {"jax": ("jit", "scan"), "torch": available(TRAINING)},
            quantities=("on the device", "host-fed"),
            calls=sizes.chunk,
            turn_s=sizes.turn_s,
            lead=2,
            rounds=sizes.rounds,
            rtol=RTOL[exact],
            main=(net, precision, batch) in MAIN,
        )
        work.append(trained)
    rows = (
        ("8.1 MLP, waiting once", "mlp", False),
        ("8.2 loop, waiting once", "increment", False),
        ("8.2 loop, waiting each time", "increment", True),
        ("8.2 product, waiting once", "product", False),
        ("8.2 product, waiting each time", "product", True),
    )
    common = {"task": "small", "net": "mlp", "chain": sizes.chain, "device": device}
    common |= {"square": files["orthogonal"], "weights": files["mlp"], "input": files["xs"]}
    small = [
        Workload(
            name,
            f"{sizes.chain} in a row, time of one",
            {**common, "operation": operation, "waits": waits},
            {
                "jax": ("jit",) if waits else ("jit", "scan"),
                "torch": available(("eager",) if waits else ("eager", "CUDA graphs")),
            },
            calls=sizes.chain,
            turn_s=sizes.turn_s,
            lead=sizes.chain // 4,
            rounds=sizes.rounds,
            rtol=RTOL["TF32" if gpu else "float32"],
        )
        for name, operation, waits in rows
    ]
    return [*(w for w in work if w.main), *small, *(w for w in work if not w.main)]


# --- weights


def mlp_shapes() -> Shapes:
    """Return the shapes of the MLP's dense layers as Gluon keeps them: (out, in) and (out,)."""
    shapes: Shapes = {}
    for i, (n_in, n_out) in enumerate(itertools.pairwise(MLP)):
        shapes |= {f"{i}.weight": (n_out, n_in), f"{i}.bias": (n_out,)}
    return shapes


def resnet_shapes(stages: tuple[tuple[int, int], ...]) -> Shapes:
    """Return the shapes of section 8.5.1's ResNet, in Gluon's order and with its names."""
    channels = stages[0][0]
    shapes = _conv("0", 1, channels, 3) | _norm("1", channels)
    for i, (num_channels, num_residuals) in enumerate(stages):
        for j in range(num_residuals):
            block = f"{3 + i}.{j}."
            shapes |= _conv(f"{block}conv1", channels, num_channels, 3)
            shapes |= _conv(f"{block}conv2", num_channels, num_channels, 3)
            if i > 0 and j == 0:
                shapes |= _conv(f"{block}conv3", channels, num_channels, 1)
            shapes |= _norm(f"{block}bn1", num_channels) | _norm(f"{block}bn2", num_channels)
            channels = num_channels
    dense = 4 + len(stages)
    return shapes | {f"{dense}.weight": (10, channels), f"{dense}.bias": (10,)}


def _conv(name: str, n_in: int, n_out: int, size: int) -> Shapes:
    return {f"{name}.weight": (n_out, n_in, size, size), f"{name}.bias": (n_out,)}


def _norm(name: str, channels: int) -> Shapes:
    return {f"{name}.{kind}": (channels,) for kind in ("gamma", "beta", "running_mean", "running_var")}


def _draw(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Draw He's normal weights; biases and BatchNorm begin as usual.

    Not the book's weights of 0.01: with those, every network's output is almost zero, right or wrong.
    """
    if name.endswith(("gamma", "running_var")):
        return np.ones(shape, np.float32)
    if name.endswith("weight") or name[0] == "W":
        fan_in = shape[0] if name in ("W3", "W4") else int(np.prod(shape[1:]))
        return rng.normal(0, np.sqrt(2 / fan_in), shape).astype(np.float32)
    return np.zeros(shape, np.float32)
