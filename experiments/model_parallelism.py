"""Splitting the model: layers on different devices, one layer over several, and data parallelism beside them.

Prediction: all of them compute what one device computes. Data parallelism sums the gradients at each step,
the same bytes for any batch; the other two move activations, which grow with the batch, but every device
holds only a part of the parameters.

    python experiments/model_parallelism.py --json results/model_parallelism.json
    python experiments/model_parallelism.py --devices 4 --batch-size 512
"""

from __future__ import annotations

if __name__ == "__main__":
    from jaxperf.exits import end_at_once

    end_at_once()  # while all else is imported, Ctrl-C is no traceback

from dataclasses import dataclass
from typing import Annotated

from jaxperf import script
from jaxperf.errors import JaxperfError
from jaxperf.flags import at_least, more_than


@dataclass(frozen=True)
class Config:
    """Flags of this section."""

    batch_size: Annotated[int, at_least(8)] = 256  # images in a batch for LeNet; ResNet-18 gets an eighth
    micro_batches: Annotated[tuple[int, ...], at_least(1)] = (1, 2, 4, 8)  # parts of a batch in the pipeline
    steps: Annotated[int, at_least(1)] = 5  # updates after which parameters are compared with one device's
    rounds: Annotated[int, at_least(1)] = 9  # rounds of each comparison
    lr: Annotated[float, more_than(0)] = 0.1  # learning rate
    small: bool = False  # a ResNet of two narrow stages in place of ResNet-18
    seed: int = 0  # seed of parameters, images and labels

    @staticmethod
    def smoke() -> Config:
        """Every part, in seconds."""
        return Config(batch_size=16, micro_batches=(1, 2), steps=2, rounds=6, small=True)


FLAGS = script.parse(Config, devices=2) if __name__ == "__main__" else None  # before JAX starts

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import optax
from flax import nnx

from jaxperf.chapter import pipelines
from jaxperf.chapter.tolerance import tolerance
from jaxperf.measure import count_ops, interleaved
from jaxperf.measure.traffic import collective_bytes, device_bytes
from jaxperf.models import RESNET18_STAGES, SMALL_STAGES, LeNet, ResNet
from jaxperf.parallel import first_devices, make_step, model_of, softmax_cross_entropy
from jaxperf.parallel.pipeline import Pipeline, lenet_halves, make_pipeline, resnet_halves
from jaxperf.parallel.tensor import (
    lenet_by_hand,
    lenet_by_sharding,
    most_devices,
    replicate,
    sgd_step,
    split_lenet,
)
from jaxperf.report.words import quantity

Batch = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]
ROUNDING = 2e-5  # of parameters after a few updates; ReLUs at zero magnify float32 rounding


def main(config: Config, story: script.Story) -> None:
    """The ways to split a model, each against one device."""
    check(config)
    devices = devices_to_split_over(story)
    story.part(layers_apart, config, devices)
    story.part(
        pipelines.micro_batches,
        resnet(config),
        devices=devices[:2],
        batch=config.batch_size // 8,
        counts=config.micro_batches,
        rounds=config.rounds,
        seed=config.seed,
    )
    fitting = devices[: most_devices(len(devices))]
    story.part(layer_over_devices, config, fitting)
    story.part(side_by_side, config, fitting)


def resnet(config: Config) -> ResNet:
    """ResNet-18, or a small relative of it."""
    stages = SMALL_STAGES if config.small else RESNET18_STAGES
    return ResNet(10, stages=stages, rngs=nnx.Rngs(config.seed))


def check(config: Config) -> None:
    """Refuse a batch that cannot be cut.

    Raises:
      JaxperfError: a number of micro-batches does not divide an eighth of the batch.
    """
    for m in config.micro_batches:
        if config.batch_size // 8 % m:
            raise JaxperfError(
                f"--batch-size {config.batch_size} has an eighth that {m} micro-batches do not divide; "
                f"use {8 * m} or a multiple"
            )


def devices_to_split_over(story: script.Story) -> list[jax.Device]:
    """Two devices or more: those in use, or the CPU's where there is a single GPU.

    Raises:
      JaxperfError: there is only one device of any kind.
    """
    devices = first_devices()
    if len(devices) > 1:
        return devices
    try:
        devices = jax.devices("cpu")
    except RuntimeError:  # JAX was told to leave the CPU alone
        raise JaxperfError(
            "one GPU cannot be split, and JAX_PLATFORMS leaves the CPU out; use --platform gpu, which adds it"
        ) from None
    if len(devices) < 2:
        raise JaxperfError(f"--devices {len(devices)} leaves nothing to split; use 2 or more")
    story.note(f"one GPU cannot be split: this section runs on {len(devices)} CPU devices")
    return devices


def some_images(n: int, seed: int) -> Batch:
    """Random images (n, 28, 28, 1), float32 0..1, and labels (n,): values do not matter for time."""
    rng = np.random.default_rng(seed)
    return rng.random((n, 28, 28, 1), np.float32), rng.integers(0, 10, n)


