"""Drawings as SVG for the page: its colours and fonts, nothing from outside, the same bytes each time.

matplotlib draws with the light page's colours. What it writes is then rewritten: every colour becomes the
page's CSS variable of that name (so that one drawing serves light, dark and paper), identifiers get a prefix
(several drawings share one page), and what a page does not need goes.
"""

from __future__ import annotations

import io
import re
import warnings
import xml.etree.ElementTree as ET
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jaxperf.report.text import plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH_IN = 5.2  # 374 px, a phone's: a page that shows it wider only enlarges the letters
FONT_SIZE = 11
# The light page's colours, by the CSS variable that replaces them; white is the page itself.
INK, MUTED, LINE, PAGE = "#1b1f24", "#57606a", "#d9dde2", "#ffffff"
SERIES = ("#0b62a4", "#c2410c", "#0f7b5f", "#9b3b8a", "#8a6d00", "#4b5563")
VARIABLES = {
    INK: "--ink",
    MUTED: "--muted",
    LINE: "--line",
    PAGE: "--page",
    **{color: f"--series-{i}" for i, color in enumerate(SERIES, 1)},
}
MARKERS = ("o", "s", "^", "D", "v", "P")  # a line is told apart without its colour too

_SVG = "http://www.w3.org/2000/svg"
_HREF = "{http://www.w3.org/1999/xlink}href"
_UNWANTED = (f"{{{_SVG}}}metadata", f"{{{_SVG}}}style")  # the style would rule the whole page
_FRACTION = re.compile(r"-?\d+\.\d{3,}")
_COLOR = re.compile(r"#[0-9a-f]{6}")
_FONT = re.compile(r"font-family: [^;]*;?\s*")
_SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text: found, read aloud, in the page's own font
    "svg.hashsalt": "jaxperf",
    "text.parse_math": False,  # a dollar in a name is a dollar
    "font.family": "DejaVu Sans",  # comes with matplotlib, so the layout is the same everywhere
    "font.size": FONT_SIZE,
    "axes.titlesize": FONT_SIZE - 1,
    "axes.labelsize": FONT_SIZE - 1,
    "xtick.labelsize": FONT_SIZE - 1,
    "ytick.labelsize": FONT_SIZE - 1,
    "legend.fontsize": FONT_SIZE - 1,
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
      height_in: height in inches; the width is a phone's.
    """
    import matplotlib  # a third of a second, which text and Markdown need not wait for
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    out = io.StringIO()
    with matplotlib.rc_context(_SETTINGS), warnings.catch_warnings():
        # Letters that DejaVu lacks (a name in Chinese) are only measured with it; the page's font has them.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure = Figure(figsize=(WIDTH_IN, height_in), layout="constrained")
        FigureCanvasSVG(figure)
        draw(figure)
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(out, format="svg", metadata=nothing)
    return _adopt(plain(out.getvalue()), title=plain(title), description=plain(description), prefix=prefix)


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
    """Only identifiers that are referred to, with the prefix; colours as variables; hundredths of a point."""
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
