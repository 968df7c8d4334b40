"""What more devices gain: step time = compute / devices + what does not divide, fitted and then tested.

On fake devices each gets a core of its own, so that two devices have twice what one has.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from jaxperf.chapter.training import plural
from jaxperf.measure import interleaved, per_round
from jaxperf.measure.cores import available, on_cores
from jaxperf.parallel import first_devices
from jaxperf.result import Axis, Curve, Decision, Measurement, Ratio, both, ratio
from jaxperf.script import Story

MakeRun = Callable[[Sequence[jax.Device], int], Callable[[], Any]]
CLOSE = 0.25  # how near the model must come at batches that it was not fitted to


@dataclass(frozen=True)
class Sentence:
    """What the book says about the gain: its words, what we predict, and how a measured gain decides it."""

    words: str
    predicted: str
    decided: Callable[[Ratio], Decision]


LITTLE = Sentence(
    "Two GPUs shorten LeNet's training by little, since they must communicate",
    "at most 1.3 times as fast",
    lambda gain: gain.at_most(1.3),
)
LOT = Sentence(
    "ResNet-18 gains a lot from a second GPU: an epoch takes about half the time",
    "at least 1.5 times as fast",
    lambda gain: gain.at_least(1.5),
)


def scaling(
    story: Story, make: MakeRun, *, network: str, sizes: Sequence[int], at: int, book: Sentence, rounds: int
) -> None:
    """Time steps on one device and on all in use, at several batch sizes, and test the model on them.

    The model T(k, n) = a n / k + c(k) has three numbers. They come from the smallest and the largest batch on
    one device and the smallest on k; all other batches on k devices are predicted and compared.

    Facts: `gain_DEVICES_BATCH`, `compute_per_image_s`, `not_divided_s`.

    Args:
      story: where it is told.
      make: `make(devices, n)` gives a function that makes one step with n images and returns its outputs.
      network: its name.
      sizes: batch sizes, ascending, at least two, divisible by the devices.
      at: the one of them at which the book's sentence is decided, where devices are real.
      book: the sentence.
      rounds: how often each has its turn.
    """
    story.heading(f"What more devices gain {network}")
    k, fake, cores = story.devices, story.environment.devices_are_fake, available()
    story.text(
        """Only the compute of a step is divided among the devices. The sums, the update and the dispatch are
        not: `T(k, n) = a n / k + c(k)` for `n` images on `k` devices. So a step gains the more, the more it
        computes per sum. Three numbers are fitted: `a` and `c(1)` from the smallest and the largest batch on
        one device, `c(k)` from the smallest batch on `k`. The other batches test the model."""
    )
    sentence = "A step takes its compute divided by the devices, plus what does not divide"
    predicted = f"step times at batches that were not fitted come within {CLOSE:.0%}"
    if k < 2 or (fake and len(cores) < k):
        why = (
            "only one device here"
            if k < 2
            else f"{len(cores)} cores for {k} fake devices; each needs its own"
        )
        story.claim(ours=sentence, holds=None, predicted=predicted, right=None, observed="", cannot=why)
        _judge(story, book, None, why)
        return
    if fake:
        story.text("These devices are fake, so each gets a core: one device runs on one core of this host.")
    rows = _in_turns(make, (1, k), sizes, cores if fake else (), rounds)
    one, many = ([rows[c, n] for n in sizes] for c in (1, k))
    models = [_predicted(one, many[0], sizes, i, k) for i in range(1, len(sizes))]
    story.table(
        (*one, *many, *models), title=f"Seconds of a step of {network}, and the model's prediction",
        key=(one[-1].name, many[-1].name, models[-1].name),
    )  # fmt: skip
    found = [ratio(model, real) for model, real in zip(models, many[1:])]
    close = both(*(r.within(CLOSE) for r in found))
    story.claim(
        ours=sentence,
        holds=close,
        predicted=predicted,
        right=close,
        observed="predicted over measured: "
        + ", ".join(f"{r} at batch {n}" for r, n in zip(found, sizes[1:])),
    )
    gains = _gain(story, one, many, sizes, k)
    seen = f"{k} devices are {gains[sizes.index(at)]} times as fast at batch {at}"
    why = f"the devices are fake, and their times say nothing about real ones; with a core each, {seen}"
    _judge(story, book, gains[sizes.index(at)], why if fake else "")


def _judge(story: Story, book: Sentence, gain: Ratio | None, cannot: str) -> None:
    decided = book.decided(gain) if gain and not cannot else None
    story.claim(
        book=book.words,
        holds=decided,
        predicted=book.predicted,
        right=decided,
        observed=f"{gain} times as fast",
        cannot=cannot,
    )


def _in_turns(
    make: MakeRun, counts: Sequence[int], sizes: Sequence[int], cores: Sequence[int], rounds: int
) -> dict[tuple[int, int], Measurement]:
    """Time each number of devices with each batch; with `cores`, on as many cores as devices."""
    named = {f"{plural(c)}, batch {n}": (c, n) for c in counts for n in sizes}
    steps = {name: make(first_devices(c), n) for name, (c, n) in named.items()}
    with contextlib.ExitStack() as limits:

        def limit(count: int) -> None:  # before each value, outside its clock
            limits.close()
            limits.enter_context(on_cores(cores[:count]))

        before = {name: lambda c=c: limit(c) for name, (c, _) in named.items()} if cores else None
        rows = interleaved(steps, count=rounds, before=before)
    return {named[name]: m for name, m in rows.items()}


def _predicted(
    one: Sequence[Measurement], smallest: Measurement, sizes: Sequence[int], i: int, k: int
) -> Measurement:
    """What the model says for batch i on k devices, from the values of each round."""
    per_image, low = sizes[-1] - sizes[0], sizes[0]

    def model(first: float, last: float, many: float) -> float:
        a = (last - first) / per_image
        return many + a * (sizes[i] - low) / k

    return per_round(f"model: {k} devices, batch {sizes[i]}", model, one[0], one[-1], smallest)


def _gain(
    story: Story, one: Sequence[Measurement], many: Sequence[Measurement], sizes: Sequence[int], k: int
) -> list[Ratio]:
    """Draw how many times as fast k devices are, over the batch; the model's curve goes on beyond."""
    gains = [ratio(a, b) for a, b in zip(one, many)]
    for n, gain in zip(sizes, gains):
        story.fact(f"gain_{k}_{n}", gain.median, words=f"gain of {k} devices at batch {n}")
    a = (one[-1].median - one[0].median) / (sizes[-1] - sizes[0])
    c = [rows[0].median - a * sizes[0] / count for rows, count in ((one, 1), (many, k))]
    story.fact("compute_per_image_s", a, unit="s", words="compute per image on one device")
    story.fact("not_divided_s", c[1], unit="s", words=f"part of a step on {k} devices that does not divide")
    story.fact("scaling_efficiency", gains[-1].median / k, words="gain divided by the number of devices")
    grid = [float(sizes[0] * 2**i) for i in range(12) if sizes[0] * 2**i <= 8 * sizes[-1]]
    model = [(a * n + c[0]) / (a * n / k + c[1]) for n in grid]
    story.lines(
        f"Gain of {k} devices over one",
        [
            Curve("measured", tuple(map(float, sizes)), tuple(g.median for g in gains), draw="points"),
            Curve("the model", tuple(grid), tuple(model), draw="line"),
        ],
        x=Axis("images in a batch"),
        y=Axis("times as fast"),
        caption=f"At most {k} is possible. What does not divide weighs less in larger batches.",
    )
    return gains
