"""The one definition of each workload: sizes, weights, inputs, and each system's configurations.

What a task does is written once per framework, in `with_jax.py`, `with_mxnet.py` and `with_torch.py`.
Everything that could differ (sizes, weights, inputs, rates, numbers of steps) comes from here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from flax import nnx

from jaxperf.models import MLP, RESNET18_STAGES, LeNet, ResNet, to_gluon

ONEDNN = "jax+oneDNN"  # JAX with XLA's flags for oneDNN: a row of its own, never judged
LENET = ("W1", "b1", "W2", "b2", "W3", "b3", "W4", "b4")
# On a GPU: network, precision, and which of the two batches; the most important ones come first.
MAIN = (
    ("resnet", "bfloat16", 1), ("resnet", "TF32", 0), ("lenet", "TF32", 0), ("lenet", "bfloat16", 1),
)  # fmt: skip
OTHERS = (
    ("resnet", "bfloat16", 0), ("resnet", "TF32", 1), ("lenet", "TF32", 1), ("lenet", "bfloat16", 0),
)  # fmt: skip
RTOL = {"float32": 1e-3, "TF32": 1e-2, "bfloat16": 5e-2}  # the libraries of a GPU choose the order of sums


@dataclass(frozen=True)
class Workload:
    """One piece of work for all systems."""

    name: str  # begins with the section's number, or names network, precision and batch
    title: str  # what is done, in one line
    settings: Mapping[str, Any]  # what the workers are told; "task" is what to do
    configurations: Mapping[str, tuple[str, ...]]  # of each system; all must agree with JAX's first one
    quantities: tuple[str, ...] = ("",)  # what a turn measures
    calls: int = 1  # how often the work is done in one turn
    lead: int = 0  # untimed calls before each turn, because the other systems have displaced the caches
    bursts: int = 1  # turns of which each value is the mean, for work whose time differs from turn to turn
    rtol: float = 1e-5  # how far from JAX's an answer may be, relative to the largest value
    alone: tuple[str, ...] = ()  # the quantities during which one device works at a time

    @property
    def devices(self) -> int:
        return int(self.settings.get("devices", 1))


@dataclass(frozen=True)
class Sizes:
    """How much work; the defaults are for two cores or one GPU, `SMOKE` is for a quick trial."""

    # Seconds that a turn lasts at least, by the warm-up round: a configuration that needs less for its calls
    # does more of them
    turn_s: float = 0.1
    calls: int = 100  # of the MLP in one turn
    square: int = 2000  # rows and columns of the matrices of section 8.2, on a CPU
    loops: int = 40  # times `x + 1` in one turn, each way
    pair: int = 1000  # rows and columns of the matrices on several devices; ten products each
    lenet_batch: int = 256  # images in a step on a CPU, over all devices together
    resnet_batch: int = 32
    resnet_lr: float = 0.005  # so small that rounding does not grow over the steps that are compared
    stages: tuple[tuple[int, int], ...] = RESNET18_STAGES
    rounds: int = 12  # timed values of each configuration
    bursts: int = 4  # turns in a value of the loop of section 8.2
    gpu_batches: tuple[int, int] = (256, 1024)  # images in a step on a GPU
    chunk: int = 10  # steps in one program of JAX's `scan`
    chain: int = 100  # small operations in a row
    gpu_square: int = 200  # rows and columns of the small operations' matrices
    compiles: bool = True  # whether torch.compile takes part in training


SMOKE = Sizes(
    turn_s=0, calls=20, square=200, loops=5, pair=100, lenet_batch=16, resnet_batch=8,
    resnet_lr=0.02,  # a small net bears more, and at less a wrong rate would not show
    stages=((8, 1), (16, 1)), rounds=2, bursts=1, gpu_batches=(8, 16), chunk=4, chain=5, gpu_square=20,
    compiles=False,
)  # fmt: skip


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
      folder: where to write the files.
      images: uint8 (N, 28, 28, 1) or (N, 28, 28), the pictures to train on; N is at least a batch.
      labels: (N,), their classes.
      devices: how many CPU devices the parallel workloads use; 1 leaves those out.
      on_device: the workloads of a GPU, where the images are on the device; else those of a CPU.
      gpu: whether there is one; a CPU runs its workloads at toy size, without TF32 and CUDA graphs.
      seed: of weights and inputs.
    """
    rng = np.random.default_rng(seed)
    contents = _weights(sizes, seed)
    order = rng.permutation(len(images)).astype(np.int32)
    contents["images"] = {"X": images.reshape(-1, 28, 28), "y": labels.astype(np.int32), "order": order}
    contents["xs"] = {"xs": rng.normal(size=(sizes.chain, 1, 512)).astype(np.float32)}
    contents["square"] = {"x": rng.random((sizes.square, sizes.square), dtype=np.float32)}
    contents["pair"] = {"x": rng.random((sizes.pair, sizes.pair), dtype=np.float32)}
    # The powers of an orthogonal matrix stay of one size.
    orthogonal = np.linalg.qr(rng.normal(size=(sizes.gpu_square, sizes.gpu_square)))[0]
    contents["orthogonal"] = {"x": orthogonal.astype(np.float32)}
    files = {}
    for name, arrays in contents.items():
        files[name] = str(folder / f"{name}.npz")
        np.savez(files[name], **arrays)  # type: ignore[arg-type]
    return _on_device(sizes, files, gpu=gpu) if on_device else _on_cpu(sizes, files, devices)


# --- a CPU


