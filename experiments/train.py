"""Train LeNet or ResNet-18 on Fashion-MNIST: on one or several devices, in one or several processes.

    python experiments/train.py --devices 2
    python experiments/train.py --model resnet18 --checkpoints saved    # once more with --resume to go on
    python experiments/train.py --recipe fast --dtype bfloat16          # ResNet-18 to a test accuracy of 0.93

Sections 8.4 and 8.5 teach how several devices train one model. This is such a training as one would use it: a
`jax.jit` program updates the parameters with a whole batch, which the compiler divides among the devices of
all processes. docs/several-machines.md says how a cluster starts it, docs/reliability.md what a checkpoint
guarantees, docs/performance.md how fast it is.
"""

from __future__ import annotations

if __name__ == "__main__":
    from jaxperf.process import end_at_once

    end_at_once()  # during the imports, Ctrl-C gives no traceback
    from jaxperf.jax_internals import import_jax

    import_jax()

import itertools
import math
import shlex
import signal
import statistics
import sys
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import psutil
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxperf import flags
from jaxperf.checkpoints import Checkpoints, digest
from jaxperf.data import check_source, epoch_batches, fashion_mnist, padded_batches
from jaxperf.distributed import check_same, stop_signal, together
from jaxperf.errors import JaxperfError
from jaxperf.process import ended, follow_parent, leave, say
from jaxperf.result import About, Measurement
from jaxperf.result.store import check_writable, save_result

BEGAN = psutil.Process().create_time()  # the moment at which this process was started
MOMENTUM, DECAY, GOAL = 0.9, 5e-4, 0.93  # of the fast recipe; the goal is its test accuracy


@dataclass(frozen=True)
class Recipe:
    """How a model is trained; `batch_size` images are of all devices together, `updates` are an epoch."""

    model: str
    epochs: int
    batch_size: int
    lr: float  # the largest
    updates: int
    fast: bool = False  # with momentum, decay, mirrored images, and one cycle of the learning rate


RECIPES = {
    ("book", "lenet"): Recipe("lenet", epochs=4, batch_size=256, lr=0.2, updates=234),
    ("book", "resnet18"): Recipe("resnet18", epochs=4, batch_size=256, lr=0.1, updates=234),
    ("fast", "resnet18"): Recipe("resnet18", epochs=6, batch_size=512, lr=0.4, updates=117, fast=True),
}


def parse(arguments=None):
    """Read the flags; where a recipe has a value, None stands for it."""
    parser = flags.Parser("train.py", __doc__.split("\n\n")[0])
    flag, at_least_1 = parser.add_argument, flags.whole(1)
    flag("--model", choices=("lenet", "resnet18"), help="lenet, or the fast recipe's resnet18, if not given")
    flag("--recipe", choices=("book", "fast"), default="book", help="fast: few epochs, one cycle of the rate")
    flag("--dtype", choices=("float32", "bfloat16"), default="float32", help="to compute in")
    flag("--devices", type=flags.whole(1, 1024), default=1, metavar="N", help="a CPU is divided into so many")
    flag("--epochs", type=at_least_1, metavar="N", help="of each training")
    flag("--batch-size", type=at_least_1, metavar="N", help="images of an update, on all devices together")
    flag("--lr", type=flags.number(0, above=True), metavar="X", help="rate; the fast recipe's largest")
    flag("--updates", type=at_least_1, metavar="N", help="of an epoch; as many as 60,000 images have batches")
    flag("--seeds", type=flags.whole(0), nargs="+", default=(0,), metavar="N", help="a training for each")
    flag("--data-folder", type=Path, metavar="DIR", help="of the four IDX files; else the first source")
    flag("--checkpoints", type=Path, metavar="DIR", help="folder to save the training in while it runs")
    flag("--resume", action="store_true", help="go on from the newest checkpoint, if there is one")
    flag("--every-steps", type=at_least_1, default=100, metavar="N", help="save after so many updates")
    flag("--compile-cache", type=Path, metavar="DIR", help="folder to keep the compiled programs in")
    flag("--json", type=flags.file_path, metavar="FILE", help="keep the result in this file")
    flag("--smoke", action="store_true", help="toy sizes, in seconds; the times mean nothing")
    config = parser.parse_args(arguments)
    if config.resume and not config.checkpoints:
        raise JaxperfError("--resume is given without a folder; add --checkpoints DIR")
    return config


