"""Draws what a run recorded: timelines, with words on their bars."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from jaxperf.result import Timeline
from jaxperf.result.intervals import Interval, union

QUIET = "#b4b9c1"  # of waiting, which is not work
LETTER = 0.0115  # the width of a letter, as a share of the figure
VISIBLE = 1000  # parts of the figure's width that can be told apart


def draw_timeline(run: Timeline, words: Mapping[str, str] | None = None) -> Any:
    """Return a Matplotlib figure: a row for each lane, a bar for each time in which it was busy."""
    from matplotlib import pyplot

    readable = {"outputs": "waits for the outputs", **(words or {})}
    figure, ax = pyplot.subplots(figsize=(7, 0.8 + 0.34 * len(run.lanes)))
    # A GPU's lane can have ten thousand kernels: gaps that nobody can see are not drawn
    least = max((span.end_s for span in run.spans), default=0.0) / VISIBLE
    for row, lane in enumerate(run.lanes):
        bars = _joined(union(run.intervals(lane)), least)
        spans = [(1e3 * start, 1e3 * (end - start)) for start, end in bars]
        waits = lane.startswith("wait")
        ax.broken_barh(spans, (-row - 0.36, 0.72), color=QUIET if waits else f"C{row % 5}")
        on_bars = [_word(run, lane, bar, readable) for bar in bars]
        _label(ax, run, -row, bars, on_bars, "#1f2328" if waits else "white")
    ax.set(yticks=range(0, -len(run.lanes), -1), yticklabels=run.lanes, xlabel="ms")
    return figure


def _joined(bars: Sequence[Interval], least: float) -> list[Interval]:
    """Join neighboring bars, in order of time, whose gap is shorter than `least` seconds."""
    joined: list[Interval] = []
    for start, end in bars:
        if joined and start - joined[-1][1] < least:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return joined


def _word(run: Timeline, lane: str, bar: Interval, readable: Mapping[str, str]) -> str:
    """Return what took most of a bar's time, without what XLA and JAX add; "" for a function of C++.

    Python only calls a compiled function, so `readable`, which names devices' work, leaves calls alone.
    """
    seconds: dict[str, float] = {}
    for span in run.spans:
        if span.lane == lane and bar[0] <= span.start_s and span.end_s <= bar[1]:
            called = re.sub(r"^PjitFunction\((.*)\)$", r"calls \1", span.name)
            name = re.sub(r"[.\d]+$", "", called) or called
            seconds[name] = seconds.get(name, 0.0) + span.end_s - span.start_s
    longest = max(seconds, key=lambda name: seconds[name])
    return "" if "::" in longest else readable.get(longest, longest)


def _label(ax: Any, run: Timeline, y: float, bars: list[Interval], words: list[str], color: str) -> None:
    """Write on each bar of a lane that is wide enough."""
    width = max(span.end_s for span in run.spans) or 1.0
    for word, (start, end) in zip(words, bars):
        if LETTER * len(word) * width < end - start:
            ax.text(500 * (start + end), y, word, ha="center", va="center", fontsize=8, color=color)
