"""8.5 Many devices concisely: what does ResNet-18 gain from more devices, and do all ways to use them agree?

Idea: parameters are copied to all devices by one call, and the step of section 8.4 is one compiled program.
There are four ways to get it: by hand, `pmap`, `shard_map`, and `jit` with a sharded batch.
Prediction: all four compute the same; one step sums once; ResNet-18 computes more per byte that it sums than
LeNet, so it gains more from a second device.

    python experiments/multiple_gpus_concise.py
    python experiments/multiple_gpus_concise.py --full
    python experiments/multiple_gpus_concise.py --recipe fast
    jaxperf launch -n 2 -- python experiments/multiple_gpus_concise.py --way jit
"""

from __future__ import annotations

if __name__ == "__main__":
    from jaxperf.exits import end_at_once

    end_at_once()  # while all else is imported, Ctrl-C is no traceback

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from jaxperf import script
from jaxperf.flags import at_least, between, more_than


@dataclass(frozen=True)
class Config:
    """Flags of this section."""

    full: bool = False  # the book's recipe: all images, batch 256, rate 0.1, 4 epochs; the default on a GPU
    epochs: Annotated[int, at_least(1)] = 2  # passes over the training images
    batch_size: Annotated[int, at_least(1)] = 32  # images of one update on one device; twice that on several
    lr: Annotated[float, more_than(0)] = 0.05  # learning rate on one device; twice that on several
    momentum: Annotated[float, between(0, 0.999)] = 0.0  # of gradient descent; the book has none
    schedule: Literal["constant", "cosine"] = "constant"  # how the rate goes over the updates
    init: Literal["he", "book"] = "he"  # He's initialization, which suits relu, or the book's normal 0.01
    way: Literal["manual", "pmap", "shard_map", "jit"] = "pmap"  # how the devices are driven
    batch_norm: Literal["share", "whole"] = (
        "share"  # what BatchNorm sees: a device's share, or the whole batch
    )
    dtype: Literal["float32", "bfloat16"] = "float32"  # to compute in; parameters stay float32
    data_on: Literal["auto", "host", "devices"] = "auto"  # where images lie; auto: on the host for CPUs only
    small: bool = False  # a ResNet of two narrow stages in place of ResNet-18 and of the exercises' network
    train_images: Annotated[int, at_least(0)] = 768  # the same in every epoch; 0 for all
    test_images: Annotated[int, at_least(0)] = 512  # 0 for all
    recipe: Literal["book", "fast"] = "book"  # of 8.5.2; fast: how many seconds to a test accuracy of .93?
    fast_epochs: Annotated[int, at_least(1)] = 6  # of each training by the fast recipe
    fast_batch: Annotated[int, at_least(1)] = 512  # images of one of its updates, on all devices together
    fast_lr: Annotated[float, more_than(0)] = 0.4  # its largest learning rate
    fast_images: Annotated[int, at_least(0)] = 0  # that it trains and tests on; 0 for all
    fast_seeds: Annotated[tuple[int, ...], at_least(0)] = (0, 1, 2, 3, 4)  # a training each
    grid_epochs: Annotated[int, at_least(1)] = 3  # of each training in the exercise on epochs, batch and rate
    grid_width: Annotated[int, at_least(1)] = 16  # channels of the first stage in the exercises
    seed: Annotated[int, at_least(0)] = 0  # of weights and of the order of images
    rounds: Annotated[int, at_least(1)] = 9  # rounds of each comparison
    data: Annotated[script.Data, tyro.conf.OmitArgPrefixes] = script.Data()
    saving: Annotated[script.Saving, tyro.conf.OmitArgPrefixes] = script.Saving()

    @staticmethod
    def smoke() -> Config:
        """Every part, in seconds."""
        return Config(
            epochs=1, batch_size=8, small=True, train_images=64, test_images=16, rounds=6,
            fast_epochs=1, fast_batch=16, fast_images=64, fast_seeds=(0, 1),
            data=script.Data(data_source="mini"),
        )  # fmt: skip


