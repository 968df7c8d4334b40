"""Many devices by hand: how does one minibatch train on several devices, and what does LeNet gain from them?

Idea: every device holds all parameters and gets a share of the batch. It computes the gradient of its share, the
gradients are summed, and every device makes the same update: by hand first, then with `jax.pmap` and `lax.psum`.
Prediction: the parameters after an update do not depend on the number of devices, up to rounding; LeNet learns
as in the book; it is so small that what cannot be divided costs about what the second device saves.

    python experiments/multiple_gpus.py
    python experiments/multiple_gpus.py --seeds 0 1 2 --grid-epochs 4
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import tyro

from jaxperf import script
from jaxperf.flags import at_least, more_than


@dataclass(frozen=True)
class Config:
    """Flags of this section."""

    epochs: Annotated[int, at_least(1)] = 4  # passes over the training images
    batch_size: Annotated[int, at_least(1)] = 256  # images of one update, on all devices together
    lr: Annotated[float, more_than(0)] = 0.2  # learning rate
    scale: Annotated[float, more_than(0)] = 0.01  # standard deviation of the initial weights
    seeds: Annotated[tuple[int, ...], at_least(0)] = (0,)  # of weights and order of images; a training each
    updates: Annotated[int, at_least(0)] = 0  # updates of an epoch; 0 for as many as the full data set has
    grid_epochs: Annotated[int, at_least(0)] = 0  # of each training of the grid; 0: a part of one more epoch
    rounds: Annotated[int, at_least(1)] = 9  # rounds of each comparison
    data: Annotated[script.Data, tyro.conf.OmitArgPrefixes] = script.Data()

    @staticmethod
    def smoke() -> Config:
        """Every part, in seconds."""
        return Config(epochs=1, batch_size=16, updates=3, rounds=6, data=script.Data(data_source="mini"))


FLAGS = script.parse(Config, devices=2) if __name__ == "__main__" else None  # before JAX starts

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from jaxperf.chapter.book import LENET, book
from jaxperf.chapter.equality import against_one_device, collectives_of, distance, tolerance
from jaxperf.chapter.one_step import timeline_of_a_step, where_time_goes
from jaxperf.chapter.prediction import predicting_on_all_devices
from jaxperf.chapter.rate_and_batch import grid_of_trainings
from jaxperf.chapter.scaling import Sentence, scaling
from jaxperf.chapter.training import curves, images, judge_learning, plural, table_of_epochs
from jaxperf.data import FashionMNIST, epoch_batches, to_float, updates_per_epoch
from jaxperf.data.fashion_mnist import FULL_TRAIN
from jaxperf.measure import block
from jaxperf.models import lenet, lenet_params, sgd
from jaxperf.parallel import (
    Step,
    Way,
    allreduce,
    check_divisible,
    first_devices,
    get_params,
    make_step,
    model_of_function,
    softmax_cross_entropy,
    split_and_load,
    train_batch,
)
from jaxperf.result import Measurement, Reference
from jaxperf.train import Epoch, Evaluator

Devices = Sequence[jax.Device]
TrainStep = Callable[..., tuple[Any, tuple[jax.Array, jax.Array]]]  # step(X, y, state)
Trained = list[tuple[Epoch, Any]]  # each epoch, and the parameters after it


@jax.jit
def gradient(params: list[jax.Array], X: jax.Array, y: jax.Array) -> Any:
    """Sums over one device's share: the gradients, the loss, and how many images are classified right."""

    def loss(params: list[jax.Array]) -> Any:
        logits = lenet(to_float(X), params)
        return softmax_cross_entropy(logits, y).sum(), (logits.argmax(-1) == y).sum()

    (total, hits), grads = jax.value_and_grad(loss, has_aux=True)(params)
    return grads, total, hits


@jax.jit
def update(params: list[jax.Array], sums: Any, n: int, lr: float) -> Any:
    """New parameters, and the batch's mean loss and accuracy; `n` is the full batch's size."""
    grads, loss, hits = sums
    return sgd(params, grads, lr, n), (loss / n, hits / n)


def by_hand(devices: Devices, lr: float) -> TrainStep:
    """The step of section 8.4.4: `step(X, y, device_params)`, a list of parameters for each device."""

    def step(X: Any, y: Any, device_params: list[Any]) -> Any:
        X_shards, y_shards = split_and_load(X, devices), split_and_load(y, devices)
        new = train_batch(
            X_shards, y_shards, device_params, gradient=gradient, update=partial(update, lr=lr)
        )
        return [params for params, _ in new], new[0][1]

    return step


