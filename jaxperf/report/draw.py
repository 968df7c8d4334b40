"""Drawings as SVG for the page: its colors and fonts, nothing from outside, the same bytes each time.

matplotlib draws with the light page's colors. Its output is then rewritten: every color becomes the page's
CSS variable of that name (so that one drawing serves light, dark and paper), identifiers get a prefix
(several drawings share one page), and whatever a page does not need is removed.
"""

from __future__ import annotations

import io
import math
import re
import statistics
import warnings
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jaxperf.errors import plain
from jaxperf.report.words import SCALED, shown
from jaxperf.result import Axis as Along
from jaxperf.result import Timeline

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

WIDTH_IN = 6.0  # 432 units: letters of 10.5 are 8.7 px on a phone and 14 px in the page's widest drawing
FONT_SIZE = 10.5
# The light page's colors, by the CSS variable that replaces them; white is the page itself.
INK, MUTED, LINE, PAGE = "#1b1f24", "#57606a", "#d9dde2", "#ffffff"
SERIES = ("#0b62a4", "#c2410c", "#0f7b5f", "#9b3b8a", "#8a6d00", "#4b5563")
VARIABLES = {
    INK: "--ink",
    MUTED: "--muted",
    LINE: "--line",
    PAGE: "--page",
    **{color: f"--series-{i}" for i, color in enumerate(SERIES, 1)},
}
MARKERS = ("o", "s", "^", "D", "v", "P")  # lines can also be told apart without color

_SVG = "http://www.w3.org/2000/svg"
_HREF = "{http://www.w3.org/1999/xlink}href"
_UNWANTED = (f"{{{_SVG}}}metadata", f"{{{_SVG}}}style")  # the style would apply to the whole page
_FRACTION = re.compile(r"-?\d+\.\d{3,}")
_COLOR = re.compile(r"#[0-9a-f]{6}")
_FONT = re.compile(r"font-family: [^;]*;?\s*")
_SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text: found, read aloud, in the page's own font
    "svg.hashsalt": "jaxperf",
    "text.parse_math": False,  # a dollar in a name is a dollar
    "font.family": "DejaVu Sans",  # included in matplotlib, so the layout is the same everywhere
    "font.size": FONT_SIZE,
    "axes.titlesize": FONT_SIZE,
    "axes.labelsize": FONT_SIZE,
    "xtick.labelsize": FONT_SIZE,
    "ytick.labelsize": FONT_SIZE,
    "legend.fontsize": FONT_SIZE,
    "legend.frameon": False,
    "legend.handlelength": 2.2,
    "legend.columnspacing": 1.4,
    "text.color": INK,
    "axes.labelcolor": MUTED,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "axes.edgecolor": LINE,
    "xtick.bottom": False,
    "ytick.left": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": LINE,
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.8,
    "lines.markersize": 4.5,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
}


@dataclass(frozen=True)
class Picture:
    """What a page shows as a figure.

    Attributes:
      title, caption: next to the drawing; the caption says how to read it.
      description: the drawing in words and figures.
      draw: fills a matplotlib figure.
      height_in: inches; the width is `WIDTH_IN`.
      runs: the runs of a timeline, which a terminal draws with letters.
    """

    title: str
    caption: str
    description: str
    draw: Callable[[Figure], None]
    height_in: float
    runs: tuple[Timeline, ...] = ()


def svg(
    draw: Callable[[Figure], None],
    *,
    title: str,
    description: str,
    prefix: str,
    height_in: float = 3.0,
) -> str:
    """Have `draw` fill a figure and return it as an `<svg>` element for the page.

    Args:
      draw: makes the axes and what is in them.
      title: read aloud in place of the drawing.
      description: what the drawing shows, in words and figures.
      prefix: begins every identifier; differs between the drawings of a page.
      height_in: height in inches; the width is `WIDTH_IN`.

    Raises:
      ValueError: the values cannot be drawn; near 1.8e308 the margins of an axis overflow.
    """
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    document = _saved(draw, height_in, format="svg", metadata=nothing).decode()
    return _adopt(plain(document), title=plain(title), description=plain(description), prefix=prefix)


