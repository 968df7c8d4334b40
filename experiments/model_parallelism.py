"""Splitting the model: layers on different devices, a layer over several, and data parallelism beside them.

The book trains with data parallelism and names the other two ways. Layers on different devices need
activations to cross, and only one device works unless the batch is cut into micro-batches; a layer over
several devices needs a sum of partial results for every pair of layers.

Prediction: all three compute what one device computes. A pipeline of p devices and m micro-batches idles at
least (p - 1) / (m + p - 1) of the time. Data parallelism sums the gradients at each step, the same bytes for
any batch; the two others move activations, which grow with it, but a device holds a part of the parameters.

    python experiments/model_parallelism.py --json results/model_parallelism.json
    python experiments/model_parallelism.py --devices 4 --batch-size 512

On 2 cores of an AMD EPYC as two fake devices, Python 3.11.7, JAX 0.10.2, it printed, among the rest:

max_param_diff_vs_one_device/halves/ResNet-18 = 1.49e-08
idle_share/1 = 0.484, idle_share/4 = 0.431 (the formula: 0.500, 0.200; fake devices share cores)
allreduce_count/tensor/shard_map = 3
moved_bytes/data = 516 kB, moved_bytes/pipeline = 1.64 MB, moved_bytes/tensor = 4.98 MB
params_bytes_per_device/data = 516 kB, .../pipeline = 415 kB, .../tensor = 258 kB
"""

from __future__ import annotations

from dataclasses import dataclass

from jaxperf import script
from jaxperf.errors import JaxperfError


@dataclass(frozen=True)
class Config:
    """Flags of this section."""

    batch_size: int = 256
    """Images in a batch for LeNet; ResNet-18 gets an eighth of it."""
    micro_batches: tuple[int, ...] = (1, 2, 4, 8)
    """Into how many micro-batches the pipeline cuts a batch."""
    steps: int = 5
    """Updates after which parameters are compared with one device's."""
    lr: float = 0.1
    """Learning rate."""
    seed: int = 0
    """Seed of parameters, images and labels."""

    def __post_init__(self) -> None:
        if self.steps < 1 or not self.micro_batches or min(self.micro_batches) < 1:
            raise JaxperfError("--steps and --micro-batches are counts; give at least 1")
        for m in self.micro_batches:
            if self.batch_size < 8 or self.batch_size // 8 % m:
                raise JaxperfError(
                    f"--batch-size {self.batch_size} has an eighth that {m} micro-batches do not divide; "
                    f"use {8 * m} or a multiple"
                )

    @staticmethod
    def smoke() -> Config:
        """Every part, in seconds."""
        return Config(batch_size=16, micro_batches=(1, 2), steps=2)


FLAGS = script.parse(Config, devices=2) if __name__ == "__main__" else None  # before JAX starts

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import optax
from flax import nnx

from jaxperf.measure import Measurement, Series, count_ops, measure
from jaxperf.measure.traffic import collective_bytes, device_bytes
from jaxperf.models import LeNet, ResNet, resnet18
from jaxperf.parallel import first_devices, make_step, model_of, softmax_cross_entropy
from jaxperf.parallel.pipeline import Pipeline, lenet_halves, make_pipeline, resnet_halves
from jaxperf.parallel.tensor import lenet_by_hand, lenet_by_sharding, replicate, sgd_step, split_lenet

Batch = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]


def pipelined(net: LeNet | ResNet, devices: Sequence[jax.Device], config: Config, m: int) -> Pipeline:
    """The network's halves on two devices, a batch cut into `m` micro-batches."""
    halves = lenet_halves(net) if isinstance(net, LeNet) else resnet_halves(net)
    return make_pipeline(halves, optax.sgd(config.lr), devices[:2], micro_batches=m)


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
    """The state after `steps` updates on the same batch."""
    for _ in range(steps):
        state, _ = step(state, *batch)
    return jax.block_until_ready(state)


def one_device(net: nnx.Module, batch: Batch, config: Config, steps: int) -> Any:
    """Parameters after the same updates on one device: what every way must give."""
    step = make_step("jit", model_of(net), optax.sgd(config.lr), first_devices(1), batch_norm="whole")
    return after_steps(step, step.init(), batch, steps).params


