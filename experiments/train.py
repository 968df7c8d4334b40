"""Train LeNet or ResNet-18 on Fashion-MNIST: on several devices, in several processes, with checkpoints.

    python experiments/train.py --devices 2
    python experiments/train.py --model resnet18 --checkpoints saved    # once more with --resume to go on
    python experiments/train.py --recipe fast                           # ResNet-18 to a test accuracy of 0.93
    jaxperf launch -n 2 -- train --way shard_map                        # two processes on this machine

Sections 8.4 and 8.5 teach how several devices train one model. This program uses the same steps, made by
`jaxperf.parallel`, in the loop of `jaxperf.train`, which evaluates, saves and resumes. The images stay on the
devices as bytes, and all seeds share the compiled programs. On a GPU, an epoch without checkpoints is one
program. How to start it in a cluster: docs/several-machines.md. What a checkpoint guarantees:
docs/reliability.md.
"""

from __future__ import annotations

if __name__ == "__main__":
    from jaxperf.process import end_at_once

    end_at_once()  # during the imports, Ctrl-C gives no traceback
    from jaxperf.jax_internals import import_jax

    import_jax()

import contextlib
import dataclasses
import hashlib
import itertools
import math
import shlex
import statistics
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
import tyro
from flax import nnx
from rich.progress import track

from jaxperf import flags
from jaxperf.chapter import catalogue
from jaxperf.data import FashionMNIST, check_source, fashion_mnist, updates_per_epoch
from jaxperf.data.fashion_mnist import FULL_TRAIN
from jaxperf.errors import JaxperfError, to_one_line
from jaxperf.flags import at_least, between, more_than
from jaxperf.measure import current_environment
from jaxperf.models import BOOK_INIT, HE_INIT, RESNET18_STAGES, SMALL_STAGES, LeNet, ResNet
from jaxperf.parallel import Model, check_divisible, first_devices, make_step, model_of
from jaxperf.parallel.multihost import check_same
from jaxperf.process import ended, follow_parent, leave, log_path, native_stderr_to, say
from jaxperf.processes.distributed import Processes, together
from jaxperf.result import Grid, Measurement, Result, save_result
from jaxperf.result.recorder import Recorder
from jaxperf.result.store import check_writable, save_so_far
from jaxperf.train import CheckpointFolder, Epoch, Policy, Trainer

QUESTION = "How fast does a network train on these devices, and how accurate does it become?"
ABOUT = catalogue.SectionEntry("train", "", "Training LeNet or ResNet-18", QUESTION, 60)
HEADS = ("seed", "epoch", "time", "loss", "train acc", "test acc")
CHANCE = 0.1  # ten classes, all equally frequent
FAST = 0.93  # the fast recipe's accuracy, of the 10,000 test images


@dataclass(frozen=True)
class Recipe:
    """How a model is trained; `batch_size` images are of all devices together."""

    model: Literal["lenet", "resnet18"]
    epochs: int
    batch_size: int
    lr: float
    seeds: tuple[int, ...] = (0,)
    updates: int = 0


RECIPES = {
    ("book", "lenet"): Recipe("lenet", epochs=4, batch_size=256, lr=0.2),
    ("book", "resnet18"): Recipe("resnet18", epochs=4, batch_size=256, lr=0.1),
    ("fast", "resnet18"): Recipe("resnet18", epochs=6, batch_size=512, lr=0.4, seeds=(0, 1, 2, 3, 4)),
}


