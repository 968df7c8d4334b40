"""8.5 Many devices concisely: ResNet-18 trained by one function, whichever way the devices are driven.

The book lets `gluon.Trainer` do what section 8.4 did by hand. Here one `train` takes a step made in one of
four ways: by hand, `pmap`, `shard_map`, or `jit` over a sharded batch; BatchNorm normalises each device's
share, as Gluon does, or the whole batch.

Prediction: with BatchNorm over the whole batch the result does not depend on the number of devices; over
shares it does, and equals one device that normalises each share by itself. ResNet-18 computes so much more
than it sends that two real devices nearly halve an epoch (the book: 13.0 to 6.7 s).

    python experiments/multiple_gpus_concise.py --json results/multiple_gpus_concise.json
    python experiments/multiple_gpus_concise.py --batch-size 512 --lr 0.2 --train-images 0 --epochs 4
    python experiments/multiple_gpus_concise.py --devices 1 --init book --dtype bfloat16 --way jit

On 2 cores of an AMD EPYC, Python 3.11.7, JAX 0.10.2, as it stands, two devices:

epoch 3, time 6.6 sec, loss 0.6762, train acc 0.76, test acc 0.73, 78.0 images/s

and with `--devices 1 --batch-size 64 --train-images 6000 --test-images 1000 --way jit --epochs 4` (the result
is benchmarks/results/2026-11-21-resnet18-one-device-6000-images.json; other programs took a part of the
cores in the first three epochs):

epoch 1, time 134.4 sec, loss 1.3194, train acc 0.67, test acc 0.79, 44.3 images/s
epoch 2, time 141.3 sec, loss 0.4330, train acc 0.85, test acc 0.76, 42.1 images/s
epoch 3, time 136.7 sec, loss 0.2694, train acc 0.91, test acc 0.87, 43.5 images/s
epoch 4, time 97.8 sec, loss 0.1499, train acc 0.95, test acc 0.81, 60.9 images/s
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from jaxperf import script
from jaxperf.errors import JaxperfError


@dataclass(frozen=True)
class Config:
    """Flags of this section."""

    epochs: int = 3
    """Passes over the training images; the book makes 4."""
    batch_size: int = 32
    """Images of one update, on all devices together; the book's are 256 on one device and 512 on two."""
    lr: float = 0.05
    """Learning rate; the book's are 0.1 on one device and 0.2 on two."""
    momentum: float = 0.0
    """Of gradient descent; the book has none."""
    schedule: Literal["constant", "cosine"] = "constant"
    """How the rate goes over the updates."""
    init: Literal["he", "book"] = "he"
    """He's initialisation, which suits relu, or the book's normal 0.01."""
    way: Literal["manual", "pmap", "shard_map", "jit"] = "pmap"
    """How the devices are driven."""
    batch_norm: Literal["share", "whole"] = "share"
    """Whether BatchNorm sees a device's share, as in the book, or the whole batch."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """What to compute in; parameters and statistics stay float32."""
    train_images: int = 512
    """How many training images, the same in every epoch; 0 for all."""
    test_images: int = 256
    """How many test images; 0 for all."""
    seed: int = 0
    """Seed of weights and of the order of images."""
    data_source: Literal["auto", "folder", "tfds", "download", "mini"] = "auto"
    """Where Fashion-MNIST comes from; auto takes the first that works."""
    data_folder: Path | None = None
    """Folder of the four IDX files."""
    picture: Path | None = None
    """Draw the curves into this file (.svg, .png)."""
    rounds: int = 5
    """Rounds of each timing."""

    def __post_init__(self) -> None:
        for flag, value in (
            ("epochs", self.epochs),
            ("rounds", self.rounds),
            ("batch-size", self.batch_size),
        ):
            if value < 1:
                raise JaxperfError(f"--{flag} is {value}; give at least 1")
        if not self.lr > 0 or not 0 <= self.momentum < 1:
            raise JaxperfError(
                f"--lr {self.lr:g} must be positive and --momentum {self.momentum:g} in [0, 1)"
            )
        if 0 < self.train_images < self.batch_size or min(self.train_images, self.test_images) < 0:
            raise JaxperfError(
                f"--train-images {self.train_images} holds no batch of {self.batch_size}; "
                "give more, or 0 for all"
            )

    @staticmethod
    def smoke() -> Config:
        """Every part, in seconds."""
        return Config(epochs=1, batch_size=8, train_images=16, test_images=16, rounds=1, data_source="mini")


FLAGS = script.parse(Config, devices=2) if __name__ == "__main__" else None  # before JAX starts

import dataclasses
import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxperf.chapter.equality import after_updates, against_one_device, collectives_of, distance
from jaxperf.chapter.scaling import scaling
from jaxperf.chapter.unequal_devices import unequal_devices
from jaxperf.data import fashion_mnist
from jaxperf.data.fashion_mnist import FashionMNIST
from jaxperf.measure import Reference, Series
from jaxperf.models import BOOK_INIT, HE_INIT, ResNet, resnet18
from jaxperf.parallel import (
    WAYS,
    BatchNorm,
    Model,
    Step,
    Way,
    first_devices,
    make_step,
    model_of,
    split_and_load,
)
from jaxperf.train import Animator, train

BOOK_S = {1: 13.0, 2: 6.7}  # an epoch, MXNet


@functools.cache
def book_net(config: Config) -> ResNet:
    """ResNet-18 as the flags describe it; made once, since drawing 11 million values takes seconds."""
    kernel_init = BOOK_INIT if config.init == "book" else HE_INIT
    dtype = jnp.bfloat16 if config.dtype == "bfloat16" else None
    return resnet18(10, kernel_init=kernel_init, dtype=dtype, rngs=nnx.Rngs(config.seed))


def resnet_step(config: Config, devices: Sequence[jax.Device], *, updates: int) -> Step:
    """ResNet-18 with the optimiser that the flags describe, on `devices`."""
    rate = optax.cosine_decay_schedule(config.lr, updates) if config.schedule == "cosine" else config.lr
    optimizer = optax.sgd(rate, momentum=config.momentum or None)
    model = model_of(book_net(config))
    return make_step(config.way, model, optimizer, devices, batch_norm=config.batch_norm)


def on_every_device(config: Config, story: script.Story) -> None:
    """Section 8.5.1: parameters on all devices, each copy read, shares of a batch through the network."""
    story.heading("8.5.1 Initialising parameters on all devices")
    devices = first_devices()
    net = book_net(config)
    graphdef, state = nnx.split(net)
    forward = jax.jit(lambda own, x: nnx.merge(graphdef, own)(x))
    count = sum(a.size for a in jax.tree.leaves(nnx.state(net, nnx.Param)))
    values = sum(a.size for a in jax.tree.leaves(nnx.state(net, (nnx.Param, nnx.BatchStat))))
    story.fact("param_count", count)
    story.fact("value_count", values)

    copies = jax.device_put(state, NamedSharding(Mesh(np.array(devices), ("devices",)), P()))
    x = jax.random.uniform(jax.random.key(config.seed), (2 * len(devices), 28, 28, 1))
    kernels = copies_of(copies["conv"]["kernel"][...])
    outputs = []
    for share, device in zip(split_and_load(x, devices), devices):
        own = jax.tree.map(lambda a, d=device: copies_of(a)[d], copies)
        outputs.append(forward(own, share))
        story.say(f"{outputs[-1]} on {device}")
    for device in devices:
        story.say(f"the first filter on {device}: {np.asarray(kernels[device])[..., 0, 0].ravel()}")
    story.say(read_from(copies["conv"]["kernel"][...], elsewhere(devices)))
    first = np.asarray(kernels[devices[0]])
    story.claim(
        "The same parameter has the same values on every device",
        predicted=f"{len(devices)} equal copies; 11,175,818 trained values, 11,183,626 in all",
        observed=f"{len(kernels)} copies; {count:,} and {values:,}",
        held=all((np.asarray(k) == first).all() for k in kernels.values())
        and (count, values) == (11_175_818, 11_183_626),
    )


def copies_of(array: jax.Array) -> dict[jax.Device, jax.Array]:
    """The copy of `array` on each device that has one."""
    return {shard.device: shard.data for shard in array.addressable_shards}


def elsewhere(devices: Sequence[jax.Device]) -> jax.Device | None:
    """A device that holds no copy, if this machine has one more."""
    others = [d for d in [*jax.devices(), *jax.devices("cpu")] if d not in devices]
    return others[0] if others else None


def read_from(array: jax.Array, device: jax.Device | None) -> str:
    """What the book's try-and-except prints: a copy is read from where one is, and from nowhere else."""
    if device is None:
        return "every device of this process holds a copy; with one more, reading there says: not initialized"
    copy = copies_of(array).get(device)
    return f"not initialized on {device}" if copy is None else f"{copy.ravel()[:3]} on {device}"