def judge(story: script.Story, name: str, difference: float) -> None:
    """Keep the largest difference to one device as a fact; float32 rounding grows over the steps."""
    story.fact(f"max_param_diff_vs_one_device/{name}", difference)
    story.claim(
        f"{name}: equal to one device",
        predicted="parameters equal up to float32 rounding, below 2e-5",
        observed=f"largest difference {difference:.1e}",
        held=difference <= 2e-5,
    )


def layers_apart(config: Config, story: script.Story) -> None:
    """LeNet's and ResNet-18's halves on two devices, one batch at a time."""
    story.heading("Layers on different devices")
    devices = first_devices()
    small = config.batch_size // 8
    for name, net, n, steps in (  # ResNet's ReLUs magnify rounding from the second update on
        ("LeNet", LeNet(rngs=nnx.Rngs(config.seed)), config.batch_size, config.steps),
        ("ResNet-18", resnet18(10, rngs=nnx.Rngs(config.seed)), small, 1),
    ):
        batch = some_images(n, config.seed)
        step = pipelined(net, devices, config, 1)
        states = after_steps(step, step.init(), batch, steps)
        ours = {k: v for state in states for k, v in state.params.items()}
        judge(story, f"halves/{name}", largest_difference(ours, one_device(net, batch, config, steps)))
        crossing = step.crossing_bytes(batch[0])
        story.say(f"{name}, batch {n}: {crossing / 1e6:.2f} MB cross at each step")


def pipeline(config: Config, story: script.Story) -> None:
    """The same with micro-batches: how long the devices idle, beside what the formula says."""
    story.heading("Micro-batches in a pipeline")
    n = config.batch_size // 8
    net, batch = resnet18(10, rngs=nnx.Rngs(config.seed)), some_images(n, config.seed)
    devices = first_devices(2)
    rows, idle, formula = [], [], []
    for m in config.micro_batches:
        step = pipelined(net, devices, config, m)
        states = step.init()
        options: dict[str, Any] = {"min_values": 3, "max_values": 15, "budget_s": 2.0, "warmup_calls": 1}
        row = measure(step, states, *batch, name=f"pipeline/{m}", items=n, **options)
        busy_s = busy(step, states, batch, options)
        rows.append(row)
        idle.append(1 - sum(busy_s) / (2 * row.median))
        formula.append(1 / (m + 1))
        shares = " and ".join(f"{s / row.median:.0%}" for s in busy_s)
        story.say(f"micro-batches {m}: the devices compute {shares} of the step when each is timed alone")
        story.fact(f"idle_share/{m}", idle[-1])
        story.fact(f"idle_share_formula/{m}", formula[-1])
    story.measured(*rows, base=rows[0].name)
    x = tuple(float(m) for m in config.micro_batches)
    story.curve(Series("idle/measured", x, tuple(idle), "micro-batches", "share"))
    story.curve(Series("idle/formula", x, tuple(formula), "micro-batches", "share"))
    story.claim(
        "A pipeline idles less, the more micro-batches there are: (p - 1) / (m + p - 1)",
        predicted=", ".join(f"{f:.0%}" for f in formula),
        observed=", ".join(f"{i:.0%}" for i in idle),
        held=None if len(idle) < 2 or story.environment.devices_are_fake else idle[-1] < idle[0],
    )
    if story.environment.devices_are_fake:
        story.note(
            "fake devices share cores, so one that waits lends its core: idle shares do not carry over"
        )


