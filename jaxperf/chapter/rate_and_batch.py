"""Exercise: how do batch size and learning rate change what a training achieves, and how long it takes?"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from jaxperf.result import Axis, Curve
from jaxperf.script import Story
from jaxperf.train import Epoch

READERS_OF_84 = (
    "A reader of the book answers: about the same time; rate 0.17 on one GPU is as good as 0.2 on a GPU and "
    "the CPU. A retelling in PyTorch answers: batch 512 with rate 0.2 x 1.5 is a little better than 0.2.",
)
SAME = 0.05  # two losses that differ by less count as equal
Train = Callable[[int, float], Sequence[Epoch]]


def grid_of_trainings(
    story: Story, train: Train, settings: Sequence[tuple[int, float]], *, readers: Sequence[str]
) -> dict[tuple[int, float], Epoch]:
    """Train with each batch size and rate; show time, loss and accuracy, with the readers' answers below.

    Args:
      story: is told the results.
      train: `train(batch_size, lr)` gives the epochs of one training.
      settings: pairs of batch size and learning rate, the one to compare with first.
      readers: what readers of the book answered.

    Returns:
      The last epoch of each training.
    """
    runs = {setting: train(*setting) for setting in settings}
    last = {setting: epochs[-1] for setting, epochs in runs.items()}
    story.grid(
        ("batch", "rate", "updates", "time", "train loss", "train acc", "test acc"),
        [
            (str(n), f"{lr:g}", str(sum(e.images for e in runs[n, lr]) // n),
             f"{sum(e.train_s for e in runs[n, lr]):.1f} s",
             f"{e.loss:.3f}", f"{e.train_accuracy:.2f}", f"{e.test_accuracy:.2f}")
            for (n, lr), e in last.items()
        ],
        right=range(7),
    )  # fmt: skip
    if len(next(iter(runs.values()))) > 1:
        story.lines(
            "Test accuracy by rate and batch",
            [
                Curve(
                    f"batch {n}, rate {lr:g}",
                    tuple(float(e.number) for e in epochs),
                    tuple(e.test_accuracy for e in epochs),
                    dash=str(n),
                )
                for (n, lr), epochs in runs.items()
            ],
            x=Axis("epoch"),
            y=Axis("test accuracy"),
            zero=True,
        )
    for answer in readers:
        story.text(answer)
    return last


def batch_and_rate(
    story: Story, train: Train, *, batch_size: int, lr: float, images: int, start: str,
    batches: Sequence[int] = (2,), rates: Sequence[float] = (1.0, 1.5, 2.0),
) -> None:  # fmt: skip
    """Section 8.4's first exercise: double the batch; which rate then learns as before?

    Args:
      story: is told the results.
      train: `train(batch_size, lr)` gives the epochs of one training.
      batch_size, lr: what to compare with.
      images: how many images each training goes over, all its epochs together.
      start: where each training starts.
      batches, rates: of the other trainings, in multiples of `batch_size` and `lr`, in all combinations.
        Twice the batch at the same and at twice the rate, which decide the claim, are always among them.
    """
    story.heading("Exercise: twice the batch, and which rate?")
    story.text(
        f"""A batch of twice the size makes half the updates, and each averages over twice the images. So the
        rate may grow. Each training goes over the same {images:,} images, from {start}."""
    )
    n = 2 * batch_size
    grid = [(times * batch_size, factor * lr) for times in batches for factor in rates]
    settings = dict.fromkeys([(batch_size, lr), (n, lr), *grid, (n, 2 * lr)])  # each once
    last = grid_of_trainings(story, train, [*settings], readers=READERS_OF_84)
    base = last[batch_size, lr].loss
    old, doubled = (last[n, factor * lr].loss / base - 1 for factor in (1, 2))
    learned = base < 0.95 * math.log(10)  # log(10) is the loss of guessing among ten classes
    as_much = None if not learned or SAME < doubled < 2 * SAME else doubled <= SAME
    story.claim(
        ours="With twice the batch, twice the rate learns as much from the same images",
        holds=as_much,
        predicted=f"no: {lr:g} is near the largest rate that LeNet bears; it serves the larger batch as well",
        right=None if as_much is None else not as_much and abs(old) <= SAME,
        observed=f"next to batch {batch_size}, the loss is {old:+.0%} at the old rate and {doubled:+.0%} at "
        "twice the rate",
    )