def by_pmap(devices: Devices, lr: float) -> TrainStep:
    """The same step as one program that runs on every device: `step(X, y, params)`."""

    @partial(jax.pmap, axis_name="devices", in_axes=(None, 0, 0), out_axes=None, devices=devices)
    def on_each_device(params: list[jax.Array], X: jax.Array, y: jax.Array) -> Any:
        sums = lax.psum(gradient(params, X, y), "devices")
        return update(params, sums, len(y) * len(devices), lr)

    def step(X: Any, y: Any, params: list[jax.Array]) -> Any:
        return on_each_device(params, *(a.reshape(len(devices), -1, *a.shape[1:]) for a in (X, y)))

    return step


def train(
    step: TrainStep, state: Any, data: FashionMNIST, *, devices: Devices, batch_size: int, updates: int,
    numbers: Sequence[int], seed: int = 0, progress: Any = lambda batches, updates: batches,
) -> Iterator[tuple[Epoch, Any]]:  # fmt: skip
    """Train the epochs called `numbers` (section 8.4.5), giving each when it is over, with the state after it."""
    X, y = data.train_images[:batch_size], data.train_labels[:batch_size]
    began = time.perf_counter()
    block(step(X, y, state))  # compiles; a step changes no array, so its result can be dropped
    compile_s = time.perf_counter() - began
    net = Evaluator(lambda params, X: lenet(to_float(X), params), devices, batch_size=batch_size)
    for number in numbers:
        order = {"batch_size": batch_size, "seed": seed, "epoch": number, "updates": updates}
        batches = epoch_batches(data.train_images, data.train_labels, **order)
        metrics = []
        began = time.perf_counter()
        for X, y in progress(batches, updates):
            state, found = step(X, y, state)
            metrics.append(found)
        block((state, metrics))  # the only time that Python waits
        train_s = time.perf_counter() - began
        params = state[0] if isinstance(state[0], list) else state  # by hand, the first device's
        accuracy = net.accuracy(params, data.test_images, data.test_labels)
        loss, hits = (float(np.mean(means)) for means in zip(*jax.device_get(metrics)))
        images = updates * batch_size
        yield Epoch(number, loss, hits, accuracy, train_s, compile_s, 0.0, images), params
        compile_s = 0.0


def data_parallelism(story: script.Story, config: Config) -> None:
    """Sections 8.4.1 and 8.4.2: the idea, and the network."""
    story.heading("8.4.1 Data parallelism")
    story.text(
        """Each of k devices holds a full copy of the parameters. A minibatch is split into k shares, and each
        device computes the gradient of the loss on its share. The sum of these gradients is the gradient of the
        whole minibatch. It is copied to every device, and each makes the same update, so the copies stay equal.""",
        """On a machine without GPUs the CPU can be split into several devices that share its cores. Such fake
        devices show that a program is right. How long it would take on real ones they do not show.""",
    )
    story.heading("8.4.2 The model")
    story.text("LeNet is a function of images and a list of eight arrays. It runs on the device of its arguments.")
    story.code(lenet, lenet_params)
    count = sum(a.size for a in lenet_params(jax.random.key(config.seeds[0]), scale=config.scale))
    story.fact("param_count", count, words="parameters of LeNet")


def synchronizing_data(story: script.Story) -> None:
    """Section 8.4.3: the book's three helpers with the book's numbers, on two devices where there are two."""
    story.heading("8.4.3 Synchronizing data among devices")
    story.text(
        """Three helpers are enough: copy the parameters to a device, sum arrays over devices, split a batch. In
        Gluon a parameter has a `.grad`, and `allreduce` overwrites it. JAX's arrays do not change: `jax.grad`
        returns the gradients, and `allreduce` returns the sums."""
    )
    story.code(get_params, allreduce, split_and_load)
    devices = (first_devices(story.devices) * 2)[:2]
    params = get_params(lenet_params(jax.random.key(0)), devices[0])
    data = [jax.device_put(jnp.ones((1, 2)) * (i + 1), d) for i, d in enumerate(devices)]
    batch = np.arange(24, dtype=np.float32).reshape(6, 4)
    summed, shards = allreduce(data), split_and_load(batch, devices)
    with story.output():
        print(f"b1 weight: {params[1]} on {devices[0]}")
        print("before allreduce:", *(f"{np.asarray(a).tolist()} on {d}" for a, d in zip(data, devices)))
        print("after allreduce: ", *(f"{np.asarray(a).tolist()} on {d}" for a, d in zip(summed, devices)))
    with story.output(detail=True):
        print("b1 grad:", jax.grad(lambda p: lenet(jnp.zeros((1, 28, 28, 1)), p).sum())(params)[1])
        for shard, device in zip(shards, devices):
            print(f"{shard} on {device}")
    right = all((np.asarray(a) == 3).all() for a in summed) and [len(s) for s in shards] == [3, 3]
    story.claim(
        book="allreduce adds up what the devices hold, and gives every device the sum",
        holds=right and bool((np.concatenate([np.asarray(s) for s in shards]) == batch).all()),
        predicted="[1, 1] and [2, 2] become [3, 3] on both; six rows become three and three",
        right=right,
        observed=f"{[np.asarray(a).ravel().tolist() for a in summed]}; {[len(s) for s in shards]} rows",
    )


