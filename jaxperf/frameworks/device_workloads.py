"""What JAX and PyTorch are compared on where the images are on the device: training steps, small operations.

The workloads are in order of importance, so that a run that is cut off has the main rows. They run on a GPU,
or at toy size on a CPU, which has no TF32 and no CUDA graphs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from jaxperf.errors import JaxperfError
from jaxperf.frameworks import inputs
from jaxperf.frameworks.workloads import Workload

COMPILED = ("compiled", "compiled, CUDA graphs")  # of PyTorch, by torch.compile: their start takes longest
TRAINING = {"jax": ("jit", "scan"), "torch": ("channels-last", "CUDA graphs", "eager", *COMPILED)}
SMALL = {"jax": ("jit", "scan"), "torch": ("eager", "CUDA graphs")}
EACH = {"jax": ("jit",), "torch": ("eager",)}  # where each result is waited for
RTOL = {"float32": 1e-3, "TF32": 1e-2, "bfloat16": 5e-2}  # the libraries of a GPU choose the order of sums
TITLES = {"lenet": "LeNet", "resnet": "ResNet-18"}
# Networks, bfloat16 or not, and which batch of the two, by importance. A run with a budget reserves time for
# the main ones, which come first, and for the small operations, which follow them.
MAIN = (("resnet", True, 1), ("resnet", False, 0), ("lenet", False, 0))
OTHERS = (
    ("resnet", True, 0),
    ("resnet", False, 1),
    ("lenet", True, 0),
    ("lenet", False, 1),
    ("lenet", True, 1),
)


@dataclass(frozen=True)
class DeviceSizes:
    """How much work; the defaults are a GPU's."""

    batches: tuple[int, int] = (256, 1024)
    """Images in a training step."""
    chunk: int = 20
    """Steps in one program of JAX's `scan`, and in a turn at least."""
    chain: int = 100
    """Small operations in a row."""
    square: int = 200
    """Rows and columns of the matrices of section 8.2."""
    stages: tuple[tuple[int, int], ...] = ((64, 2), (128, 2), (256, 2), (512, 2))
    """Channels and blocks of ResNet's stages; the default is ResNet-18."""
    turn_s: float = 0.1
    """Seconds that a turn lasts at least."""
    rounds: int = 12
    """Rounds of each workload, if there is time."""


DEVICE_SMOKE = DeviceSizes((8, 16), chunk=4, chain=5, square=20, stages=((8, 1), (16, 1)), turn_s=0, rounds=2)


def device_workloads(
    sizes: DeviceSizes,
    folder: Path,
    images: np.ndarray,
    labels: np.ndarray,
    *,
    lenet: inputs.Shapes,
    platform: str = "cpu",
    seed: int = 0,
) -> tuple[Workload, ...]:
    """Write all weights and inputs to `folder` and define the workloads on them.

    Args:
      sizes: how much work.
      folder: where to write the files.
      images: uint8 (N, 28, 28, 1) or (N, 28, 28), the pictures to train on.
      labels: (N,), their classes.
      lenet: shapes of LeNet's parameters in the book's layout, by name.
      platform: "cpu" or "gpu".
      seed: of weights, inputs and the order of the images.

    Raises:
      JaxperfError: fewer images than a batch.
    """
    if max(sizes.batches) > len(images):
        raise JaxperfError(f"a batch of {max(sizes.batches)} needs as many images, there are {len(images)}")
    files = _write(sizes, folder, images, labels, lenet, np.random.default_rng(seed))

    def trained(net: str, bfloat16: bool, batch: int) -> Workload:
        precision = "bfloat16" if bfloat16 else "TF32" if platform == "gpu" else "float32"
        return _training(sizes, files, net, precision, sizes.batches[batch], platform)

    others = (replace(trained(*which), main=False) for which in OTHERS)
    return (*(trained(*which) for which in MAIN), *_small(sizes, files, platform), *others)


def _write(
    sizes: DeviceSizes,
    folder: Path,
    images: np.ndarray,
    labels: np.ndarray,
    lenet: inputs.Shapes,
    rng: np.random.Generator,
) -> dict[str, str]:
    files = inputs.write_nets(folder, lenet, sizes.stages, rng)
    square = np.linalg.qr(rng.normal(size=(sizes.square, sizes.square)))[0]  # its powers stay of one size
    xs = rng.normal(size=(sizes.chain, 1, inputs.MLP[0]))
    data = {"X": images.reshape(-1, 28, 28), "y": labels.astype(np.int32)}
    order = rng.permutation(len(images)).astype(np.int32)
    return files | {
        "square": inputs.write(folder / "square.npz", x=square.astype(np.float32)),
        "xs": inputs.write(folder / "xs.npz", xs=xs.astype(np.float32)),
        "images": inputs.write(folder / "images.npz", **data, order=order),
    }


def _training(
    sizes: DeviceSizes,
    files: Mapping[str, str],
    net: str,
    precision: str,
    batch: int,
    platform: str,
) -> Workload:
    return Workload(
        f"{TITLES[net]} {precision}, batch {batch}",
        f"A training step of {TITLES[net]} in {precision} on {batch} images that are on the device as bytes",
        {
            "task": "train on device",
            "net": net,
            "stages": sizes.stages,
            "weights": files[net],
            "images": files["images"],
            "precision": precision,
            "batch": batch,
            "lr": 0.05 if net == "lenet" else 0.005,  # so small that rounding does not grow over the steps
            "steps": 6,
            "chunk": sizes.chunk,
            "device": "cuda" if platform == "gpu" else "cpu",
        },
        _there(TRAINING, platform),
        calls=sizes.chunk,
        turn_s=sizes.turn_s,
        lead=sizes.chunk // 4,
        items=batch,
        rounds=sizes.rounds,
        rtol=RTOL[precision],
        optional=("scan", *COMPILED),
    )


def _small(sizes: DeviceSizes, files: Mapping[str, str], platform: str) -> list[Workload]:
    rows = (
        ("8.1 MLP, waiting once", "A call of the MLP of section 8.1", "mlp", False),
        ("8.2 loop, waiting once", "x + 1 of section 8.2.3", "increment", False),
        ("8.2 loop, waiting each time", "x + 1 of section 8.2.3", "increment", True),
        ("8.2 product, waiting once", "A product of section 8.2.1", "product", False),
        ("8.2 product, waiting each time", "A product of section 8.2.1", "product", True),
    )
    common = {"square": files["square"], "weights": files["mlp"], "input": files["xs"], "net": "mlp"}
    device = "cuda" if platform == "gpu" else "cpu"
    how = f"{sizes.chain} in a row, {sizes.square} x {sizes.square}, time of one"
    return [
        Workload(
            name,
            f"{title}, {how if operation != 'mlp' else f'{sizes.chain} in a row, time of one'}",
            {
                "task": "small",
                **common,
                "operation": operation,
                "waits": waits,
                "chain": sizes.chain,
                "device": device,
            },
            _there(EACH if waits else SMALL, platform),
            calls=sizes.chain,
            turn_s=sizes.turn_s,
            lead=sizes.chain // 4,
            rounds=sizes.rounds,
            rtol=RTOL["TF32" if platform == "gpu" else "float32"],
            rounds_s=3.0,
        )
        for name, title, operation, waits in rows
    ]


def _there(configurations: Mapping[str, tuple[str, ...]], platform: str) -> dict[str, tuple[str, ...]]:
    """Return the configurations that a platform has."""
    return {
        system: tuple(c for c in names if platform == "gpu" or "CUDA graphs" not in c)
        for system, names in configurations.items()
    }
