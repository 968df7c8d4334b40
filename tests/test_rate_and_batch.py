"""The exercise on batch and rate: every setting is trained once, and the verdict follows the losses."""

from __future__ import annotations

from stories import begin

from jaxperf.chapter import rate_and_batch as part
from jaxperf.result import Grid, Lines
from jaxperf.train import Epoch


def epochs(loss: float, count: int = 1) -> list[Epoch]:
    return [Epoch(i + 1, loss, 0.5, 0.6, 2.0, 1.0, 0.0, 1024) for i in range(count)]


def test_the_verdict_follows_the_losses() -> None:
    cases = {
        (0.5, 0.7, 0.52): ("holds", "wrong"),
        (0.5, 0.5, 0.4): ("holds", "wrong"),
        (0.5, 0.51, 0.69): ("does not hold", "right"),
        (0.5, 0.6, 0.69): ("does not hold", "wrong"),
        (0.5, 0.5, 0.54): ("undecided", "undecided"),
        (2.3, 2.3, 2.3): ("undecided", "undecided"),  # nothing was learned
    }
    for (base, old, doubled), verdicts in cases.items():
        losses = {(256, 0.2): base, (512, 0.2): old, (512, 0.2 * 1.5): 0.6, (512, 0.4): doubled}
        story = begin("8.4")
        part.batch_and_rate(
            story, lambda n, lr, of=losses: epochs(of[n, lr]), batch_size=256, lr=0.2, images=1024, start="x"
        )
        assert [(c.holds, c.prediction) for c in story.result().claims] == [verdicts]
        [grid] = story.result().of(Grid)
        assert [row[:3] for row in grid.rows] == [
            ("256", "0.2", "4"), ("512", "0.2", "2"), ("512", "0.3", "2"), ("512", "0.4", "2"),
        ]  # fmt: skip
        assert not list(story.result().of(Lines))


def test_a_larger_grid_trains_each_batch_at_each_rate_and_what_the_claim_needs() -> None:
    story = begin("8.4")
    tried: list[tuple[int, float]] = []
    part.batch_and_rate(
        story, lambda n, lr: tried.append((n, lr)) or epochs(0.5), batch_size=256, lr=0.25, images=4096,
        start="x", batches=(4, 8), rates=(1, 3),
    )  # fmt: skip
    larger = [(1024, 0.25), (1024, 0.75), (2048, 0.25), (2048, 0.75)]
    assert tried == [(256, 0.25), (512, 0.25), *larger, (512, 0.5)]
    assert [c.holds for c in story.result().claims] == ["holds"]


def test_several_epochs_are_drawn() -> None:
    story = begin("8.5")
    found = part.grid_of_trainings(
        story, lambda n, lr: epochs(lr, 3), [(32, 0.05), (32, 0.2)], readers=["an answer"]
    )
    assert {key: e.loss for key, e in found.items()} == {(32, 0.05): 0.05, (32, 0.2): 0.2}
    [lines] = story.result().of(Lines)
    assert [c.name for c in lines.curves] == ["batch 32, rate 0.05", "batch 32, rate 0.2"]