@dataclass(frozen=True)
class Config:
    """The flags; where a recipe has a value, None stands for it."""

    model: Literal["lenet", "resnet18"] | None = None  # lenet, or the fast recipe's resnet18, if not given
    recipe: Literal["book", "fast"] = "book"  # fast: few epochs with one cycle of the learning rate
    way: Literal["manual", "pmap", "shard_map", "jit"] = "jit"  # how the devices share a step
    dtype: Literal["float32", "bfloat16"] = "float32"  # to compute in; parameters stay float32
    devices: Annotated[int, between(1, 1024)] = 1  # of each process; a CPU is divided into so many
    platform: Literal["auto", "cpu", "gpu"] = "auto"  # auto takes a GPU if JAX finds one
    epochs: Annotated[int | None, at_least(1)] = None  # of each training
    batch_size: Annotated[int | None, at_least(1)] = None  # images of an update, on all devices together
    lr: Annotated[float | None, more_than(0)] = None  # learning rate; the fast recipe's largest
    updates: Annotated[int | None, at_least(1)] = None  # of an epoch; as many as all images have batches
    seed: Annotated[tuple[int, ...] | None, at_least(0)] = None  # of weights and order; a training each
    data_source: Literal["auto", "folder", "tfds", "download", "mini"] = "auto"  # auto: the first that works
    data_folder: Path | None = None  # of the four IDX files
    checkpoints: Path | None = None  # folder to save the training in while it runs
    resume: bool = False  # go on from the newest checkpoint, if there is one
    every_steps: Annotated[int, at_least(0)] = 100  # save after each so many updates; 0: at an epoch's end
    every_s: Annotated[float, at_least(0)] = 0  # save after so many seconds, in one process; 0: by updates
    keep: Annotated[int, at_least(1)] = 3  # how many checkpoints of a training to keep
    json: Path | None = None  # keep the result in this file
    smoke: bool = False  # toy sizes, in seconds; the times mean nothing
    processes: Annotated[Processes, tyro.conf.OmitArgPrefixes] = field(default_factory=Processes)

    def __post_init__(self) -> None:
        if self.resume and not self.checkpoints:
            raise JaxperfError("--resume is given without a folder; add --checkpoints DIR")


def main() -> int:
    """Read the flags, set what JAX reads when it starts, and train, alone or with other processes."""
    follow_parent()
    config = flags.parse_argv(Config, __doc__ or "")
    recipe = recipe_of(config)
    check_source(config.data_source, config.data_folder)
    if config.json and not config.processes.process_id:  # better now than after the training
        check_writable(config.json)
    jax.config.update("jax_num_cpu_devices", config.devices)
    if config.platform != "auto":
        jax.config.update("jax_platforms", "cuda,cpu" if config.platform == "gpu" else "cpu")
    several = config.processes.several  # whose errors the log of each process has
    with contextlib.nullcontext() if several else native_stderr_to(log_path("train")):
        return together(config.processes, lambda: run(config, recipe))


def recipe_of(config: Config) -> Recipe:
    """The recipe, with the values that the flags replace."""
    model = config.model or ("resnet18" if config.recipe == "fast" else "lenet")
    recipe = RECIPES.get((config.recipe, model))
    if not recipe:
        raise JaxperfError(f"--recipe {config.recipe} does not train {model}; use --model resnet18")
    values: dict[str, Any] = {"seeds": config.seed}
    values |= {name: getattr(config, name) for name in ("epochs", "batch_size", "lr", "updates")}
    toy: dict[str, Any] = {"epochs": 1, "batch_size": 16, "updates": 3, "seeds": recipe.seeds[:2]}
    replacements = {name: value for name, value in values.items() if value is not None}
    recipe = dataclasses.replace(recipe, **(toy if config.smoke else {}) | replacements)
    return dataclasses.replace(
        recipe, updates=recipe.updates or updates_per_epoch(FULL_TRAIN, recipe.batch_size)
    )


def models_of(recipe: Recipe, config: Config) -> dict[int, Model]:
    """The network for each seed, with fresh weights: normal with deviation 0.01, as in the book, or He's.

    One program draws all weights of a seed, on the CPU, since a GPU's compiler takes seconds for it.
    """
    init = BOOK_INIT if config.recipe == "book" else HE_INIT
    options: Any = {"kernel_init": init, "dtype": jnp.bfloat16 if config.dtype == "bfloat16" else None}

    def net(key: jax.Array) -> nnx.Module:
        if recipe.model == "lenet":
            return LeNet(**options, rngs=nnx.Rngs(key))
        stages = SMALL_STAGES if config.smoke else RESNET18_STAGES
        return ResNet(10, stages=stages, **options, rngs=nnx.Rngs(key))

    def draw_weights(key: jax.Array) -> tuple[Any, Any]:
        model = model_of(net(key))
        return model.params, model.stats

    model = model_of(nnx.eval_shape(lambda: net(jax.random.key(0))))
    draw = jax.jit(draw_weights)
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        weights = {seed: draw(jax.random.key(seed)) for seed in recipe.seeds}
    return {seed: dataclasses.replace(model, params=p, stats=s) for seed, (p, s) in weights.items()}


