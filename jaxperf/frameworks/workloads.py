"""The one definition of each workload: sizes, files, and which configurations of each system run it.

What a task does is written three times, in `workers/*_worker.py` and `workers/*_train.py`; everything that
could differ (sizes, weights, inputs, rates, steps) comes from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from jaxperf.errors import JaxperfError
from jaxperf.frameworks import inputs
from jaxperf.frameworks.sizes import Sizes

WAYS = ("jit", "pmap", "shard_map", "manual")
ONEDNN = "jax+oneDNN"  # JAX with XLA's flags for oneDNN: a row of its own, never judged


@dataclass(frozen=True)
class Workload:
    """One piece of work for all systems.

    Attributes:
      name: begins with the section's number; the role `workload` of its measurements.
      title: what is done, in one line.
      settings: what the workers are told; "task" is what to do.
      configurations: of each system that runs it; all must agree with JAX's first one.
      quantities: what a turn measures; each becomes a measurement per configuration.
      calls: how often the work is done in one turn.
      turn_s: seconds that a turn lasts at least, by the warm-up round: a configuration that needs less for
        `calls` does more of them. 0 if all do the same number.
      lead: untimed calls before each turn, because the other systems have displaced the caches; more of them
        where there are more calls.
      items: in one call, e.g. images.
      rounds: timed turns of each configuration.
      rtol: how far from JAX's an answer may be, relative to the largest value.
      at_once: on how many devices a quantity is measured at once, where that is not all of them.
      optional: configurations that start only if a run with a budget has seconds to spare.
      main: whether a run with a budget reserves seconds for it; others begin if all that they need is left.
      rounds_s: seconds that a budget reserves for its rounds.
    """

    name: str
    title: str
    settings: Mapping[str, Any]
    configurations: Mapping[str, tuple[str, ...]]
    quantities: tuple[str, ...] = ("",)
    calls: int = 1
    turn_s: float = 0.0
    lead: int = 0
    items: float = 0
    rounds: int = 12
    rtol: float = 1e-5
    at_once: Mapping[str, int] = field(default_factory=dict)
    optional: tuple[str, ...] = ()
    main: bool = True
    rounds_s: float = 6.0

    @property
    def devices(self) -> int:
        """Return how many devices it runs on."""
        return int(self.settings.get("devices", 1))


def workloads(
    sizes: Sizes,
    folder: Path,
    images: np.ndarray,
    labels: np.ndarray,
    *,
    lenet: inputs.Shapes,
    devices: int = 2,
    onednn: bool = False,
    seed: int = 0,
) -> tuple[Workload, ...]:
    """Write all weights and inputs to `folder` and define a CPU's workloads on them.

    Args:
      sizes: how much work.
      folder: where to write the files, and what the workers write.
      images: uint8 (N, 28, 28, 1) or (N, 28, 28), the pictures to train on.
      labels: (N,), their classes.
      lenet: shapes of LeNet's parameters in the book's layout, by name.
      devices: how many the parallel workloads use; 1 leaves those out.
      onednn: whether networks with convolutions also run in JAX with XLA's flags for oneDNN.
      seed: of weights and inputs.

    Raises:
      JaxperfError: fewer images than a batch, or a batch that the devices cannot share.
    """
    for batch in (sizes.lenet_batch, sizes.resnet_batch):
        if batch > len(images):
            raise JaxperfError(f"a batch of {batch} needs as many images, there are {len(images)}")
        if batch % devices:
            raise JaxperfError(f"batch size {batch} is not divisible by {devices} devices")
    files = _write(sizes, folder, images, labels, lenet, np.random.default_rng(seed))
    selected = [_section81(sizes, files), *_section82(sizes, files)]
    if devices > 1:
        selected.append(_together(sizes, files, devices))
    for k in dict.fromkeys((1, devices)):
        selected += [_lenet(sizes, files, k), _resnet(sizes, files, k)]
    return tuple(_also_with_onednn(workload) if onednn else workload for workload in selected)


def _also_with_onednn(workload: Workload) -> Workload:
    """Return the workload with JAX's configurations once more, if it convolves on one device."""
    if workload.settings["task"] != "train" or workload.devices > 1:
        return workload
    more = {ONEDNN: workload.configurations["jax"]}
    return replace(workload, configurations={**workload.configurations, **more})


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

    files = inputs.write_nets(folder, lenet, sizes.stages, rng)
    pictures, x = images.reshape(-1, 28, 28), rng.normal(size=(1, inputs.MLP[0]))
    return files | {
        "folder": str(folder),
        "x": inputs.write(folder / "x.npz", x=x.astype(np.float32)),
        "square": inputs.write(folder / "square.npz", x=uniform(sizes.square)),
        "pair": inputs.write(folder / "pair.npz", x=uniform(sizes.pair)),
        "images": inputs.write(folder / "images.npz", X=pictures, y=labels.astype(np.int32)),
    }