def load(config: Config, story: script.Story) -> FashionMNIST:
    """Fashion-MNIST, cut to the images asked for, with a word on where it came from."""
    data = fashion_mnist(source=config.data_source, folder=config.data_folder)
    story.data_source(data.source)
    for reason in data.skipped if not data.is_full else ():
        story.say(f"passed over: {reason}")
    train_images = config.train_images or len(data.train_images)
    test_images = config.test_images or len(data.test_images)
    story.say(f"data: {data.source}, {train_images:,} + {test_images:,} images of it")
    return dataclasses.replace(
        data,
        train_images=data.train_images[:train_images], train_labels=data.train_labels[:train_images],
        test_images=data.test_images[:test_images], test_labels=data.test_labels[:test_images],
    )  # fmt: skip


def training(config: Config, story: script.Story, data: FashionMNIST) -> None:
    """Section 8.5.2: the same function for every way; the book's line an epoch."""
    k = story.flags.devices
    name = f"{k} device{'s' * (k > 1)}"
    story.heading(f"8.5.2 Training ResNet-18 on {name}")
    updates = len(data.train_images) // config.batch_size
    story.say(
        f"{config.way}, BatchNorm over the {config.batch_norm}, {config.dtype}, init {config.init}, "
        f"batch {config.batch_size}, rate {config.lr:g}; {updates} updates an epoch"
    )
    step = resnet_step(config, first_devices(k), updates=config.epochs * updates)
    epochs = []
    with Animator("epoch", ["loss", "train acc", "test acc"]) as animator:
        for epoch, _ in train(
            step, data, epochs=config.epochs, batch_size=config.batch_size, seed=config.seed,
            updates=updates, progress=story.progress,
        ):  # fmt: skip
            if epoch.compile_s:
                story.say(f"compiled in {epoch.compile_s:.1f} s, counted apart")
            waited = epoch.data_s / epoch.train_s
            story.say(
                f"{epoch.line()}, {epoch.images_per_s:.1f} images/s, {waited:.1%} of it waiting for data"
            )
            animator.add(epoch.number, (epoch.loss, epoch.train_accuracy, epoch.test_accuracy))
            epochs.append(epoch)
    if config.picture:
        animator.save(config.picture)
    x = tuple(float(e.number) for e in epochs)
    story.curve(Series(f"accuracy/{name}", x, tuple(e.test_accuracy for e in epochs), "epoch", "accuracy"))
    story.curve(Series(f"loss/{name}", x, tuple(e.loss for e in epochs), "epoch", "nats"))
    story.fact("images_per_s", float(np.median([e.images_per_s for e in epochs])))
    story.fact("compile_s", epochs[0].compile_s, unit="s")
    story.fact("test_accuracy", epochs[-1].test_accuracy)
    story.references += [
        Reference(f"an epoch on {k} GPU", s, "s", "MXNet, the book", "section 8.5.2")
        for k, s in BOOK_S.items()
    ]
    whole = data.is_full and config.batch_size in (256, 512) and config.epochs >= 4
    story.claim(
        "Test accuracy after four epochs (the book: .92 and .93 on one GPU, .90 and .76 on two)",
        predicted="between .75 and .95 on the full data",
        observed=f"{epochs[-1].test_accuracy:.2f} after {config.epochs} epoch(s) of "
        f"{len(data.train_images):,} images",
        held=0.75 <= epochs[-1].test_accuracy <= 0.95 if whole else None,
    )