FLAGS = script.parse(Config, devices=2) if __name__ == "__main__" else None  # before JAX starts

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from jaxperf.chapter.autotuning import autotuning
from jaxperf.chapter.book import RESNET
from jaxperf.chapter.communication import compare_traffic, traffic_of
from jaxperf.chapter.equality import lenet_step, resnet_equal_to_one_device
from jaxperf.chapter.fast_recipe import Recipe, fast_recipe
from jaxperf.chapter.mixed_precision import mixed_precision
from jaxperf.chapter.rate_and_batch import grid_of_trainings
from jaxperf.chapter.replicas import copy_on, reading_copies, to_all
from jaxperf.chapter.scaling import LOT, scaling
from jaxperf.chapter.training import curves, images, judge_learning, plural, table_of_epochs
from jaxperf.chapter.unequal_devices import unequal_devices
from jaxperf.chapter.ways_together import ways_together
from jaxperf.data import FashionMNIST
from jaxperf.errors import JaxperfError
from jaxperf.models import BOOK_INIT, HE_INIT, SMALL_STAGES, ResNet, resnet18
from jaxperf.parallel import Model, Step, check_divisible, first_devices, make_step, model_of, split_and_load
from jaxperf.train import Epoch, train

RECIPE: dict[str, Any] = {
    "epochs": 4, "batch_size": 256, "lr": 0.1, "init": "book", "train_images": 0, "test_images": 0,
}  # fmt: skip
MOST = 4096  # images in a batch of the exercise; with half of 60,000 every layer would hold 1.5 GB


@functools.cache
def network(config: Config, init: str, width: int = 64) -> ResNet:
    """ResNet-18, or a narrower one; made once, since drawing 11 million values takes seconds."""
    stages = SMALL_STAGES if config.small else tuple((width * 2**i, 2) for i in range(4))
    dtype = jnp.bfloat16 if config.dtype == "bfloat16" else None
    kernel_init = BOOK_INIT if init == "book" else HE_INIT
    return ResNet(10, stages=stages, kernel_init=kernel_init, dtype=dtype, rngs=nnx.Rngs(config.seed))


@functools.cache
def training_step(
    config: Config, devices: tuple[jax.Device, ...], lr: float, updates: int, width: int
) -> Step:
    """ResNet-18 with gradient descent on some devices; with `updates`, the rate follows a cosine to 0."""
    rate = optax.cosine_decay_schedule(lr, updates) if updates else lr
    optimizer = optax.sgd(rate, momentum=config.momentum or None)
    model = model_of(network(config, config.init, width))
    return make_step(config.way, model, optimizer, devices, batch_norm=config.batch_norm)


def step_for(
    config: Config,
    devices: Sequence[jax.Device],
    *,
    updates: int = 1,
    lr: float | None = None,
    width: int = 64,
) -> Step:
    """The flags' step, at k times their rate on k devices unless `lr` is given; equal steps compile once."""
    rate = lr or len(devices) * config.lr
    return training_step(config, tuple(devices), rate, updates if config.schedule == "cosine" else 0, width)


def what_trains(config: Config) -> dict[str, Any]:
    """The flags on which the parameters depend, besides the rate and the data."""
    names = ("momentum", "schedule", "init", "batch_norm", "dtype")
    over = {"epochs": config.epochs} if config.schedule == "cosine" else {}
    return {name: getattr(config, name) for name in names} | over