def _section81(sizes: Sizes, files: Mapping[str, str]) -> Workload:
    return Workload(
        "8.1 MLP",
        "The MLP of section 8.1 on one example, time per call",
        {"task": "forward", "net": "mlp", "weights": files["mlp"], "input": files["x"]},
        {
            "jax": ("eager", "nnx.jit", "jit", "aot"),
            "mxnet": ("imperative", "hybridized", "static"),
            "torch": ("eager", "traced", "compiled", "frozen"),
        },
        calls=sizes.calls,
        turn_s=sizes.turn_s,
        lead=sizes.calls // 10,
        rounds=sizes.rounds,
    )


def _section82(sizes: Sizes, files: Mapping[str, str]) -> tuple[Workload, ...]:
    square = {"square": files["square"]}
    return (
        Workload(
            "8.2 dot",
            f"The product of {sizes.square} x {sizes.square} matrices of section 8.2.1, summed",
            {"task": "dot", **square},
            {"jax": ("eager", "jit"), "mxnet": ("imperative",), "torch": ("eager",)},
            quantities=("queued", "finished"),
            turn_s=sizes.turn_s,
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
            turn_s=sizes.turn_s,
            lead=2,
            rounds=sizes.rounds,
        ),
    )


def _together(sizes: Sizes, files: Mapping[str, str], devices: int) -> Workload:
    return Workload(
        "8.3 products",
        f"Ten products of {sizes.pair} x {sizes.pair} on each of {devices} devices (section 8.3.1)",
        {"task": "together", "square": files["pair"], "dots": 10, "devices": devices},
        {"jax": ("eager",), "mxnet": ("contexts",), "torch": ("threads",)},
        quantities=("apart", "together"),
        at_once={"apart": 1},
        rounds=sizes.rounds,
    )


def _lenet(sizes: Sizes, files: Mapping[str, str], devices: int) -> Workload:
    settings = {"net": "lenet", "weights": files["lenet"], "lr": 0.05, "steps": 6}
    return Workload(
        f"8.4 LeNet, {_on(devices)}",
        f"A training step of LeNet, batch {sizes.lenet_batch}, {_on(devices)}",
        _training(settings, files, sizes.lenet_batch, devices),
        {
            "jax": WAYS,
            "mxnet": ("scratch", "imperative", "hybridized", "static"),
            "torch": _training_of_torch(sizes, devices),
        },
        calls=sizes.lenet_turn,
        items=sizes.lenet_batch,
        rounds=sizes.rounds,
        rtol=1e-4,
    )


def _resnet(sizes: Sizes, files: Mapping[str, str], devices: int) -> Workload:
    net = {"net": "resnet", "stages": sizes.stages, "weights": files["resnet"]}
    settings = {**net, "lr": sizes.resnet_lr, "steps": 3}
    return Workload(
        f"8.5 ResNet-18, {_on(devices)}",
        f"A training step of ResNet-18, batch {sizes.resnet_batch}, {_on(devices)}",
        _training(settings, files, sizes.resnet_batch, devices),
        {
            "jax": ("jit",) if devices == 1 else WAYS,
            "mxnet": ("imperative", "hybridized", "static"),
            "torch": _training_of_torch(sizes, devices),
        },
        items=sizes.resnet_batch,
        rounds=sizes.resnet_rounds,
        rtol=1e-3,
    )


def _training_of_torch(sizes: Sizes, devices: int) -> tuple[str, ...]:
    if devices > 1:
        return ("ddp",)
    return ("eager", "channels-last", *(("compiled",) if sizes.compile_all else ()))


def _on(devices: int) -> str:
    return "1 device" if devices == 1 else f"{devices} devices"


def _training(
    settings: Mapping[str, Any], files: Mapping[str, str], batch: int, devices: int
) -> dict[str, Any]:
    common = {"task": "train", "images": files["images"], "folder": files["folder"]}
    return {**common, **settings, "batch": batch, "devices": devices}