def one_cycle(lr: float, updates: int) -> optax.GradientTransformation:
    """Nesterov's momentum, a rate that rises to `lr` and falls to nearly 0, and decay of the kernels.

    The rate rises during a fifth of all updates (Smith and Topin, https://arxiv.org/abs/1708.07120). Biases
    and BatchNorm's scales do not decay (Goyal et al., https://arxiv.org/abs/1706.02677).
    """
    rate = optax.cosine_onecycle_schedule(updates, lr, pct_start=0.2)
    decay = optax.add_decayed_weights(5e-4, mask=lambda params: jax.tree.map(lambda a: a.ndim > 1, params))
    return optax.chain(decay, optax.sgd(rate, momentum=0.9, nesterov=True))


def with_mirrored(data: FashionMNIST) -> FashionMNIST:
    """The data with each training image twice, the second time mirrored left to right.

    An epoch takes as many of them as there were, in an order on which all processes agree.
    """
    images, labels = data.train_images, data.train_labels
    return dataclasses.replace(
        data,
        train_images=np.concatenate([images, images[:, :, ::-1]]),
        train_labels=np.concatenate([labels, labels]),
    )


def run(config: Config, recipe: Recipe) -> int:
    """Train once for each seed, print each epoch, and keep the result."""
    here = current_environment()  # starts JAX
    devices = first_devices(None if config.processes.several else config.devices)
    check_divisible(recipe.batch_size, len(devices), name="--batch-size")
    shown = {**asdict(recipe), "recipe": config.recipe, "way": config.way, "devices": len(devices)}
    shown["processes"] = check_same((shown, here.versions)) if config.processes.several else 1
    toy = config.smoke and config.data_source == "auto" and not config.data_folder
    data = fashion_mnist(source="mini" if toy else config.data_source, folder=config.data_folder)
    book = config.recipe == "book"
    images = data if book else with_mirrored(data)
    updates_per_epoch(len(images.train_labels), recipe.batch_size)  # refuses a batch that is larger
    here = dataclasses.replace(here, data_source=data.source)
    command = shlex.join(["python", "experiments/train.py", *sys.argv[1:]])
    record = Recorder(ABOUT, here, shown, command=command, smoke=config.smoke)
    path = config.json if jax.process_index() == 0 else None
    print(f"{recipe.model}, {recipe.batch_size} images a step, rate {recipe.lr:g}, data: {data.source}")
    print(f"devices: {', '.join(map(str, devices))}")

    models = models_of(recipe, config)
    optimizer = optax.sgd(recipe.lr) if book else one_cycle(recipe.lr, recipe.epochs * recipe.updates)
    step = make_step(config.way, models[recipe.seeds[0]], optimizer, devices)
    trainer = Trainer(
        step, images, batch_size=recipe.batch_size, updates=recipe.updates, saves=bool(config.checkpoints)
    )
    # What must be the same to resume a training; the rate of one cycle depends on the number of epochs too
    settings = {"model": recipe.model, "recipe": config.recipe, "lr": recipe.lr, "dtype": config.dtype}
    settings |= {} if book else {"epochs": recipe.epochs}
    runs: dict[int, list[Epoch]] = {seed: [] for seed in recipe.seeds}
    with checkpoint_folder(config) as folder:
        for seed, model in models.items():
            print(f"seed {seed}")
            training = trainer.train(
                epochs=recipe.epochs, seed=seed, state=step.init(model), progress=progress_bar,
                checkpoints=folder.of(f"seed {seed}", **settings) if folder else None,
            )  # fmt: skip
            for epoch, state in training:
                if epoch.compile_s:
                    print(f"compiling took {epoch.compile_s:.1f} sec, apart from the epochs' times")
                print(epoch.line(), flush=True)
                runs[seed].append(epoch)
                if path:
                    keep_so_far(dataclasses.replace(record.result(), blocks=(grid_of(runs),)), path)
                last = state
            sha256 = digest(step.read(last))
            record.fact(f"state_{seed}", sha256, meaning=f"SHA-256 of seed {seed}'s last state")
    record.add(grid_of(runs))
    conclude(record, runs, data, fast=not book)
    if path:
        save_result(record.result(), path)
    print(to_one_line(f"result: {config.json or 'not kept; give --json FILE to keep it'}"))
    return 0