def on_all_devices(story: script.Story, config: Config) -> None:
    """Section 8.5.1: parameters on all devices, a share of a batch through each, each copy read."""
    story.heading("8.5.1 Initializing parameters on all devices")
    story.text(
        """In Gluon `initialize` takes a list of devices. In JAX one array can be on several devices: its
        sharding says which of them hold a part, or, as here, a whole copy. ResNet-18 is the book's, with a
        small first kernel and without max pooling, since the images are small."""
    )
    story.habit(
        gluon="net.initialize(init=init.Normal(sigma=0.01), ctx=ctx)\nweight.data(ctx[0])",
        jax='mesh = Mesh(devices, ("devices",))\nstate = jax.device_put(state, NamedSharding(mesh, P()))\n'
        "copy_on(weight, devices[0])",
    )
    story.code(resnet18, to_all, copy_on)
    devices = first_devices(story.devices)
    x = jax.random.uniform(jax.random.key(config.seed), (2 * len(devices), 28, 28, 1))
    largest = {}
    for init in ("book", "he"):
        net = network(config, init)
        net.eval()  # as in the book: BatchNorm uses its running statistics, which are fresh
        graphdef, state = nnx.split(net)
        forward = jax.jit(lambda own, x, graphdef=graphdef: nnx.merge(graphdef, own)(x))
        copies = to_all(state, devices)
        own = {d: jax.tree.map(lambda a, d=d: copy_on(a, d), copies) for d in devices}
        outputs = [forward(own[d], share) for share, d in zip(split_and_load(x, devices), devices)]
        largest[init] = max(float(jnp.abs(out).max()) for out in outputs)
        for out, device in zip(outputs, devices):
            story.say(f"first output on {device}: {np.asarray(out[0, :4])}, init {init}", detail=init == "he")
    story.text(
        """With the book's initialization, normal with standard deviation 0.01, the outputs are tiny: each
        layer shrinks what it is given, and fresh running statistics, mean 0 and variance 1, do not scale it
        back. He's keeps the size, so its outputs are around 10. This section trains with He's."""
    )
    story.claim(
        book="The outputs of the fresh network are of the order of 1e-6",
        holds=1e-7 < largest["book"] < 1e-4 if not config.small else None,
        predicted="between 1e-7 and 1e-4; with He's initialization more than 1",
        right=1e-7 < largest["book"] < 1e-4 and largest["he"] > 1 if not config.small else None,
        observed=f"at most {largest['book']:.1e}, and {largest['he']:.1e} with He's",
    )
    params = jax.tree.leaves(nnx.state(network(config, "he"), nnx.Param))
    story.fact("param_count", sum(a.size for a in params), words="trained values")
    story.fact("value_count", sum(a.size for a in jax.tree.leaves(state)), words="values, with statistics")
    reading_copies(story, copies["conv"]["kernel"][...], devices)


def training(story: script.Story, config: Config, data: FashionMNIST) -> None:
    """Section 8.5.2: one device, then all with as many times the batch and the rate."""
    story.heading("8.5.2 Training on one device and on several")
    story.text(
        """Gluon's `Trainer` sums the gradients over devices by itself. Here `make_step` gives a step as one
        compiled program, and the same training loop runs it on any number of devices. On k devices the batch
        and the rate are k times as large, so that every device has as much to do as before."""
    )
    story.habit(
        gluon='trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": lr})\n'
        "for l in losses:\n    l.backward()\ntrainer.step(batch_size)",
        jax='step = make_step("pmap", model_of(net), optax.sgd(lr), devices)\n'
        "state = step.init()\nstate, metrics = step(state, X, y)",
        remark='The way "jit" is `jax.jit` with shardings, which is what pjit became.',
    )
    story.code(training_step, train)
    runs: dict[str, list[Epoch]] = {}
    with config.saving.folder() as folder:
        for k in story.device_counts:
            batch_size, lr = k * config.batch_size, k * config.lr
            updates = len(data.train_labels) // batch_size
            step = step_for(config, first_devices(k), updates=config.epochs * updates)
            epochs = train(
                step, data, epochs=config.epochs, batch_size=batch_size, seed=config.seed, updates=updates,
                progress=story.progress, data_on=config.data_on,
                checkpoints=folder.of(plural(k), lr=lr, **what_trains(config)) if folder else None,
            )  # fmt: skip
            title = f"{plural(k)}: batch {batch_size}, rate {lr:g}, {updates} updates per epoch"
            runs[plural(k)] = [
                e for e, _ in table_of_epochs(story, epochs, title=title, printed=RESNET.get(k))
            ]
            rate = float(np.median([e.images_per_s for e in runs[plural(k)]]))
            story.fact(f"images_per_s_{k}", rate, unit="images/s", words=f"training on {plural(k)}")
            story.fact(
                f"compile_s_{k}", runs[plural(k)][0].compile_s, unit="s", words=f"compiling for {plural(k)}"
            )
    story.note(f"{config.way}, BatchNorm over the {config.batch_norm}, {config.dtype}, init {config.init}")
    printed = {k: RESNET[k] for k in (1, story.devices) if k in RESNET}
    curves(story, runs, printed=printed)
    recipe = config.full and data.is_full
    judge_learning(
        story, "ResNet-18", runs, tested=len(data.test_labels),
        printed={plural(k): t for k, t in printed.items()},
        missing="" if recipe else "only the full data and --full are the book's recipe",
    )  # fmt: skip
    story.peers("8.5 ResNet-18, 1 device")
    story.peers("8.5 ResNet-18, 2 devices")