def one_minibatch(story: script.Story, config: Config, data: FashionMNIST) -> None:
    """Section 8.4.4: one batch by hand on all devices, what ran at the same time, and where the time goes."""
    story.heading("8.4.4 Training on one minibatch")
    story.text(
        """A plain Python loop computes one gradient after the other. Or so it looks: JAX queues each call on its
        device and returns, so all devices compute at the same time. Only `allreduce` needs what all of them
        found, and not even there does Python wait."""
    )
    story.habit(
        gluon="for l in losses:\n    l.backward()\nfor i in range(len(gpu_params[0])):\n"
        "    allreduce([gpu_params[c][i].grad for c in range(len(ctx))])",
        jax="sums = [gradient(params, X, y) for params, X, y in zip(device_params, X_shards, y_shards)]\n"
        "totals = allreduce(sums)",
        remark="JAX returns gradients as a list of arrays, and allreduce takes whole lists.",
    )
    story.code(gradient, update, train_batch, by_hand)
    devices, n = first_devices(story.devices), config.batch_size
    X, y = data.train_images[:n], data.train_labels[:n]
    params = lenet_params(jax.random.key(0), scale=config.scale)
    device_params = [get_params(params, d) for d in devices]
    step = by_hand(devices, config.lr)
    _, (loss, accuracy) = step(X, y, device_params)
    story.say(f"one batch of {n} on {plural(len(devices))}: loss {loss:.4f}, accuracy {accuracy:.2f}")
    run = partial(step, X, y, device_params)
    timeline_of_a_step(story, run, gradient="gradient", devices=devices)
    X_shards, y_shards = split_and_load(X, devices), split_and_load(y, devices)
    sums = block(list(map(gradient, device_params, X_shards, y_shards)))
    totals = block(allreduce(sums))
    parts: dict[str, Callable[[], Any]] = {
        "split_and_load": lambda: (split_and_load(X, devices), split_and_load(y, devices)),
        "gradients": lambda: list(map(gradient, device_params, X_shards, y_shards)),
        "allreduce": lambda: allreduce(sums),
        "updates": lambda: [update(p, total, n, config.lr) for p, total in zip(device_params, totals)],
    }
    story.text("Each part alone, and the whole step. The whole may take less than its parts, since it overlaps them.")
    where_time_goes(story, run, parts, title=f"A step on {plural(len(devices))}, batch {n}", rounds=config.rounds)


def training(story: script.Story, config: Config, data: FashionMNIST) -> dict[int, Trained]:
    """Sections 8.4.5 and 8.4.6: one device, then all, with the book's figures next to ours."""
    story.heading("8.4.5 The training function")
    story.text("An epoch queues all its steps and waits once, at its end. The test images are predicted afterwards.")
    story.code(train)
    story.heading("8.4.6 Training on one device and on several")
    trained: dict[int, Trained] = {}
    runs: dict[str, list[Epoch]] = {}
    updates = config.updates or updates_per_epoch(FULL_TRAIN, config.batch_size)
    for k in sorted({1, story.devices}):
        for seed in config.seeds:
            devices = first_devices(k)
            params = lenet_params(jax.random.key(seed), scale=config.scale)
            found = train(
                by_hand(devices, config.lr), [get_params(params, d) for d in devices], data,
                devices=devices, batch_size=config.batch_size, updates=updates, seed=seed,
                numbers=range(1, config.epochs + 1), progress=story.progress,
            )  # fmt: skip
            kept: Trained = []
            name = plural(k) + (f", seed {seed}" if len(config.seeds) > 1 else "")
            title = f"{name}: batch {config.batch_size}, rate {config.lr:g}"
            runs[name] = table_of_epochs(story, _keeping(found, kept), title=title, printed=LENET.get(k))
            trained.setdefault(k, kept)
    curves(story, runs, printed={k: LENET[k] for k in trained if k in LENET})
    seconds = [Measurement(name, "s", tuple(e.train_s for e in run)) for name, run in runs.items()]
    story.table(seconds, title="Seconds of an epoch", references=_published(list(runs)), detail=True)
    recipe = config.epochs == 4 and config.batch_size == 256 and not config.updates and data.is_full
    judge_learning(
        story, "LeNet", runs, tested=len(data.test_labels),
        printed={plural(k): LENET[k] for k in trained if k in LENET},
        missing="" if recipe else "only the full data, batch 256 and four epochs are the book's recipe",
    )  # fmt: skip
    return trained