def checkpoint_folder(config: Config) -> contextlib.AbstractContextManager[CheckpointFolder | None]:
    """The folder of the checkpoints, or None without one."""
    if not config.checkpoints:
        return contextlib.nullcontext()
    policy = Policy(config.every_steps, config.every_s, config.keep)
    return CheckpointFolder(config.checkpoints, policy, resume=config.resume)


def progress_bar(calls: Iterable[Any], updates: int) -> Iterator[Any]:
    """The calls of an epoch, one per update or one for all, with a bar on a terminal."""
    yield from track(calls, "", updates, transient=True, disable=not sys.stdout.isatty())


def digest(state: Any) -> str:
    """The SHA-256 of all arrays of a training's state: equal digests are equal bits."""
    arrays = hashlib.sha256()
    for leaf in jax.tree.leaves(state):
        arrays.update(np.asarray(leaf).tobytes())
    return arrays.hexdigest()


def keep_so_far(result: Result, path: Path) -> None:
    """Keep the epochs until now, marked incomplete, in case the run is stopped."""
    try:
        save_so_far(result, path)
    except JaxperfError as e:  # there may be room on the disk again at the end
        say(f"warning: {e}")


def grid_of(runs: Mapping[int, Sequence[Epoch]]) -> Grid:
    """The epochs of all trainings, a row each; they have been printed."""
    rows = [
        (str(seed), str(e.number), f"{e.train_s:.2f} s", f"{e.loss:.4f}", f"{e.train_accuracy:.4f}",
         f"{e.test_accuracy:.4f}")
        for seed, run in runs.items() for e in run
    ]  # fmt: skip
    return Grid("Epochs", HEADS, tuple(rows), tuple(range(len(HEADS))), detail=True)


def conclude(
    record: Recorder, runs: Mapping[int, Sequence[Epoch]], data: FashionMNIST, *, fast: bool
) -> None:
    """Record the seconds, the accuracies, and whether the trainings reached what the recipe promises."""
    record.table(
        [Measurement(f"seed {seed}", "s", tuple(e.train_s for e in run)) for seed, run in runs.items()],
        title="Seconds of an epoch",
    )
    epochs, last = [e for run in runs.values() for e in run], [run[-1].test_accuracy for run in runs.values()]
    record.fact("compile_s", epochs[0].compile_s, unit="s", meaning="compiling, before the first epoch")
    speed = statistics.median(e.images_per_s for e in epochs)
    record.fact("images_per_s", speed, unit="images/s", meaning="training")
    record.fact("test_accuracy", statistics.mean(last), meaning="test accuracy at the end, mean of the seeds")
    observed = f"{', '.join(f'{a:.3f}' for a in last)} at the end"
    if not fast:
        # Guessing is a biased coin; four standard deviations above its mean are not luck
        bound = CHANCE + 4 * math.sqrt(CHANCE * (1 - CHANCE) / len(data.test_labels))
        learned = min(last) > bound
        record.claim(
            "The network learns", holds=learned or (False if data.is_full else None),
            expected=f"test accuracy above {bound:.2f}, which guessing does not reach", observed=observed,
        )  # fmt: skip
        return
    seconds = [s for run in runs.values() if (s := seconds_to(FAST, run)) is not None]
    mean = statistics.mean(seconds) if seconds else None
    about = f"training to {FAST}, with the evaluation after each epoch, mean of the seeds"
    record.fact("seconds_mean", mean, unit="s", meaning=about)
    spread = statistics.stdev(seconds) if len(seconds) > 1 else None
    record.fact("seconds_spread", spread, unit="s", meaning="standard deviation of these seconds")
    record.claim(
        f"The fast recipe reaches a test accuracy of {FAST} with every seed",
        holds=len(seconds) == len(runs),
        expected=f"{FAST} in {len(runs)} of {len(runs)} trainings",
        observed=f"{len(seconds)} of {len(runs)}; {observed}",
        cannot="" if data.is_full else "it needs all 60,000 + 10,000 images",
    )


def seconds_to(accuracy: float, run: Sequence[Epoch]) -> float | None:
    """Seconds of training and evaluation until the first epoch with the accuracy; None if there is none."""
    totals = itertools.accumulate(e.train_s + e.test_s for e in run)
    return next((s for e, s in zip(run, totals) if e.test_accuracy >= accuracy), None)


if __name__ == "__main__":
    leave(ended(main))
