"""The amount of work in the workloads: for two cores, and for a quick trial."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    """How much work; the defaults take minutes on two cores."""

    turn_s: float = 0.1
    """Seconds that a turn of predictions, products or loops lasts at least; 0 for exactly the calls below."""
    calls: int = 100
    """Calls of the MLP in one turn."""
    square: int = 2000
    """Rows and columns of the matrices of section 8.2."""
    loops: int = 40
    """Times `x + 1` in one turn, each way."""
    pair: int = 1000
    """Rows and columns of the matrices on several devices; ten products each."""
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
    rounds: int = 12
    """Rounds of every workload but ResNet's."""
    resnet_rounds: int = 7
    """Rounds of ResNet."""
    compile_all: bool = True
    """Whether torch.compile, which takes its time, takes part in training too."""


SMOKE = Sizes(
    turn_s=0,
    calls=20,
    square=200,
    loops=5,
    pair=100,
    lenet_batch=16,
    lenet_turn=1,
    resnet_batch=8,
    resnet_lr=0.02,  # a small net bears more, and at less a wrong rate would not show
    stages=((8, 1), (16, 1)),
    rounds=3,
    resnet_rounds=3,
    compile_all=False,
)