def recipe_of(config):
    """Return the recipe, with the values that the flags replace."""
    model = config.model or ("resnet18" if config.recipe == "fast" else "lenet")
    recipe = RECIPES.get((config.recipe, model))
    if not recipe:
        raise JaxperfError(f"--recipe {config.recipe} does not train {model}; use --model resnet18")
    values = {"epochs": 1, "batch_size": 16, "updates": 3} if config.smoke else {}
    if config.batch_size and not config.smoke:
        values["updates"] = max(1, 60_000 // config.batch_size)
    given = {name: getattr(config, name) for name in ("epochs", "batch_size", "lr", "updates")}
    return replace(recipe, **values | {name: value for name, value in given.items() if value is not None})


def network(config, recipe):
    """Return the network as pure functions, and as shapes: nothing is drawn or computed yet."""
    from flax import nnx  # here, in another thread, while a GPU starts

    from jaxperf.models import RESNET18_STAGES, SMALL_STAGES, LeNet, ResNet
    from jaxperf.parallel import model_of

    stages = SMALL_STAGES if config.smoke else RESNET18_STAGES
    build = LeNet if recipe.model == "lenet" else partial(ResNet, 10, stages=stages)
    dtype = jnp.bfloat16 if config.dtype == "bfloat16" else None
    return model_of(nnx.eval_shape(lambda: build(dtype=dtype, rngs=nnx.Rngs(0))))


def first_state(model, recipe, seed):
    """Draw the state before the first update, as NumPy arrays, for which nothing has to be compiled.

    Kernels are normal, with deviation 0.01 as in the book, or He's, which keeps the size of activations.
    """
    rng = np.random.default_rng(seed)

    def draw(path, leaf):
        name = path[-1].key
        if name == "kernel":
            deviation = math.sqrt(2 / math.prod(leaf.shape[:-1])) if recipe.fast else 0.01
            return np.float32(deviation) * rng.standard_normal(leaf.shape, np.float32)
        return np.full(leaf.shape, name in ("scale", "var"), np.float32)  # biases and means begin at 0

    params, stats = jax.tree_util.tree_map_with_path(draw, (model.params, model.stats))
    momentum = jax.tree.map(np.zeros_like, params) if recipe.fast else {}
    sums = {"loss": np.zeros((), np.float32), "hits": np.zeros((), np.int32)}  # over an epoch
    return {"params": params, "stats": stats, "momentum": momentum, **sums}


def rates_of(recipe):
    """Return each update's learning rate: constant, or one cycle (https://arxiv.org/abs/1708.07120).

    The cycle rises from 1/25 of the largest rate to it in a fifth of all updates, and falls to 0.
    """
    i, last = np.arange(recipe.epochs * recipe.updates), recipe.epochs * recipe.updates
    top = 0.2 * last
    rising = 0.04 + 0.96 * (1 - np.cos(np.pi * i / top)) / 2
    falling = (1 + np.cos(np.pi * (i - top) / (last - top))) / 2
    return np.float32(recipe.lr * (np.where(i < top, rising, falling) if recipe.fast else np.ones(last)))


def programs_of(apply, recipe, mesh):
    """Return the two programs: an update, and the number of hits in a batch of test images."""
    everywhere, split = NamedSharding(mesh, P()), NamedSharding(mesh, P("devices"))

    def loss_of(params, stats, X, y):
        logits, stats = apply(params, stats, X, train=True)
        losses = -jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], axis=1)
        return losses.mean(), (stats, (logits.argmax(-1) == y).sum(dtype=jnp.int32))

    @partial(jax.jit, donate_argnums=0, out_shardings=everywhere)
    def update(state, images, labels, order, i, rate):
        # Each device has all images, as bytes, and gathers its share; row n + i is image i mirrored
        rows = jax.lax.with_sharding_constraint(order[i], split)
        X, y = (jnp.take(a, rows % len(a), axis=0, mode="clip") for a in (images, labels))
        if recipe.fast:
            X = jnp.where((rows >= len(images))[:, None, None, None], X[:, :, ::-1], X)
        params, momentum = state["params"], state["momentum"]
        gradient = jax.value_and_grad(loss_of, has_aux=True)
        (loss, (stats, hits)), grads = gradient(params, state["stats"], X, y)
        if recipe.fast:
            # Biases and BatchNorm's scales do not decay (https://arxiv.org/abs/1706.02677); then Nesterov
            grads = jax.tree.map(lambda g, p: g + DECAY * p if p.ndim > 1 else g, grads, params)
            momentum = jax.tree.map(lambda m, g: MOMENTUM * m + g, momentum, grads)
            grads = jax.tree.map(lambda m, g: MOMENTUM * m + g, momentum, grads)
        params = jax.tree.map(lambda p, g: p - rate * g, params, grads)
        sums = {"loss": state["loss"] + loss, "hits": state["hits"] + hits}
        return {"params": params, "stats": stats, "momentum": momentum, **sums}, hits

    @partial(jax.jit, out_shardings=everywhere)
    def evaluate(params, stats, images, labels, i, hits):
        logits, _ = apply(params, stats, images[i], train=False)
        return hits + (logits.argmax(-1) == labels[i]).sum(dtype=jnp.int32)

    return update, evaluate


