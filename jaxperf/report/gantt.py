"""Timelines as Gantt charts: one row a lane, as text for a terminal and as SVG for a page."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

from jaxperf.measure.intervals import Interval, clip, length
from jaxperf.measure.record import Timeline
from jaxperf.report.text import quantity

SHADES = " ░▒▓█"  # busy for none of a cell's time, up to a third, up to two, less than all, all
COLORS = (
    "#0072b2",
    "#e69f00",
    "#009e73",
    "#cc79a7",
    "#56b4e9",
    "#d55e00",
)  # told apart by colour-blind readers
WIDTH = 100
LANE_WIDTH = 18


def stretch(timeline: Timeline) -> Interval:
    """From where to where the chart goes: the run, and whatever the spans add to it."""
    ends = [s.end_s for s in timeline.spans]
    starts = [s.start_s for s in timeline.spans]
    return min([0.0, *starts]), max([timeline.traced_s or timeline.wall_s, *ends])


def text(timeline: Timeline, *, width: int = WIDTH) -> str:
    """The timeline as text of at most `width` columns (at least 60 of them).

    A line says what ran and how long, then a row a lane shows when it was busy, for how long and in how many
    spans, then the ends of the axis. Lanes with long names are cut.
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
    """One character a cell: how much of the cell's time the spans cover."""
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


def svg(timeline: Timeline, *, width_in: float = 8.0) -> str:
    """The timeline as an SVG document: a row a lane, time in milliseconds, text left as text.

    Args:
      timeline: what to draw; without spans the chart is an empty axis that says so.
      width_in: width in inches; the height follows from the number of lanes.
    """
    import matplotlib  # takes a third of a second, and the terminal needs none of it
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    lanes = timeline.lanes
    start, end = stretch(timeline)
    settings: dict[Any, Any] = {
        "svg.fonttype": "none",
        "svg.hashsalt": "jaxperf",
        "font.size": 9,
        "text.parse_math": False,
    }
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=(width_in, 0.9 + 0.32 * max(1, len(lanes))), layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.add_subplot()
        for row, lane in enumerate(lanes):
            bars = [(a * 1e3, (b - a) * 1e3) for a, b in timeline.intervals(lane)]
            color = COLORS[row % len(COLORS)]
            axes.broken_barh(bars, (row - 0.36, 0.72), facecolor=color, edgecolor="white", linewidth=0.3)
        axes.set_yticks(range(len(lanes)), lanes)
        axes.set_ylim(max(1, len(lanes)) - 0.5, -0.5)  # the first lane on top
        axes.set_xlim(start * 1e3, max(end * 1e3, start * 1e3 + 1e-6))
        axes.set_xlabel("ms" if lanes else "the profiler saw nothing")
        axes.set_title(
            f"{timeline.name}: {quantity(timeline.wall_s, 's')} on the clock", loc="left", fontsize=9
        )
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None})
    return out.getvalue()
