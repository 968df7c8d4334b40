"""Timelines as Gantt charts: drawn for a page, and a row of letters per lane for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from jaxperf.report import draw as ax
from jaxperf.report.draw import INK, LINE, PAGE, SERIES, Picture
from jaxperf.report.words import quantity, shown
from jaxperf.result import Timeline, Timelines
from jaxperf.result.intervals import Interval, clip, length, union

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FINEST = 1 / 500  # of a timeline's length: less is narrower than a pixel
SHADES = " ░▒▓█"  # busy for none of a cell's time, up to a third, up to two, less than all, all
WIDTH = 100
LANE_WIDTH = 18


def stretch(timeline: Timeline) -> Interval:
    """The range of a chart: the run, extended by its spans if they go beyond it."""
    ends = [s.end_s for s in timeline.spans]
    starts = [s.start_s for s in timeline.spans]
    return min([0.0, *starts]), max([timeline.traced_s or timeline.wall_s, *ends])


def timelines(block: Timelines) -> Picture:
    """Gantt charts over one common time axis: a panel per run, a row per lane, a color per lane's name."""
    lanes = list(dict.fromkeys(lane for run in block.runs for lane in run.lanes))
    rows = [max(1, len(run.lanes)) for run in block.runs]
    start = min((stretch(run)[0] for run in block.runs), default=0.0)
    end = max((stretch(run)[1] for run in block.runs), default=0.0) or 1.0

    def draw(figure: Figure) -> None:
        panels = figure.subplots(len(rows), 1, sharex=True, squeeze=False, height_ratios=rows)[:, 0]
        for axes, run in zip(panels, block.runs):
            _panel(axes, run, lanes, (end - start) * FINEST)
        panels[-1].set_xlim(start, end)
        ax.set_scale(panels[-1].xaxis, [start, end], "s", log=False)

    told = "; ".join(
        f"{run.name}, {shown(run.wall_s, 's')}: "
        + (", ".join(f"{lane} busy {_busy(run, lane):.0%}" for lane in run.lanes) or "nothing was recorded")
        for run in block.runs
    )
    caption = block.caption or "When each lane was busy; the pale track is idle time."
    height_in = 0.35 + 0.28 * sum(rows) + 0.3 * len(rows)
    return Picture(block.title, caption, told, draw, height_in, block.runs)


def _busy(run: Timeline, lane: str) -> float:
    start, end = stretch(run)
    return length(run.intervals(lane)) / (end - start) if end > start else 0.0


def _panel(axes: Axes, run: Timeline, lanes: Sequence[str], finest: float) -> None:
    for row, lane in enumerate(run.lanes):
        found = [(a, b - a) for a, b in _visible(run.intervals(lane), finest)]
        axes.axhspan(row - 0.34, row + 0.34, color=LINE, alpha=0.35, lw=0)
        color = SERIES[lanes.index(lane) % len(SERIES)]
        axes.broken_barh(found, (row - 0.34, 0.68), facecolor=color, edgecolor=PAGE, linewidth=0.2)
    axes.set_yticks(range(len(run.lanes)), [ax.short(lane, 16) for lane in run.lanes], color=INK)
    axes.set_ylim(max(1, len(run.lanes)) - 0.5, -0.5)
    axes.grid(visible=False)
    axes.spines["bottom"].set_visible(False)
    took = shown(run.wall_s, "s") + ("" if run.lanes else ", nothing was recorded")
    axes.set_title(f"{ax.short(run.name, 44)}: {took}", loc="left", color=INK)


def _visible(spans: Sequence[Interval], finest: float) -> list[Interval]:
    """Spans joined if the gap would be invisible, and widened if too narrow to be seen."""
    joined: list[Interval] = []
    for start, end in union(spans):
        if joined and start - joined[-1][1] < finest:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, max(end, start + finest)))
    return joined


def gantt(timeline: Timeline, *, width: int = WIDTH) -> str:
    """The timeline as text of at most `width` columns (at least 60 of them).

    A line says what ran and how long, then a row per lane shows when it was busy, for how long and in how
    many spans, then come the ends of the axis. Long lane names are cut.
    """
    start, end = stretch(timeline)
    lanes = timeline.lanes
    notes = {lane: _note(timeline, lane, end - start) for lane in lanes}
    label = min(LANE_WIDTH, max((len(lane) for lane in lanes), default=0))
    cells = max(10, width - label - max((len(n) for n in notes.values()), default=0) - 4)
    lines = [f"{timeline.name}: {quantity(timeline.wall_s, 's')} on the clock"[:width]]
    for lane in lanes:
        bar = _bar(timeline.intervals(lane), start, end, cells)
        lines.append(f"{lane[:label]:{label}} |{bar}| {notes[lane]}")
    if not lanes:
        return "\n".join([*lines, "the profiler saw nothing"[:width]])
    left, right = quantity(start, "s"), quantity(end, "s")
    lines.append(f"{'':{label}}  {left}{right:>{max(0, cells - len(left))}}")
    return "\n".join(lines)


def _note(timeline: Timeline, lane: str, total: float) -> str:
    spans = timeline.intervals(lane)
    busy = length(spans)
    share = f"{busy / total * 100:.0f} %" if total > 0 else "-"
    return f"{quantity(busy, 's')}, {share}, {len(spans)} span{'s' * (len(spans) != 1)}"


def _bar(spans: Sequence[Interval], start: float, end: float, cells: int) -> str:
    """One character per cell: how much of the cell's time the spans cover."""
    step = (end - start) / cells
    if step <= 0:
        return " " * cells
    shades = []
    for i in range(cells):
        low = start + i * step
        share = length(clip(spans, low, low + step)) / step
        last = len(SHADES) - 1
        shades.append(SHADES[0 if share <= 0 else last if share > 0.999 else 1 + int(share * (last - 1))])
    return "".join(shades)
