"""The amount of work in the workloads: for two cores, for a GPU, and for a quick trial."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from jaxperf.errors import JaxperfError


@dataclass(frozen=True)
class Sizes:
    """How much work; the defaults take minutes on two cores."""

    turn_s: float = 0.1
    """Seconds that a turn of predictions, products or loops lasts at least; 0 for exactly the calls below."""
    calls: int = 100
    """Calls of the MLP in one turn."""
    square: int = 2000
    """Rows and columns of the matrices of section 8.2."""
    dots: int = 1
    """Products of them in one turn."""
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
    resnet_turn: int = 1
    """ResNet steps in one turn."""
    resnet_lr: float = 0.005
    """Its learning rate: so small that rounding does not grow over the steps that are compared."""
    stages: tuple[tuple[int, int], ...] = ((64, 2), (128, 2), (256, 2), (512, 2))
    """Channels and blocks of ResNet's stages; the default is ResNet-18."""
    batches: tuple[int, ...] = (1, 16, 128)
    """Batch sizes of inference."""
    lenet_images: int = 400
    """Images of LeNet's inference in one turn, if that is not more calls than the MLP's."""
    resnet_images: int = 8
    """Those of ResNet's."""
    rounds: int = 12
    """Rounds of every workload but ResNet's."""
    resnet_rounds: int = 7
    """Rounds of ResNet."""
    compile_all: bool = True
    """Whether torch.compile, which takes its time, takes part in more than the MLP."""

    def __post_init__(self) -> None:
        if not 0 < self.resnet_lr < math.inf:
            raise JaxperfError(f"resnet_lr is {self.resnet_lr:g}; a learning rate is a positive number")
        if not 0 <= self.turn_s < math.inf:
            raise JaxperfError(f"turn_s is {self.turn_s:g}; a turn lasts 0 seconds or more")
        for name, value in vars(self).items():
            counted = name not in ("compile_all", "resnet_lr", "turn_s")
            if counted and (not value or min(np.ravel(np.asarray(value))) < 1):
                raise JaxperfError(f"{name} is {value}; sizes and counts are at least 1")


# A turn of training lasts about a tenth of a second on two cores; a large GPU needs a hundred times the work.
GPU = Sizes(
    calls=1000,
    square=8000,
    dots=5,
    loops=200,
    lenet_turn=50,
    resnet_batch=256,
    resnet_turn=10,
    batches=(1, 16, 256),
    lenet_images=50_000,
    resnet_images=2000,
)
SMOKE = Sizes(
    turn_s=0,
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
