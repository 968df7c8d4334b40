"""Figures: each kind of block as a picture, with a description for those who cannot see it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from jaxperf.report import draw as ax
from jaxperf.report.draw import INK, MARKERS, MUTED, PAGE, SERIES, Picture
from jaxperf.report.gantt import timelines
from jaxperf.report.words import SCALED, shown
from jaxperf.result import Axis, Block, Curve, Dots, Lines, Measurement, Table, Timelines

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DASHES: tuple[Any, ...] = ("-", (0, (4, 1.5)), (0, (1, 1.2)), (0, (5, 1, 1, 1)))


def pictures(block: Block, *, systems: Sequence[str] = ()) -> Iterator[Picture]:
    """The pictures of a block: a figure itself, a table's bars; nothing if there are no values.

    Args:
      block: any block.
      systems: the systems of the whole result, so that each has its color in every figure.
    """
    match block:
        case Table() if block.bars and len(block.rows) > 1:
            yield bars(block, systems)
        case Dots() if block.rows:
            yield dots(block)
        case Timelines() if block.runs:
            yield timelines(block)
        case Lines() if any(curve.known for curve in block.curves):
            yield panels(block) if block.panels else lines(block, systems)


def _indices(words: Sequence[str]) -> list[int]:
    """A number per word, the same for the same word; "" always gets one of its own."""
    seen: dict[str, int] = {}
    return [seen.setdefault(word or f"\0{i}", len(seen)) for i, word in enumerate(words)]


def _colors(found: Sequence[str], systems: Sequence[str], words: Sequence[str]) -> list[str]:
    """A color per system if every curve or row names one, else a color per word."""
    order = [systems.index(s) for s in found if s in systems]
    return [SERIES[i % len(SERIES)] for i in (order if len(order) == len(words) else _indices(words))]


def lines(block: Lines, systems: Sequence[str]) -> Picture:
    """Curves over a common x, on logarithmic axes if the values are spread that way."""
    curves = [c for c in block.curves if c.known]
    x = [p[0] for c in curves for p in c.known]
    y = [p[1] for c in curves for p in c.known]
    log_x = block.x.unit != "s" and ax.geometric(sorted(set(x)))
    log_y = log_x and ax.positive(y) and max(y) > 5 * min(y)
    colors = _colors([c.system for c in curves], systems, [c.color for c in curves])
    words = [c.dash or c.system for c in curves]
    dashes = list(dict.fromkeys(sorted(words, key=bool)))  # "" first: that is the solid line
    names = _legend(curves)

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        drawn = [_curve(axes, c, color, dashes.index(w)) for c, color, w in zip(curves, colors, words)]
        ax.set_scale(axes.xaxis, x, block.x.unit, log=log_x, each=True)
        ax.set_scale(axes.yaxis, y, block.y.unit, log=log_y)
        if block.zero and not log_y:
            axes.set_ylim(min(0.0, *y))
        if len(block.mark) == 2:
            _mark(axes, (block.mark[0], block.mark[1]), block.marked)
        ax.name_axes(axes, block.x, block.y)
        if names:
            ax.legend(figure, [drawn[i] for i in names.values()], list(names))

    told = "; ".join([_told(c, block.x, block.y) for c in curves] + ([block.marked] if block.marked else []))
    caption = f"{block.caption} Both axes are logarithmic.".strip() if log_y else block.caption
    return Picture(block.title, caption, told, draw, 2.9 + ax.legend_in(list(names)))


def _legend(curves: Sequence[Curve]) -> dict[str, int]:
    """The names that a legend holds, each with the index of its curve.

    Thin lines are named by the word of their color, if no other curve of that color has a name.
    """
    if len(curves) < 2:
        return {}
    bold = {c.name: i for i, c in enumerate(curves) if c.draw != "thin line"}
    told = {curves[i].color for i in bold.values()}
    thin = {
        c.color or c.name: i for i, c in enumerate(curves) if c.draw == "thin line" and c.color not in told
    }
    return {**thin, **bold}


def _curve(axes: Axes, curve: Curve, color: str, dash: int) -> object:
    hollow = curve.draw == "hollow points"
    dense = curve.draw == "line and points" and len(curve.known) > 24
    marker = MARKERS[SERIES.index(color)]
    (handle,) = axes.plot(
        curve.x,
        [math.nan if v is None else v for v in curve.y],
        color=INK if hollow else color,
        linestyle=DASHES[dash % len(DASHES)] if "line" in curve.draw else "none",
        marker=marker if "points" in curve.draw and not dense else "none",
        markerfacecolor=PAGE if hollow else color,
        linewidth=0.7 if curve.draw == "thin line" else None,
        clip_on=not hollow,
        zorder=3 if hollow else 2,
    )
    return handle


def _mark(axes: Axes, where: tuple[float, float], words: str) -> None:
    """A point with its words below it, on the side that has more room."""
    axes.plot(*where, "o", color=INK, ms=6)
    left = axes.transData.transform(where)[0] > axes.transAxes.transform((0.5, 0))[0]
    beside, side = (-8 if left else 8, -14), "right" if left else "left"
    label = axes.annotate(ax.short(words, 40), where, beside, textcoords="offset points", ha=side)
    label.set_bbox({"facecolor": PAGE, "edgecolor": "none", "pad": 1})  # readable across a curve


def _told(curve: Curve, x: Axis, y: Axis) -> str:
    (x0, y0), (x1, y1) = curve.known[0], curve.known[-1]
    top = max(v for _, v in curve.known)
    words = f"{curve.name}: {shown(y0, y.unit)} at {x.label} {shown(x0, x.unit)}"
    if len(curve.known) > 1:
        words += f", {shown(y1, y.unit)} at {shown(x1, x.unit)}"
    return words + (f", at most {shown(top, y.unit)}" if top > max(y0, y1) else "")


def panels(block: Lines) -> Picture:
    """A panel per curve, all on the same scales: for curves so dense that one would hide the next."""
    curves = [c for c in block.curves if c.known]
    x = [v for c in curves for v, _ in c.known]
    y = [v for c in curves for _, v in c.known]
    ground = min(max(0.0, min(y)), max(y))
    room = (max(y) - min(y) or 1.0) * 0.08

    def draw(figure: Figure) -> None:
        column = figure.subplots(len(curves), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
        for i, (axes, c) in enumerate(zip(column, curves)):
            known = [math.nan if v is None else v for v in c.y]
            axes.fill_between(c.x, known, ground, color=SERIES[i % len(SERIES)], alpha=0.25, linewidth=0)
            axes.plot(c.x, known, color=SERIES[i % len(SERIES)], linewidth=0.9)
            axes.set_title(ax.short(c.name, 50), loc="left", color=INK)
            axes.spines["bottom"].set_visible(False)
            axes.set_ylim(min(y) - room, max(y) + room)
        ax.set_scale(column[0].yaxis, y, block.y.unit, log=False, most=2)
        ax.set_scale(column[-1].xaxis, x, block.x.unit, log=False)
        ax.name_axes(column[-1], block.x)

    told = "; ".join(
        f"{c.name}: at least {shown(min(v for _, v in c.known), block.y.unit)}, "
        f"at most {shown(max(v for _, v in c.known), block.y.unit)}"
        for c in curves
    )
    return Picture(block.title, block.caption, told, draw, 0.45 + 0.8 * len(curves))


def dots(block: Dots) -> Picture:
    """A row per measurement with a dot per value and a stroke at their median."""
    unit = block.rows[0].unit
    rows = [m for m in block.rows if m.unit == unit]

    def draw(figure: Figure) -> None:
        axes = ax.rows(figure, [m.name for m in rows])
        for i, m in enumerate(rows):
            axes.plot(m.values, [i] * len(m.values), "o", color=SERIES[0], alpha=0.75, ms=6)
            axes.plot(statistics.median(m.values), i, "|", color=INK, ms=15, mew=2)
        ax.set_scale(axes.xaxis, [v for m in rows for v in m.values], unit, log=False)
        axes.set_xlabel(ax.short(unit, 40) if unit not in SCALED else "", loc="right")

    told = "; ".join(f"{m.name}: {', '.join(shown(v, unit) for v in m.values)}" for m in rows)
    return Picture(block.title, block.caption, told, draw, ax.rows_in(len(rows)) + 0.1)


def bars(table: Table, systems: Sequence[str]) -> Picture:
    """A table's medians as bars with interquartile ranges, or as the parts of its base row."""
    whole = next((m for m in table.rows if m.name == table.base), None)
    return _stacked(table, whole) if table.bars == "stacked" and whole else _bars(table, systems)