class Setup:
    """What all trainings of a run share: the images on the devices, and the compiled programs.

    Files are read while the devices start and Flax is imported.
    """

    def __init__(self, config, recipe):
        self.recipe, threads = recipe, ThreadPoolExecutor(2)
        source = "mini" if config.smoke and not config.data_folder else "auto"
        reading = threads.submit(fashion_mnist, source=source, folder=config.data_folder)
        building = threads.submit(network, config, recipe)
        devices, self.model, self.data = devices_of(config), building.result(), reading.result()
        if recipe.batch_size % len(devices):
            raise JaxperfError(f"--batch-size {recipe.batch_size} is not divisible by {len(devices)} devices")
        if config.compile_cache and devices[0].platform == "gpu":
            say("note: no --compile-cache on a GPU, where it gave wrong values (docs/performance.md)")
        elif config.compile_cache:
            jax.config.update("jax_compilation_cache_dir", str(config.compile_cache))
            jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        began = time.perf_counter()
        self.mesh = Mesh(np.array(devices), ("devices",))
        update, evaluate = programs_of(self.model.apply, recipe, self.mesh)
        order = self.order(0, 1)  # refuses a batch that is larger than the data
        self.train = [self.put(a) for a in (self.data.train_images, self.data.train_labels)]
        # The last batch of test images is padded, with a label that nobody predicts
        batches = padded_batches(self.data.test_images, self.data.test_labels, batch_size=recipe.batch_size)
        arrays = zip(*((X, np.where(real, y, -1)) for X, y, real in batches))
        self.test = [self.put(np.stack(each), None, "devices") for each in arrays]
        state = jax.tree.map(self.put, first_state(self.model, recipe, 0))
        # A GPU's compiler times kernels on the GPU, so there one program is compiled after the other
        compilers = ThreadPoolExecutor(1 if devices[0].platform == "gpu" else 2)
        lowered = update.lower(state, *self.train, order, np.int32(0), np.float32(0))
        compiling, zero = compilers.submit(lowered.compile), self.put(np.int32(0))
        lowered = evaluate.lower(state["params"], state["stats"], *self.test, np.int32(0), zero)
        self.evaluate, self.update = compilers.submit(lowered.compile).result(), compiling.result()
        self.compile_s = time.perf_counter() - began

    def put(self, array, *axes):
        """Copy an array that all processes have to the devices; `axes` names those that are divided."""
        array, sharding = np.asarray(array), NamedSharding(self.mesh, P(*axes))
        return jax.make_array_from_callback(array.shape, sharding, lambda part: np.array(array[part]))

    def order(self, seed, epoch):
        """Return the rows of each update's batch, (updates, batch), which all processes draw alike."""
        rows = np.arange(len(self.data.train_labels) * (2 if self.recipe.fast else 1), dtype=np.int32)
        size = {"batch_size": self.recipe.batch_size, "updates": self.recipe.updates}
        batches = [batch for batch, _ in epoch_batches(rows, rows, seed=seed, epoch=epoch, **size)]
        return self.put(np.stack(batches), None, "devices")

    def test_accuracy(self, state):
        """Return the share of the test images whose largest logit is at their label."""
        hits = self.put(np.int32(0))
        for i in range(len(self.test[0])):
            hits = self.evaluate(state["params"], state["stats"], *self.test, np.int32(i), hits)
            jax.block_until_ready(hits)  # CPU devices that share a few threads can deadlock in queued sums
        return int(hits) / len(self.data.test_labels)