def _on_cpu(sizes: Sizes, files: Mapping[str, str], devices: int) -> list[Workload]:
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
            lead=sizes.calls // 10,
        ),
        Workload(
            "8.2 dot",
            f"The product of {sizes.square} x {sizes.square} matrices of section 8.2.1, summed",
            {"task": "dot", "square": files["square"]},
            one_way,
            quantities=("queued", "finished"),
            lead=1,
        ),
        Workload(
            "8.2 loop",
            f"x + 1 of section 8.2.3, x {sizes.square} x {sizes.square}, time per operation",
            {"task": "loop", "square": files["square"]},
            one_way,
            quantities=("synchronous", "asynchronous"),
            calls=sizes.loops,
            lead=2,
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
        )
        work.append(together)
    mxnet = ("imperative", "hybridized", "static")
    for k in dict.fromkeys((1, devices)):
        where = "1 device" if k == 1 else f"{k} devices"
        common = {"task": "train", "devices": k, "images": files["images"]}
        lenet = {
            "net": "lenet",
            "weights": files["lenet"],
            "batch": sizes.lenet_batch,
            "lr": 0.05,
            "steps": 6,
        }
        resnet: dict[str, object] = {"net": "resnet", "weights": files["resnet"], "stages": sizes.stages}
        resnet |= {"batch": sizes.resnet_batch, "lr": sizes.resnet_lr, "steps": 3}
        work += [
            Workload(
                f"8.4 LeNet, {where}",
                f"A training step of LeNet, batch {sizes.lenet_batch}, {where}",
                common | lenet,
                _training(("jit",) if k == 1 else ("jit", "shard_map"), ("scratch", *mxnet), sizes, k),
                rtol=1e-4,
            ),
            Workload(
                f"8.5 ResNet-18, {where}",
                f"A training step of ResNet-18, batch {sizes.resnet_batch}, {where}",
                common | resnet,
                # Only shard_map normalizes each device's share by itself, as MXNet and PyTorch do.
                _training(("jit",) if k == 1 else ("shard_map",), mxnet, sizes, k),
                rtol=1e-3,
            ),
        ]
    return work


def _training(
    jax: tuple[str, ...], mxnet: tuple[str, ...], sizes: Sizes, devices: int
) -> dict[str, tuple[str, ...]]:
    if devices > 1:
        return {"jax": jax, "mxnet": mxnet, "torch": ("ddp",)}
    torch = ("eager", "channels-last", "compiled") if sizes.compiles else ("eager", "channels-last")
    return {"jax": jax, ONEDNN: jax, "mxnet": mxnet, "torch": torch}


# --- a GPU


def _on_device(sizes: Sizes, files: Mapping[str, str], *, gpu: bool) -> list[Workload]:
    torch = ["eager", "channels-last"]
    if gpu:
        torch.append("CUDA graphs")
    if sizes.compiles:
        torch.append("compiled")
    if gpu and sizes.compiles:
        torch.append("compiled, CUDA graphs")
    device = "cuda" if gpu else "cpu"
    trainings = []
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
            "lr": 0.01 if net == "lenet" else 0.005,  # so small that rounding does not grow over the steps
            "steps": 6,
            "chunk": sizes.chunk,
            "device": device,
        }
        training = Workload(
            f"{title} {exact}, batch {n}",
            f"A training step of {title} in {exact} on {n} images, which are bytes",
            settings,
            {"jax": ("jit", "scan"), "torch": tuple(torch)},
            quantities=("on the device", "host-fed"),
            calls=sizes.chunk,
            lead=2,
            rtol=RTOL[exact],
        )
        trainings.append(training)
    small = []
    for name, operation in (("8.1 MLP", "mlp"), ("8.2 loop", "increment"), ("8.2 product", "product")):
        settings = {"task": "small", "net": "mlp", "operation": operation, "chain": sizes.chain}
        settings |= {"device": device, "square": files["orthogonal"]}
        settings |= {"weights": files["mlp"], "input": files["xs"]}
        once: dict[str, tuple[str, ...]] = {"jax": ("jit", "scan"), "torch": ("eager",)}
        if gpu:
            once["torch"] = ("eager", "CUDA graphs")
        each_time: dict[str, tuple[str, ...]] = {"jax": ("jit",), "torch": ("eager",)}
        ways = [("waiting once", once), ("waiting each time", each_time)]
        for way, configurations in ways[:1] if operation == "mlp" else ways:
            workload = Workload(
                f"{name}, {way}",
                f"{sizes.chain} in a row, time of one",
                {**settings, "waits": configurations is not once},
                configurations,
                calls=sizes.chain,
                lead=sizes.chain // 4,
                rtol=RTOL["TF32" if gpu else "float32"],
            )
            small.append(workload)
    return [*trainings[: len(MAIN)], *small, *trainings[len(MAIN) :]]


# --- weights


def _weights(sizes: Sizes, seed: int) -> dict[str, dict[str, np.ndarray]]:
    """Draw the networks' weights as Gluon keeps them, in its order, and LeNet's as the book's list has them.

    Not the book's weights of 0.01: with those, every network's output is almost zero, right or wrong.
    """
    rngs = nnx.Rngs(seed)
    lenet = to_gluon(LeNet(rngs=rngs)).values()
    return {
        "mlp": to_gluon(MLP(rngs=rngs)),
        "lenet": {name: a.T if a.ndim == 2 else a for name, a in zip(LENET, lenet)},
        "resnet": to_gluon(ResNet(10, stages=sizes.stages, rngs=rngs)),
    }
