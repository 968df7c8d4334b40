"""The gain from more devices: step time = a share's compute + what does not divide, fitted and then tested.

Each fake device gets a core of its own, so that two devices have twice the compute of one.
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

Run = tuple[int, int]  # number of devices, batch size
MakeRun = Callable[[Sequence[jax.Device], int], Callable[[], Any]]
CLOSE = 0.3  # how close the model must be at batches that it was not fitted to


@dataclass(frozen=True)
class Sentence:
    """What the book says about the gain: its words, what we predict, and how a measured gain decides it.

    With `grows`, k devices get k times the batch: the book gives two GPUs 512 images for ResNet-18, but the
    same 256 as one for LeNet. Then images per second are compared.
    """

    words: str
    predicted: str
    decided: Callable[[Ratio], Decision]
    grows: bool = False


LITTLE = Sentence(
    "Two GPUs shorten LeNet's training by little, since they must communicate",
    "at most 1.3 times as fast",
    lambda gain: gain.at_most(1.3),
)
LOT = Sentence(
    "ResNet-18 gains a lot from a second GPU: an epoch takes about half the time",
    "at least 1.5 times as fast",
    lambda gain: gain.at_least(1.5),
    grows=True,
)


def scaling(
    story: Story, make: MakeRun, *, network: str, sizes: Sequence[int], at: int, book: Sentence, rounds: int
) -> None:
    """Time steps on one device and on all in use, at several batch sizes, and test the model on them.

    The model is T(k, n) = T(1, n / k) + c(k): a share takes as long as on one device, and c is the part that
    does not divide. c comes from the smallest batch; all other batches on k devices are predicted and
    compared.

    Facts: `gain_DEVICES_BATCH`, `not_divided_s`, `scaling_efficiency`.

    Args:
      story: is told the results.
      make: `make(devices, n)` gives a function that makes one step with n images and returns its outputs.
      network: its name.
      sizes: batch sizes, ascending, at least two, divisible by the devices.
      at: the one of them at which the book's sentence is decided, if devices are real.
      book: the sentence.
      rounds: how often each has its turn.
    """
    story.heading(f"What more devices gain {network}")
    story.text(
        """Only the compute of a step is divided among the devices. The sums, the update and the dispatch are
        not: on `k` devices a step with `n` images takes `T(k, n) = T(1, n / k) + c(k)`. So a step gains the
        more, the more it computes per sum. The time of a share is measured on one device, not divided: twice
        the images may take more than twice as long, where they no longer fit into a cache. `c(k)` comes from
        the smallest batch. The other batches test the model."""
    )
    k, fake, cores = story.devices, story.environment.devices_are_fake, available()
    why = _cannot(k, cores if fake else None)
    if why:
        _close(story, [], [], why)
        _judge(story, book, None, "", why)
        return
    if fake:
        story.text("These devices are fake, so each gets a core: one device runs on one core of this host.")
    alone = sorted({*sizes, *(n // k for n in sizes)})
    many = k * at if book.grows and not fake else at  # no need to time a batch that decides nothing
    runs = [(1, n) for n in alone] + [(k, n) for n in dict.fromkeys((*sizes, many))]
    rows = _in_turns(make, runs, cores if fake else (), rounds)
    models = [_predicted(rows, sizes[0], n, k) for n in sizes[1:]]
    last = sizes[-1]
    story.table(
        (*rows.values(), *models), title=f"Seconds of a step of {network}, and the model's prediction",
        key=(rows[1, last].name, rows[k, last].name, models[-1].name),
    )  # fmt: skip
    _close(story, [ratio(model, rows[k, n]) for model, n in zip(models, sizes[1:])], sizes[1:], "")
    _gain(story, rows, models, sizes, k)
    as_many = per_round(f"{many} images on one device", lambda s: s * many / at, rows[1, at])
    gain = ratio(as_many, rows[k, many])
    seen = f"{k} devices at batch {many} train {gain} times the images/s of one at batch {at}"
    why = f"the devices are fake, and their times say nothing about real ones; with a core each, {seen}"
    _judge(story, book, gain, seen, why if fake else "")


def _cannot(k: int, cores: Sequence[int] | None) -> str:
    """Why nothing can be compared, or ""; `cores` are those that fake devices share."""
    if k < 2:
        return "only one device here"
    if cores is not None and len(cores) < k:
        return f"{len(cores)} core{'s' * (len(cores) > 1)} for {k} fake devices; each needs its own"
    return ""


def _close(story: Story, found: Sequence[Ratio], sizes: Sequence[int], cannot: str) -> None:
    """The claim that the model predicts the batches that it was not fitted to."""
    close = both(*(r.within(CLOSE) for r in found)) if found else None
    story.claim(
        ours="A step takes the time of one device's share, plus what does not divide",
        holds=close,
        predicted=f"step times at batches that were not fitted come within {CLOSE:.0%}",
        right=close,
        observed="predicted over measured: " + ", ".join(f"{r} at batch {n}" for r, n in zip(found, sizes)),
        cannot=cannot,
    )


def _judge(story: Story, book: Sentence, gain: Ratio | None, seen: str, cannot: str) -> None:
    decided = book.decided(gain) if gain and not cannot else None
    story.claim(
        book=book.words,
        holds=decided,
        predicted=book.predicted,
        right=decided,
        observed=seen,
        cannot=cannot,
    )


def _in_turns(
    make: MakeRun, runs: Sequence[Run], cores: Sequence[int], rounds: int
) -> dict[Run, Measurement]:
    """Time a step of each run in turns; with `cores`, on as many cores as it has devices."""
    named = {f"{plural(k)}, batch {n}": (k, n) for k, n in runs}
    steps = {name: make(first_devices(k), n) for name, (k, n) in named.items()}
    with contextlib.ExitStack() as limits:

        def limit(count: int) -> None:  # before each value, outside its clock
            limits.close()
            limits.enter_context(on_cores(cores[:count]))

        before = {name: lambda k=k: limit(k) for name, (k, _) in named.items()} if cores else None
        rows = interleaved(steps, count=rounds, before=before)
    return {named[name]: m for name, m in rows.items()}


def _predicted(rows: dict[Run, Measurement], smallest: int, n: int, k: int) -> Measurement:
    """What the model says for a batch on k devices, from the values of each round."""
    share, fitted = rows[1, n // k], (rows[k, smallest], rows[1, smallest // k])
    name = f"model: {plural(k)}, batch {n}"
    return per_round(name, lambda share, many, one: share + many - one, share, *fitted)


def _gain(
    story: Story, rows: dict[Run, Measurement], models: Sequence[Measurement], sizes: Sequence[int], k: int
) -> None:
    """Draw how many times as fast k devices are, over the batch size, and what the model says."""
    gains = {n: ratio(rows[1, n], rows[k, n]) for n in sizes}
    for n, gain in gains.items():
        story.fact(f"gain_{k}_{n}", gain.median, words=f"gain of {plural(k)} at batch {n}")
    left = rows[k, sizes[0]].median - rows[1, sizes[0] // k].median
    story.fact("not_divided_s", left, unit="s", words=f"part of a step on {plural(k)} that does not divide")
    efficiency = gains[sizes[-1]].median / k
    story.fact("scaling_efficiency", efficiency, words="gain divided by the number of devices")
    model = [ratio(rows[1, n], m).median for n, m in zip(sizes[1:], models)]
    story.lines(
        f"Gain of {plural(k)} over one",
        [
            Curve(
                "measured", tuple(map(float, sizes)), tuple(g.median for g in gains.values()), draw="points"
            ),
            Curve("the model", tuple(map(float, sizes[1:])), tuple(model), draw="line"),
        ],
        x=Axis("images in a batch"),
        y=Axis("times as fast"),
        caption=f"Compute alone gains at most {k}, unless a share fits into a cache and the batch does not.",
    )
