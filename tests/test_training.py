"""What 8.4 and 8.5 show of a training: the book next to each epoch, and one rule for what was learned."""

from __future__ import annotations

from stories import begin

from jaxperf import script
from jaxperf.chapter import training as part
from jaxperf.chapter.book import LENET, Training
from jaxperf.result import Grid, Lines, Output
from jaxperf.train import Epoch


def epoch(number: int, accuracy: float) -> Epoch:
    return Epoch(number, 2.0 / number, accuracy, accuracy, 10.0, 1.0, 0.0, 60_000)


def test_each_epoch_stands_next_to_the_books_seconds_and_accuracy() -> None:
    story = begin("8.4")
    states = iter("abcde")
    pairs = [(epoch(i, 0.1 * i), next(states)) for i in range(1, 6)]
    assert part.table_of_epochs(story, iter(pairs), title="1 device", printed=LENET[1]) == pairs
    [grid] = story.result().of(Grid)
    assert grid.heads == part.HEADS
    assert grid.rows[1] == ("2", "10.0 s", "1.0000", "0.20", "0.20", "1.4 s", "0.60")
    assert grid.rows[4][5:] == ("", "")  # the book stops after four
    assert "at most 0.00% of the time" in [*story.result().of(Output)][-1].text
    part.table_of_epochs(story, iter(pairs), title="pmap")
    assert list(story.result().of(Grid))[1].heads == part.HEADS[:5]


def test_curves_show_the_books_accuracies_as_hollow_points() -> None:
    story = begin("8.4")
    part.curves(story, {"1 device": [epoch(1, 0.1), epoch(2, 0.6)]}, printed={1: LENET[1]})
    accuracy, loss = story.result().of(Lines)
    assert [(c.name, c.draw) for c in accuracy.curves] == [
        ("1 device", "line and points"), ("the book, 1 GPU", "hollow points"),
    ]  # fmt: skip
    assert accuracy.curves[1].y == LENET[1].accuracy
    assert loss.curves[0].y == (2.0, 1.0)


def verdicts(accuracies: list[float], missing: str) -> list[tuple[str, str]]:
    story = begin("8.4")
    runs = {f"run {i}": [epoch(1, 0.1), epoch(2, a)] for i, a in enumerate(accuracies)}
    printed = {"run 0": Training((0.1, 0.7), (1.0, 1.0))}
    part.judge_learning(story, "LeNet", runs, tested=1000, printed=printed, missing=missing)
    return [(c.holds, c.prediction) for c in story.result().claims]


def test_learning_is_decided_on_what_was_trained_and_the_books_figure_on_the_full_recipe_only() -> None:
    cannot, yes, no = "cannot be measured here", ("holds", "right"), ("does not hold", "wrong")
    assert verdicts([0.75, 0.5], missing="") == [yes, yes]
    assert verdicts([0.5, 0.5], missing="") == [yes, no]  # further from .70 than two printings are
    assert verdicts([0.75, 0.11], missing="") == [no, yes]  # guessing reaches .11
    assert verdicts([0.75, 0.5], missing="all images") == [yes, (cannot, "undecided")]
    assert verdicts([0.11, 0.5], missing="all images")[0] == ("undecided", "undecided")  # too short to tell


def test_images_are_cut_to_what_was_asked_for_and_their_source_is_told() -> None:
    story = begin("8.5")
    data = part.images(story, script.Data(data_source="mini"), train=32, test=16)
    assert data.train_images.shape == (32, 28, 28, 1) and data.test_labels.shape == (16,)
    assert story.environment.data_source == "mini"
    assert len(part.images(story, script.Data(data_source="mini")).train_labels) == 6000
