"""Draws what a run recorded: timelines, with words on their bars."""

import re
from collections.abc import Mapping
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
    width_s = max((span.end_s for span in run.spans), default=0.0)
    for row, lane in enumerate(run.lanes):
        # A GPU's lane can have ten thousand kernels: gaps that nobody can see are not drawn
        bars = union(run.intervals(lane), gap=width_s / VISIBLE)
        fill, ink = (QUIET, "#1f2328") if lane.startswith("wait") else (f"C{row % 5}", "white")
        milliseconds = [(1e3 * start, 1e3 * (end - start)) for start, end in bars]
        ax.broken_barh(milliseconds, (-row - 0.36, 0.72), color=fill)
        for start, end in bars:
            word = _word(run, lane, (start, end), readable)
            if LETTER * len(word) * width_s < end - start:
                ax.text(500 * (start + end), -row, word, ha="center", va="center", fontsize=8, color=ink)
    ax.set(yticks=range(0, -len(run.lanes), -1), yticklabels=run.lanes, xlabel="ms")
    return figure


def _word(run: Timeline, lane: str, bar: Interval, readable: Mapping[str, str]) -> str:
    """Return what took most of a bar's time, without what XLA and JAX add; "" for a function of C++."""
    seconds: dict[str, float] = {}
    for span in run.spans:
        if span.lane == lane and bar[0] <= span.start_s and span.end_s <= bar[1]:
            # Python only calls a compiled function: `readable` names devices' work, and leaves calls alone
            called = re.sub(r"^PjitFunction\((.*)\)$", r"calls \1", span.name)
            name = re.sub(r"[.\d]+$", "", called) or called
            seconds[name] = seconds.get(name, 0.0) + span.end_s - span.start_s
    longest = max(seconds, key=lambda name: seconds[name])
    return "" if "::" in longest else readable.get(longest, longest)