def png(draw: Callable[[Figure], None], *, height_in: float = 3.0) -> bytes:
    """Have `draw` fill a figure and return it as a PNG on the light page, for a notebook."""
    return _saved(draw, height_in, format="png", dpi=144, facecolor=PAGE, metadata={"Software": None})


def _saved(draw: Callable[[Figure], None], height_in: float, **how: Any) -> bytes:
    import matplotlib  # takes a third of a second, which text and Markdown save
    from matplotlib.figure import Figure

    out = io.BytesIO()
    with matplotlib.rc_context(_SETTINGS), warnings.catch_warnings():
        # Letters that DejaVu lacks (a Chinese name) are only measured with it; the page's font has them.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        warnings.simplefilter("error", RuntimeWarning)  # NumPy's, of numbers that overflow
        figure = Figure(figsize=(WIDTH_IN, height_in), layout="constrained")
        try:
            draw(figure)
            figure.savefig(out, **how)
        except (ArithmeticError, TypeError, RuntimeWarning) as e:
            raise ValueError(f"the values cannot be drawn: {e}") from e
    return out.getvalue()


def _adopt(document: str, *, title: str, description: str, prefix: str) -> str:
    """The drawing as an element of the page."""
    root = ET.fromstring(document)
    for parent in list(root.iter()):
        for child in [c for c in parent if c.tag in _UNWANTED]:
            parent.remove(child)
    used = {v[1:] for e in root.iter() if (v := e.get(_HREF))} | set(re.findall(r"url\(#([^)]+)\)", document))
    for element in root.iter():
        _rewrite(element, used, prefix)
    shape = root.attrib["viewBox"]  # the page gives the width
    root.attrib = {"xmlns": _SVG, "class": "plot", "viewBox": shape, "role": "img"}
    root.attrib |= {"aria-labelledby": f"{prefix}title", "aria-describedby": f"{prefix}desc"}
    for tag, words in (("desc", description), ("title", title)):
        label = ET.Element(tag, {"id": f"{prefix}{tag}"})
        label.text = words
        root.insert(0, label)
    return re.sub(r">\s+<", "><", ET.tostring(root, encoding="unicode"))


def _rewrite(element: ET.Element, used: set[str], prefix: str) -> None:
    """Keep only identifiers that are used, with the prefix; colors as variables; round to 0.01 points."""
    element.tag = element.tag.removeprefix(f"{{{_SVG}}}")
    if (name := element.attrib.pop("id", None)) in used:
        element.set("id", f"{prefix}{name}")
    if target := element.attrib.pop(_HREF, None):
        element.set("href", f"#{prefix}{target[1:]}")
    for key, value in element.attrib.items():
        if key in ("d", "x", "y", "transform"):
            element.set(key, _FRACTION.sub(lambda m: f"{float(m.group()):.2f}", value).replace("\n", ""))
        elif key in ("style", "clip-path"):
            value = value.replace("url(#", f"url(#{prefix}")
            element.set(key, _COLOR.sub(_variable, _FONT.sub("", value)))


def _variable(color: re.Match[str]) -> str:
    name = VARIABLES.get(color.group())
    return f"var({name}, {color.group()})" if name else color.group()


FEW = 8  # up to this many different x get a tick each


def positive(values: Sequence[float]) -> bool:
    """Whether a logarithmic axis can hold the values; powers beyond 100 would overflow its margins."""
    return min(values) > 1e-100 and max(values) < 1e100


def geometric(values: Sequence[float]) -> bool:
    """Whether values are spread like 1, 10, 100 rather than like 1, 2, 3: then a logarithmic axis fits."""
    if len(values) < 3 or not positive(values) or max(values) < 8 * min(values):
        return False
    middle = statistics.median(values)
    return abs(middle - statistics.geometric_mean(values)) < abs(middle - (min(values) + max(values)) / 2)