def busy(step: Pipeline, states: Any, batch: Batch, options: dict[str, Any]) -> list[float]:
    """Seconds that each device computes in one step, from its programs timed alone, one after the other."""
    m = step.micro_batches
    X = jax.device_put(batch[0][: len(batch[0]) // m], step.devices[0])
    y = jax.device_put(batch[1][: len(batch[1]) // m], step.devices[1])
    first, last = step.programs
    params, stats = states[0].params, states[0].stats
    Y, _ = first["forward"](params, stats, X)
    h = jax.device_put(Y, step.devices[1])
    _, _, _, error = last["loss"](states[1].params, states[1].stats, h, y)
    error = jax.device_put(error, step.devices[0])
    forward = measure(first["forward"], params, stats, X, **options).median
    backward = measure(first["backward"], params, stats, X, error, **options).median
    loss = measure(last["loss"], states[1].params, states[1].stats, h, y, **options).median
    return [m * (forward + backward), m * loss]


def layer_over_devices(config: Config, story: script.Story) -> None:
    """LeNet's channels and columns split, by the compiler and by hand, and what the programs send."""
    story.heading("A layer over several devices")
    net, batch = LeNet(rngs=nnx.Rngs(config.seed)), some_images(config.batch_size, config.seed)
    expected = one_device(net, batch, config, config.steps)
    for name, make in (("sharding", lenet_by_sharding), ("shard_map", lenet_by_hand)):
        params, mesh = split_lenet(net, first_devices())
        step = sgd_step(make(mesh), softmax_cross_entropy, config.lr)
        spread = replicate(batch, mesh)
        text = step.lower(params, *spread).compile().as_text()
        after = after_steps(step, params, spread, config.steps)
        judge(story, f"tensor/{name}", largest_difference(after, expected))
        ops = count_ops(text)
        story.fact(f"allreduce_count/tensor/{name}", ops["all-reduce"])
        story.fact(f"allgather_count/tensor/{name}", ops["all-gather"])
        story.fact(f"params_bytes_per_device/tensor/{name}", max(device_bytes(after).values()))


def side_by_side(config: Config, story: script.Story) -> None:
    """LeNet three ways on the same devices: bytes moved at each step, memory per device, time."""
    story.heading("The three kinds of parallelism side by side")
    net, batch = LeNet(rngs=nnx.Rngs(config.seed)), some_images(config.batch_size, config.seed)
    rows = [data_parallel(net, batch, config, story), pipeline_parallel(net, batch, config, story)]
    rows.append(tensor_parallel(net, batch, config, story))
    story.measured(*rows, base=rows[0].name)


OPTIONS: dict[str, Any] = {"min_values": 5, "max_values": 50, "budget_s": 1.5}


def keep_costs(story: script.Story, name: str, *, moved: int, held: dict[jax.Device, int]) -> None:
    """Bytes moved per step and bytes of parameters on the fullest device, as facts."""
    story.fact(f"moved_bytes/{name}", moved, unit="bytes")
    story.fact(f"params_bytes_per_device/{name}", max(held.values()), unit="bytes")


def data_parallel(net: LeNet, batch: Batch, config: Config, story: script.Story) -> Measurement:
    """Every device has all parameters and a share of the batch; gradients are summed."""
    step = make_step("shard_map", model_of(net), optax.sgd(config.lr), first_devices())
    state, shares = step.init(), step.load(*batch)
    held = device_bytes(state.params)
    moved = sum(collective_bytes(step.compile(state, shares)[0]).values())
    keep_costs(story, "data", moved=moved, held=held)

    def run() -> Any:
        nonlocal state  # the step uses its state up
        state, metrics = step.run(state, shares)
        return metrics, state.params

    return measure(run, name="data", items=len(batch[1]), **OPTIONS)


def pipeline_parallel(net: LeNet, batch: Batch, config: Config, story: script.Story) -> Measurement:
    """Convolutions on one device, dense layers on the other; activations cross."""
    step = pipelined(net, first_devices(), config, max(config.micro_batches))
    states = step.init()
    keep_costs(
        story, "pipeline", moved=step.crossing_bytes(batch[0]), held=device_bytes([s.params for s in states])
    )
    return measure(step, states, *batch, name="pipeline", items=len(batch[1]), **OPTIONS)


def tensor_parallel(net: LeNet, batch: Batch, config: Config, story: script.Story) -> Measurement:
    """Every device has a slice of every layer and the whole batch; partial results are summed."""
    params, mesh = split_lenet(net, first_devices())
    step = sgd_step(lenet_by_hand(mesh), softmax_cross_entropy, config.lr)
    spread = replicate(batch, mesh)
    moved = sum(collective_bytes(step.lower(params, *spread).compile().as_text()).values())
    keep_costs(story, "tensor", moved=moved, held=device_bytes(params))
    return measure(step, params, *spread, name="tensor", items=len(batch[1]), **OPTIONS)


def main(config: Config, story: script.Story) -> None:
    """The ways to split a model, each against one device."""
    if story.flags.devices < 2:
        raise JaxperfError(f"--devices {story.flags.devices} leaves nothing to split; use 2 or more")
    layers_apart(config, story)
    pipeline(config, story)
    layer_over_devices(config, story)
    side_by_side(config, story)


if __name__ == "__main__":
    script.run(main, FLAGS)