def _bars(table: Table, systems: Sequence[str]) -> Picture:
    """Bars, or dots on a logarithmic axis if the medians are far apart."""
    rows, unit = [m for m in table.rows if m.unit == table.rows[0].unit], table.rows[0].unit
    place = {m.name: i for i, m in enumerate(rows)}
    beside = [r for r in table.references if r.beside in place and r.unit == unit]
    values = [*(m.median for m in rows), *(r.value for r in beside)]
    ends = [*values, *(m.quartiles[1] for m in rows)]  # a label is beyond its interval
    log = ax.positive(values) and max(values) > 20 * min(values)
    colors = _colors([m.system for m in rows], systems, ["one"] * len(rows))

    def draw(figure: Figure) -> None:
        axes = ax.rows(figure, list(place))
        for i, (m, color) in enumerate(zip(rows, colors)):
            _bar(axes, i, m, color, log=log)
            end = _beyond(m, [r.value for r in beside if r.beside == m.name], ends, log=log)
            ax.write(axes, shown(m.median, unit), (end, i))
        for r in beside:
            axes.plot(r.value, place[r.beside], "D", mfc=PAGE, mec=INK, mew=1.2, ms=6, clip_on=False)
        ax.set_scale(axes.xaxis, ends, unit, log=log)
        if not log:
            axes.set_xlim(_reach(ends, 1.18))
        if unit not in SCALED:
            axes.set_xlabel(ax.short(unit, 40), loc="right")

    told = [f"{m.name}: median {shown(m.median, unit)}, IQR {shown(m.iqr, unit)}" for m in rows]
    told += [f"published by {r.system} next to {r.beside}: {shown(r.value, unit)}" for r in beside]
    caption = "Median and interquartile range."
    caption += f" Hollow diamonds: {', '.join(dict.fromkeys(r.system for r in beside))}." if beside else ""
    caption += " The axis is logarithmic." if log else ""
    return Picture(table.title, caption, "; ".join(told), draw, ax.rows_in(len(rows)))