def tick(value: float, unit: str) -> str:
    """A tick's label: as short as possible, with the unit only if it changes with the size."""
    if unit not in SCALED:
        return f"{value:,.0f}" if 1000 <= abs(value) < 1e7 else re.sub(r"e\+?(-?)0*", r"e\1", f"{value:g}")
    digits, _, symbol = shown(value, unit).partition(" ")
    if "." in digits:
        digits = digits.rstrip("0").rstrip(".")
    return f"{digits} {symbol}" if value else "0"


def set_scale(
    axis: Axis, values: Sequence[float], unit: str, *, log: bool, each: bool = False, most: int = 5
) -> None:
    """Scale one axis and label its ticks.

    Args:
      axis: `axes.xaxis` or `axes.yaxis`.
      values: the values along it.
      unit: their unit.
      log: logarithmic; `values` must then be positive.
      most: about how many ticks at most.
      each: a tick for every different value, if they are few whole numbers.
    """
    from matplotlib import ticker

    along = axis.axis_name  # type: ignore[attr-defined]
    whole = each and all(float(v).is_integer() for v in values)
    if log:
        getattr(axis.axes, f"set_{along}scale")("log")
        decades = math.log10(max(values) / min(values)) if values else 1
        axis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0) if decades < 1.7 else (1.0,)))
        axis.set_minor_locator(ticker.NullLocator())
    else:
        axis.set_major_locator(ticker.MaxNLocator(most, integer=whole))
    if whole and len(different := sorted(set(values))) <= FEW:
        axis.set_major_locator(ticker.FixedLocator(different))
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: tick(value, unit)))


def rows(figure: Figure, names: Sequence[str]) -> Axes:
    """Axes with a named row for each name, from the top."""
    axes = figure.add_subplot()
    axes.grid(axis="x")
    axes.grid(visible=False, axis="y")
    axes.set_yticks(range(len(names)), [short(n, 30) for n in names], color=INK)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.spines["bottom"].set_visible(False)
    return axes


def rows_in(count: int) -> float:
    """Height in inches of `count` rows and an axis below them."""
    return 0.5 + 0.3 * count


def write(axes: Axes, words: str, where: tuple[float, float]) -> None:
    """Write words to the right of a point."""
    axes.annotate(short(words, 24), where, (7, 0), textcoords="offset points", va="center", color=INK)


def name_axes(axes: Axes, x: Along, y: Along | None = None) -> None:
    """Label x below its right end, and y above its top."""
    axes.set_xlabel(short(_named(x), 40), loc="right")
    if y:
        axes.set_title(short(_named(y), 40), loc="left", color=MUTED)


def _named(axis: Along) -> str:
    """The axis's label, with its unit if the ticks do not show it."""
    return f"{axis.label}, {axis.unit}" if axis.unit not in (*SCALED, "", axis.label) else axis.label


def legend(figure: Figure, handles: Sequence[Any], names: Sequence[str]) -> None:
    """One legend above everything, in as many columns as the longest name leaves room for."""
    labels, columns = [short(name, 48) for name in names], _columns(names)
    figure.legend(handles, labels, loc="outside upper left", ncols=columns, borderaxespad=0)


def legend_in(names: Sequence[str]) -> float:
    """Height in inches of a legend with these names."""
    return 0.2 * math.ceil(len(names) / _columns(names))


def _columns(names: Sequence[str]) -> int:
    """How many names fit next to each other: a letter is 6 units wide, the drawing 432."""
    return max(1, min(4, 72 // (max((len(name) for name in names), default=0) + 7)))


def short(words: str, most: int) -> str:
    """At most `most` letters of a name, all of which matplotlib accepts."""
    words = plain(words)
    return words if len(words) <= most else words[: most - 1] + "…"