def devices_of(config):
    """Start JAX, and return all devices of all processes, or the first of a single one."""
    try:
        devices = jax.devices()
    except (RuntimeError, AssertionError):  # JAX's own, with and without a message
        raise JaxperfError("JAX finds no device; try JAX_PLATFORMS=cpu, or see `jaxperf doctor`") from None
    check_same(({**vars(config), "json": None}, jax.__version__, np.__version__))
    if len(devices) < config.devices:
        raise JaxperfError(f"--devices is {config.devices}, and JAX has {len(devices)}; give fewer")
    return devices if jax.process_count() > 1 else devices[: config.devices]


def train(setup, seed, checkpoints, every_steps, stop):
    """Train once, on from the newest checkpoint; return a row for each epoch and the last state's digest."""
    recipe, rows, first, before_s = setup.recipe, [], 0, 0.0
    state = first_state(setup.model, recipe, seed)
    if checkpoints and checkpoints.step is not None:
        state, about = checkpoints.load(state)
        rows, first, before_s = about["epochs"], about["updates"], about["seconds"]
        say(f"going on after step {checkpoints.step} (epoch {len(rows) + 1}, update {first})")
        if len(rows) + bool(first) > recipe.epochs:
            raise JaxperfError(f"{checkpoints.folder} is beyond epoch {recipe.epochs}; give more --epochs")
    state, rates = jax.tree.map(setup.put, state), rates_of(recipe)
    for epoch in range(len(rows) + 1, recipe.epochs + 1):
        order, queued, began = setup.order(seed, epoch), deque(), time.perf_counter() - before_s
        for i in range(first, recipe.updates):
            step = (epoch - 1) * recipe.updates + i + 1
            state, hits = setup.update(state, *setup.train, order, np.int32(i), rates[step - 1])
            # Two queued updates keep devices busy; with hundreds, CPU devices of few threads can deadlock
            queued.append(hits)
            if len(queued) > 2:
                queued.popleft().block_until_ready()
            stops = stop()
            if checkpoints and (stops or (step % every_steps == 0 and i + 1 < recipe.updates)):
                checkpoints.save(step, state, epochs=rows, updates=i + 1, seconds=time.perf_counter() - began)
            if stops:
                if checkpoints:
                    checkpoints.close()
                saved = "go on with --resume" if checkpoints else "nothing is saved"
                say(f"SIGTERM: stopped after step {step}; {saved}")
                raise SystemExit(128 + signal.SIGTERM)
        jax.block_until_ready(state)
        row = {"train_s": time.perf_counter() - began, "loss": float(state["loss"]) / recipe.updates}
        row["train_accuracy"] = int(state["hits"]) / order.size
        row["test_accuracy"] = setup.test_accuracy(state)
        if not math.isfinite(row["loss"]):
            raise JaxperfError(f"the loss is {row['loss']} in epoch {epoch}; use a smaller --lr")
        # Seconds of training and evaluating so far, and all since this process began, with its imports
        total_s = time.perf_counter() - began + sum(each["total_s"] for each in rows[-1:])
        row |= {"total_s": total_s, "process_s": time.time() - BEGAN}
        rows.append(row)
        print(
            f"epoch {epoch}, time {row['train_s']:.2f} sec, loss {row['loss']:.4f}, train acc "
            f"{row['train_accuracy']:.3f}, test acc {row['test_accuracy']:.4f}", flush=True,
        )  # fmt: skip
        if recipe.fast and reached(rows) is row:
            print(
                f"test accuracy {GOAL}: {row['process_s']:.1f} s after the process began; training and "
                f"evaluating took {total_s:.2f} s", flush=True,
            )  # fmt: skip
        state |= {"loss": setup.put(np.float32(0)), "hits": setup.put(np.int32(0))}
        first, before_s = 0, 0.0
        if checkpoints:
            checkpoints.save(epoch * recipe.updates, state, epochs=rows, updates=0, seconds=0.0)
    if checkpoints:
        checkpoints.close()
    return rows, digest(state)