def named(tree: Any) -> dict[str, np.ndarray[Any, Any]]:
    """Arrays of a nested dictionary by path, "conv1/kernel"."""
    flat = jax.tree_util.tree_leaves_with_path(tree)
    return {"/".join(str(getattr(k, "key", k)) for k in path): np.asarray(v) for path, v in flat}


def largest_difference(ours: Any, theirs: Any) -> float:
    """Largest absolute difference of two trees of parameters, by name."""
    a, b = named(ours), named(theirs)
    assert a.keys() == b.keys(), (sorted(a), sorted(b))
    return max(float(np.abs(a[k] - b[k]).max()) for k in a)


def after_steps(step: Callable[..., Any], state: Any, batch: Batch, steps: int) -> Any:
    """The state after `steps` updates on the same batch, products in float32's full precision."""
    with jax.default_matmul_precision("highest"):
        for _ in range(steps):
            state, _ = step(state, *batch)
    return jax.block_until_ready(state)


def one_device(net: nnx.Module, batch: Batch, devices: Sequence[jax.Device], lr: float, steps: int) -> Any:
    """Parameters after the same updates on one device: what every way must give."""
    step = make_step("jit", model_of(net), optax.sgd(lr), devices[:1], batch_norm="whole")
    return step.read(after_steps(step, step.init(), batch, steps)).params


def equal(story: script.Story, what: str, differences: dict[str, float], *, platform: str) -> None:
    """Judge the largest differences to one device, by name."""
    rounding = tolerance(platform, ROUNDING)
    for name, value in differences.items():
        fact = f"max_param_diff_{name.lower().replace('-', '').replace(' ', '_')}"
        story.fact(fact, value, words=f"largest difference to one device, {name}")
    worst = max(differences.values())
    story.claim(
        ours=f"{what} computes what one device computes",
        holds=worst <= rounding,
        predicted=f"parameters equal up to float32 rounding, below {rounding:g}",
        right=worst <= rounding,
        observed=", ".join(f"{name} {value:.1e}" for name, value in differences.items()),
    )


def pipelined(net: LeNet | ResNet, devices: Sequence[jax.Device], lr: float, m: int) -> Pipeline:
    """The network's halves on two devices, a batch cut into `m` micro-batches."""
    halves = lenet_halves(net) if isinstance(net, LeNet) else resnet_halves(net)
    return make_pipeline(halves, optax.sgd(lr), devices[:2], micro_batches=m)


