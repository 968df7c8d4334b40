"""Pictures that stack: dots in rows, the parts of a step one after the other, curves in panels."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from jaxperf.measure.record import Series
from jaxperf.report import axes as ax
from jaxperf.report.curves import member, points
from jaxperf.report.figure import INK, MUTED, SERIES
from jaxperf.report.plots import Picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure


DENSE = 120  # points of a curve: beyond, several would hide each other


def strip(title: str, caption: str, series: Sequence[Series]) -> Picture:
    """A row for every series with a dot for each of its values and a stroke at their median."""
    unit = series[0].y_unit
    rows = [(s.name.partition("/")[2] or s.name, [y for y in s.y if y is not None]) for s in series]
    rows = [(name, values) for name, values in rows if values]

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        axes.grid(axis="x")
        axes.grid(visible=False, axis="y")
        for i, (_, values) in enumerate(rows):
            axes.plot(values, [i] * len(values), "o", color=SERIES[0], alpha=0.75, ms=6)
            axes.plot(statistics.median(values), i, "|", color=INK, ms=15, mew=2)
        axes.set_yticks(range(len(rows)), [ax.short(name, 30) for name, _ in rows], color=INK)
        axes.set_ylim(len(rows) - 0.4, -0.6)
        ax.set_scale(axes.xaxis, [v for _, values in rows for v in values], unit, log=False)
        axes.set_xlabel(ax.short(unit, 40) if unit not in ax.SCALED else "", loc="right")

    told = "; ".join(f"{name}: {', '.join(ax.shown(v, unit) for v in values)}" for name, values in rows)
    return Picture(title, caption, told, draw, 0.75 + 0.34 * len(rows))


def waterfall(
    title: str, caption: str, parts: Sequence[tuple[str, float]], total: tuple[str, float]
) -> Picture:
    """Parts of a step, in seconds, each beginning where the one before ended, and the whole below them."""
    ends = [0.0]
    for _, seconds in parts:
        ends.append(ends[-1] + seconds)
    rows = [*parts, total]

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        axes.grid(axis="x")
        axes.grid(visible=False, axis="y")
        for i, ((_, seconds), start) in enumerate(zip(rows, [*ends[:-1], 0.0])):
            whole = i == len(parts)
            axes.barh(i, seconds, left=start, height=0.56, color=MUTED if whole else SERIES[i % len(SERIES)])
            axes.annotate(
                f"{ax.shown(seconds, 's')}" + ("" if whole else f"  {seconds / (total[1] or 1) * 100:.0f} %"),
                (start + seconds, i), (6, 0), textcoords="offset points", va="center", fontsize="small",
            )  # fmt: skip
        axes.set_yticks(range(len(rows)), [ax.short(name, 24) for name, _ in rows], color=INK)
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.spines["bottom"].set_visible(False)
        axes.set_xlim(0, max(ends[-1], total[1]) * 1.3)
        ax.set_scale(axes.xaxis, [0, ends[-1]], "s", log=False)

    told = "; ".join(f"{name}: {ax.shown(seconds, 's')}" for name, seconds in rows)
    return Picture(title, caption, told, draw, 0.62 + 0.34 * len(rows))


def panels(title: str, caption: str, series: Sequence[Series]) -> Picture:
    """A panel for every series, all on the same scales: for curves so dense that one would hide the next."""
    x = [v for s in series for v, _ in points(s)]
    y = [v for s in series for _, v in points(s)]
    ground = min(max(0.0, min(y)), max(y))
    room = (max(y) - min(y) or 1.0) * 0.08

    def draw(figure: Figure) -> None:
        column = figure.subplots(len(series), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
        for i, (axes, s) in enumerate(zip(column, series)):
            known = [math.nan if v is None else v for v in s.y]
            axes.fill_between(s.x, known, ground, color=SERIES[i % len(SERIES)], alpha=0.25, linewidth=0)
            axes.plot(s.x, known, color=SERIES[i % len(SERIES)], linewidth=0.9)
            axes.set_title(ax.short(member(s), 50), loc="left", color=INK)
            axes.spines["bottom"].set_visible(False)
            axes.set_ylim(min(y) - room, max(y) + room)
        ax.set_scale(column[0].yaxis, y, series[0].y_unit, log=False, most=2)
        ax.set_scale(column[-1].xaxis, x, series[0].x_unit, log=False)
        ax.name_axes(column[-1], series[0].x_unit, "s")

    unit = series[0].y_unit
    caption = caption if unit in ax.SCALED else f"{caption} In {unit}.".strip()
    told = "; ".join(
        f"{member(s)}: at least {ax.shown(min(values), unit)}, at most {ax.shown(max(values), unit)}"
        for s in series
        if (values := [v for _, v in points(s)])
    )
    return Picture(title, caption, told, draw, 0.45 + 0.8 * len(series))
