"""What the axes of all plots share: scales that fit the data, ticks that name their unit, a legend."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jaxperf.report.figure import MUTED
from jaxperf.report.text import plain, quantity

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

SCALED = ("s", "bytes", "FLOP", "FLOP/s", "bytes/s")  # units that a tick names; others stand beside the axis
FEW = 8  # so many different x get a tick each


def shown(value: float | None, unit: str) -> str:
    """A value with its unit as the page writes it: "12.3 µs"."""
    digits, _, symbol = quantity(value, unit).partition(" ")
    return f"{digits} {symbol.replace('u', 'µ', 1) if unit == 's' else symbol}".strip()


def tick(value: float, unit: str) -> str:
    """A tick's label: as short as it can be, the unit only where it changes with the size."""
    if unit not in SCALED:
        return f"{value:,.0f}" if 1000 <= abs(value) < 1e6 else f"{value:g}"
    digits, _, symbol = shown(value, unit).partition(" ")
    if "." in digits:
        digits = digits.rstrip("0").rstrip(".")
    return f"{digits} {symbol}" if value else "0"


def positive(values: Sequence[float]) -> bool:
    """Whether a logarithmic axis can hold the values; powers beyond 100 would overflow its margins."""
    return min(values) > 1e-100 and max(values) < 1e100


def geometric(values: Sequence[float]) -> bool:
    """Whether values are spread like 1, 10, 100 rather than like 1, 2, 3: then a logarithmic axis fits."""
    if len(values) < 3 or not positive(values) or max(values) < 8 * min(values):
        return False
    middle = statistics.median(values)
    return abs(middle - statistics.geometric_mean(values)) < abs(middle - (min(values) + max(values)) / 2)


def set_scale(
    axis: Axis, values: Sequence[float], unit: str, *, log: bool, each: bool = False, most: int = 5
) -> None:
    """Scale one axis and label its ticks.

    Args:
      axis: `axes.xaxis` or `axes.yaxis`.
      values: what lies along it.
      unit: theirs.
      log: logarithmic; `values` are positive then.
      most: so many ticks, about.
      each: a tick for every different value, where they are few whole numbers.
    """
    from matplotlib import ticker

    along = axis.axis_name  # type: ignore[attr-defined]
    if log:
        getattr(axis.axes, f"set_{along}scale")("log")
        decades = math.log10(max(values) / min(values)) if values else 1
        axis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0) if decades < 1.7 else (1.0,)))
        axis.set_minor_locator(ticker.NullLocator())
    else:
        axis.set_major_locator(ticker.MaxNLocator(most, integer=unit in ("epoch", "devices", "seed")))
    whole = each and all(float(v).is_integer() for v in values)
    if whole and len(different := sorted(set(values))) <= FEW:
        axis.set_major_locator(ticker.FixedLocator(different))
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: tick(value, unit)))


def name_axes(axes: Axes, x_unit: str, y_unit: str) -> None:
    """Say what runs along x, below its right end, and along y, above its top, where the ticks don't."""
    axes.set_xlabel("time" if x_unit == "s" else short(x_unit, 40), loc="right")
    if y_unit not in SCALED:
        axes.set_title(short(y_unit, 40), loc="left", color=MUTED)


def legend(figure: Figure, handles: Sequence[Any], labels: Sequence[str]) -> None:
    """One legend above everything, in as many columns as the longest name leaves room for."""
    columns = legend_columns(labels)
    figure.legend(
        handles,
        [short(label, 48) for label in labels],
        loc="outside upper left",
        ncols=columns,
        borderaxespad=0,
    )


def legend_columns(labels: Sequence[str]) -> int:
    """How many names stand side by side on a phone's width: a letter is 6 points wide, the width 374."""
    return max(1, min(3, 62 // (max(map(len, labels), default=0) + 7)))


def short(words: str, most: int) -> str:
    """At most so many letters of a name, none of which matplotlib could not take."""
    words = plain(words)
    return words if len(words) <= most else words[: most - 1] + "…"