def _bar(axes: Axes, row: int, m: Measurement, color: str, *, log: bool) -> None:
    low, high = m.quartiles
    if log:
        axes.plot(m.median, row, "o", color=color, ms=7)
    else:
        axes.barh(row, m.median, height=0.56, color=color)
    if high > low and (low > 0 or not log):
        axes.plot([low, high], [row, row], color=color if log else INK, lw=1.4, solid_capstyle="butt")


def _beyond(m: Measurement, published: Sequence[float], all_ends: Sequence[float], *, log: bool) -> float:
    """Where a bar's label begins: beyond the bar, its interval, and published figures that it would cover."""
    place = math.log if log else float
    end = max(m.median, m.quartiles[1])
    reach = (place(max(all_ends)) - place(min(all_ends))) * 0.2
    return max([end, *(v for v in published if v > end and place(v) < place(end) + reach)])


def _reach(values: Sequence[float], room: float) -> tuple[float, float]:
    """The range of an axis that includes zero, with room for labels beyond the largest value."""
    low, high = min(0.0, *values), max(0.0, *values) * room
    return low, high or (0.0 if low else 1.0)


def _stacked(table: Table, whole: Measurement) -> Picture:
    """Parts of a whole, each beginning where the one before ended, and the whole below them."""
    parts = [m for m in table.rows if m is not whole]
    starts = [sum(m.median for m in parts[:i]) for i in range(len(parts))]

    def draw(figure: Figure) -> None:
        axes = ax.rows(figure, [m.name for m in (*parts, whole)])
        for i, (m, start) in enumerate(zip((*parts, whole), (*starts, 0.0))):
            color = MUTED if m is whole else SERIES[i % len(SERIES)]
            axes.barh(i, m.median, left=start, height=0.56, color=color)
            share = "" if m is whole else f"  {m.median / (whole.median or 1) * 100:.0f} %"
            ax.write(axes, f"{shown(m.median, m.unit)}{share}", (start + m.median, i))
        ends = [start + m.median for m, start in zip((*parts, whole), (*starts, 0.0))]
        axes.set_xlim(_reach(ends, 1.3))
        ax.set_scale(axes.xaxis, [0.0, *ends], whole.unit, log=False)

    told = "; ".join(f"{m.name}: {shown(m.median, m.unit)}" for m in (*parts, whole))
    caption = f"Each part timed alone, medians; percentages are of {whole.name}."
    return Picture(table.title, caption, told, draw, ax.rows_in(len(table.rows)))