def reached(rows):
    """Return the first epoch with the goal; None without one."""
    return next((row for row in rows if row["test_accuracy"] >= GOAL), None)


def recorded(config, recipe, setup, runs):
    """Return the record of all epochs, and whether each training reached what the recipe promises."""
    from jaxperf.measure import current_environment
    from jaxperf.result.recorder import Recorder

    about = About("train", "", "Training LeNet or ResNet-18", "How fast, and to which accuracy?")
    here = replace(current_environment(), data_source=setup.data.source)
    shown = {**asdict(recipe), "dtype": config.dtype, "recipe": config.recipe, "seeds": config.seeds}
    shown |= {"devices": setup.mesh.size, "processes": jax.process_count()}
    command = shlex.join(["python", "experiments/train.py", *sys.argv[1:]])
    record = Recorder(about, here, shown, command=command, smoke=config.smoke)
    seconds = {f"seed {seed}": [row["train_s"] for row in rows] for seed, (rows, _) in runs.items()}
    table = [Measurement(name, "s", tuple(each)) for name, each in seconds.items()]
    record.table(table, title="Seconds of an epoch")
    speed = recipe.updates * recipe.batch_size / statistics.median(itertools.chain(*seconds.values()))
    record.fact("images_per_s", speed, unit="images/s", meaning="training")
    record.fact("compile_s", setup.compile_s, unit="s", meaning="tracing and compiling")
    for seed, (rows, sha256) in runs.items():
        curve = " ".join(f"{row['test_accuracy']:.4f}" for row in rows)
        record.fact(f"accuracies_{seed}", curve, meaning=f"test accuracies of seed {seed}")
        record.fact(f"state_{seed}", sha256, meaning=f"SHA-256 of seed {seed}'s last state")
        for name, about in (("total_s", "training and evaluating"), ("process_s", "since the process began")):
            if recipe.fast and reached(rows):
                record.fact(f"{name}_{seed}", reached(rows)[name], unit="s", meaning=f"{about}, to {GOAL}")
    last = [rows[-1]["test_accuracy"] for rows, _ in runs.values()]
    record.fact("test_accuracy", statistics.mean(last), meaning="test accuracy at the end, mean of the seeds")
    # Guessing hits one in ten, of 10,000 images with a deviation of 0.003
    goal = GOAL if recipe.fast else 0.15
    record.claim(
        f"Every training reaches a test accuracy of {goal}", holds=min(last) >= goal,
        expected=f"{goal} at the end", observed=", ".join(f"{a:.3f}" for a in last),
        cannot="" if setup.data.is_full else "it needs all 60,000 + 10,000 images",
    )  # fmt: skip
    return record


def run(config, recipe):
    """Train once for each seed, and keep the result."""
    setup = Setup(config, recipe)
    print(f"{recipe.model}, data: {setup.data.source}, devices: {', '.join(map(str, setup.mesh.devices))}")
    print(f"compiling took {setup.compile_s:.1f} sec", flush=True)
    settings = {**asdict(recipe), "dtype": config.dtype, "data": setup.data.fingerprint}
    if not recipe.fast:
        del settings["epochs"]  # the rate of one cycle depends on them; otherwise a training may be prolonged
    stop, runs = stop_signal(saves=bool(config.checkpoints)), {}
    for seed in config.seeds:
        print(f"seed {seed}", flush=True)
        checkpoints = None
        if config.checkpoints:
            folder = config.checkpoints / f"seed-{seed}"
            checkpoints = Checkpoints(folder, settings | {"seed": seed}, resume=config.resume)
        runs[seed] = train(setup, seed, checkpoints, config.every_steps, stop)
    record = recorded(config, recipe, setup, runs)
    if config.json and not jax.process_index():
        save_result(record.result(), config.json)
    print(f"result: {config.json or 'not kept; give --json FILE to keep it'}")
    return 0


def main():
    """Read the flags, set what JAX reads when it starts, and train, alone or with other processes."""
    follow_parent()
    config = parse()
    recipe = recipe_of(config)
    check_source("auto", config.data_folder)
    if config.json:  # better now than after the training
        check_writable(config.json)
    jax.config.update("jax_num_cpu_devices", config.devices)
    return together(lambda: run(config, recipe))


if __name__ == "__main__":
    leave(ended(main))