def small_resnet(seed: int = 0) -> Model:
    """Two stages of one block: every kind of layer of ResNet-18, in milliseconds."""
    return model_of(ResNet(10, stages=((8, 1), (16, 1)), rngs=nnx.Rngs(seed)))


def equal_to_one_device(config: Config, story: script.Story, data: FashionMNIST) -> None:
    """Each way on 1, 2, 4, ... devices against one, on a small ResNet, for both kinds of BatchNorm."""
    story.heading("Equal to one device, each way")
    k = story.flags.devices
    n = 4 * k
    X, y = data.train_images[: 2 * n], data.train_labels[: 2 * n]
    batches = list(zip(np.split(X, 2), np.split(y, 2)))[: 2 if len(X) == 2 * n else 1]
    model, sgd = small_resnet(config.seed), optax.sgd(0.1)

    def make(batch_norm: BatchNorm, way: Way, devices: Sequence[jax.Device]) -> Step:
        return make_step(way, model, sgd, devices, batch_norm=batch_norm)

    worst = against_one_device(story, functools.partial(make, "whole"), batches, devices=k, ways=WAYS[1:])
    by_hand = after_updates(make("share", "manual", first_devices(k)), batches)
    for way in WAYS:
        found = distance(after_updates(make("share", way, first_devices(k)), batches), by_hand)
        story.fact(f"max_param_diff_vs_shares_by_hand/{way}/{k}", found)
        worst = max(worst, found)
    story.claim(
        "Every way computes the same, with BatchNorm over the whole batch the same as one device",
        predicted=f"parameters and statistics after {len(batches)} updates equal up to rounding, below 1e-5",
        observed=f"largest difference {worst:.1e}",
        held=worst <= 1e-5,
    )
    collectives_of(story, make("share", "pmap", first_devices(k)), batches[0])


