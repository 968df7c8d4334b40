"""What MXNet's answers in fixtures/mxnet were computed from, drawn again from the seed: NumPy only.

`tools/make_mxnet_fixtures.py` runs with MXNet and writes the answers; the tests draw the same weights and
batches here and compare. `RandomState`'s stream is frozen for good, so nothing big needs to be stored.

How close is equal: in float64 answers agree to about 1e-11, but for what MXNet keeps as float32 whatever the
network's dtype (BatchNorm's momentum, the trainer's rate): 5e-7. In float32 a sum over an image is good to
1e-5; but where rounding carries one relu over zero, one of the N active units under a layer changes its mind
and moves the gradient by about 1 / sqrt(N), 1 to 2 per cent in the ResNets. There float64 is the proof.
"""

import ast
import functools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

FOLDER = Path(os.environ.get("JAXPERF_MXNET_FIXTURES") or Path(__file__).parent / "fixtures" / "mxnet")


@dataclass(frozen=True)
class Setting:
    """How a network is trained in its fixture: `batch` fresh images a step, over all contexts together."""

    batch: int
    steps: int
    lr: float
    contexts: tuple[int, ...]


KINDS = ("book", "sound")
DTYPES = ("float32", "float64")
LENET = Setting(batch=16, steps=8, lr=0.1, contexts=(1, 2, 4, 8))
RESNET18 = Setting(batch=8, steps=3, lr=0.01, contexts=(1, 2))
RESNET_SMALL = Setting(batch=16, steps=5, lr=0.01, contexts=(1, 2, 4))
LENET_SHAPES = {
    "W1": (20, 1, 3, 3), "b1": (20,), "W2": (50, 20, 5, 5), "b2": (50,),
    "W3": (800, 128), "b3": (128,), "W4": (128, 10), "b4": (10,),
}  # fmt: skip
RESNET18_STAGES = ((64, 2), (128, 2), (256, 2), (512, 2))
SMALL_STAGES = ((8, 1), (16, 1))
NETS = {"resnet18": (RESNET18_STAGES, RESNET18), "resnet_small": (SMALL_STAGES, RESNET_SMALL)}
MLP_SIZES = (512, 256, 128, 2)
WHOLE, PART = 200, 32  # an array of up to 200 values is kept whole, of a larger one 32 values


def weights(shapes: Mapping[str, tuple[int, ...]], kind: str, seed: int) -> dict[str, np.ndarray]:
    """Parameters by name in the order of `shapes`, float32; what a name ends in says what it is."""
    stream = np.random.RandomState(seed)
    return {name: _draw(stream, name, shape, kind).astype(np.float32) for name, shape in shapes.items()}


def _draw(stream: np.random.RandomState, name: str, shape: tuple[int, ...], kind: str) -> np.ndarray:
    if name.endswith(("gamma", "running_var")):
        return np.ones(shape) if kind == "book" else stream.uniform(0.5, 1.5, shape)
    if name.endswith("weight") or name[0] == "W":
        fan_in = shape[0] if name in ("W3", "W4") else np.prod(shape[1:])
        return stream.normal(0, 0.01 if kind == "book" else np.sqrt(2 / fan_in), shape)
    return np.zeros(shape) if kind == "book" else stream.normal(0, 0.1, shape)


def batch(seed: int, step: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Images (n, 1, 28, 28) in [0, 1], float32, margins empty as around clothes; labels (n,), int32."""
    stream = np.random.RandomState(seed + 1000 + step)
    X = np.zeros((n, 1, 28, 28), np.float32)
    X[:, :, 4:-4, 2:-2] = stream.uniform(size=(n, 1, 20, 24))
    return X, stream.randint(0, 10, n).astype(np.int32)


def nhwc(X: np.ndarray, dtype: str = "float32") -> np.ndarray:
    """Images with their channels last, as ours take them."""
    return X.transpose(0, 2, 3, 1).astype(dtype)


def mlp_batch(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inputs (4, 512), targets (4, 2) for the L2 loss and labels (4,) for the softmax loss."""
    stream = np.random.RandomState(seed + 500)
    X, target = stream.normal(size=(4, MLP_SIZES[0])), stream.normal(size=(4, MLP_SIZES[-1]))
    labels = stream.randint(0, MLP_SIZES[-1], 4).astype(np.int32)
    return X.astype(np.float32), target.astype(np.float32), labels


def digest(key: str, arrays: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    """The three entries that stand for a list of arrays."""
    flat = [np.asarray(array, np.float64).ravel() for array in arrays]
    parts = [a[_places(a.size)] for a in flat]
    return {
        f"{key}/norm": np.array([np.linalg.norm(a) for a in flat]),
        f"{key}/dot": np.array([a @ _fixed_vector(a.size) for a in flat]),
        f"{key}/part": np.concatenate(parts).astype(arrays[0].dtype),
    }


@functools.cache  # ResNet-18's take 1.4 s to draw
def _fixed_vector(size: int) -> np.ndarray:
    return np.random.RandomState(size).normal(size=size)


def _places(size: int) -> np.ndarray:
    return np.arange(size) if size <= WHOLE else np.linspace(0, size - 1, PART).astype(int)


def load(name: str) -> dict[str, np.ndarray]:
    """MXNet's answers `name`.npz from tests/fixtures/mxnet, or from the folder in JAXPERF_MXNET_FIXTURES."""
    with np.load(FOLDER / f"{name}.npz") as file:
        return dict(file)


def shapes(answers: Mapping[str, np.ndarray]) -> dict[str, tuple[int, ...]]:
    """The parameters' names and shapes as MXNet told them, in its order."""
    told = zip(answers["names"], answers["shapes"])
    return {str(name): ast.literal_eval(str(shape)) for name, shape in told}


def digest_error(answers: Mapping[str, np.ndarray], key: str, arrays: Sequence[np.ndarray]) -> np.ndarray:
    """How far each array is from MXNet's: an estimate of the relative Euclidean norm of the difference.

    It is the largest of three: the difference of norms, of the products with the fixed vector, and of the
    kept values. An array whose true value is zero (the gradient of a bias before BatchNorm) is measured
    against a thousandth of the largest norm in the list.
    """
    digests, scale = digest(key, arrays), answers[f"{key}/norm"]
    ends = np.cumsum([_places(array.size).size for array in arrays])[:-1]
    difference = digests[f"{key}/part"].astype(np.float64) - answers[f"{key}/part"]
    by_part = [np.linalg.norm(part) for part in np.split(difference, ends)]
    by_norm, by_dot = (np.abs(digests[f"{key}/{one}"] - answers[f"{key}/{one}"]) for one in ("norm", "dot"))
    return np.maximum.reduce([by_norm, by_dot, by_part]) / np.maximum(scale, 1e-3 * scale.max())
