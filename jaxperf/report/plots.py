"""The kinds of pictures: one function each, from parts of results to a `Picture`."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jaxperf.measure.record import Measurement, Reference
from jaxperf.report import axes as ax
from jaxperf.report.figure import INK, MARKERS, PAGE, SERIES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DASHES: tuple[str | tuple[int, tuple[float, ...]], ...] = (
    "-",
    (0, (4, 1.5)),
    (0, (1, 1.2)),
    (0, (5, 1, 1, 1)),
)


@dataclass(frozen=True)
class Picture:
    """What the page shows as a figure.

    Attributes:
      title, caption: beside the drawing; the caption says how to read it.
      description: the drawing in words and figures, for who cannot see it.
      draw: fills a matplotlib figure.
      height_in: inches; the width is `figure.WIDTH_IN`.
    """

    title: str
    caption: str
    description: str
    draw: Callable[[Figure], None]
    height_in: float = 3.0


@dataclass(frozen=True)
class Curve:
    """A line with its looks: which colour, which dash, and whether it is points, a line or both."""

    label: str
    x: Sequence[float]
    y: Sequence[float | None]
    color: int = 0
    dash: int = 0
    marker: bool = True
    line: bool = True
    thin: bool = False

    @property
    def known(self) -> list[tuple[float, float]]:
        """The points that could be had."""
        return [(x, y) for x, y in zip(self.x, self.y) if y is not None]


def lines(
    title: str,
    caption: str,
    curves: Sequence[Curve],
    *,
    x_unit: str,
    y_unit: str,
    points: Sequence[tuple[str, float, float]] = (),
    mark: tuple[str, float, float] | None = None,
    zero: bool = False,
    height_in: float = 2.8,
) -> Picture:
    """Curves over a common x, on logarithmic axes where x is spread that way.

    Args:
      title, caption: of the picture.
      curves: what to draw.
      x_unit, y_unit: units of both axes.
      points: published figures (system, x, y), drawn as hollow diamonds.
      mark: one point worth a word: (word, x, y).
      zero: let y begin at zero, for what is compared by its height.
      height_in: inches, the legend apart.
    """
    x = [p[0] for c in curves for p in c.known] + [p[1] for p in points]
    y = [p[1] for c in curves for p in c.known] + [p[2] for p in points]
    log_x = x_unit != "s" and ax.geometric(sorted(set(x)))
    log_y = log_x and ax.positive(y) and max(y) > 5 * min(y)

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        handles = [_curve(axes, curve) for curve in curves]
        labels = ["" if curve.thin else curve.label for curve in curves]
        for i, system in enumerate(dict.fromkeys(p[0] for p in points)):
            at = [(p[1], p[2]) for p in points if p[0] == system]
            handles += axes.plot(*zip(*at), "Dv^"[i % 3], mfc=PAGE, mec=INK, mew=1.2, ms=6, clip_on=False)
            labels.append(system)
        if mark:
            axes.plot(*mark[1:], "o", color=INK, ms=6)
            axes.annotate(mark[0], mark[1:], (8, -14), textcoords="offset points")
        ax.set_scale(axes.xaxis, x, x_unit, log=log_x, each=True)
        ax.set_scale(axes.yaxis, y, y_unit, log=log_y)
        if zero and not log_y:
            axes.set_ylim(min(0.0, *y))
        ax.name_axes(axes, x_unit, y_unit)
        if len(labels) > 1:
            unique = {word: handle for word, handle in zip(labels, handles) if word}
            ax.legend(figure, list(unique.values()), list(unique))

    told = "; ".join(
        [_told(c, x_unit, y_unit) for c in curves]
        + [f"published by {s}: {ax.shown(b, y_unit)} at {x_unit} {a:g}" for s, a, b in points]
        + ([f"{mark[0]} at {mark[1]:.0f}"] if mark else [])
    )
    if log_y:
        caption = f"{caption} Both axes are logarithmic.".strip()
    names = {c.label for c in curves if not c.thin} | {p[0] for p in points}
    legend_in = 0.2 * math.ceil(len(names) / ax.legend_columns(list(names)))
    return Picture(title, caption, told, draw, height_in + legend_in)


def _curve(axes: Axes, curve: Curve) -> object:
    x, y = curve.x, [math.nan if v is None else v for v in curve.y]
    few = len(curve.known) <= 24
    (handle,) = axes.plot(
        x,
        y,
        color=SERIES[curve.color % len(SERIES)],
        linestyle=DASHES[curve.dash % len(DASHES)] if curve.line else "none",
        marker=MARKERS[curve.color % len(MARKERS)] if curve.marker and few else "none",
        linewidth=0.7 if curve.thin else None,
    )
    return handle


def _told(curve: Curve, x_unit: str, y_unit: str) -> str:
    if not curve.known:
        return f"{curve.label}: no points"
    (x0, y0), (x1, y1) = curve.known[0], curve.known[-1]
    top = max(y for _, y in curve.known)
    words = f"{curve.label}: {ax.shown(y0, y_unit)} at {ax.shown(x0, x_unit)}"
    if len(curve.known) > 1:
        words += f", {ax.shown(y1, y_unit)} at {ax.shown(x1, x_unit)}"
    return words + (f", at most {ax.shown(top, y_unit)}" if top > max(y0, y1) else "")


def bars(
    title: str,
    caption: str,
    measurements: Sequence[Measurement],
    *,
    references: Sequence[Reference] = (),
    colors: Sequence[int] = (),
    labels: Sequence[str] = (),
) -> Picture:
    """Medians as bars from zero with the inter-quartile range; dots on a logarithmic axis if far apart.

    Args:
      title, caption: of the picture.
      measurements: of one unit, a row each, from the top.
      references: published figures, hollow diamonds in the row of the measurement that they stand beside.
      colors: one a row, an index into the page's colours; all alike by default.
      labels: one a row; the measurements' names by default.
    """
    unit, medians = measurements[0].unit, [m.median for m in measurements]
    rows = {m.name: i for i, m in enumerate(measurements)}
    beside = [r for r in references if r.beside in rows and r.unit == unit]
    values = [*medians, *(r.value for r in beside)]
    ends = [*values, *(_quartiles(m)[1] for m in measurements)]  # a label stands beyond its interval
    log = ax.positive(values) and max(values) > 20 * min(values)
    names = [ax.short(n, 26) for n in labels or [m.name for m in measurements]]

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        axes.grid(axis="x")
        axes.grid(visible=False, axis="y")
        for i, m in enumerate(measurements):
            _bar(axes, i, m, SERIES[colors[i % len(colors)] % len(SERIES)] if colors else SERIES[0], log=log)
        for r in beside:
            axes.plot(r.value, rows[r.beside], "D", mfc=PAGE, mec=INK, mew=1.2, ms=6, clip_on=False)
        axes.set_yticks(range(len(names)), names, color=INK)
        axes.set_ylim(len(names) - 0.4, -0.6)
        axes.spines["bottom"].set_visible(False)
        ax.set_scale(axes.xaxis, ends, unit, log=log)
        if not log:
            axes.set_xlim(min(0, *values), max(0, *ends) * 1.18 or (0 if min(values) < 0 else 1))
        if unit not in ax.SCALED:
            axes.set_xlabel(ax.short(unit, 40), loc="right")

    told = [f"{m.name}: median {ax.shown(m.median, unit)}, IQR {ax.shown(m.iqr, unit)}" for m in measurements]
    told += [f"published by {r.system} beside {r.beside}: {ax.shown(r.value, unit)}" for r in beside]
    if beside:
        caption = f"{caption} Hollow diamonds: {', '.join(dict.fromkeys(r.system for r in beside))}.".strip()
    if log:
        caption = f"{caption} The axis is logarithmic.".strip()
    return Picture(title, caption, "; ".join(told), draw, 0.62 + 0.34 * len(names))


def _bar(axes: Axes, row: int, m: Measurement, color: str, *, log: bool) -> None:
    low, high = _quartiles(m)
    if log:
        axes.plot(m.median, row, "o", color=color, ms=7)
    else:
        axes.barh(row, m.median, height=0.56, color=color)
    if high > low and (low > 0 or not log):
        axes.plot([low, high], [row, row], color=color if log else INK, lw=1.4, solid_capstyle="butt")
    # over the bar's end and over its interval's, whichever is further
    axes.annotate(
        ax.short(ax.shown(m.median, m.unit), 24),
        (max(m.median, high), row),
        (7, 0),
        textcoords="offset points",
        va="center",
        fontsize="small",
        color=INK,
    )


def _quartiles(m: Measurement) -> tuple[float, float]:
    if len(m.values) < 2:
        return m.median, m.median
    low, _, high = statistics.quantiles(m.values, n=4, method="inclusive")
    return low, high