def mixed_precision(config: Config, story: script.Story, data: FashionMNIST) -> None:
    """bfloat16 where it computes, float32 where it remembers."""
    story.heading("Mixed precision")
    X, y = data.train_images[:8], data.train_labels[:8]
    losses, kinds = {}, set()
    for name, dtype in (("float32", None), ("bfloat16", jnp.bfloat16)):
        net = ResNet(10, stages=((8, 1), (16, 1)), dtype=dtype, rngs=nnx.Rngs(config.seed))
        step = make_step("jit", model_of(net), optax.sgd(0.1), first_devices(1))
        state, metrics = step(step.init(), X, y)
        losses[name] = float(metrics["loss"])
        kinds |= {str(a.dtype) for a in jax.tree.leaves((state.params, state.stats))}
    story.fact("bfloat16_loss_difference", abs(losses["bfloat16"] - losses["float32"]))
    story.say(
        f"loss {losses['float32']:.4f} in float32, {losses['bfloat16']:.4f} in bfloat16; kept as {kinds}"
    )


def main(config: Config, story: script.Story) -> None:
    """Section 8.5 in the book's order."""
    k = story.flags.devices
    if config.batch_size % k:
        low = config.batch_size // k * k
        fits = f"{low} or {low + k}" if low else f"{k}"
        raise JaxperfError(f"--batch-size {config.batch_size} is not divisible by {k} devices; use {fits}")
    on_every_device(config, story)
    data = load(config, story)
    training(config, story, data)
    equal_to_one_device(config, story, data)
    mixed_precision(config, story, data)
    count = config.batch_size
    scaling(
        story,
        lambda devices: resnet_step(config, devices, updates=1),
        data.train_images[:count],
        data.train_labels[:count],
        rounds=config.rounds,
    )
    unequal_devices(
        story, data.train_images[:256], data.train_labels[:256], rounds=config.rounds, seed=config.seed
    )


if __name__ == "__main__":
    script.run(main, FLAGS)
