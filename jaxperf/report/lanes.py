"""Timelines as pictures: several runs over one common time, a panel each, a row a lane."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from jaxperf.measure.intervals import Interval, length, union
from jaxperf.measure.record import Timeline
from jaxperf.report import axes as ax
from jaxperf.report.figure import INK, LINE, MUTED, PAGE, SERIES
from jaxperf.report.gantt import stretch
from jaxperf.report.plots import Picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FINEST = 1 / 300  # of a timeline's length: less is narrower than a pixel on a phone


def timelines(title: str, caption: str, runs: Sequence[Timeline]) -> Picture:
    """Gantt charts over one common time: a panel a run, a row a lane."""
    lanes = [max(1, len(run.lanes)) for run in runs]
    end = max(stretch(run)[1] for run in runs) or 1.0

    def draw(figure: Figure) -> None:
        panels = figure.subplots(len(runs), 1, sharex=True, squeeze=False, height_ratios=lanes)[:, 0]
        for axes, run in zip(panels, runs):
            _panel(axes, run, end)
        ax.set_scale(panels[-1].xaxis, [0.0, end], "s", log=False)

    told = "; ".join(
        f"{run.name}, {ax.shown(run.wall_s, 's')}: "
        + (", ".join(f"{lane} busy {_busy(run, lane):.0%}" for lane in run.lanes) or "nothing was recorded")
        for run in runs
    )
    return Picture(title, caption, told, draw, 0.35 + 0.28 * sum(lanes) + 0.28 * len(runs))


def _busy(run: Timeline, lane: str) -> float:
    start, end = stretch(run)
    return length(run.intervals(lane)) / (end - start) if end > start else 0.0


def _panel(axes: Axes, run: Timeline, end: float) -> None:
    start = min(0.0, stretch(run)[0])
    for row, lane in enumerate(run.lanes):
        bars = [(a, b - a) for a, b in _visible(run.intervals(lane), end - start)]
        axes.axhspan(row - 0.34, row + 0.34, color=LINE, alpha=0.35, lw=0)
        axes.broken_barh(bars, (row - 0.34, 0.68), facecolor=_lane_color(lane), edgecolor=PAGE, linewidth=0.2)
    axes.set_yticks(range(len(run.lanes)), [ax.short(lane, 16) for lane in run.lanes], color=INK)
    axes.set_ylim(max(1, len(run.lanes)) - 0.5, -0.5)
    axes.set_xlim(start, end)
    axes.grid(visible=False)
    axes.spines["bottom"].set_visible(False)
    took = ax.shown(run.wall_s, "s") + ("" if run.lanes else ", nothing was recorded")
    axes.set_title(f"{ax.short(run.name, 44)}: {took}", loc="left", fontsize="small", color=INK)


def _visible(spans: Sequence[Interval], total: float) -> list[Interval]:
    """Spans joined where the gap could not be seen, and none too narrow to be seen."""
    finest = total * FINEST
    joined: list[Interval] = []
    for start, end in union(spans):
        if joined and start - joined[-1][1] < finest:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, max(end, start + finest)))
    return joined


def _lane_color(lane: str) -> str:
    """The same lane has the same colour in every picture."""
    kinds = {"python": SERIES[0], "wait": MUTED, "copies": SERIES[3]}
    if lane in kinds:
        return kinds[lane]
    digits = "".join(c for c in lane if c.isdigit())
    return (SERIES[1], SERIES[2], SERIES[4])[int(digits[-3:] or 0) % 3]
