"""What the trainings of sections 8.4 and 8.5 share: images, the table of epochs, curves, verdicts."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from jaxperf import script
from jaxperf.chapter.book import TWO_RUNS_DIFFER, Training
from jaxperf.data import FashionMNIST, fashion_mnist
from jaxperf.result import Axis, Curve, Decision
from jaxperf.script import Story
from jaxperf.train import Animator, Epoch

S = TypeVar("S")
CHANCE = 0.1  # ten classes, all equally frequent
HEADS = ("epoch", "time", "loss", "train acc", "test acc", "book: time", "book: test acc")


def images(story: Story, flags: script.Data, *, train: int = 0, test: int = 0) -> FashionMNIST:
    """Read Fashion-MNIST, of which the first `train` and `test` images are kept (0: all).

    Raises:
      JaxperfError: the requested source does not work.
    """
    data = fashion_mnist(source=flags.data_source, folder=flags.data_folder)
    kept = slice(train or None), slice(test or None)
    data = dataclasses.replace(
        data,
        train_images=data.train_images[kept[0]], train_labels=data.train_labels[kept[0]],
        test_images=data.test_images[kept[1]], test_labels=data.test_labels[kept[1]],
    )  # fmt: skip
    story.data_source(data.source)
    story.say(f"data: {data.source}, {len(data.train_labels):,} + {len(data.test_labels):,} images")
    for reason in data.skipped if data.source == "mini" else ():
        story.say(f"  skipped: {reason}", detail=True)
    return data


def plural(count: int) -> str:
    """A number of devices in words."""
    return f"{count} device{'s' * (count > 1)}"


def table_of_epochs(
    story: Story, epochs: Iterable[tuple[Epoch, S]], *, title: str, printed: Training | None = None
) -> list[tuple[Epoch, S]]:
    """Go through a training, and show each epoch with the book's figures next to it.

    Args:
      story: is told the results.
      epochs: yields each epoch, and the state after it, when it has been trained.
      title: of the table.
      printed: the book's figures for it; None if it has none.

    Returns:
      What `epochs` yielded.
    """
    trained = []
    with Animator("epoch", ["loss", "train acc", "test acc"]) as animator:
        for epoch, state in epochs:
            animator.add(epoch.number, (epoch.loss, epoch.train_accuracy, epoch.test_accuracy))
            trained.append((epoch, state))
    theirs = (
        [(f"{s:.1f} s", f"{a:.2f}") for s, a in zip(printed.seconds, printed.accuracy)] if printed else []
    )
    rows = [
        (str(e.number), f"{e.train_s:.1f} s", f"{e.loss:.4f}", f"{e.train_accuracy:.2f}",
         f"{e.test_accuracy:.2f}", *(theirs[e.number - 1] if e.number <= len(theirs) else ("", "")))
        for e, _ in trained
    ]  # fmt: skip
    columns = len(HEADS) if theirs else len(HEADS) - 2
    story.grid(HEADS[:columns], [row[:columns] for row in rows], title=title, right=range(columns))
    waited = sum(e.data_s for e, _ in trained) / sum(e.train_s for e, _ in trained)
    story.say(f"devices waited for batches at most {waited:.2%} of the time")
    return trained


def curves(story: Story, runs: Mapping[str, Sequence[Epoch]], *, printed: Mapping[int, Training]) -> None:
    """Draw test accuracy and loss over epochs, the book's accuracies as hollow points."""
    accuracy_curves(story, runs, printed=printed, caption="Hollow points: the book's.")
    loss = [_curve(name, [(e.number, e.loss) for e in run]) for name, run in runs.items()]
    story.lines("Training loss", loss, x=Axis("epoch"), y=Axis("loss"), zero=True)


def accuracy_curves(
    story: Story,
    runs: Mapping[str, Sequence[Epoch]],
    *,
    printed: Mapping[int, Training],
    title: str = "Test accuracy",
    caption: str = "",
) -> None:
    """Draw test accuracy over epochs, the book's as hollow points."""
    accuracy = [_curve(name, [(e.number, e.test_accuracy) for e in run]) for name, run in runs.items()]
    for k, training in printed.items():
        name = f"the book, {k} GPU{'s' * (k > 1)}"
        points = list(enumerate(training.accuracy, 1))
        accuracy.append(dataclasses.replace(_curve(name, points), draw="hollow points"))
    story.lines(title, accuracy, x=Axis("epoch"), y=Axis("test accuracy"), zero=True, caption=caption)


def _curve(name: str, points: Sequence[tuple[float, float]]) -> Curve:
    return Curve(name, tuple(float(x) for x, _ in points), tuple(y for _, y in points), color=name)


def judge_learning(
    story: Story,
    network: str,
    runs: Mapping[str, Sequence[Epoch]],
    *,
    tested: int,
    printed: Mapping[str, Training],
    missing: str,
) -> None:
    """Decide whether the network learns and, if the full recipe was trained, whether like the book's.

    Args:
      story: is told the results.
      network: its name.
      runs: the epochs of each training.
      tested: how many test images there were.
      printed: the book's training for the names of `runs` that it has.
      missing: how these trainings differ from the book's; "" if they do not.
    """
    last = {name: run[-1].test_accuracy for name, run in runs.items()}
    where = "on one device and on several" if story.devices > 1 else "on one device"
    seen = "; ".join(f"{name}: {a:.2f} after epoch {runs[name][-1].number}" for name, a in last.items())
    # Guessing is right with p = .1, like a biased coin; four standard deviations above that are not luck
    bound = CHANCE + 4 * math.sqrt(CHANCE * (1 - CHANCE) / tested)
    above: Decision = all(a > bound for a in last.values()) or (False if not missing else None)
    story.claim(
        ours=f"{network} learns, {where}",
        holds=above,
        predicted=f"test accuracy above {bound:.2f}, which guessing among ten classes does not reach",
        right=above,
        observed=seen,
    )
    near = [
        abs(last[name] - t.accuracy[-1]) <= TWO_RUNS_DIFFER for name, t in printed.items() if name in last
    ]
    theirs = ", ".join(f"{t.accuracy[-1]:.2f} ({name})" for name, t in printed.items())
    story.claim(
        book=f"{network}'s test accuracy after four epochs is {theirs}",
        holds=all(near),
        predicted=f"within {TWO_RUNS_DIFFER:.2f}, by which two printings of one program differ",
        right=all(near),
        observed=seen,
        cannot=missing and f"{missing}; {seen}",
    )