def training_fast(story: script.Story, config: Config) -> None:
    """Section 8.5.2 with --recipe fast: a training on all devices for each seed."""
    data = images(story, config.data, train=config.fast_images, test=config.fast_images)

    def draw(seed: int) -> Model:
        return model_of(network(dataclasses.replace(config, seed=seed), config.init))

    def make(optimizer: optax.GradientTransformation) -> Step:
        devices, model = first_devices(story.devices), draw(config.fast_seeds[0])
        return make_step(config.way, model, optimizer, devices, batch_norm=config.batch_norm)

    recipe = Recipe(config.fast_epochs, config.fast_batch, config.fast_lr)
    with config.saving.folder() as folder:
        fast_recipe(
            story, make, draw, data, recipe,
            seeds=config.fast_seeds, data_on=config.data_on, folder=folder, **what_trains(config),
        )  # fmt: skip


def gain_of_devices(story: script.Story, config: Config, data: FashionMNIST) -> None:
    """The section's sentence: ResNet-18 gains a lot from a second device, since it computes more per byte."""

    def make(devices: Sequence[jax.Device], n: int) -> Callable[[], Any]:
        step = step_for(config, devices)
        shares, state = step.load(data.train_images[:n], data.train_labels[:n]), step.init()

        def run() -> Any:
            nonlocal state  # the step uses its state up
            state, metrics = step.run(state, shares)
            return state, metrics

        return run

    n = config.batch_size
    sizes = (max(n // 4 // story.devices, 1) * story.devices, n)
    # A step takes seconds, in which a host pauses often: of 9 rounds the interval of 0.98 began at 0.73
    often = 5 * config.rounds // 3
    scaling(story, make, network="ResNet-18", sizes=sizes, at=n, book=LOT, rounds=often)


def bytes_per_operation(story: script.Story, config: Config) -> None:
    """The same sentence without a clock: what LeNet and ResNet-18 sum for what they compute."""
    devices = first_devices(story.devices)
    lenet = traffic_of("LeNet", lenet_step("pmap", devices), 256 // story.devices * story.devices)
    step = step_for(dataclasses.replace(config, way="pmap"), devices)
    n = len(devices) * config.batch_size
    compare_traffic(story, lenet, traffic_of("ResNet-18", step, n), batches=(256, 512), also=(n,))


def compiling(story: script.Story, config: Config) -> None:
    """What trying kernels adds to compiling the step; for a batch of another size none was tried before."""
    step = step_for(dataclasses.replace(config, way="jit"), first_devices(1))
    autotuning(story, step, batch=config.batch_size + 1)


def rate_and_epochs(story: script.Story, config: Config, data: FashionMNIST) -> None:
    """The first exercise: other rates, batches and numbers of epochs, on a narrower network."""
    story.heading("Exercise: epochs, batch size and learning rate")
    story.text(
        f"""Try other epochs, batches and rates. So that several trainings fit in seconds, the network here
        has {config.grid_width} channels in its first stage instead of 64. A large batch makes few updates of
        little data, whatever its rate."""
    )
    n, lr, epochs = config.batch_size, config.lr, config.grid_epochs

    def train_with(batch_size: int, lr: float) -> list[Epoch]:
        updates = len(data.train_labels) // batch_size
        step = step_for(config, first_devices(1), lr=lr, updates=epochs * updates, width=config.grid_width)
        found = train(step, data, epochs=epochs, batch_size=batch_size, seed=config.seed, updates=updates)
        return [epoch for epoch, _ in found]

    large = min(len(data.train_labels) // 2, MOST)
    last = grid_of_trainings(
        story, train_with, [(n, lr), (n, 4 * lr), (large, 4 * lr)],
        readers=["A retelling warns: with little data a batch of 512 is too large; the curve is unsteady."],
    )  # fmt: skip
    small, best = last[n, lr].loss, last[large, 4 * lr].loss
    story.claim(
        ours="With little data a large batch learns less, even at four times the rate",
        holds=best > small,
        predicted=f"a larger loss after epoch {epochs} with batch {large} than with batch {n}",
        right=best > small,
        observed=f"loss {best:.3f} with batch {large}, {small:.3f} with batch {n}",
    )


def sized(story: script.Story, config: Config) -> Config:
    """The book's recipe with --full, and where it takes a minute: on no CPU, unless a size was chosen."""
    changed = any(getattr(config, name) != getattr(Config, name) for name in (*RECIPE, "small"))
    by_itself = story.environment.backend != "cpu" and not (changed or script.chosen(*RECIPE))
    if not (config.full or by_itself):
        return config
    if not config.full:
        story.say("sizes: the book's, as with --full, since no CPU trains; --epochs 2 keeps the small ones")
    story.config = {**story.config, "full": True}
    return dataclasses.replace(config, full=True, **RECIPE)


def check_holds_a_batch(count: int, batch: int, *, name: str) -> None:
    """Raise a JaxperfError if so many images, which the flag `name` gives, are fewer than a batch."""
    if count < batch:
        raise JaxperfError(f"{name} {count} holds no batch of {batch}; give more, or 0 for all")


def main(config: Config, story: script.Story) -> None:
    """Section 8.5 in the book's order."""
    config = sized(story, config)
    check_divisible(config.batch_size, story.devices, name="--batch-size")
    if config.recipe == "fast":
        check_divisible(config.fast_batch, story.devices, name="--fast-batch")
        if config.fast_images:
            check_holds_a_batch(config.fast_images, config.fast_batch, name="--fast-images")
    config.saving.check()
    data = images(story, config.data, train=config.train_images, test=config.test_images)
    check_holds_a_batch(len(data.train_labels), story.devices * config.batch_size, name="--train-images")
    story.part_of_one_process(on_all_devices, config)
    if config.recipe == "fast":
        story.part(training_fast, config)
    else:
        story.part(training, config, data)
    story.part(resnet_equal_to_one_device, data, seed=config.seed)
    story.part_of_one_process(gain_of_devices, config, data)
    if story.processes > 1:
        story.part(ways_together, data, batch_size=8 * story.devices, rounds=config.rounds)
    story.part_of_one_process(bytes_per_operation, config)
    story.part_of_one_process(mixed_precision, data, seed=config.seed)
    story.part_of_one_process(compiling, config)
    story.part_of_one_process(rate_and_epochs, config, data)
    story.part_of_one_process(
        unequal_devices,
        data.train_images[:256],
        data.train_labels[:256],
        rounds=config.rounds,
        seed=config.seed,
    )


if __name__ == "__main__":
    script.run(main, FLAGS)