def layers_apart(story: script.Story, config: Config, devices: Sequence[jax.Device]) -> None:
    """Put LeNet's and ResNet-18's halves on two devices, one batch at a time."""
    story.heading("Layers on different devices")
    story.text(
        """The book trains with data parallelism: every device holds the whole network. A network that does
        not fit on one device must be split. The first way is to cut it between layers: the first half of
        the layers is on one device, the second half on another. Activations cross forwards, their gradients
        backwards."""
    )
    story.habit(
        gluon="h = net1(x.as_in_context(mx.gpu(0)))\ny = net2(h.as_in_context(mx.gpu(1)))",
        jax="""
        h = first(params1, jax.device_put(x, devices[0]))
        y = second(params2, jax.device_put(h, devices[1]))
        """,
        remark="In both, a computation runs where its operands are, and nothing is copied unless you say so.",
    )
    found = {}
    for name, net, n, steps in (  # ResNet's ReLUs magnify rounding from the second update on
        ("LeNet", LeNet(rngs=nnx.Rngs(config.seed)), config.batch_size, config.steps),
        ("ResNet-18", resnet(config), config.batch_size // 8, 1),
    ):
        batch = some_images(n, config.seed)
        step = pipelined(net, devices, config.lr, 1)
        states = after_steps(step, step.init(), batch, steps)
        ours = {k: v for state in states for k, v in state.params.items()}
        theirs = one_device(net, batch, devices, config.lr, steps)
        found[f"{name} in halves"] = largest_difference(ours, theirs)
        crossing = quantity(step.crossing_bytes(batch[0]), "bytes")
        story.say(f"{name}, batch {n}: {crossing} cross in each step")
    equal(story, "A network cut between layers", found, platform=devices[0].platform)


def layer_over_devices(story: script.Story, config: Config, devices: Sequence[jax.Device]) -> None:
    """Split LeNet's channels and columns, by the compiler and by hand, and count what the programs send."""
    story.heading("A layer over several devices")
    story.text(
        """The second way is to cut inside a layer. If the first of two layers is split by its outputs and
        the second by its inputs, each device computes with its own slices, and one sum over the devices
        completes the pair. In JAX this takes a sharding for each parameter: `jax.jit` divides the program
        accordingly. `shard_map` runs what we write for one device and leaves the sums to us."""
    )
    story.code(lenet_by_hand)
    if len(devices) < story.devices:
        story.note(f"LeNet's widths do not divide among {story.devices} devices: {len(devices)} are used")
    net, batch = LeNet(rngs=nnx.Rngs(config.seed)), some_images(config.batch_size, config.seed)
    expected = one_device(net, batch, devices, config.lr, config.steps)
    found, rows = {}, []
    for name, make in (("sharding", lenet_by_sharding), ("shard_map", lenet_by_hand)):
        params, mesh = split_lenet(net, devices)
        step = sgd_step(make(mesh), softmax_cross_entropy, config.lr)
        spread = replicate(batch, mesh)
        ops = count_ops(step.lower(params, *spread).compile().as_text())
        after = after_steps(step, params, spread, config.steps)
        found[f"LeNet by {name}"] = largest_difference(after, expected)
        held = max(device_bytes(after).values())
        rows.append((name, str(ops["all-reduce"]), str(ops["all-gather"]), quantity(held, "bytes")))
        story.fact(f"allreduce_count_{name}", ops["all-reduce"], words=f"sums over devices by {name}")
        story.fact(f"allgather_count_{name}", ops["all-gather"], words=f"gathers over devices by {name}")
    story.grid(("way", "sums in the program", "gathers", "parameters per device"), rows, right=(1, 2, 3))
    equal(story, "A layer cut over devices", found, platform=devices[0].platform)


def side_by_side(story: script.Story, config: Config, devices: Sequence[jax.Device]) -> None:
    """Run LeNet three ways on the same devices: bytes moved in each step, memory per device, time."""
    story.heading("The three kinds of parallelism side by side")
    story.text(
        """Which way is right depends on what is large. Data parallelism sends the gradients, as many bytes
        as there are parameters, however large the batch is. The other two send activations, which grow with
        the batch, but no device holds all parameters."""
    )
    net, batch = LeNet(rngs=nnx.Rngs(config.seed)), some_images(config.batch_size, config.seed)
    ways = {
        "data": data_parallel(net, batch, config, devices),
        "pipeline": pipeline_parallel(net, batch, config, devices),
        "tensor": tensor_parallel(net, batch, config, devices),
    }
    rows = interleaved(
        {name: run for name, (run, _, _) in ways.items()}, count=config.rounds, items=len(batch[1])
    )
    story.table(rows.values(), base="data", title=f"Seconds per step, batch {len(batch[1])}")
    for name, (_, moved, held) in ways.items():
        words = f"per step, {name} parallelism"
        story.fact(f"moved_bytes_{name}", moved, unit="bytes", words=f"bytes moved {words}")
        story.fact(
            f"params_bytes_per_device_{name}", held, unit="bytes", words=f"parameters per device, {name}"
        )
    story.grid(
        ("parallelism", "moved per step", "parameters on the fullest device"),
        [
            (name, quantity(moved, "bytes"), quantity(held, "bytes"))
            for name, (_, moved, held) in ways.items()
        ],
        right=(1, 2),
    )
    (_, moved, held), *others = ways.values()
    story.claim(
        ours="Splitting the model saves memory per device and moves more bytes than data parallelism",
        holds=all(other[2] < held and other[1] > moved for other in others),
        predicted=f"at batch {len(batch[1])}, for both ways to split LeNet",
        right=all(other[2] < held and other[1] > moved for other in others),
        observed=f"{quantity(held, 'bytes')} held and {quantity(moved, 'bytes')} moved by data parallelism, "
        + ", ".join(
            f"{quantity(h, 'bytes')} and {quantity(m, 'bytes')} by {n}"
            for n, (_, m, h) in list(ways.items())[1:]
        ),
    )


Costs = tuple[Callable[[], Any], int, int]  # one step, bytes moved, bytes of parameters on the fullest device


def data_parallel(net: LeNet, batch: Batch, config: Config, devices: Sequence[jax.Device]) -> Costs:
    """Every device has all parameters and a share of the batch; gradients are summed."""
    step = make_step("shard_map", model_of(net), optax.sgd(config.lr), devices)
    state, shares = step.init(), step.load(*batch)
    held = max(device_bytes(state.params).values())
    moved = sum(collective_bytes(step.compile(state, shares)[0]).values())

    def run() -> Any:
        nonlocal state  # the step uses its state up
        state, metrics = step.run(state, shares)
        return metrics, state.params

    return run, moved, held


def pipeline_parallel(net: LeNet, batch: Batch, config: Config, devices: Sequence[jax.Device]) -> Costs:
    """Convolutions on one device, dense layers on the other; activations cross."""
    step = pipelined(net, devices, config.lr, max(config.micro_batches))
    states = step.init()
    held = max(device_bytes([s.params for s in states]).values())
    return lambda: step(states, *batch), step.crossing_bytes(batch[0]), held


def tensor_parallel(net: LeNet, batch: Batch, config: Config, devices: Sequence[jax.Device]) -> Costs:
    """Every device has a slice of every layer and the whole batch; partial results are summed."""
    params, mesh = split_lenet(net, devices)
    step = sgd_step(lenet_by_hand(mesh), softmax_cross_entropy, config.lr)
    spread = replicate(batch, mesh)
    moved = sum(collective_bytes(step.lower(params, *spread).compile().as_text()).values())
    return lambda: step(params, *spread), moved, max(device_bytes(params).values())


if __name__ == "__main__":
    script.run(main, FLAGS)
