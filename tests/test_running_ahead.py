"""Section 8.2.4: which figures decide that not waiting costs memory, and how far the front end runs ahead."""

from __future__ import annotations

from typing import Any

import pytest
from stories import begin

from jaxperf.chapter import running_ahead as part

MB = 10**6


def run(peak: float, *, made: float = 0.1, batches: int = 24, change: float = 10.0) -> dict[str, Any]:
    """One pass of a second that held so many bytes at its peak, and made its last batch after `made` s."""
    return {
        "produced_s": [made * (i + 1) / batches for i in range(batches)],
        "total_s": 1.0,
        "peak_bytes": peak,
        "change_bytes": change,
        "curve": [[0.0, 1.0], [0.0, peak]],
        "live_bytes": 5 * MB,
        "outputs": [0.5, 0.25],
    }


def six(peak: float, **options: Any) -> list[dict[str, Any]]:
    return [run(peak * (1 + 0.001 * i), **options) for i in range(6)]


@pytest.mark.parametrize("beside_book", [True, False])
def test_only_the_difference_of_two_looks_and_the_time_of_a_batch_have_the_books_figures_beside_them(
    beside_book: bool,
) -> None:
    story = begin("8.2")
    runs = {name: six(50 * MB) for name in ("synchronous", "asynchronous", part.SHORT)}
    part.books_program(story, runs, beside_book=beside_book)
    tables = [b for b in story.result().blocks if hasattr(b, "references")]
    with_figures = [t.title for t in tables if t.references]
    assert with_figures == ([tables[0].title, tables[1].title] if beside_book else [])
    assert "difference of two looks" in tables[0].title and "peak" in tables[2].title
    for table in tables:
        assert {r.beside for r in table.references} <= {m.name for m in table.rows}
        assert all(len(m.values) == 6 for m in table.rows)


@pytest.mark.parametrize(
    ("made", "holds", "prediction"), [(0.6, "does not hold", "right"), (0.1, "holds", "wrong")]
)
def test_how_soon_the_last_batch_was_made_judges_long_runs_and_short_ones(
    made: float, holds: str, prediction: str
) -> None:
    story = begin("8.2")
    part.when_made(story, {"asynchronous": six(1.0, made=made), part.SHORT: six(1.0, made=0.01, batches=8)})
    long, short = story.result().claims
    if story.environment.backend == "cpu":
        assert (long.holds, long.prediction) == (holds, prediction)
    assert (short.holds, short.prediction) == ("holds", "right")


@pytest.mark.parametrize(
    ("end", "window", "verdicts"),
    [
        (130 * MB, 60 * MB, [("holds", "right"), ("holds", "right"), ("holds", "right")]),
        (130 * MB, 140 * MB, [("holds", "right"), ("holds", "wrong"), ("holds", "right")]),
        (
            58 * MB,
            60 * MB,
            [("does not hold", "wrong"), ("does not hold", "wrong"), ("does not hold", "wrong")],
        ),
    ],
)
def test_peaks_of_the_same_rounds_judge_what_waiting_saves(
    end: float, window: float, verdicts: list[tuple[str, str]]
) -> None:
    story = begin("8.2")
    peaks = dict.fromkeys(part.HOST, six(60 * MB))
    peaks |= {
        "asynchronous": six(end),
        "predicting, asynchronous": six(end),
        "window of one step": six(window),
    }
    part.handed_over(story, peaks, batch_bytes=2 * MB)
    assert [(c.holds, c.prediction) for c in story.result().claims] == verdicts
    assert story.facts["losses_equal_however_waited_for"] is True


@pytest.mark.parametrize(("each", "processes"), [(6, 1), (1, 6)])
def test_rounds_are_put_together_however_many_processes_do_them(
    each: int, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = {"device": [8, {"a": ("train", "end", 2)}], "host": [2, {"b": ("train", "each", 2)}]}
    asked: list[int] = []

    def child(fn: Any, programs: Any, seed: int, rounds: int, **options: Any) -> Any:
        asked.append(rounds)
        return {feed: {way: [run(MB)] * rounds for way in ways} for feed, (_, ways) in programs.items()}

    monkeypatch.setattr(part, "in_fresh_process", child)
    found = part.watch(programs, 0, 6, each=each)
    assert asked == [each] * processes
    assert {feed: {way: len(runs) for way, runs in ways.items()} for feed, ways in found.items()} == {
        "device": {"a": 6},
        "host": {"b": 6},
    }


def test_a_run_that_grew_by_nothing_can_still_be_compared() -> None:
    assert part.peak({"idle": six(0.0)}, "idle").values == (part.PAGE,) * 6


def test_the_depth_is_counted_with_kept_and_with_donated_arguments() -> None:
    story = begin("8.2")
    part.how_deep(story)
    if story.environment.backend == "cpu":
        assert 0 < story.facts["inflight_depth"] <= part.IN_FLIGHT
        assert 0 < story.facts["inflight_depth_donated"] <= part.IN_FLIGHT
    assert [len(c.x) for c in story.result().curves] == [100, 100]
