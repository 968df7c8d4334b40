"""Seconds of training until LeNet reaches a test accuracy: jaxperf beside PyTorch.

    jaxperf peers install torch
    python scripts/seconds_to_accuracy.py

Both start from the same weights, see the same batches in the same order and take the same steps, so they
reach the accuracy after the same number of updates, up to rounding; what differs is the time of an update.
Each run is a process of its own, and the two take turns. The clock stands still while the test set is
evaluated and while the step is compiled.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

CHILD = "--child"
SYSTEMS = ("jax", "torch")
NETS = Path(__file__).resolve().parents[1] / "jaxperf" / "peers" / "workers" / "torch_nets.py"


@dataclass(frozen=True)
class Config:
    """The recipe of both."""

    torch_python: Path | None = None  # a Python that has PyTorch; the one of `jaxperf peers install` if None
    accuracy: float = 0.85  # of the 10,000 test images, where a run ends
    batch_size: int = 256
    lr: float = 0.3
    scale: float = 0.05  # spread of the initial weights; from the book's 0.01 the first epoch learns nothing
    looks: int = 4  # evaluations per epoch
    epochs: int = 20  # after which a run gives up
    rounds: int = 3  # runs of each system
    seed: int = 0  # of weights and order


def batches(folder: Path, recipe: dict[str, Any]) -> Iterator[tuple[bool, Any, Any]]:
    """Whether to look before it, uint8 images (B, 28, 28, 1) and labels (B,), for all epochs."""
    found = np.load(folder / "train.npz")
    images, labels, n = found["X"], found["y"], recipe["batch_size"]
    updates = len(images) // n
    for epoch in range(recipe["epochs"]):
        order = np.random.default_rng((recipe["seed"], epoch)).permutation(len(images))
        for i in range(updates):
            chosen = order[i * n : (i + 1) * n]
            look = i % max(1, updates // recipe["looks"]) == 0 and (epoch or i)
            yield bool(look), images[chosen], labels[chosen]


def run(step: Callable[..., None], finish: Callable[[], None], accuracy: Callable[[], float],
        folder: Path, recipe: dict[str, Any]) -> dict[str, Any]:  # fmt: skip
    """Train until the accuracy is there; seconds of training and updates, or an accuracy that is too low."""
    spent, began, updates, reached = 0.0, time.perf_counter(), 0, 0.0
    for look, X, y in batches(folder, recipe):
        if look:
            finish()
            spent += time.perf_counter() - began
            reached = accuracy()
            if reached >= recipe["accuracy"]:
                break
            began = time.perf_counter()
        step(X, y)
        updates += 1
    return {"seconds": spent, "updates": updates, "accuracy": reached}


def with_jax(folder: Path, recipe: dict[str, Any]) -> dict[str, Any]:
    """`make_step("jit", ...)` on one device, as section 8.4 trains."""
    import jax
    import optax

    from jaxperf import onednn
    from jaxperf.models import lenet
    from jaxperf.parallel import first_devices, make_step, model_of_function
    from jaxperf.train.evaluate import Evaluator

    onednn.begin()
    devices, test, n = first_devices(1, platform="cpu"), np.load(folder / "test.npz"), recipe["batch_size"]
    weights = [jax.numpy.asarray(a) for a in np.load(folder / "weights.npz").values()]
    made = make_step("jit", model_of_function(lenet, weights), optax.sgd(recipe["lr"]), devices)
    evaluator = Evaluator(lambda v, X: made.model.apply(*v, X, train=False)[0], devices, batch_size=n)
    state = made.init()
    made.compile_s(state, made.load(test["X"][:n], test["y"][:n]))

    def step(X: Any, y: Any) -> None:
        nonlocal state
        state, _ = made(state, X, y)

    def accuracy() -> float:
        held = made.read(state)
        return evaluator.accuracy((held.params, held.stats), test["X"], test["y"])

    return run(step, lambda: jax.block_until_ready(state), accuracy, folder, recipe)


def with_torch(folder: Path, recipe: dict[str, Any]) -> dict[str, Any]:
    """PyTorch's fastest way to train LeNet on two cores: compiled."""
    import torch

    spec = importlib.util.spec_from_file_location("torch_nets", NETS)
    nets = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    spec.loader.exec_module(nets)  # type: ignore[union-attr]
    test, n = np.load(folder / "test.npz"), recipe["batch_size"]
    net = nets.lenet(dict(np.load(folder / "weights.npz")))
    model, before = torch.compile(net, dynamic=False), {k: v.clone() for k, v in net.state_dict().items()}
    optimizer = torch.optim.SGD(net.parameters(), lr=recipe["lr"])

    def images(X: Any) -> Any:
        return torch.from_numpy(X).reshape(-1, 1, 28, 28).float() / 255

    def step(X: Any, y: Any) -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images(X)), torch.from_numpy(y).long()).backward()
        optimizer.step()

    def accuracy() -> float:
        with torch.inference_mode():
            return float((net(images(test["X"])).argmax(1).numpy() == test["y"]).mean())

    step(test["X"][:n], test["y"][:n])  # compiles; the weights are then what they were
    net.load_state_dict(before)
    return run(step, lambda: None, accuracy, folder, recipe)


