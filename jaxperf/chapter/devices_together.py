"""Section 8.3.1: two devices, each alone and both together. How much was saved, by the clock and by spans?"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxperf.measure import Together, block, timeline, together
from jaxperf.measure.cores import on_cores
from jaxperf.report.words import quantity
from jaxperf.result import Ratio, Timeline, ratio_of
from jaxperf.result.intervals import length
from jaxperf.story import Story

Run = Callable[[], Any]


def alone_and_together(
    story: Story,
    alone: Mapping[str, Run],
    both: Run,
    *,
    tag: str,
    rounds: int,
    recordings: int,
    cores: Sequence[int] | None = None,
) -> tuple[Together, list[Timeline]]:
    """Two devices, each alone and both together: timed, then recorded together.

    Facts, with the tag's words for TAG: `share_saved_TAG` by the clock, `spans_overlap_TAG`, and
    `spans_over_clock_TAG`, which is near 1 if the profiler missed nothing.

    Args:
      story: is told a table and facts.
      alone: the work of each of two devices, by the device's lane in a timeline.
      both: the work of both.
      tag: what the comparison is called.
      rounds: how often each has its turn.
      recordings: how often `both` runs under the profiler.
      cores: one for each device that works alone, all of them for both; None: all cores for everything.
    """
    work = limited(both, cores)
    parts = {
        f"run on {lane}": limited(fn, cores and [cores[i]]) for i, (lane, fn) in enumerate(alone.items())
    }
    found = together(tag, {**parts, "run on both": work}, count=rounds)
    story.table(found.rows(), title=f"Two devices, {tag}", base=found.total.name, detail=True)
    recorded = [
        timeline.record(work, name=f"two devices, {tag}", folder=None if i else story.traces)
        for i in range(recordings)
    ]
    filled = [length(i for lane in alone for i in t.intervals(lane)) / t.wall_s for t in recorded]
    name = tag.replace(" ", "_")
    story.fact(f"share_saved_{name}", share(found).median, words=f"share saved by the clock, {tag}")
    story.fact(
        f"spans_overlap_{name}",
        statistics.median(timeline.overlap(t, *alone) for t in recorded),
        words=f"overlap of the spans, {tag}",
    )
    story.fact(f"spans_over_clock_{name}", statistics.median(filled), words=f"spans / clock, {tag}")
    return found, recorded


def limited(fn: Run, cores: Sequence[int] | None) -> Run:
    """`fn`, waiting for all its outputs, on these cores only; None: on all."""
    if cores is None:
        return fn

    def on_few() -> Any:
        with on_cores(cores):
            outputs = fn()
            with timeline.mark("outputs"):
                return block(outputs)

    return on_few


def share(found: Together) -> Ratio:
    """How much of what could be saved was saved, over the rounds: 0 nothing, 1 all."""
    return ratio_of(found.overlap.values)


def overview(story: Story, found: Sequence[Together], *, title: str) -> None:
    """Show comparisons as rows: the sum, together, the best possible, and the share that was saved."""
    story.grid(
        ("", "sum", "together", "best possible", "share saved"),
        [
            (t.tag, *(quantity(m.median, "s") for m in (t.total, t.both, t.best)), f"{share(t)}")
            for t in found
        ],
        title=title,
        right=(1, 2, 3, 4),
    )


def saved(found: Sequence[Together]) -> str:
    """The results of the comparisons, in words."""
    return "; ".join(
        f"{t.tag} {t.ratio} times as fast as one after the other, at best {t.possible.median:.3g}; "
        f"saved {share(t)} of that"
        for t in found
    )


def claim_about_cores(story: Story, found: Together | None, *, cannot: str) -> None:
    """Judge the book's reason for looking at different hardware, on CPU devices that share all cores."""
    little = share(found).at_most(0.25) if found else None
    story.claim(
        book="One operation uses all cores of a CPU, so running several at once gains little",
        holds=little,
        predicted="two CPU devices that share all cores save at most a quarter of what could be saved",
        right=little,
        observed=saved([found]) if found else "",
        cannot=cannot,
    )


def claim_saved(story: Story, found: Together | None, *, fake: bool, cannot: str) -> None:
    """Judge that two devices take less time together than in turn; `fake` says that both are CPU devices."""
    verdict: dict[str, Any] = {
        "holds": found.ratio.above() if found else None,
        "predicted": "at least half of what could be saved is saved",
        "right": share(found).at_least(0.5) if found else None,
        "observed": saved([found]) if found else "",
    }
    if fake:
        ours = "Two CPU devices with a core each take less time together than one after the other"
        story.claim(ours=ours, cannot=cannot, **verdict)
        cannot = "no GPU here, and times of CPU devices say nothing about one"
    story.claim(
        book="A CPU and a GPU take less time together than one after the other", cannot=cannot, **verdict
    )


def claim_loop(story: Story, recorded: Sequence[Timeline], lanes: Sequence[str], *, cannot: str) -> None:
    """Judge, by the profiler's spans, that a loop over devices does not run them one after the other."""
    overlaps = ratio_of([timeline.overlap(t, *lanes) for t in recorded]) if recorded else None
    parallel = overlaps.at_least(0.5) if overlaps else None
    story.claim(
        book="A loop over devices looks serial but runs in parallel if the framework does that for you "
        "(retelling in PyTorch)",
        holds=parallel,
        predicted="at least half of one device's work is done while the other works",
        right=parallel,
        observed=f"overlap {overlaps} of the less busy device's time, in {len(recorded)} recorded runs",
        cannot=cannot,
    )