def prepare(folder: Path, config: Config) -> None:
    """Write the data and the weights that both read."""
    import jax

    from jaxperf.data import fashion_mnist
    from jaxperf.models.lenet import PARAM_SHAPES, lenet_params

    data = fashion_mnist()
    print(f"Fashion-MNIST from {data.source}: {len(data.train_images)} images to train on")
    np.savez(folder / "train.npz", X=data.train_images, y=data.train_labels)
    np.savez(folder / "test.npz", X=data.test_images, y=data.test_labels)
    drawn = lenet_params(jax.random.key(config.seed), scale=config.scale)
    np.savez(folder / "weights.npz", **dict(zip(PARAM_SHAPES, map(np.asarray, drawn))))  # type: ignore[arg-type]


def main() -> int:
    """Let both take turns, print each run, and the ratio within rounds."""
    from jaxperf import flags
    from jaxperf.launch import child_environment
    from jaxperf.onednn import with_onednn
    from jaxperf.peers import PEERS, look
    from jaxperf.result import Measurement, ratio

    config = flags.given(Config, __doc__ or "")
    torch_python = config.torch_python or look(PEERS["torch"]).python
    if not torch_python.exists():
        sys.exit(f"error: no Python at {torch_python}; run `jaxperf peers install torch`")
    environment = with_onednn(child_environment())
    recipe = {k: v for k, v in asdict(config).items() if k != "torch_python"}
    found: dict[str, list[float]] = {system: [] for system in SYSTEMS}
    with tempfile.TemporaryDirectory() as folder:
        prepare(Path(folder), config)
        for turn in range(config.rounds):
            for system in SYSTEMS[:: -1 if turn % 2 else 1]:
                python = sys.executable if system == "jax" else str(torch_python)
                words = [python, __file__, CHILD, system, folder, json.dumps(recipe)]
                done = subprocess.run(words, env=environment, stdout=subprocess.PIPE, text=True, check=True)
                told = json.loads(done.stdout.splitlines()[-1])
                print(f"{system:<6}{told['seconds']:>8.1f} s  {told['updates']:>5} updates, test accuracy "
                      f"{told['accuracy']:.4f}", flush=True)  # fmt: skip
                if told["accuracy"] < config.accuracy:
                    sys.exit(f"error: {config.epochs} epochs were not enough for {config.accuracy}")
                found[system].append(told["seconds"])
    torch, ours = (Measurement(s, "s", tuple(found[s]), rounds="seconds") for s in ("torch", "jax"))
    print(f"PyTorch's seconds over jaxperf's: {ratio(torch, ours)}, of {config.rounds} rounds")
    return 0


if __name__ == "__main__":
    if CHILD in sys.argv:
        work = {"jax": with_jax, "torch": with_torch}[sys.argv[2]]
        print(json.dumps(work(Path(sys.argv[3]), json.loads(sys.argv[4]))))
    else:
        from jaxperf.exits import ended  # the other system's Python has no jaxperf

        raise SystemExit(ended(main))
